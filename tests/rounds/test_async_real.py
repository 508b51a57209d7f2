"""Rounds by the real clock: arrivals are written down, and a run that is replayed has the same bits on any ranks."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import interrupt, make_config, make_runner
from ranks import expect_exit, run_ranks
from safetensors import safe_open
from sleepy import Sleepy
from toy import Quadratic

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.checkpoint.under_way import FOLDER
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.asynchrony import AsyncConfig, ClockConfig, StalenessConfig
from fedtorch.config.schema import (
    CheckpointConfig,
    ClientConfig,
    Config,
    EvalConfig,
    ExchangeConfig,
    PartitionConfig,
    ServerConfig,
    SystemConfig,
)
from fedtorch.core.errors import CheckpointError, ConfigError, Interrupted
from fedtorch.rounds.asynchrony.arrivals_file import read_events
from fedtorch.rounds.asynchrony.federation import Event, Federation
from fedtorch.rounds.asynchrony.live import LiveTrainer
from fedtorch.rounds.asynchrony.pausing import Pausable
from fedtorch.rounds.buffer import LATE
from fedtorch.rounds.membership import Stopped
from fedtorch.train.engine import Engine
from fedtorch.train.settings import TrainerConfig

CLIENTS = {f"c{i}": (0.3 + 0.4 * i, (-1.0) ** i * (1 + i), 5 + 7 * i) for i in range(7)}
TASK = Quadratic(
    clients=CLIENTS, start=tuple(0.1 * i for i in range(50)), head=(0.5, -0.5), noise=0.7, dropout=0.2, double=False
)
ADAM = ClientConfig(optimizer="adamw", lr=0.05, batch_size=4, optimizer_state="keep", schedule="linear")
REAL = AsyncConfig(buffer=3, concurrent=5, staleness=StalenessConfig("polynomial"), clock=ClockConfig(kind="real"))
ROUNDS = 6


def config_of(folder: Path | str, asynchrony: AsyncConfig = REAL, **changes: Any) -> Config:
    settings: dict[str, Any] = {
        "rounds": ROUNDS,
        "client": ADAM,
        "server": ServerConfig(optimizer="sgd", lr=0.7, momentum=0.5),
        "partition": PartitionConfig(private=("head",)),
        "system": SystemConfig(sum_scale="previous"),
        "checkpoint": CheckpointConfig(every=1),
        "asynchrony": asynchrony,
        **changes,
    }
    return make_config(Path(folder), TASK, FedAvg(), **settings)


def replay_of(folder: Path | str, asynchrony: AsyncConfig = REAL) -> AsyncConfig:
    return replace(asynchrony, replay=str(folder), clock=ClockConfig())


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "arrivals.jsonl").read_text().splitlines()[1:]]


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        REAL,
        pytest.param(replace(REAL, buffer=1, towards="model"), marks=pytest.mark.slow),
        replace(REAL, buffer=1, max_staleness=2),
        pytest.param(replace(REAL, buffer=5, starts="longest"), marks=pytest.mark.slow),
    ],
    ids=["buffer", "model", "late", "all"],
)
def test_a_replay_has_the_bits_of_the_run(settings: AsyncConfig, tmp_path: Path) -> None:
    run = make_runner(config_of(tmp_path / "real", settings)).run()
    found = lines(tmp_path / "real")
    numbered = [line for line in found if line["number"] is not None]
    assert [line["number"] for line in numbered] == list(range(len(numbered))) and len(numbered) >= 6 * settings.buffer
    assert all(line["buffer"] - line["version"] == line["staleness"] for line in found)
    assert (len(numbered) < len(found)) == (settings.max_staleness is not None)
    replayed = make_runner(config_of(tmp_path / "again", replay_of(tmp_path / "real", settings))).run()
    assert replayed.digest == run.digest
    file = tmp_path / "real" / "arrivals.jsonl"
    assert make_runner(config_of(tmp_path / "file", replay_of(file, settings))).run().digest == run.digest


FOUR = {"exchange": ExchangeConfig(bits=4, error_feedback=True), "system": SystemConfig()}
TRAINED = {"eval": EvalConfig(every=1, point="trained", best="per_client")}


def on_ranks(
    folder: str, asynchrony: AsyncConfig, resume: int | None, fault: str, changes: dict[str, Any] | None = None
) -> Any:
    if fault:
        os.environ.update(FEDTORCH_TESTING="1", FEDTORCH_FAULTS=fault)
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=60) as comm:
        config = config_of(folder, asynchrony, **{"eval": EvalConfig(every=2), **(changes or {})})
        result = make_runner(config, comm).run(resume)
        return result.digest, result.scores


SLEEPS = "sleep:client=c1,seconds=0.2;sleep:client=c4,seconds=0.1"


@pytest.mark.parametrize(
    ("size", "again", "changes"),
    [(3, 4, {}), (3, 2, FOUR), (3, 4, TRAINED), pytest.param(5, 2, {}, marks=pytest.mark.slow)],
    ids=["3-4", "four-bits", "trained", "5-2"],
)
@pytest.mark.processes
def test_a_run_of_several_ranks_is_replayed_on_others(
    size: int, again: int, changes: dict[str, Any], tmp_path: Path
) -> None:
    folder, stateless = tmp_path / "real", replace(REAL, buffer=2)
    server, *_ = run_ranks(on_ranks, size, str(folder), stateless, None, SLEEPS, changes)
    one = config_of(tmp_path / "one", replay_of(folder, stateless), **{"eval": EvalConfig(every=2), **changes})
    alone = make_runner(one).run()
    assert (alone.digest, alone.scores) == server
    others, *_ = run_ranks(on_ranks, again, str(tmp_path / "others"), replay_of(folder, stateless), None, "", changes)
    assert others == server
    assert len({line["client"] for line in lines(folder)}) > 2


def one_is_slow(folder: Path | str, asynchrony: AsyncConfig) -> Config:
    """Three versions by clients a, b and c, of which c takes a minute."""
    task = Quadratic({name: (1.0, float(place), 4) for place, name in enumerate("abc")}, start=(0.1, 0.2), double=False)
    algorithm = Sleepy(pauses=(("a", 1, 0.2), ("b", 1, 0.2), ("c", 1200, 0.05)))
    client = ClientConfig(optimizer="sgd", lr=0.05, batch_size=2)
    system = SystemConfig(sum_scale="previous")
    return make_config(Path(folder), task, algorithm, rounds=3, client=client, system=system, asynchrony=asynchrony)


def while_one_is_slow(folder: str, asynchrony: AsyncConfig) -> tuple[str, float]:
    """The digest, and the seconds that the run took."""
    with DistributedCommunicator.join(tuple("abc"), timeout_s=60) as comm:
        began_s = time.monotonic()
        return make_runner(one_is_slow(folder, asynchrony), comm).run().digest, time.monotonic() - began_s


@pytest.mark.parametrize("most", [0, None], ids=["too old", "after the last version"])
@pytest.mark.processes
def test_a_job_whose_update_would_be_dropped_ends_before_its_next_step(most: int | None, tmp_path: Path) -> None:
    settings = AsyncConfig(buffer=1, concurrent=3, max_staleness=most, clock=ClockConfig(kind="real"))
    (digest, took_s), *_ = run_ranks(while_one_is_slow, 4, str(tmp_path / "real"), settings)
    assert took_s < 55
    of_c = [line for line in lines(tmp_path / "real") if line["client"] == "c"]
    assert [line["number"] for line in of_c] == [None] * len(of_c) and {line["status"] for line in of_c} <= {LATE}
    assert bool(of_c) == (most is not None)
    replayed = one_is_slow(tmp_path / "again", replay_of(tmp_path / "real", settings))
    assert make_runner(replayed).run().digest == digest


def standing_still(folder: str, asynchrony: AsyncConfig, can_pause: bool) -> Any:
    """The run's digest and scores, and how often a job of this rank stood still."""
    Engine.can_pause = can_pause
    os.environ.update(FEDTORCH_TESTING="1", FEDTORCH_FAULTS="sleep:client=c5,seconds=0.3;sleep:client=c6,seconds=0.3")
    times, pause = [0], Pausable.pause

    def counted(work: Pausable) -> None:
        times[0] += 1
        pause(work)

    Pausable.pause = counted  # type: ignore[method-assign]
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=30) as comm:
        result = make_runner(config_of(folder, asynchrony, eval=EvalConfig(every=1)), comm).run()
        return (result.digest, result.scores), times[0]


@pytest.mark.parametrize("can_pause", [True, False])
@pytest.mark.processes
def test_a_job_that_stands_still_while_versions_are_made_and_evaluated_has_the_same_bits(
    can_pause: bool, tmp_path: Path
) -> None:
    """Steps of c5 and c6 take .3 s each, between which the other ranks fill buffers; dropout, Adam, a private head.

    Where an engine cannot stand still (DeepSpeed), the others wait for the end of its job.
    """
    settings = replace(REAL, buffer=2)
    found = run_ranks(standing_still, 4, str(tmp_path / "real"), settings, can_pause)
    assert (sum(times for _, times in found) > 0) == can_pause
    replay = config_of(tmp_path / "again", replay_of(tmp_path / "real", settings), eval=EvalConfig(every=1))
    replayed = make_runner(replay).run()
    assert (replayed.digest, replayed.scores) == found[0][0]


SAVING = CheckpointConfig(every=1, every_steps=1000)


def stopped_while_one_stands_still(folder: str, asynchrony: AsyncConfig) -> None:
    """A rank whose job stands still hears a signal, so that the next meeting ends the run."""
    os.environ.update(FEDTORCH_TESTING="1", FEDTORCH_FAULTS="sleep:client=c5,seconds=0.3;sleep:client=c6,seconds=0.3")
    stands, pause, look = False, Pausable.pause, LiveTrainer._check_in_time
    looks, steps = Counter[int](), 0

    def looking(self: LiveTrainer, client: str) -> None:
        """Before each step of a job."""
        nonlocal steps
        assert self._job is not None
        steps = looks[self._job.start]
        looks[self._job.start] += 1
        look(self, client)

    def paused(work: Pausable) -> None:
        nonlocal stands
        stands |= steps > 0  # before its first step there is nothing to save
        pause(work)

    LiveTrainer._check_in_time = looking  # type: ignore[method-assign]
    Pausable.pause = paused  # type: ignore[method-assign]
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=60) as comm, pytest.raises(Interrupted):
        make_runner(config_of(folder, asynchrony, checkpoint=SAVING), comm, stop=lambda: stands).run()


@pytest.mark.processes
def test_a_job_that_stands_still_when_a_signal_comes_is_saved(tmp_path: Path) -> None:
    folder, settings = tmp_path / "real", replace(REAL, buffer=2)
    run_ranks(stopped_while_one_stands_still, 4, str(folder), settings)
    left: dict[str, int] = {}
    for path in (folder / FOLDER).iterdir():
        with safe_open(path, "pt") as file:
            state = json.loads(file.metadata()["state"])
        name = state["key"]["client"]
        left[name] = -(-CLIENTS[name][2] // 4) - state["numbers"]["step"]
    assert any(left.values()), left  # steps of those that were done are saved too
    found = Checkpoints(folder / "checkpoints", keep=2).latest()
    whole = make_runner(config_of(folder, settings, checkpoint=SAVING)).run(found and found.round)
    assert make_runner(config_of(tmp_path / "again", replay_of(folder, settings))).run().digest == whole.digest


OWN = ClientConfig(trainer=TrainerConfig("own_training:train"))


def with_own_training(folder: str) -> str:
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=30) as comm:
        return make_runner(config_of(folder, client=OWN), comm).run().digest


@pytest.mark.processes
def test_training_of_ones_own_ends_before_a_version_and_is_replayed(tmp_path: Path) -> None:
    digest, *_ = run_ranks(with_own_training, 3, str(tmp_path / "real"))
    replayed = make_runner(config_of(tmp_path / "again", replay_of(tmp_path / "real"), client=OWN)).run()
    assert replayed.digest == digest


def test_work_stands_still_where_it_says_so_and_what_it_raises_is_raised() -> None:
    engine = make_runner(config_of(Path("unused"))).components.engine
    seen: list[Any] = []

    def work() -> None:
        for turn in range(2):
            seen.append(turn)
            engine.load(torch.full((engine.shared.size,), float(turn)), None)
            torch.manual_seed(turn)
            pausable.pause()
            seen.append((float(engine.snapshot()[0]), int(torch.randint(1000, ()))))
        raise ValueError("the end")

    pausable = Pausable(work, engine)
    for turn in range(2):
        assert not pausable.go_on() and seen[-1] == turn
        engine.load(torch.full((engine.shared.size,), 9.0), None)
        torch.manual_seed(99)
    with pytest.raises(ValueError, match="the end"):
        pausable.go_on()
    drawn = [int(torch.randint(1000, (), generator=torch.Generator().manual_seed(turn))) for turn in range(2)]
    assert seen == [0, (0.0, drawn[0]), 1, (1.0, drawn[1])]

    def saved() -> None:
        engine.load(torch.full((engine.shared.size,), 7.0), None)
        try:
            stopped.pause()
        except Stopped:
            seen.append(float(engine.snapshot()[0]))
            raise

    stopped = Pausable(saved, engine)
    assert not stopped.go_on()
    engine.load(torch.full((engine.shared.size,), 9.0), None)
    stopped.leave(Stopped)
    assert seen[-1] == 7.0  # its own again, to be saved
    left = Pausable(lambda: left.pause(), engine)
    assert not left.go_on()
    left.leave()
    Pausable(lambda: None, engine).leave()


@pytest.mark.parametrize(
    "at", [pytest.param(at, marks=() if at in (2, 9) else pytest.mark.slow) for at in range(1, 18)]
)
@pytest.mark.processes
def test_a_run_that_is_killed_goes_on_and_is_replayed(at: int, tmp_path: Path) -> None:
    """Killed after so many trainings, in a process of its own; its last line torn, as if a write was cut."""
    folder = tmp_path / "real"
    (outcome,) = expect_exit(killed_after, 1, str(folder), at)
    assert outcome.exit_code == -signal.SIGKILL
    before = (folder / "arrivals.jsonl").read_text()
    with (folder / "arrivals.jsonl").open("a") as file:
        file.write('{"number": 7, "client": "c')
    found = Checkpoints(folder / "checkpoints", keep=2).latest()
    resume = None if found is None else found.round
    whole = make_runner(config_of(folder)).run(resume)
    if resume:
        assert (folder / "arrivals.jsonl").read_text().startswith(before)
    assert make_runner(config_of(tmp_path / "again", replay_of(folder))).run().digest == whole.digest


def killed_after(folder: str, trainings: int) -> None:
    runner = make_runner(config_of(folder))
    train, trained = runner.trainer._train_job, [0]  # type: ignore[attr-defined]

    def counted(job: Any) -> None:
        train(job)
        trained[0] += 1
        if trained[0] == trainings:
            os.kill(os.getpid(), signal.SIGKILL)

    runner.trainer._train_job = counted  # type: ignore[attr-defined]
    runner.run()


@pytest.mark.parametrize(("victim", "again"), [(1, 2), pytest.param(0, 4, marks=pytest.mark.slow)])
@pytest.mark.processes
def test_killed_ranks_go_on_on_another_number_of_ranks(victim: int, again: int, tmp_path: Path) -> None:
    folder = tmp_path / "real"
    fault = f"kill:rank={victim},round=3,phase={'train' if victim else 'aggregate'};{SLEEPS}"
    outcomes = expect_exit(on_ranks, 3, str(folder), REAL, None, fault)
    assert outcomes[victim].exit_code == -signal.SIGKILL
    found = Checkpoints(folder / "checkpoints", keep=2).latest()
    assert found is not None and found.round == 3
    server, *_ = run_ranks(on_ranks, again, str(folder), REAL, 3, "")
    replayed = make_runner(config_of(tmp_path / "again", replay_of(folder), eval=EvalConfig(every=2))).run()
    assert replayed.digest == server[0]


@pytest.mark.processes
def test_a_rank_that_dies_while_the_others_have_nothing_to_do_ends_the_run(tmp_path: Path) -> None:
    """One place, whose job is at home on rank 1: nobody would ever meet if the others only waited for its arrival."""
    one = replace(REAL, buffer=1, concurrent=1)
    fault = "kill:rank=1,phase=train,step=1"
    outcomes = expect_exit(on_ranks, 3, str(tmp_path), one, None, fault, timeout=90)
    assert outcomes[1].exit_code == -signal.SIGKILL
    assert all("rank 1" in outcomes[rank].error for rank in (0, 2)), [outcome.error for outcome in outcomes]


def test_lines_after_the_checkpoint_arrive_as_they_did(tmp_path: Path) -> None:
    """The whole run's file with a checkpoint of three versions: the rest of the run is that of before."""
    whole = make_runner(config_of(tmp_path)).run().digest
    text = (tmp_path / "arrivals.jsonl").read_text()
    assert make_runner(config_of(tmp_path, checkpoint=CheckpointConfig(every=1))).run(5).digest == whole
    assert (tmp_path / "arrivals.jsonl").read_text() == text


def test_a_signal_stops_it_and_it_goes_on(tmp_path: Path) -> None:
    interrupt(config_of(tmp_path / "real"), 60)
    found = Checkpoints(tmp_path / "real" / "checkpoints", keep=2).latest()
    assert found is not None and 0 < found.round < ROUNDS
    whole = make_runner(config_of(tmp_path / "real")).run(found.round)
    assert make_runner(config_of(tmp_path / "again", replay_of(tmp_path / "real"))).run().digest == whole.digest


@pytest.mark.long
@pytest.mark.parametrize(("after", "back"), [(6, 99), (12, 99), (6, 0), (11, 0)])
def test_what_clients_did_that_seemed_to_be_lost_does_not_count(after: int, back: int, tmp_path: Path) -> None:
    """Who is in the open buffer, and who trains next; all are back at once, or when the next round begins."""
    settings = replace(REAL, buffer=5)
    runner, seen = make_runner(config_of(tmp_path / "real", settings)), [0]
    trainer: Any = runner.trainer
    announce, federation = trainer._announce, trainer.federation

    def announced(job: Any, started: int) -> None:
        announce(job, started)
        seen[0] += 1
        if seen[0] == after:
            doubtful = [*federation.buffer(trainer.context.round), *list(federation.running.values())[:1]]
            trainer._tell_losses({job.client for job in doubtful})
        if seen[0] == after + back:
            trainer._tell_losses(())

    trainer._announce = announced
    digest = runner.run().digest
    assert {line["status"] for line in lines(tmp_path / "real")} == {"ok", "lost", "back"}
    assert make_runner(config_of(tmp_path / "again", replay_of(tmp_path / "real", settings))).run().digest == digest


def test_a_failure_that_was_recorded_fails_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTORCH_TESTING", "1")
    monkeypatch.setenv("FEDTORCH_FAULTS", "raise:client=c2;raise:client=c5,round=2")
    run = make_runner(config_of(tmp_path / "real")).run()
    failed = [line for line in lines(tmp_path / "real") if line["status"] != "ok"]
    assert failed and {line["status"] for line in failed} == {"failed:InjectedError"}
    monkeypatch.delenv("FEDTORCH_FAULTS")
    assert make_runner(config_of(tmp_path / "again", replay_of(tmp_path / "real"))).run().digest == run.digest


def test_without_its_file_a_run_does_not_go_on(tmp_path: Path) -> None:
    make_runner(config_of(tmp_path, rounds=2)).run()
    (tmp_path / "arrivals.jsonl").write_text("{}\n")
    with pytest.raises(CheckpointError, match="cannot be read: .*line 1 is no head of recorded arrivals"):
        make_runner(config_of(tmp_path)).run(2)
    (tmp_path / "arrivals.jsonl").unlink()
    with pytest.raises(CheckpointError, match="its arrivals cannot be read"):
        make_runner(config_of(tmp_path)).run(2)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a run of six versions."""
    folder = tmp_path_factory.mktemp("recorded")
    make_runner(config_of(folder)).run()
    return (folder / "arrivals.jsonl").read_text()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda text: text[:-9], "line 19 is torn or no JSON object"),
        (lambda text: text.replace('"kind": "arrivals", ', "", 1), "line 1 is no head"),
        (lambda text: text.replace('"buffer": 3', '"buffer": 2', 1), "line 1 is of another run: its buffer is 2"),
        (lambda text: text.replace('"run_seed": 0', '"run_seed": 5', 1), "line 1 is of another run: its run_seed is 5"),
        (lambda text: text.replace('"client": "', '"client": "x', 1), "line 2 is not what .* client differ"),
        (lambda text: text.replace('"number": 4,', '"number": 5,', 1), "line 6 is not what .* number differ"),
        (lambda text: text.replace('"start": 0,', '"start": 99,', 1), "line 2 is no arrival of this run: KeyError 99"),
        (lambda text: text.replace('"status": "ok", ', "", 1), "line 2 is no arrival of this run: KeyError 'status'"),
        (lambda text: "".join(text.splitlines(keepends=True)[:10]), "has 9 arrivals, which make 3 versions, but"),
        (lambda text: "", "line 1 is no head"),
        (lambda text: "[]\n" + text, "line 1 is torn or no JSON object"),
        (lambda text: "\ufffd" * 3 + text, "line 1 is torn"),
    ],
)  # fmt: skip
def test_a_file_that_is_torn_or_foreign_is_refused_with_its_line(
    spoil: Any, why: str, recorded: str, tmp_path: Path
) -> None:
    path = tmp_path / "arrivals.jsonl"
    path.write_text(spoil(recorded))
    with pytest.raises(ConfigError, match=f"async.replay .*{why}") as error:
        make_runner(config_of(tmp_path / "run", replay_of(path)))
    assert error.value.exit_code == 2


def test_a_replay_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(ConfigError, match="async.replay is .*cannot be read"):
            make_runner(config_of(tmp_path / "run", replay_of(path)))
    (tmp_path / "bad.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="async.replay is .*cannot be read"):
        make_runner(config_of(tmp_path / "run", replay_of(tmp_path / "bad.jsonl")))


def test_what_follows_from_arrivals_by_hand() -> None:
    """K 2, M 3, of a b c d, the first by name: the specification's rule of an instant, by the order of arrivals."""
    federation = Federation(AsyncConfig(buffer=2, concurrent=3, starts="longest"), "abcd", 0)
    assert [(job.client, job.version) for job in federation.running.values()] == [("a", 0), ("b", 0), ("c", 0)]
    first = federation.apply(Event(0, 0, "ok", 0, 2))
    assert (first.client, first.number, first.buffer) == ("a", 0, 0)
    assert [(job.client, job.version) for job in federation.running.values()][-1] == ("d", 0)
    federation.apply(Event(1, 0, "ok", 0, 3))
    assert federation.is_full(0) and len(federation.running) == 2  # nobody starts before the step
    late = federation.apply(Event(2, 0, "ok", 0, 5))
    assert (late.client, late.number, late.buffer, late.staleness) == ("c", 2, 1, 1) and len(federation.running) == 1
    failed = federation.apply(Event(3, 1, "failed:Oh", 2, 9))
    assert (failed.client, failed.version, failed.void) == ("d", 0, "failed:Oh")
    assert [(job.client, job.version) for job in federation.running.values()] == [("a", 1), ("b", 1)]
    assert federation.is_full(1) and federation.live(1) == [0, 1] and federation.live(2) == [1, 2]
    federation.step()
    assert [(job.client, job.version) for job in federation.running.values()][-1] == ("c", 2)
    assert federation.former(4) == first and federation.former(0) is None
    with pytest.raises(KeyError):
        federation.apply(Event(0, 2, "ok", 0, 9))
    with pytest.raises(ValueError, match="newest version is 1, after one of 2"):
        federation.apply(Event(4, 1, "ok", 0, 9))


@pytest.mark.parametrize(("status", "void"), [("lost", [True, False, True]), ("left", [False, False, True])])
def test_what_lost_clients_have_in_buffers_that_are_open_weighs_nothing(status: str, void: list[bool]) -> None:
    """K 2, M 3: a is in the buffer that closes, and in the next one by the job that it is at; b stays."""
    federation = Federation(AsyncConfig(buffer=2, concurrent=2, starts="longest"), "ab", 0)
    federation.apply(Event(0, 0, "ok", 0, 2))
    assert [job.client for job in federation.running.values()] == ["b", "a"]
    federation.apply(Event(1, 0, "ok", 0, 3))
    assert federation.is_full(0)
    federation.apply(Event(-1, 0, status, 4, 4, place=0))
    assert [bool(job.void) for job in federation.jobs] == void and federation.jobs[2].void == "failed:Lost"
    federation.step_to(1)
    assert [job.client for job in federation.running.values()] == ["b"]  # nobody but b starts
    with pytest.raises(ValueError, match=f"client number 0 cannot be {status}"):
        federation.apply(Event(-1, 1, status, 5, 5, place=0))
    federation.apply(Event(-1, 1, "back", 6, 6, place=0))
    assert [job.client for job in federation.running.values()] == ["b", "a"]
    for place in (-1, 2):
        with pytest.raises(ValueError, match="cannot be lost"):
            federation.apply(Event(-1, 1, "lost", 7, 7, place=place))


def test_an_empty_file_has_no_events() -> None:
    federation = Federation(AsyncConfig(buffer=2, concurrent=3), "abcd", 0)
    with pytest.raises(ConfigError, match="here, line 1 is no head"):
        read_events("", federation, "here")
