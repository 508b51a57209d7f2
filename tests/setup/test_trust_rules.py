"""What a run of parties with keys of their own refuses, each rule by itself and in a dry run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from harness import make_config
from torch import Tensor
from toy import Quadratic

from fedtorch.algorithms.base import Algorithm, Updates, Way
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.feddyn import FedDyn
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.compression.settings import ExchangeConfig
from fedtorch.config.clients import ClientsConfig
from fedtorch.config.schema import Config, SystemConfig, TrustConfig
from fedtorch.core.errors import ConfigError
from fedtorch.core.places import Places
from fedtorch.core.server import ServerState
from fedtorch.core.settings import ServerConfig
from fedtorch.core.weights import Layout
from fedtorch.planning.promise import describe_public_sum
from fedtorch.privacy.settings import PrivacyConfig, SecureSum
from fedtorch.setup.build import BuiltRun
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules import trust
from fedtorch.train.job import ClientJob

PINNED: dict[str, Any] = {"placement": "pinned", "pinned_to": "rank", "pinned": {"a": 1, "b": 2}}


def plan(**system: Any) -> Plan:
    config = make_config(Path("run"), Quadratic(clients={"a": (1.0, 0.0, 4), "b": (1.0, 0.0, 4)}))
    config = replace(config, system=SystemConfig(**{**PINNED, **system}), trust=TrustConfig("members.yaml"))
    return cast(Plan, SimpleNamespace(config=config))


def test_pinned_ranks_whose_updates_wait_may_sign() -> None:
    trust.each_party_is_one_rank(plan())
    trust.updates_wait_until_all_have_signed(plan())
    trust.updates_wait_until_all_have_signed(plan(sum_scale="public"))


@pytest.mark.parametrize(
    ("system", "said"),
    [
        ({"placement": "balanced", "pinned": {}}, "placement is balanced and pinned_to"),
        ({"pinned_to": "node"}, "pinned_to node, with 1 ranks"),
        ({"ranks_per_worker": 2}, "pinned_to rank, with 2 ranks per worker"),
    ],
)
def test_a_party_is_one_rank(system: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        trust.each_party_is_one_rank(plan(**system))


def test_sums_that_begin_early_are_refused() -> None:
    with pytest.raises(ConfigError, match="system.sum_scale is previous.*set system.sum_scale to reports"):
        trust.updates_wait_until_all_have_signed(plan(sum_scale="previous"))


def test_the_rules_are_for_parties_alone() -> None:
    config: Config = plan().config
    for settings, applies in ((TrustConfig(), False), (TrustConfig("members.yaml"), True)):
        of = cast(Plan, SimpleNamespace(config=replace(config, trust=settings)))
        assert trust.SUBJECT.applies(of) is applies


def checked(algorithm: Algorithm | None = None, **sections: Any) -> Plan:
    """A plan of three silos that check all, with another algorithm or other sections."""
    task = Quadratic(clients={name: (1.0, 0.0, 4) for name in ("a", "b", "c")})
    config = make_config(Path("run"), task, **({"algorithm": algorithm} if algorithm else {}))
    system = SystemConfig(placement="pinned", pinned_to="rank", pinned={"a": 1, "b": 2, "c": 3})
    trusted = replace(config, system=system, trust=TrustConfig("members.yaml", verify="all"), **sections)
    return Plan.of(trusted, 4)


def test_what_silos_can_repeat_may_be_checked() -> None:
    for plan_ in (checked(), checked(FedAvg(weights="size")), checked(Scaffold()), checked(FedDyn())):
        for rule in trust.CHECKED.of_plan:
            rule(plan_)


class Looks(FedAvg):
    """Looks at single updates."""

    def aggregate(self, updates: Updates, weights: Sequence[float]) -> Tensor:
        return next(iter(updates))


class Parts(FedAvg):
    """Sends a part of its vectors."""

    def places(self, way: Way, layout: Layout, client: str, round: int) -> Places | None:
        return None


class Trains(FedAvg):
    """Has a server that trains."""

    def server_train(self, server: ServerState, job: ClientJob | None) -> None:
        pass


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (Looks(), "combines updates"),
        (FedAvg(weights="loss_reduction"), "has weights that are known only when"),
        (Parts(), "of whose vectors only parts travel"),
        (Trains(), "whose server trains, which silos cannot repeat"),
    ],
)
def test_rounds_that_are_no_sum_are_not_checked(algorithm: Algorithm, said: str) -> None:
    with pytest.raises(ConfigError, match=f"trust.verify is set but.*{said}"):
        trust.checked_rounds_are_sums(checked(algorithm))


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"paradigm": "local"}, "paradigm is local"),
        ({"exchange": ExchangeConfig(bits=4)}, "exchange.bits is 4"),
        ({"clients": ClientsConfig(sampling="size_proportional", per_round=2)}, "draws clients more than once"),
    ],
)
def test_other_ways_of_a_round_are_not_checked(sections: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"trust.verify is set but {said}|trust.verify is set but.*{said}"):
        trust.checked_rounds_are_sums(checked(**sections))


class OwnStep(FedDyn):
    def server_update(self, server: ServerState, grad: Tensor) -> None:
        """By the norm of all numbers."""
        server.weights.sub_(grad / grad.norm())


def test_a_share_of_the_leaves_wants_steps_of_leaves() -> None:
    def of(algorithm: Algorithm, optimizer: str = "none", share: Any = 0.05) -> Plan:
        found = checked(algorithm, server=ServerConfig(optimizer=optimizer, lr=None if optimizer == "none" else 0.01))  # type: ignore[arg-type]
        return replace(found, config=replace(found.config, trust=TrustConfig("members.yaml", verify=share)))

    for optimizer in ("none", "sgd", "adam", "yogi", "adagrad", "adamw"):
        trust.a_leaf_can_be_stepped_alone(of(FedAvg(), optimizer))
    trust.a_leaf_can_be_stepped_alone(of(OwnStep(), share="all"))
    for algorithm in (Scaffold(), FedDyn()):
        trust.a_leaf_can_be_stepped_alone(of(algorithm))
    for algorithm in (Own(), OwnStep()):
        with pytest.raises(ConfigError, match="whose step needs whole vectors; set trust.verify to all"):
            trust.a_leaf_can_be_stepped_alone(of(algorithm))


@dataclass(frozen=True)
class Own(Scaffold):
    """Somebody's own step."""

    def server_update(self, server: ServerState, grad: Tensor) -> None:
        super().server_update(server, grad * 2)


def test_instructions_are_compared_where_a_steps_bits_depend_on_them() -> None:
    for algorithm, optimizer, is_compared in (
        (FedAvg(), "none", False),
        (FedAvg(), "yogi", False),
        (FedAvg(), "adamw", False),
        (Scaffold(), "none", False),
        (FedDyn(), "sgd", False),
        (Own(), "none", True),
    ):
        server = ServerConfig(optimizer=optimizer, lr=None if optimizer == "none" else 0.01)  # type: ignore[arg-type]
        found = BuiltRun._processor(cast(BuiltRun, checked(algorithm, server=server)))
        assert found.keys() == ({"processor"} if is_compared else set())


def test_a_server_with_clients_would_check_itself() -> None:
    of = SimpleNamespace(config=checked().config, topology=SimpleNamespace(workers=((0,), (1,))))
    with pytest.raises(ConfigError, match="the server has clients of its own"):
        trust.the_server_of_checked_rounds_only_serves(cast(Plan, of))


@pytest.mark.parametrize(
    ("threshold", "colluders", "fits"), [(1.0, 1, True), (0.8, 1, True), (0.51, 1, False), (0.51, 0, True)]
)
def test_a_threshold_of_which_there_could_be_two_lists_is_refused(threshold: float, colluders: int, fits: bool) -> None:
    """Of five silos .51 are three; two lists of three have one silo in common, which may work with the server."""
    privacy = PrivacyConfig(clip=1.0, secure_sum=SecureSum(threshold=threshold), colluders=colluders)
    workers = tuple((rank,) for rank in range(1, 6))
    config = replace(checked().config, privacy=privacy)
    of = cast(Plan, SimpleNamespace(config=config, topology=SimpleNamespace(workers=workers)))
    if fits:
        trust.the_threshold_allows_one_list(of)
        return
    with pytest.raises(ConfigError, match="can be had twice.*set the threshold to 0.8 or more"):
        trust.the_threshold_allows_one_list(of)


def test_a_dry_run_says_against_whom_a_secure_sum_hides() -> None:
    privacy = PrivacyConfig(clip=1.0, secure_sum=SecureSum(threshold=1.0))
    alone = checked(privacy=privacy)
    assert "any server with 1 of the silos (privacy.colluders)" in describe_public_sum(alone)
    assert "the parts of 2 others or more" in describe_public_sum(alone)
    common = replace(alone, config=replace(alone.config, trust=TrustConfig()))
    assert "against a server that follows the protocol and fewer than 3 workers" in describe_public_sum(common)
