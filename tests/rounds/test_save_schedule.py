"""`checkpoint.every: auto`: the server decides by its clock, all ranks save the same rounds, no bit depends on it."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import make_config, make_runner
from ranks import run_ranks
from toy import Quadratic

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.limits import Limits
from fedtorch.checkpoint.manifest_form import folders
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import CheckpointConfig, ClientsConfig, Config
from fedtorch.core.errors import CheckpointError, ConfigError, Interrupted
from fedtorch.core.server import ServerState
from fedtorch.privacy.settings import PrivacyConfig, SecureSum
from fedtorch.rounds.runner import Runner
from fedtorch.rounds.save_schedule import SaveSchedule, why_every_round
from fedtorch.train.job import ClientJob

TASK = Quadratic({"a": (1.0, -1.0, 4), "b": (2.0, 3.0, 2), "c": (0.5, 8.0, 6)}, noise=0.5)
AUTO = CheckpointConfig(keep=99)


class Clock:
    """One that the test turns."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Serving(FedAvg):
    """A server that trains and no client."""

    @property
    def limits(self) -> Limits:
        return replace(super().limits, trains_clients=False)

    def server_train(self, server: ServerState, job: ClientJob | None) -> None:
        server.weights.mul_(0.9)


def config_of(folder: Path, algorithm: Algorithm | None = None, **changes: Any) -> Config:
    return make_config(folder, TASK, algorithm, **{"rounds": 12, "checkpoint": AUTO, **changes})


def turned(config: Config, comm: Communicator | None = None, *, round_s: float, save_s: float, **more: Any) -> Runner:
    """A runner by whose clock a round takes so long, and the server's part of a checkpoint so long."""
    clock = Clock()
    runner = make_runner(config, comm, clock=clock, **more)
    before(runner.trainer, "train_cohort", clock, round_s)
    before(runner.server_training, "train", clock, round_s)
    before(runner.components.checkpoints, "write", clock, save_s)
    return runner


def before(owner: Any, name: str, clock: Clock, seconds: float) -> None:
    method: Callable[..., Any] = getattr(owner, name)

    def instead(*args: Any, **more: Any) -> Any:
        clock.now += seconds
        return method(*args, **more)

    setattr(owner, name, instead)


def saved(folder: Path) -> list[int]:
    return sorted(folders(folder / "checkpoints"))


@pytest.mark.parametrize(
    ("round_s", "save_s", "changes", "expected"),
    [
        (10.0, 0.1, {}, [6, 11, 12]),  # 60 s, and 10 s more would be 70; from when a checkpoint began on the same
        (10.0, 0.1, {"lose": 30.0}, [3, 5, 7, 9, 11, 12]),  # the second begins 20.1 s after the first
        (100.0, 0.1, {}, [*range(1, 13)]),  # every round is longer than what may be lost
        (10.0, 0.1, {"lose": 1000.0}, [12]),  # the end alone
        (10.0, 1.0, {}, [6, 11, 12]),  # 1 s of 51 s is 2 %
        (10.0, 2.0, {"lose": 30.0, "cost": 0.05}, [3, 7, 11, 12]),  # 2 s of 42 s
        (100.0, 4.0, {}, [1, 3, 5, 7, 9, 11, 12]),  # 4 s of 104 s are too much, of 204 s they are not
        (100.0, 4.0, {"cost": 0.04}, [*range(1, 13)]),  # 4 s of 104 s
        (0.0, 0.0, {"lose": 0.0}, [12]),  # by a clock that stands still nothing is ever lost
    ],
)
def test_a_checkpoint_is_due_before_too_much_can_be_lost_and_when_it_was_paid_for(
    round_s: float, save_s: float, changes: dict[str, float], expected: list[int], tmp_path: Path
) -> None:
    config = config_of(tmp_path, checkpoint=replace(AUTO, **changes))  # type: ignore[arg-type]
    turned(config, round_s=round_s, save_s=save_s).run()
    assert saved(tmp_path) == expected


@pytest.mark.parametrize("algorithm", [FedAvg(), Serving(), Ditto(lam=0.5)], ids=["fedavg", "serving", "ditto"])
def test_what_is_saved_when_changes_no_bit(algorithm: Algorithm, tmp_path: Path) -> None:
    digests = set()
    for name, round_s, count in (("often", 100.0, 12), ("seldom", 10.0, 3), ("end", 1.0, 1)):
        digests.add(turned(config_of(tmp_path / name, algorithm), round_s=round_s, save_s=0.1).run().digest)
        assert len(saved(tmp_path / name)) == count
    fixed = config_of(tmp_path / "fixed", algorithm, checkpoint=CheckpointConfig(every=1))
    assert {make_runner(fixed).run().digest} == digests


@pytest.mark.parametrize("seed", range(20))
def test_rounds_and_checkpoints_of_any_length_keep_to_cost_and_lose(seed: int, tmp_path: Path) -> None:
    """Over 400 rounds: no more time than `cost` for all but the first, and never longer than promised without one."""
    draw, clock = random.Random(seed), Clock()
    round_s, save_s = 10 ** draw.uniform(-1, 2.5), 10 ** draw.uniform(-2, 1)
    schedule = SaveSchedule(config_of(tmp_path), is_stateful=False, clock=clock)
    taken, since, last_s, longest, begun = [], clock.now, 0.0, round_s, clock.now
    for round in range(1, 401):
        schedule.begin_round()
        clock.now += round_s
        schedule.hear(schedule.word())
        promised = max(60.0, last_s / 0.02) + longest
        assert clock.now - since <= promised + 1e-6, (round, round_s, save_s)
        if schedule.is_due(round):
            began, last_s = clock.now, save_s * draw.uniform(0.9, 1.1)
            clock.now += last_s
            schedule.saved(began, last_s, is_whole=True)
            taken.append(last_s)
            since, longest = began, round_s + last_s
    assert sum(taken[1:-1]) <= 0.02 / 0.9 * 1.1 * (clock.now - begun), "each by what the one before took"
    assert taken


def test_a_server_that_trains_long_before_the_first_round_is_saved_after_it(tmp_path: Path) -> None:
    runner = turned(config_of(tmp_path), round_s=1.0, save_s=0.1)
    runner.components.clock.now += 3600.0  # type: ignore[attr-defined]
    runner.run()
    assert saved(tmp_path) == [1, 12]


def test_with_overlap_waiting_for_clients_is_no_cost_of_a_checkpoint(tmp_path: Path) -> None:
    """The same rounds as without, though a checkpoint is over only when the next clients have trained."""
    config = config_of(tmp_path, checkpoint=replace(AUTO, overlap=True))
    turned(config, round_s=10.0, save_s=1.0).run()
    assert saved(tmp_path) == [6, 11, 12]


def on_ranks(folder: Path, algorithm: Algorithm, overlap: bool) -> Any:
    """Only the server's clock goes."""
    with DistributedCommunicator.join(list(TASK.clients), timeout_s=60) as comm:
        config = config_of(folder, algorithm, checkpoint=replace(AUTO, overlap=overlap))
        round_s, save_s = (10.0, 0.1) if comm.is_server else (0.0, 0.0)
        runner = turned(config, comm, round_s=round_s, save_s=save_s)
        digest = runner.run().digest
        return digest if comm.is_server else runner.saving.saved


@pytest.mark.processes
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("algorithm", [Ditto(lam=0.5), Serving()], ids=["ditto", "serving"])
def test_all_ranks_save_the_rounds_that_the_server_says(algorithm: Algorithm, overlap: bool, tmp_path: Path) -> None:
    digest, *others = run_ranks(on_ranks, 3, tmp_path / "ranks", algorithm, overlap)
    assert others == [12, 12]
    assert digest == turned(config_of(tmp_path / "alone", algorithm), round_s=10.0, save_s=0.1).run().digest
    # a server that trains by itself has done so once before the first round
    expected = [6, 11, 12] if algorithm.limits.trains_clients else [5, 10, 12]
    assert saved(tmp_path / "ranks") == saved(tmp_path / "alone") == expected


def test_the_word_about_saving_is_no_message_of_its_own(tmp_path: Path) -> None:
    """It is in the round's verdict, which is as long whether a round is saved or not."""
    moved = {}
    for name, settings in (
        ("fixed", CheckpointConfig(every=12)),
        ("auto", replace(AUTO, lose=1e9)),
    ):
        runner = make_runner(config_of(tmp_path / name, checkpoint=settings), clock=Clock())
        runner.run()
        moved[name] = runner.components.comm.meter.take()
    counts = {name: {key: n for key, n in found.items() if "messages" in key} for name, found in moved.items()}
    assert counts["auto"] == counts["fixed"] and sum(counts["auto"].values()) > 12


def test_a_round_whose_checkpoint_failed_is_followed_by_one_that_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Checkpoints.write

    def refusing(self: Checkpoints, round: int, *args: Any, **more: Any) -> Path:
        if round in (6, 7):
            raise CheckpointError("the disk is full")
        return write(self, round, *args, **more)

    monkeypatch.setattr(Checkpoints, "write", refusing)
    turned(config_of(tmp_path), round_s=10.0, save_s=0.1).run()
    assert saved(tmp_path) == [8, 12]


class Died(Exception):
    """As a process does: nothing is saved."""


@pytest.mark.long
@pytest.mark.parametrize(("dies", "goes_on"), [(3, None), (8, 6), (12, 11)])
@pytest.mark.parametrize("algorithm", [FedAvg(), Ditto(lam=0.5)], ids=["fedavg", "ditto"])
def test_a_run_that_dies_between_checkpoints_comes_to_the_same_bits(
    algorithm: Algorithm, dies: int, goes_on: int | None, tmp_path: Path
) -> None:
    expected = turned(config_of(tmp_path / "whole", algorithm), round_s=10.0, save_s=0.1).run()
    config = config_of(tmp_path / "died", algorithm)
    runner = turned(config, round_s=10.0, save_s=0.1)
    train = runner.trainer.train_cohort

    def dying() -> Any:
        if runner.context.round == dies - 1:
            raise Died
        return train()

    runner.trainer.train_cohort = dying  # type: ignore[method-assign]
    with pytest.raises(Died):
        runner.run()
    again = turned(config, round_s=10.0, save_s=0.1)
    found = again.components.checkpoints.latest()
    assert (None if found is None else found.round) == goes_on
    result = again.run(goes_on)
    assert (result.digest, result.scores) == (expected.digest, expected.scores)


def test_a_signal_between_checkpoints_loses_no_round(tmp_path: Path) -> None:
    runners: list[Runner] = []
    runners.append(turned(config_of(tmp_path), round_s=1.0, save_s=0.1, stop=lambda: runners[0].context.round == 3))
    with pytest.raises(Interrupted, match="3 rounds are saved"):
        runners[0].run()
    assert saved(tmp_path) == [3]


NOISED = PrivacyConfig(kind="client", clip=1.0, noise_multiplier=1.0, delta=1e-3)


@pytest.mark.parametrize(
    ("changes", "is_stateful", "key"),
    [
        ({}, True, ""),
        ({"clients": ClientsConfig(on_loss="continue")}, False, ""),
        ({"clients": ClientsConfig(on_loss="continue")}, True, "clients.on_loss"),
        ({"privacy": NOISED}, False, "privacy.kind is client"),
        ({"privacy": PrivacyConfig(clip=1.0, secure_sum=SecureSum())}, False, "privacy.secure_sum"),
        ({"checkpoint": CheckpointConfig(every_steps=10)}, False, "checkpoint.every_steps"),
        ({"checkpoint": CheckpointConfig(every_seconds=5.0)}, False, "checkpoint.every_steps"),
    ],
)
def test_auto_is_every_round_where_what_was_saved_last_counts_for_more(
    changes: dict[str, Any], is_stateful: bool, key: str, tmp_path: Path
) -> None:
    config = config_of(tmp_path, **changes)
    why = why_every_round(config, is_stateful=is_stateful)
    assert why.startswith(key) and bool(why) == bool(key)
    schedule = SaveSchedule(config, is_stateful=is_stateful, clock=Clock())
    assert schedule.every == (1 if key else None)
    assert (f"after every round, as {key}" in str(schedule)) == bool(key)
    assert schedule.word() == ({} if key else {"saves": 0})
    fixed = SaveSchedule(replace(config, checkpoint=CheckpointConfig(every=7)), is_stateful=True, clock=Clock())
    assert fixed.every == 7 and not fixed.reason, "who sets a number gets it"


def test_what_a_crash_costs_is_said(tmp_path: Path) -> None:
    def text(**changes: Any) -> str:
        config = config_of(tmp_path, checkpoint=CheckpointConfig(**changes))
        return str(SaveSchedule(config, is_stateful=False, clock=Clock()))

    assert "a crash costs at most about 60 s of work, or a round; more where checkpoints would take more" in text()
    assert "about 5 s of work" in text(lose=5.0) and "more than 10 % of the time" in text(cost=0.1)
    assert text(every=1) == "after every round; a crash costs the round under way"
    assert text(every=4).endswith("a crash costs at most 4 rounds")


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the schedule said, each record once; other tests may have left loggers louder, or heard twice."""
    own = {id(record): record for record in caplog.records if record.name == "fedtorch.rounds.save_schedule"}
    return [record.getMessage() for record in own.values()]


def test_a_checkpoint_so_dear_that_more_may_be_lost_is_said_when_that_is_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("fedtorch"), "propagate", True)
    with caplog.at_level(logging.INFO, "fedtorch.rounds.save_schedule"):
        turned(config_of(tmp_path / "cheap"), round_s=10.0, save_s=1.0).run()
        turned(config_of(tmp_path / "short", rounds=2), round_s=1.0, save_s=4.0).run()
        assert told(caplog) == []
        turned(config_of(tmp_path / "dear"), round_s=100.0, save_s=4.0).run()
    (line,) = told(caplog)  # once, as it stays so
    assert line == (
        "a checkpoint took 4.0 s and may take 2 % of the time (checkpoint.cost), so the next one is due 200 s after "
        "it; a crash until then costs that much work"
    )


@pytest.mark.parametrize("text", ["sometimes", "0", "cost: 0", "cost: 1.5", "lose: -1"])
def test_what_is_no_schedule_is_refused(text: str, tmp_path: Path) -> None:
    from supervisor import toy_config

    from fedtorch.config.load import load

    key, _, value = text.rpartition(": ")
    with pytest.raises(ConfigError, match=f"checkpoint.{key or 'every'}"):
        load([toy_config(tmp_path)], [f"checkpoint.{key or 'every'}={value}"])
