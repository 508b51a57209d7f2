"""What asynchronous rounds refuse before anything is trained, each beside what they take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from harness import make_config
from toy import Quadratic

from fedtorch.algorithms.adapters.hetlora import HetLoRA
from fedtorch.algorithms.adapters.rolora import RoLoRA
from fedtorch.algorithms.adapters.stacks import FedEx, FLoRA
from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedassistant import FedAssistant
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.feddyn import FedDyn
from fedtorch.algorithms.fednova import FedNova
from fedtorch.algorithms.fedprox import FedProx
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.algorithms.seeds.fedkseed import FedKSeed
from fedtorch.config.asynchrony import AsyncConfig, ClockConfig, DurationConfig, StalenessConfig
from fedtorch.config.load import companions, load, to_dict
from fedtorch.config.schema import (
    AttackConfig,
    CheckpointConfig,
    ClientConfig,
    ClientsConfig,
    ExchangeConfig,
    PrivacyConfig,
    SystemConfig,
    TrustConfig,
)
from fedtorch.core.errors import ConfigError
from fedtorch.core.server import ServerState
from fedtorch.main import main
from fedtorch.privacy.settings import SecureSum
from fedtorch.setup.build import build
from fedtorch.train.settings import TrainerConfig

TASK = Quadratic(clients={"a": (1.0, 0.0, 3), "b": (2.0, 1.0, 3), "c": (2.0, 1.0, 3)}, start=(1.0, 2.0), double=False)
CLIENT = ClientConfig(optimizer="sgd", lr=0.1)
ASYNC = AsyncConfig(buffer=2, concurrent=3)
PREVIOUS = SystemConfig(sum_scale="previous")


@dataclass(frozen=True)
class TrainsOnServer(FedAvg):
    """Trains between rounds."""

    def server_train(self, server: ServerState, job: Any) -> None:
        """Nothing."""


@dataclass(frozen=True)
class SomePlaces(FedAvg):
    """Sends parts."""

    def places(self, way: Any, layout: Any, client: str, round: int) -> None:
        """All, by rounds."""
        return None


def table(**seconds: float) -> AsyncConfig:
    return replace(ASYNC, clock=ClockConfig(duration=DurationConfig(kind="table", seconds=seconds)))


REFUSED: dict[str, tuple[Algorithm, dict[str, Any], str]] = {
    "scale of reports": (FedAvg(), {"system": SystemConfig()}, "system.sum_scale is reports; set .* to previous"),
    "local": (FedAvg(), {"paradigm": "local"}, "paradigm is local, where no server adds up"),
    "centralized": (FedAvg(), {"paradigm": "centralized"}, "paradigm is centralized"),
    "places": (FedAvg(), {"asynchrony": AsyncConfig(2, 4)}, "async.concurrent is 4 but the task .* has 3 clients"),
    "table lacks": (FedAvg(), {"asynchrony": table(a=1, b=1)}, "seconds has no seconds of the client `c`"),
    "table knows": (FedAvg(), {"asynchrony": table(a=1, b=1, c=1, d=1)}, "seconds.d is set but .* has no client `d`"),
    "per_round": (FedAvg(), {"clients": ClientsConfig(per_round=2)}, "clients.per_round is 2; set .* to all"),
    "poisson": (FedAvg(), {"clients": ClientsConfig(sampling="poisson", rate=0.5)}, "clients.sampling is"),
    "size": (
        FedAvg(weights="equal"),
        {"clients": ClientsConfig(per_round=3, sampling="size_proportional")},
        "clients.per_round is 3",
    ),
    "extra": (FedAvg(), {"clients": ClientsConfig(per_round=2, extra=1)}, "clients.per_round is 2"),
    "deadline": (FedAvg(), {"clients": ClientsConfig(deadline=9.0)}, "clients.deadline is 9.0; set .* to null"),
    "min": (FedAvg(), {"clients": ClientsConfig(min=3)}, "clients.min is 3 but async.buffer is 2"),
    "scaffold": (Scaffold(), {}, "algorithm.name is Scaffold, which exchanges other vectors than the weights"),
    "fedkseed": (FedKSeed(seeds=4), {"client": replace(CLIENT, steps=4, epochs=None)}, "exchanges other vectors"),
    "feddyn": (FedDyn(alpha=0.1), {"client": replace(CLIENT, shuffle=False)}, "whose server keeps .* to a version"),
    "fednova": (FedNova(), {}, "known only when all clients are done"),
    "hetlora": (HetLoRA(), {}, "known only when all clients are done"),
    "lorar": (FedAvg(weights="lorar"), {}, "known only when all clients are done"),
    "robust": (FedAvg(robust="median"), {}, "combines updates in a way of its own"),
    "flora": (FLoRA(), {}, "exchanges other vectors"),
    "fedex": (FedEx(), {}, "exchanges other vectors"),
    "rolora": (RoLoRA(), {}, "sends parts of vectors"),
    "parts": (SomePlaces(), {}, "sends parts of vectors"),
    "messages": (FedAssistant(payload="delta"), {}, "compressed messages"),
    "server": (TrainsOnServer(), {}, "trains on the server between rounds"),
    "privacy": (
        FedAvg(weights="equal"),
        {"privacy": PrivacyConfig(kind="client", clip=1.0, noise_multiplier=1.0, delta=1e-5)},
        "privacy.kind is client, and who takes part depends on time",
    ),
    "secure sum": (
        FedAvg(weights="equal"),
        {"privacy": PrivacyConfig(secure_sum=SecureSum(), clip=1.0), "system": SystemConfig()},
        "privacy.secure_sum is set, whose masks need the clients",
    ),
    "trust": (FedAvg(), {"trust": TrustConfig(members="members.yaml", key="a.key")}, "trust.members is set"),
    "bits": (FedAvg(), {"exchange": ExchangeConfig(bits=4)}, "exchange.bits is 4"),
    "attack": (FedAvg(), {"attack": AttackConfig(kind="ipm", clients=("a",))}, "attack.kind is ipm, which is made of"),
    "workers": (FedAvg(), {"system": replace(PREVIOUS, ranks_per_worker=2)}, "system.ranks_per_worker is 2"),
    "span": (FedAvg(), {"client": replace(CLIENT, schedule_span="run")}, "client.schedule_span is run"),
    "saves": (
        FedAvg(),
        {
            "checkpoint": CheckpointConfig(every_steps=5),
            "client": ClientConfig(trainer=TrainerConfig("own_training:train")),
        },
        "every_steps is set but client.trainer is own_training:train",
    ),
}


def built(folder: Path, algorithm: Algorithm, **changes: Any) -> Any:
    settings = {"client": CLIENT, "system": PREVIOUS, "asynchrony": ASYNC, **changes}
    return build(make_config(folder, TASK, algorithm, **settings), num_ranks=1, rank=0)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_combined_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTORCH_TESTING", "1")
    algorithm, changes, why = REFUSED[name]
    with pytest.raises(ConfigError, match=f"^(async.*{why}|.*{why}.*)"):
        built(tmp_path, algorithm, **changes)


@pytest.mark.parametrize("algorithm", [FedAvg(), FedAvg(weights="equal"), FedProx(mu=0.1), Ditto(lam=0.5)])
def test_sums_with_weights_of_each_client_alone_are_taken(algorithm: Algorithm, tmp_path: Path) -> None:
    assert built(tmp_path, algorithm).jobs.plan.versions == 2
    assert built(tmp_path, algorithm, asynchrony=None).jobs is None


def test_messages_in_fewer_bits_wait_for_the_reports_of_their_buffer(tmp_path: Path) -> None:
    assert built(tmp_path, FedAvg(), exchange=ExchangeConfig(bits=16), system=SystemConfig()).jobs is not None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{buffer: 4, concurrent: 3}", "async.buffer is 4 but async.concurrent is 3"),
        ("{buffer: 0, concurrent: 3}", "async.buffer is 0 .* but should be an integer at least 1"),
        ("{concurrent: 3}", "async.buffer is not given"),
        ("{buffer: 2, concurrent: 3, towards: model}", "async.towards is model but async.buffer is 2"),
        ("{buffer: 2, concurrent: 3, waits: true}", "async.waits is true but async.buffer is 2 and async.concurrent 3"),
        ("{buffer: 1, concurrent: 3, max_staleness: -1}", "async.max_staleness is -1 .* at least 0"),
        (
            "{buffer: 1, concurrent: 3, staleness: {kind: old}}",
            "staleness.kind is .*old.* but should be constant",
        ),
        ("{buffer: 1, concurrent: 3, staleness: {kind: hinge, a: -1}}", "async.staleness.a is -1 .* at least 0"),
        (
            "{buffer: 1, concurrent: 3, staleness: {a: 1}}",
            "staleness.a is 1.0 but .*kind is constant",
        ),
        ("{buffer: 1, concurrent: 3, staleness: {kind: hinge, after: 0}}", "staleness.after is 0.0 but .* hinge"),
        ("{buffer: 1, concurrent: 3, staleness: {kind: polynomial, b: 2}}", "staleness.b is 2 but .* polynomial"),
        ("{buffer: 1, concurrent: 3, clock: {duration: {sd: -1}}}", "duration.sd is -1 .* above 0"),
        ("{buffer: 1, concurrent: 3, clock: {duration: {min: -0.5}}}", "duration.min is -0.5 .* at least 0"),
        ("{buffer: 1, concurrent: 3, clock: {duration: {median: 2}}}", "duration.median is set but .* half_normal"),
        ("{buffer: 1, concurrent: 3, clock: {duration: {kind: table}}}", "duration.seconds is empty"),
        (
            "{buffer: 1, concurrent: 3, clock: {duration: {kind: table, seconds: {a: 0}}}}",
            "async.clock.duration.seconds.a is 0 .* above 0",
        ),
        (
            "{buffer: 1, concurrent: 3, clock: {duration: {kind: rows, per: client}}}",
            "duration.per is client but .* rows",
        ),
        ("fast", "async is .*fast.* but should be a mapping or null"),
        ("{bufer: 1, concurrent: 3}", "unknown key `async.bufer`.*did you mean `buffer`"),
    ],
)
def test_bad_values_are_named_with_their_key(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load("smoke/fedavg", [f"async={text}"])


def test_the_end_of_the_command_is_that_of_a_bad_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = [
        "smoke/fedavg",
        "--set",
        "async={buffer: 3, concurrent: 9}",
        "system.sum_scale=previous",
        f"run.dir={tmp_path}",
    ]
    assert main(bad) == 2 and "async.concurrent is 9 but the task `text2sql` has 8 clients" in capsys.readouterr().err
    assert main(["smoke/fedavg", "--set", "async={buffer: 3, concurrent: 2}"]) == 2
    assert "async.buffer is 3 but async.concurrent is 2" in capsys.readouterr().err


def test_the_section_is_read_and_written() -> None:
    config = load(["smoke/fedavg", "features/async"])
    assert config.asynchrony == AsyncConfig(
        3,
        5,
        staleness=StalenessConfig("polynomial", a=0.5),
        clock=ClockConfig(duration=DurationConfig(sd=1.0, min=0.01)),
    )
    assert load(to_dict(config)) == config and to_dict(config)["async"]["buffer"] == 3
    assert load("smoke/fedavg").asynchrony is None and to_dict(load("smoke/fedavg"))["async"] is None
    assert load(["smoke/fedavg", "features/async"], ["async=null"]).asynchrony is None
    hinge = load(["smoke/fedavg", "features/async"], ["async.staleness={kind: hinge, b: 2}"]).asynchrony
    assert hinge is not None and hinge.staleness == StalenessConfig("hinge", b=2)
    drawn = load(["smoke/fedavg", "features/async"], ["async.clock.duration={kind: rows, per_row: 2}"]).asynchrony
    assert drawn is not None and drawn.clock.duration == DurationConfig("rows", per_row=2.0)
    real = load(["smoke/fedavg", "features/async"], ["async.clock.kind=real"]).asynchrony
    assert real is not None and real.clock == ClockConfig(kind="real")
    with pytest.raises(ConfigError, match="async.clock.duration is set but async.clock.kind is real"):
        load(["smoke/fedavg", "features/async"], ["async.clock={kind: real, duration: {sd: 2}}"])
    with pytest.raises(ConfigError, match="unknown key `asynchrony`"):
        load("smoke/fedavg", ["asynchrony=null"])


def test_runs_beside_it_have_rounds_that_wait() -> None:
    config = load(["smoke/fedavg", "features/async"], ["compare=[start, local, centralized]"])
    assert [(c.asynchrony, c.system.sum_scale) for c in companions(config).values()] == [(None, "reports")] * 3


def test_ranks_compare_the_plan(tmp_path: Path) -> None:
    plain, other = built(tmp_path, FedAvg()), built(tmp_path, FedAvg(), asynchrony=replace(ASYNC, buffer=1))
    key = "plan of asynchronous rounds"
    assert plain.facts()[key] == plain.jobs.plan.digest()[:16] != other.facts()[key]
    assert key not in built(tmp_path, FedAvg(), asynchrony=None).facts()
