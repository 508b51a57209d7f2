"""Rounds whose updates travel while others train: when that sum counts, and runs that stop or fail half-way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from harness import make_config, make_runner
from ranks import run_ranks
from toy import Quadratic

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.sums.early_sides import EarlyReceiver, EarlySender
from fedtorch.config.asynchrony import AsyncConfig, ClockConfig, DurationConfig, StalenessConfig
from fedtorch.config.schema import (
    CheckpointConfig,
    ClientConfig,
    ClientsConfig,
    Config,
    EvalConfig,
    PrivacyConfig,
    SystemConfig,
)
from fedtorch.core.errors import Interrupted
from fedtorch.rounds.asynchrony.live import LiveTrainer
from fedtorch.rounds.buffer import Buffer

pytestmark = pytest.mark.processes

TASK = Quadratic({f"c{i}": (0.3 + 0.4 * i, (-1.0) ** i * (1 + i), 5 + 7 * i) for i in range(7)}, noise=0.5)
ROUNDS = 4


def config_of(folder: Path | str, **changes: Any) -> Config:
    settings: dict[str, Any] = {
        "client": ClientConfig(optimizer="sgd", lr=0.05, batch_size=4),
        "clients": ClientsConfig(per_round=5),
        "system": SystemConfig(sum_scale="previous"),
        "checkpoint": CheckpointConfig(every=1),
        "rounds": ROUNDS,
        **changes,
    }
    return make_config(Path(folder), settings.pop("task", TASK), **settings)


def count_sums() -> list[bool]:
    """For every sum that was asked for from now on in a round whose scale was known: was it the early one?"""
    took: list[bool] = []
    sum_of = EarlyReceiver.sum_of

    def noted(receiver: EarlyReceiver, *args: Any) -> Any:
        found = sum_of(receiver, *args)
        if receiver._exponent is not None:
            took.append(found is not None)
        return found

    EarlyReceiver.sum_of = noted  # type: ignore[method-assign]
    return took


def run(folder: str, changes: dict[str, Any], fault: str = "") -> Any:
    if fault:
        os.environ.update(FEDTORCH_TESTING="1", FEDTORCH_FAULTS=fault)
    took = count_sums()
    with DistributedCommunicator.join(tuple(TASK.clients), 30, "send") as comm:  # in memory nothing is sent early
        comm.preflight({})
        result = make_runner(config_of(folder, **changes), comm).run()
        return result.digest, result.scores, took


@pytest.mark.parametrize("evaluation", [{}, {"every": 1, "overlap": True}], ids=str)
def test_every_round_but_the_first_takes_the_sum_that_came_early(evaluation: dict[str, Any], tmp_path: Path) -> None:
    changes = {"eval": EvalConfig(**{"every": 0, **evaluation})}
    alone = make_runner(config_of(tmp_path / "alone", **changes)).run()
    digest, scores, took = run_ranks(run, 3, str(tmp_path / "ranks"), changes)[0]
    assert took == [True] * (ROUNDS - 1)
    assert (digest, scores) == (alone.digest, alone.scores)


def operations(folder: str, changes: dict[str, Any]) -> int:
    """How many operations the group of a run on one machine had."""
    with DistributedCommunicator.join(tuple(TASK.clients), 30) as comm:
        comm.preflight({})
        make_runner(config_of(folder, clients=ClientsConfig(), **changes), comm).run()
        return comm._group.sequence


def test_on_one_machine_a_known_scale_and_a_buffer_of_all_cost_no_operation_more(tmp_path: Path) -> None:
    equal = ClockConfig(duration=DurationConfig("table", seconds=dict.fromkeys(TASK.clients, 1.0)))
    kinds: dict[str, dict[str, Any]] = {
        "reports": {"system": SystemConfig()},
        "previous": {},
        "asynchronous": {"asynchrony": AsyncConfig(len(TASK.clients), len(TASK.clients), clock=equal)},
    }
    found = {kind: run_ranks(operations, 3, str(tmp_path / kind), changes)[0] for kind, changes in kinds.items()}
    assert found["reports"] == found["previous"] == found["asynchronous"] > ROUNDS


def parts_sent() -> list[list[str]]:
    """The clients' names of each part that this rank announces from now on."""
    seen: list[list[str]] = []
    send = EarlySender._send

    def noted(sender: EarlySender, number: int, part: list[Any]) -> None:
        seen.append([sender._main.names[client] for client, _ in part])
        send(sender, number, part)

    EarlySender._send = noted  # type: ignore[method-assign]
    return seen


def run_buffers(folder: str, changes: dict[str, Any], fault: str = "") -> Any:
    parts = parts_sent()
    return *run(folder, changes, fault), parts


BUFFERS = AsyncConfig(
    buffer=3,
    concurrent=4,
    staleness=StalenessConfig("polynomial"),
    clock=ClockConfig(duration=DurationConfig(sd=1.0, min=0.01)),
)


@pytest.mark.parametrize("scale", ["previous", "public"])
def test_parts_of_a_buffer_travel_before_it_closes(scale: Any, tmp_path: Path) -> None:
    """A job that a rank trained before the last version, for it would have waited, is part of a later buffer's sum."""
    changes = {"asynchrony": BUFFERS, "clients": ClientsConfig(), "rounds": 6}
    if scale == "public":
        changes |= {
            "system": SystemConfig(sum_scale="public"),
            "privacy": PrivacyConfig(clip=5.0),
            "algorithm": FedAvg(weights="equal"),
        }
    alone = make_runner(config_of(tmp_path / "alone", **changes)).run()
    (digest, _, took, _), *others = run_ranks(run_buffers, 3, str(tmp_path / "ranks"), changes)
    assert digest == alone.digest
    assert took == [True] * (5 + (scale == "public"))  # the first buffer's scale is that of its reports, if it is not
    assert sum(len(part) for *_, parts in others for part in parts) == 3 * len(took)


def handed_over() -> list[bool]:
    """List for each update that this rank hands over from now on whether its buffer was still being filled."""
    seen, is_filled = [], [False]
    put, open_buffer, train = EarlySender.put, Buffer.open, LiveTrainer._train_until_full

    def noted(sender: EarlySender, client: str, weight: float) -> None:
        seen.append(not is_filled[0])
        put(sender, client, weight)

    def opened(*args: Any) -> None:
        is_filled[0] = False
        open_buffer(*args)

    def trained(trainer: LiveTrainer) -> None:
        train(trainer)
        is_filled[0] = True

    changed: Any = (EarlySender, "put", noted), (Buffer, "open", opened), (LiveTrainer, "_train_until_full", trained)
    for owner, name, new in changed:
        setattr(owner, name, new)
    return seen


def run_live(folder: str, changes: dict[str, Any]) -> Any:
    seen = handed_over()
    return *run_buffers(folder, changes), seen


def test_by_the_real_clock_every_update_is_handed_over_before_its_buffer_closes(tmp_path: Path) -> None:
    changes = {
        "asynchrony": AsyncConfig(buffer=3, concurrent=5, clock=ClockConfig(kind="real")),
        "clients": ClientsConfig(),
        "rounds": 6,
        # updates of one size, so that all of them fit the scale of the buffer before, whoever comes first
        "task": Quadratic({name: (1.0, 3.0 + number / 10, 8) for number, name in enumerate(TASK.clients)}, noise=0.5),
    }
    (digest, _, took, *_), *others = run_ranks(run_live, 3, str(tmp_path / "ranks"), changes)
    assert took == [True] * 5  # the first buffer's scale is that of its reports
    assert sum(len(part) for *_, parts, _ in others for part in parts) == 15
    assert [early for *_, seen in others for early in seen] == [True] * 18  # the first buffer's too, which wait
    changes["asynchrony"] = AsyncConfig(buffer=3, concurrent=5, replay=str(tmp_path / "ranks"))
    assert make_runner(config_of(tmp_path / "alone", **changes)).run().digest == digest


def test_of_a_buffer_a_client_that_fails_is_in_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = "raise:client=c5,step=1"  # whenever it trains, which is in no round of its own
    changes = {"asynchrony": BUFFERS, "clients": ClientsConfig(on_failure="skip"), "rounds": 6}
    digest, _, took, _ = run_ranks(run_buffers, 3, str(tmp_path / "ranks"), changes, fault)[0]
    monkeypatch.setenv("FEDTORCH_TESTING", "1")
    monkeypatch.setenv("FEDTORCH_FAULTS", fault)
    assert digest == make_runner(config_of(tmp_path / "alone", **changes)).run().digest
    assert took == [True] * 5


def test_a_client_that_fails_is_in_no_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = "raise:client=c5,step=1,round=2;nan:client=c1,round=2"
    changes = {"clients": ClientsConfig(on_failure="skip")}
    digest, _, took = run_ranks(run, 3, str(tmp_path / "ranks"), changes, fault)[0]
    monkeypatch.setenv("FEDTORCH_TESTING", "1")
    monkeypatch.setenv("FEDTORCH_FAULTS", fault)
    alone = make_runner(config_of(tmp_path / "alone", **changes)).run()
    assert digest == alone.digest and took == [True] * (ROUNDS - 1)


def test_a_client_that_is_refused_makes_the_round_be_summed_anew(tmp_path: Path) -> None:
    changes = {"clients": ClientsConfig(on_failure="skip", max_norm_to_median=1.5)}
    digest, _, took = run_ranks(run, 3, str(tmp_path / "ranks"), changes)[0]
    assert digest == make_runner(config_of(tmp_path / "alone", **changes)).run().digest
    assert False in took


def stopped(folder: str) -> list[bool]:
    """Rank 1 is asked to stop in the third round, when it has trained a client."""
    took = count_sums()
    with DistributedCommunicator.join(tuple(TASK.clients), 30, "send") as comm:  # in memory nothing is sent early
        comm.preflight({})
        asked: list[int] = []

        def stop() -> bool:
            asked.append(runner.context.round)
            return comm.rank == 1 and asked.count(2) > 10

        runner = make_runner(config_of(folder), comm, stop=stop)
        with pytest.raises(Interrupted, match="2 rounds are saved"):
            runner.run()
        return took


def test_a_run_that_is_stopped_while_updates_travel_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    took = run_ranks(stopped, 3, str(tmp_path / "run"))[0]
    assert took == [True]  # that of the second round
    found = Checkpoints(tmp_path / "run" / "checkpoints", keep=2).latest()
    assert found is not None and found.round == 2
    alone = make_runner(config_of(tmp_path / "alone")).run()
    assert make_runner(config_of(tmp_path / "run")).run(2).digest == alone.digest
