"""Asynchronous rounds as they are run: the specification's tables, by the runs' own records and weights."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from toy import Quadratic

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.fedprox import FedProx
from fedtorch.config.asynchrony import AsyncConfig, ClockConfig, DurationConfig, StalenessConfig
from fedtorch.config.schema import (
    CheckpointConfig,
    ClientConfig,
    ClientsConfig,
    Config,
    EvalConfig,
    ExchangeConfig,
    PartitionConfig,
    PrivacyConfig,
    ServerConfig,
    SystemConfig,
)
from fedtorch.core.errors import CheckpointError, NonFiniteError, QuorumError
from fedtorch.rounds.asynchrony.training import JobTrainer
from fedtorch.rounds.runner import Runner
from fedtorch.tracking import records
from fedtorch.tracking.tracker import Tracker

PREVIOUS = SystemConfig(sum_scale="previous")
TABLE = DurationConfig(kind="table", seconds={"a": 2.0, "b": 3.0, "c": 5.0, "d": 7.0})
TARGETS = Quadratic(clients={name: (1.0, float(1 + place), 1) for place, name in enumerate("abcd")})
BY_TABLE = AsyncConfig(
    buffer=2,
    concurrent=3,
    starts="longest",
    staleness=StalenessConfig("polynomial"),
    clock=ClockConfig(duration=TABLE),
)
WHOLE = ClientConfig(optimizer="sgd", lr=1.0, batch_size=1000)
"""One step to the client's target: Δ = w_v - target."""
HALF = ServerConfig(optimizer="sgd", lr=0.5)


def by_table(folder: Path, rounds: int = 6, **changes: Any) -> Config:
    settings = {"client": WHOLE, "server": HALF, "system": PREVIOUS, "asynchrony": BY_TABLE, **changes}
    return make_config(folder, TARGETS, FedAvg(weights="equal"), rounds=rounds, **settings)


def weights_by_version(folder: Path, **changes: Any) -> list[float]:
    """w after each of six versions; each from a run of its own."""
    found = []
    for rounds in range(1, 7):
        runner = make_runner(by_table(folder / str(rounds), rounds, **changes))
        runner.run()
        found.append(float(runner.context.server.weights[0]))
    return found


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [0.75, 1.342830, 2.084473, 2.316817, 2.408409, 2.452109]),
        (
            {"asynchrony": replace(BY_TABLE, normalise="weights")},
            [0.75, 1.444544, 2.352667, 2.630395, 2.565198, 2.486653],
        ),
        ({"server": replace(HALF, momentum=0.5)}, [0.75, 1.717830, 2.849638, 3.515304, 3.340485, 2.974469]),
    ],
    ids=["count", "weights", "momentum"],
)
def test_versions_by_hand(changes: dict[str, Any], expected: list[float], tmp_path: Path) -> None:
    assert weights_by_version(tmp_path, **changes) == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize(
    ("changes", "lr", "expected"),
    [
        ({"staleness": StalenessConfig()}, 1.0, [0.5, 1.5, 3, 2.75, 2.375, 4.125]),
        ({}, 1.0, [0.5, 1.207107, 2.073132, 1.999909, 1.999954, 2.782578]),
        ({"towards": "model"}, 0.6, [0.3, 0.596985, 0.909798, 0.862575, 1.203803, 1.457694]),
    ],
    ids=["constant", "polynomial", "fedasync"],
)
def test_versions_of_one_arrival_by_hand(
    changes: dict[str, Any], lr: float, expected: list[float], tmp_path: Path
) -> None:
    """Δ = ½ (w_v - target); the last is FedAsync with α .6: w ← (1 - αs) w + αs w_i."""
    settings = replace(BY_TABLE, buffer=1, **changes)
    client = replace(WHOLE, lr=0.5)
    found = weights_by_version(tmp_path, asynchrony=settings, client=client, server=replace(HALF, lr=lr))
    assert found == pytest.approx(expected, abs=5e-7)


def recorded(config: Config) -> tuple[Runner, list[dict[str, Any]]]:
    """A runner that has run, and its records."""
    tracker = Tracker(config.folder, clients=list(config.task.manifest()), rounds=config.rounds)
    runner = make_runner(config, tracker=tracker)
    runner.run()
    tracker.close()
    return runner, list(records.read(config.folder / records.NAME))


def test_the_record_of_a_run_has_the_table(tmp_path: Path) -> None:
    _, found = recorded(by_table(tmp_path))
    arrivals = [record for record in found if record["kind"] == "arrival"]
    table = [(r["arrived_s"], r["client"], r["version"], r["staleness"], r["round"]) for r in arrivals]
    assert table == [
        (2, "a", 0, 0, 1), (3, "b", 0, 0, 1), (5, "c", 0, 1, 2), (5, "a", 1, 0, 2), (8, "b", 2, 0, 3),
        (9, "d", 0, 2, 3), (10, "c", 2, 1, 4), (10, "a", 2, 1, 4), (13, "b", 4, 0, 5), (15, "c", 4, 0, 5),
        (15, "a", 4, 1, 6), (16, "d", 3, 2, 6),
    ]  # fmt: skip
    assert [record["started_s"] for record in arrivals] == [0, 0, 0, 3, 5, 2, 5, 8, 10, 10, 13, 9]
    assert [record["number"] for record in arrivals] == list(range(12))
    assert {record["status"] for record in arrivals} == {"ok"}
    assert [record["weight"] for record in arrivals[:4]] == [0.5, 0.5, pytest.approx(0.353553, abs=1e-6), 0.5]
    assert {record["factor"] for record in arrivals if record["staleness"] == 1} == {(1 / 2**0.5).hex()}
    rounds = [record for record in found if record["kind"] == "round"]
    assert [record["extra"]["async/clock_s"] for record in rounds] == [3, 5, 9, 10, 15, 16]
    assert [record["extra"]["async/staleness_max"] for record in rounds] == [0, 1, 2, 1, 0, 2]
    assert [record["extra"]["async/staleness_mean"] for record in rounds] == [0, 0.5, 1, 1, 0, 1.5]
    of_clients = [record for record in found if record["kind"] == "client"]
    assert sorted((record["round"], record["client"]) for record in of_clients) == sorted(
        (record["round"], record["client"]) for record in arrivals
    )


def test_what_is_dropped_is_recorded_and_not_trained(tmp_path: Path) -> None:
    _, found = recorded(by_table(tmp_path, asynchrony=replace(BY_TABLE, max_staleness=1)))
    dropped = [record for record in found if record["kind"] == "arrival" and record["status"] == "dropped"]
    assert [(r["client"], r["arrived_s"], r["number"], r["weight"]) for r in dropped] == [
        ("d", 9, None, None),
        ("d", 16, None, None),
    ]
    rounds = [record for record in found if record["kind"] == "round"]
    assert [record["extra"]["async/clock_s"] for record in rounds] == [3, 5, 10, 13, 15, 20]
    assert not [record for record in found if record["kind"] == "client" and record["client"] == "d"]


def test_who_is_in_the_newest_version_is_evaluated_with_what_it_has_trained(tmp_path: Path) -> None:
    """The third version is of b and d, whose step goes to their targets, 2 and 4; a and c have what the server has."""
    runner = make_runner(by_table(tmp_path, 3, eval=EvalConfig(every=1, point="trained")))
    runner.run()
    found = [float(runner.evaluation.scorer.model(name)[0][0]) for name in "abcd"]
    assert found == pytest.approx([2.084473, 2, 2.084473, 4], abs=5e-7)


CLIENTS = {f"c{i}": (0.3 + 0.4 * i, (-1.0) ** i * (1 + i), 5 + 7 * i) for i in range(7)}
TASK = Quadratic(
    clients=CLIENTS, start=tuple(0.1 * i for i in range(50)), head=(0.5, -0.5), noise=0.7, dropout=0.2, double=False
)
CLIENT = ClientConfig(optimizer="sgd", lr=0.05, batch_size=4)
ADAM = ClientConfig(optimizer="adamw", lr=0.05, batch_size=4, optimizer_state="keep", schedule="linear")
ASYNC = AsyncConfig(buffer=3, concurrent=5, staleness=StalenessConfig("polynomial"))
CASES: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "fedavg": (FedAvg(), {}),
    "adam": (FedAvg(weights="equal"), {"server": ServerConfig(optimizer="adam", lr=0.1)}),
    "fedprox": (FedProx(mu=0.1), {"server": ServerConfig(optimizer="sgd", momentum=0.9)}),
    "stateful": (
        FedAvg(),
        {"client": ADAM, "partition": PartitionConfig(private=("head",)), "eval": EvalConfig(every=1)},
    ),
    "trained": (
        FedAvg(),
        {
            "client": ADAM,
            "asynchrony": replace(ASYNC, buffer=5),
            "partition": PartitionConfig(private=("head",)),
            "eval": EvalConfig(every=1, point="trained", best="per_client"),
        },
    ),
    "ditto": (Ditto(lam=0.5), {"client": ADAM}),
    "fedasync": (FedAvg(), {"asynchrony": replace(ASYNC, buffer=1, towards="model")}),
    "twice": (FedAvg(), {"asynchrony": replace(ASYNC, buffer=5), "client": ADAM}),
    "public": (
        FedAvg(weights="equal"),
        {"system": SystemConfig(sum_scale="public"), "privacy": PrivacyConfig(clip=0.4), "client": ADAM},
    ),
    "late": (FedAvg(), {"asynchrony": replace(ASYNC, buffer=1, max_staleness=3), "client": ADAM}),
    "sixteen": (FedAvg(), {"exchange": ExchangeConfig(bits=16), "system": SystemConfig(), "client": ADAM}),
    "four": (
        FedAvg(weights="equal"),
        {
            "exchange": ExchangeConfig(bits=4, error_feedback=True),
            "system": SystemConfig(),
            "asynchrony": replace(ASYNC, buffer=5),
        },
    ),
}
ROUNDS = 6


def run_case(name: str, folder: Path | str, **changes: Any) -> Runner:
    algorithm, settings = CASES[name]
    settings = {"client": CLIENT, "system": PREVIOUS, "rounds": ROUNDS, "asynchrony": ASYNC, **settings, **changes}
    return make_runner(make_config(Path(folder), TASK, algorithm, **settings))


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("stateful", "fedasync", "twice") else pytest.mark.slow) for n in CASES]
)
def test_ready_jobs_in_any_order_give_the_same_bits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = run_case(name, tmp_path / "usual").run().digest
    rng = random.Random(0)

    def in_time(wave: Any, load: float) -> bool:
        return wave.end is None or rng.random() < 0.7

    for seed in range(3):
        rng.seed(seed)
        monkeypatch.setattr(JobTrainer, "first", staticmethod(lambda job: (rng.getrandbits(32),)))
        monkeypatch.setattr("fedtorch.rounds.asynchrony.schedule._Wave.is_in_time", in_time)
        assert run_case(name, tmp_path / str(seed)).run().digest == usual


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "at"),
    [
        pytest.param(name, at, marks=() if at == 2 + place % 3 else pytest.mark.slow)
        for place, name in enumerate(CASES)
        for at in range(1, ROUNDS)
    ],
)
def test_a_run_that_goes_on_has_the_bits_of_one_that_was_not_interrupted(name: str, at: int, tmp_path: Path) -> None:
    every = {"checkpoint": CheckpointConfig(every=1)}
    whole = run_case(name, tmp_path / "whole", **every).run().digest
    run_case(name, tmp_path / "cut", rounds=at, **every).run()
    assert run_case(name, tmp_path / "cut", **every).run(at).digest == whole


@pytest.mark.parametrize("changes", [{}, {"server": ServerConfig(optimizer="sgd", momentum=0.9)}, {"client": ADAM}])
def test_all_at_equal_speed_have_the_bits_of_synchronous_rounds(changes: dict[str, Any], tmp_path: Path) -> None:
    equal = ClockConfig(duration=DurationConfig(kind="table", seconds=dict.fromkeys(CLIENTS, 3.0)))
    settings = AsyncConfig(buffer=7, concurrent=7, clock=equal, staleness=StalenessConfig("polynomial"))
    asynchronous = run_case("fedavg", tmp_path / "async", asynchrony=settings, **changes)
    synchronous = run_case("fedavg", tmp_path / "sync", asynchrony=None, **changes)
    assert asynchronous.run().digest == synchronous.run().digest
    assert torch.equal(asynchronous.context.server.weights, synchronous.context.server.weights)


def test_all_at_equal_speed_by_hand(tmp_path: Path) -> None:
    """K = M = 4: each version goes half the way to the mean target, 2.5."""
    equal = ClockConfig(duration=DurationConfig(kind="table", seconds=dict.fromkeys("abcd", 2.0)))
    found = weights_by_version(tmp_path, asynchrony=AsyncConfig(buffer=4, concurrent=4, clock=equal))
    assert found[:4] == [1.25, 1.875, 2.1875, 2.34375]


def test_all_at_unequal_speed_have_not(tmp_path: Path) -> None:
    settings = AsyncConfig(buffer=7, concurrent=7)
    asynchronous = run_case("fedavg", tmp_path / "async", asynchrony=settings).run()
    assert asynchronous.digest != run_case("fedavg", tmp_path / "sync", asynchrony=None).run().digest


def test_one_arrival_without_a_factor_is_a_step_of_the_server() -> None:
    """K 1, a 0: w ← w - η Δ, so versions by hand of `constant` hold for any durations; the factor is 1."""
    assert {StalenessConfig("polynomial", a=0).factor(tau) for tau in range(9)} == {1.0}


def arrivals_of(name: str, folder: Path) -> list[dict[str, Any]]:
    _, found = recorded(run_case(name, folder).components.config)
    return [record for record in found if record["kind"] == "arrival"]


@pytest.mark.parametrize("fault", ["raise:client=c1", "raise:client=c1,round=2", "nan:client=c1", "raise:client=c6"])
def test_a_client_that_fails_is_an_arrival_of_weight_0(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = arrivals_of("fedavg", tmp_path / "plain")
    monkeypatch.setenv("FEDTORCH_TESTING", "1")
    monkeypatch.setenv("FEDTORCH_FAULTS", fault)
    found = arrivals_of("fedavg", tmp_path / "failed")
    planned = ("client", "version", "staleness", "number", "arrived_s", "factor")
    assert [[r[key] for key in planned] for r in found] == [[r[key] for key in planned] for r in plain]
    failed = [record for record in found if record["weight"] is None]
    assert failed and {record["client"] for record in failed} == {fault.partition("client=")[2][:2]}
    for buffer in {record["buffer"] for record in failed}:
        others = [record for record in found if record["buffer"] == buffer and record["weight"] is not None]
        total = sum(CLIENTS[record["client"]][2] for record in others)
        expected = [CLIENTS[r["client"]][2] * float.fromhex(r["factor"]) / total for r in others]
        assert [record["weight"] for record in others] == pytest.approx(expected)


def test_a_buffer_of_failures_alone_makes_a_version_with_the_weights_of_before(tmp_path: Path) -> None:
    """Client a never trains: with K 1 the first version is w_0, and the plan stays as it is."""
    task = replace(TARGETS, bad=("a",))
    settings = replace(BY_TABLE, buffer=1, staleness=StalenessConfig())
    values = []
    for rounds in range(1, 7):
        config = by_table(tmp_path / str(rounds), rounds, asynchrony=settings, server=replace(HALF, lr=1.0))
        config = replace(config, task=task, client=replace(WHOLE, lr=0.5))
        runner = make_runner(config)
        runner.run()
        values.append(float(runner.context.server.weights[0]))
    # a0 fails; b0: Δ = ½(0 - 2) = -1; c0: -1.5; a1 fails; b2 (from 1, the second version): -.5; d0: -2
    assert values[:4] == [0.0, 1.0, 2.5, 2.5] and len({*values}) > 3


def test_versions_without_an_update_end_the_run_after_as_many_arrivals_as_three_rounds(tmp_path: Path) -> None:
    task = replace(TARGETS, bad=tuple("abcd"))
    settings = replace(BY_TABLE, buffer=1)
    runner = make_runner(replace(by_table(tmp_path, 20, asynchrony=settings), task=task))
    with pytest.raises(QuorumError, match="usable updates in 9 rounds in a row"):
        runner.run()
    assert runner.context.round == 8


def test_a_failure_may_end_the_run(tmp_path: Path) -> None:
    config = replace(by_table(tmp_path), task=replace(TARGETS, bad=("c",)), clients=ClientsConfig(on_failure="stop"))
    with pytest.raises(NonFiniteError):
        make_runner(config).run()


def watch_files(runner: Runner) -> list[int]:
    """How many versions are in files, each time that one is kept from now on."""
    found: list[int] = []
    versions = runner.context.versions
    keep = versions.keep

    def watched(version: int, flat: torch.Tensor) -> None:
        keep(version, flat)
        found.append(len(list((runner.context.spill / "versions").glob("*"))))

    versions.keep = watched  # type: ignore[method-assign]
    return found


@pytest.mark.long
def test_old_versions_go_to_files_beyond_the_memory(tmp_path: Path) -> None:
    wide = replace(TASK, width=6000)
    changes = {"asynchrony": replace(ASYNC, buffer=1), "rounds": 5}
    algorithm, settings = CASES["fedavg"]
    digests = []
    for memory in (1, 1024):
        config = make_config(
            tmp_path / str(memory), wide, algorithm, client=CLIENT, **settings, **changes,
            system=SystemConfig(sum_scale="previous", update_memory_mb=memory),
        )  # fmt: skip
        runner = make_runner(config)
        files = watch_files(runner)
        digests.append(runner.run().digest)
        assert (max(files) > 0) == (memory == 1)
    assert digests[0] == digests[1]


def test_no_more_versions_are_kept_than_the_plan_says(tmp_path: Path) -> None:
    runner = run_case("fedasync", tmp_path, checkpoint=CheckpointConfig(every=1), rounds=12)
    plan = runner.context.jobs.plan  # type: ignore[union-attr]
    seen: list[tuple[int, list[int]]] = []
    settle = runner.trainer.settle

    def watched(accepted: Any) -> None:
        settle(accepted)
        seen.append((runner.context.round + 1, runner.context.versions.held()))

    runner.trainer.settle = watched  # type: ignore[method-assign]
    runner.run()
    assert [held for _, held in seen] == [plan.live(version)[:-1] for version, _ in seen]
    assert max(len(held) for _, held in seen) + 1 <= plan.max_staleness + 1
    saved = runner.components.checkpoints.load_server(runner.components.checkpoints.at(12))
    assert sorted(name for name in saved.tensors if name.startswith("async/")) == sorted(
        f"async/version/{version}" for version in plan.live(12)[:-1]
    )


def test_a_checkpoint_of_another_plan_is_refused(tmp_path: Path) -> None:
    every = {"checkpoint": CheckpointConfig(every=1)}
    run_case("fedavg", tmp_path, rounds=3, **every).run()
    faster = replace(ASYNC, clock=ClockConfig(duration=DurationConfig(sd=2.0)))
    with pytest.raises(CheckpointError, match="another plan of who trains when"):
        run_case("fedavg", tmp_path, asynchrony=faster, **every).run(3)


def test_the_first_buffer_is_summed_by_the_reports_and_the_next_at_a_known_scale(tmp_path: Path) -> None:
    runner = run_case("fedavg", tmp_path)
    fixed: list[int | None] = []
    fix = runner.context.scale.fix  # type: ignore[union-attr]

    def watched(updates: Any) -> None:
        fixed.append(runner.context.scale.exponent)  # type: ignore[union-attr]
        fix(updates)

    runner.context.scale.fix = watched  # type: ignore[union-attr, method-assign]
    runner.run()
    assert fixed[0] is None and all(isinstance(each, int) for each in fixed[1:]) and len(fixed) == ROUNDS


def test_a_public_scale_cuts_updates_and_weighs_them_by_age(tmp_path: Path) -> None:
    """The table with a clip that nobody reaches: numbers are cut to steps of 2^-29, and nothing else differs."""
    public = {"system": SystemConfig(sum_scale="public"), "privacy": PrivacyConfig(clip=8.0)}
    expected = [0.75, 1.342830, 2.084473, 2.316817, 2.408409, 2.452109]
    assert weights_by_version(tmp_path / "wide", **public) == pytest.approx(expected, abs=1e-6)
    public["privacy"] = PrivacyConfig(clip=1.0)  # of targets 1 and 2 each counts 1: a step of ½
    assert weights_by_version(tmp_path / "clipped", **public)[0] == pytest.approx(0.5, abs=1e-7)


def test_models_are_evaluated_by_version(tmp_path: Path) -> None:
    runner = run_case("fedavg", tmp_path, eval=EvalConfig(every=2))
    result = runner.run()
    assert result.best_round in (2, 4, 6) and result.scores
    assert json.dumps(sorted(result.scores)) == json.dumps(sorted(CLIENTS))
