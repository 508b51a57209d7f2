"""What cannot keep the promise is refused before anything is trained, by name and with the reason."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from private_runs import TASK, private
from torch import Tensor

from fedtorch.algorithms import ALGORITHMS
from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedassistant import FedAssistant
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.feddyn import FedDyn
from fedtorch.algorithms.fednova import FedNova
from fedtorch.algorithms.fedprox import FedProx
from fedtorch.algorithms.message import MessageAlgorithm
from fedtorch.algorithms.pfedme import PFedMe
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.algorithms.sums import why_not_private
from fedtorch.config.load import load, to_dict
from fedtorch.config.registry import named_class
from fedtorch.config.schema import ClientsConfig, EvalConfig, SystemConfig
from fedtorch.core.errors import ConfigError
from fedtorch.core.server import ServerState
from fedtorch.planning.promise import describe_private
from fedtorch.privacy.accounting import Accountant
from fedtorch.privacy.settings import AdaptiveClip, MovingClip, PrivacyConfig
from fedtorch.setup.build import build
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.privacy import the_round_is_one_clipped_sum


@dataclass(frozen=True)
class LooksAtEach(FedAvg):
    """A robust rule."""

    def aggregate(self, updates: Any, weights: Any) -> Tensor:
        return max(updates, key=lambda update: float(update.norm()))


@dataclass(frozen=True)
class StepsByCount(FedAvg):
    """Its step depends on how many took part."""

    def server_update(self, server: ServerState, grad: Tensor) -> None:
        server.weights.sub_(grad * len(server.accepted))


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [
        (FedAvg(), "weighs clients by size, which depends on their data; set algorithm.weights to equal"),
        (FedAvg(weights="lorar"), "weighs clients by lorar"),
        (FedNova(weights="equal"), "weighs clients in a way of its own"),
        (Scaffold(weights="equal"), "weighs clients in a way of its own"),
        (FedDyn(), "weighs clients in a way of its own"),
        (LooksAtEach(weights="equal"), "combines updates in a way of its own"),
        (StepsByCount(weights="equal"), "takes the server's step in a way of its own"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Algorithm) else "",
)
def test_algorithms_whose_round_is_not_one_clipped_sum(algorithm: Algorithm, reason: str, tmp_path: Path) -> None:
    config = replace(private(tmp_path, algorithm), algorithm_name="this")
    with pytest.raises(ConfigError, match=f"privacy.kind is client but algorithm.name is this, which {reason}"):
        build(config, num_ranks=1, rank=0)


ADMITTED = {"fedavg", "fedopt", "fedprox", "ditto", "pfedme", "rolora", "fedkseed", "decomfl"}
REFUSED = {
    "scaffold": "weighs clients in a way of its own",
    "fednova": "weighs clients in a way of its own",
    "feddyn": "weighs clients in a way of its own",
    "hetlora": "weighs clients in a way of its own",
    "flexlora": "combines updates in a way of its own",
    "flora": "combines updates in a way of its own",
    "fedex": "combines updates in a way of its own",
    "fedparsing": "in a way of its own",
    "fewfedweight": "in a way of its own",
    "silo_augmented": "exchanges nothing",
    "metaweighting": "in a way of its own",
    "streaming_diloco": "in a way of its own",
    "local": "exchanges nothing",
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_admitted_or_refused_with_its_reason(name: str) -> None:
    """With equal weights, where it has any; a new one has to be put into one of the lists."""
    cls = named_class("algorithm", name, "")
    known = {field.name for field in dataclasses.fields(cls)}
    given = {"weights": "equal", "ranks": {"a": 1}, "group": "fedparsing_ema"}
    algorithm = cls(**{key: value for key, value in given.items() if key in known})
    if issubclass(cls, MessageAlgorithm):
        assert name == "fedassistant"  # its messages are refused as such
    elif name in ADMITTED:
        assert why_not_private(algorithm) == ""
    else:
        assert REFUSED[name] in why_not_private(algorithm)


def test_a_robust_rule_and_compressed_messages_are_refused(tmp_path: Path) -> None:
    robust = replace(private(tmp_path, FedAvg(weights="equal", robust="median")), algorithm_name="fedavg")
    with pytest.raises(ConfigError, match="algorithm.name is fedavg, which combines updates in a way of its own"):
        build(robust, num_ranks=1, rank=0)
    messages = replace(private(tmp_path, FedAssistant()), algorithm_name="fedassistant")
    with pytest.raises(ConfigError, match="whose clients send compressed messages: which numbers they choose"):
        the_round_is_one_clipped_sum(Plan.of(messages, 1))


@pytest.mark.parametrize("kind", [FedAvg, FedProx, Ditto, PFedMe])
def test_algorithms_that_keep_the_promise(kind: type[FedAvg], tmp_path: Path) -> None:
    assert build(private(tmp_path, kind(weights="equal")), num_ranks=1, rank=0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"clients": ClientsConfig()}, "clients.sampling is Uniform; its account holds only where"),
        ({"clients": ClientsConfig(per_round=3, sampling="size_proportional")}, "clients.sampling is SizeProportional"),
        ({"clients": {"min": 2}}, "clients.min is 2: a round in which the server takes no step would tell"),
        ({"clients": {"on_failure": "stop"}}, "clients.on_failure is stop: the end of the run would tell"),
        ({"clients": {"max_update_norm": 1.0}}, "clients.max_update_norm is 1.0: who is counted out"),
        ({"clients": {"max_norm_to_median": 2.0}}, "clients.max_norm_to_median is 2.0: who is counted out"),
        ({"paradigm": "local"}, "paradigm is local, where no server adds up"),
        ({"eval": EvalConfig(every=1, patience=3)}, "eval.patience is 3: the run would end by scores"),
        ({"eval": EvalConfig(every=1, best="per_client")}, "eval.best is per_client, which shows"),
        ({"eval": EvalConfig(every=1, point="trained")}, "eval.point is trained, which shows"),
        ({"eval": EvalConfig(every=1, per_example=True)}, "eval.per_example is true, which shows"),
        ({"system": SystemConfig(exchange="reduce")}, "system.exchange is reduce, in which workers see sums"),
        ({"privacy": {"delta": 0.06}}, "privacy.delta is 0.06 but there are 20 clients; above 1/20"),
        (
            {"privacy": {"clip": MovingClip(AdaptiveClip(bit_noise=0.4))}},
            "the noise on the number of unclipped clients, 0.4 .* set it above 0.5",
        ),
    ],
    ids=lambda value: str(next(iter(value))) if isinstance(value, dict) else "",
)
def test_settings_that_would_tell_something(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    if isinstance(changes.get("clients"), dict):
        changes = {"clients": ClientsConfig(sampling="poisson", rate=0.3, **changes["clients"])}
    with pytest.raises(ConfigError, match=reason):
        build(private(tmp_path, **changes), num_ranks=1, rank=0)


@pytest.mark.parametrize("reveal", [(), ("scores",)], ids=str)
def test_what_is_revealed_may_choose(reveal: tuple[str, ...], tmp_path: Path) -> None:
    """With rows that belong to nobody who trains, their scores may do so in any case."""
    config = private(tmp_path, eval=EvalConfig(every=1, patience=3), privacy={"reveal": reveal})
    if reveal:
        assert build(config, num_ranks=1, rank=0)


def test_the_rate_belongs_to_poisson_sampling_and_is_given_once(tmp_path: Path) -> None:
    both = ClientsConfig(sampling={"name": "poisson", "rate": 0.5})
    assert both == ClientsConfig(sampling="poisson", rate=0.5) and both.rate == 0.5
    for fields, reason in (
        ({"rate": 0.5}, "clients.sampling is uniform; set it to poisson"),
        ({"sampling": "poisson"}, "clients.rate is not given"),
        ({"sampling": "poisson", "rate": 0.5, "per_round": 3}, "set clients.per_round to all"),
        ({"sampling": {"name": "poisson", "rate": 0.1}, "rate": 0.5}, "give one of them"),
    ):
        with pytest.raises(ConfigError, match=reason):
            ClientsConfig(**fields)  # type: ignore[arg-type]
    path = tmp_path / "c.yaml"
    path.write_text("clients: {sampling: poisson, rate: 0.25}\n")
    config = load(path)
    assert config.clients.sampling == {"name": "poisson", "rate": 0.25}
    assert load([to_dict(config)]).clients == config.clients
    path.write_text("clients: {sampling: poisson, rate: 1.5}\n")
    with pytest.raises(ConfigError, match="clients.rate is 1.5 .*at most 1"):
        load(path)


def test_the_dry_run_shows_the_curve_and_where_the_budget_ends(tmp_path: Path) -> None:
    changes = {"noise_multiplier": 3.0, "reveal": ("losses",)}
    built = build(private(tmp_path, rounds=20, rate=0.5, privacy=changes), num_ranks=1, rank=0)
    said = describe_private(built)
    lines = [line.split() for line in said.splitlines() if line.split()[0].isdigit()]
    assert [int(count) for count, _ in lines] == [1, 2, 5, 10, 20]
    assert float(lines[-1][1]) == round(Accountant(0.5, 3.0, 1e-3).epsilon(20), 4)
    assert "outside the guarantee: the mean training loss of every round (privacy.reveal)" in said
    limited = replace(
        built, config=private(tmp_path, rounds=20, rate=0.5, privacy={"noise_multiplier": 3.0, "max_epsilon": 2.0})
    )
    assert "privacy.max_epsilon 2 is enough for" in describe_private(limited)
    assert not (tmp_path / "privacy").exists()
    simulated = replace(built, config=private(tmp_path, privacy={"simulate": True, "seed": 1}))
    assert "simulated" in describe_private(simulated) and "epsilon" not in describe_private(simulated)


def test_no_privacy_says_nothing(tmp_path: Path) -> None:
    built = build(private(tmp_path), num_ranks=1, rank=0)
    assert describe_private(replace(built, config=replace(built.config, privacy=PrivacyConfig()))) == ""
    assert TASK.clients
