"""A rank that was lost comes back into the job that went on without it, with the states of its clients."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from harness import make_runner
from patient import BACK_AT, wait_for_return
from ranks import Ranks, free_port, start_ranks
from supervisor import toy_config

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.job import rejoin as door
from fedtorch.config.load import load
from fedtorch.config.schema import Config
from fedtorch.core.errors import Interrupted
from fedtorch.rounds.membership import Membership, Stopped
from fedtorch.rounds.placement import place
from fedtorch.setup.build import build

pytestmark = pytest.mark.processes

SIZE, VICTIM, LOST_IN = 3, 2, 1
SETTINGS = ("system.timeout=20", "clients.on_loss=continue", "clients.min=1", "rounds=5")


def as_rank(words: list[str]) -> None:
    from fedtorch.main import main

    wait_for_return()
    if code := main(words):
        sys.exit(code)


def start(words: list[str], environ: dict[str, str], faults: str = "", size: int = SIZE) -> Ranks:
    return start_ranks(as_rank, size, words, environ={**environ, "FEDTORCH_FAULTS": faults})


def start_again(rank: int, words: list[str], environ: dict[str, str], size: int = SIZE) -> Ranks:
    return start_ranks(as_rank, 1, words, environ={**environ, "RANK": str(rank), "WORLD_SIZE": str(size)})


def job() -> dict[str, str]:
    return {
        "MASTER_PORT": str(free_port()),
        "FEDTORCH_JOB_SECRET": "known to all ranks of the test",
        "FEDTORCH_TESTING": "1",
    }


def at_home_on(config: Config, ranks: Sequence[int], size: int) -> list[str]:
    there = build(config, num_ranks=size, rank=1)
    homes = place(config, there.task, there.training, there.clients, there.topology).homes
    return [name for name, worker in homes.items() if set(ranks) & set(there.topology.workers[worker])]


def in_one_process(config: Config, lost: Sequence[int] = (VICTIM,), away: Sequence[int] = (), size: int = SIZE) -> str:
    """The digest of the run in which the lost ranks' clients fail, are not drawn till they are back, and go on.

    away: ranks that do not come back.
    """
    gone = at_home_on(config, lost, size)

    class Losing(Membership):
        def meet(self, phase: str, meeting: Any, *, may_stop: bool = True) -> Any:
            found = super().meet(phase, meeting, may_stop=may_stop)
            if (phase, self.progress.round, self.progress.is_training) == ("gather", LOST_IN, True):
                self.lose(gone)
            return found

        def barrier(self, phase: str, **how: Any) -> None:
            super().barrier(phase, **how)
            if (phase, self.progress.round, self.progress.is_training) == ("broadcast", BACK_AT, True):
                raise Stopped

    runner = make_runner(config)
    runner.context.members.__class__ = Losing
    with pytest.raises(Interrupted):
        runner.run()
    runner = make_runner(config)
    runner.context.progress.round = BACK_AT
    runner.context.members.lose(at_home_on(config, away, size))
    return runner.run(BACK_AT).digest


def lose_and_let_in(words: list[str]) -> None:
    """A run in which the victim is killed while it trains and started again, and which then ends well on all ranks."""
    environ = job()
    ranks = start(words, environ, f"kill:rank={VICTIM},round={LOST_IN},phase=train")
    ranks.processes[VICTIM].join(60)
    again = start_again(VICTIM, words, environ)
    assert [outcome.exit_code for outcome in ranks.join(90)] == [0, 0, -signal.SIGKILL]
    assert again.join(20)[0].exit_code == 0


def digest_of(folder: Path) -> str:
    found: str = json.loads((folder / "run" / "results.json").read_text())["digest"]
    return found


@pytest.mark.parametrize("every", [1, 10])
def test_a_lost_rank_is_let_in_before_the_next_round_with_its_clients_states(every: int, tmp_path: Path) -> None:
    """Also where the round before it was not saved yet, so that all save first; then its states are older."""
    path = toy_config(tmp_path, checkpoint=f"{{every: {every}}}")
    lose_and_let_in(["--config", str(path), "--set", *SETTINGS])
    log = (tmp_path / "run" / "log.rank0.txt").read_text()
    assert f"rank {VICTIM} is back; all go on together" in log and f"resuming after round {BACK_AT}" in log
    assert every > 1 or digest_of(tmp_path) == in_one_process(load([toy_config(tmp_path / "alone")], [*SETTINGS]))
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["reason"], status["round"]) == ("done", 5)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    trained = [(record["round"], record["client"]) for record in records if record["kind"] == "client"]
    assert len(trained) == len(set(trained)) and {round for round, _ in trained} == {1, 2, 3, 4, 5}, "each round once"


ASYNC = (
    "async={buffer: 2, concurrent: 3, staleness: {kind: polynomial}}",
    "system.sum_scale=previous",
    "clients.per_round=all",
)


@pytest.mark.slow
def test_clients_of_a_rank_that_is_back_train_their_jobs_again(tmp_path: Path) -> None:
    path = toy_config(tmp_path)
    settings = [*SETTINGS, *ASYNC]
    lose_and_let_in(["--config", str(path), "--set", *settings])
    assert digest_of(tmp_path) == in_one_process(load([toy_config(tmp_path / "alone")], settings))
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    arrivals = [record for record in records if record["kind"] == "arrival"]
    assert [record["number"] for record in arrivals if record["number"] is not None] == list(range(10))
    assert "failed:Lost" in {record["status"] for record in arrivals}


@pytest.mark.slow
def test_by_the_real_clock_clients_of_a_rank_that_is_back_start_again_and_are_replayed(
    tmp_path: Path,
) -> None:
    real = "async={buffer: 2, concurrent: 3, clock: {kind: real}}"
    lose_and_let_in(["--config", str(toy_config(tmp_path)), "--set", *SETTINGS, *ASYNC[1:], real])
    text = (tmp_path / "run" / "arrivals.jsonl").read_text()
    about = [(line["status"], line["client"]) for line in map(json.loads, text.splitlines()[1:]) if "start" not in line]
    lost = {client for status, client in about if status in ("lost", "left")}
    assert lost and {client for status, client in about if status == "back"} == lost
    replay = f"async={{buffer: 2, concurrent: 3, replay: {tmp_path / 'run'}}}"
    again = load([toy_config(tmp_path / "alone")], [*SETTINGS, *ASYNC[1:], replay])
    assert make_runner(again).run().digest == digest_of(tmp_path)


@pytest.mark.slow
def test_of_two_lost_ranks_one_is_let_in_and_the_other_stays_away(tmp_path: Path) -> None:
    path = toy_config(tmp_path)
    words, environ = ["--config", str(path), "--set", *SETTINGS], job()
    faults = ";".join(f"kill:rank={rank},round={LOST_IN},phase=train" for rank in (2, 3))
    ranks = start(words, environ, faults, size=4)
    ranks.processes[2].join(60)
    again = start_again(2, words, environ, size=4)
    killed = -signal.SIGKILL
    assert [outcome.exit_code for outcome in ranks.join(90)] == [0, 0, killed, killed]
    assert again.join(20)[0].exit_code == 0
    config = load([toy_config(tmp_path / "alone")], [*SETTINGS])
    assert digest_of(tmp_path) == in_one_process(config, (2, 3), (3,), size=4)
    away = at_home_on(config, (3,), 4)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert away and status["reason"] == f"done without {len(away)} lost clients: {', '.join(away)}"


def stay_at_the_door(seconds: float, kills: bool) -> None:
    """A rank that knocks, and goes away while it waits."""
    with DistributedCommunicator.join(["a"], timeout_s=20, recovers=True) as comm:
        comm.preflight({})
        comm.enable_loss_recovery()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        while not comm.lost:
            comm.barrier("train", round=0)
        while not door.is_waiting(comm._store, 1):
            time.sleep(0.02)
        time.sleep(seconds)
        comm.barrier("broadcast", round=1, may_reopen=True)
        assert comm.returned == (frozenset() if kills else {1})


def knock(seconds: float) -> None:
    threading.Timer(seconds, lambda: os._exit(3)).start()
    DistributedCommunicator.join(["a"], timeout_s=20, recovers=True)


@pytest.mark.parametrize("kills", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_rank_that_left_the_door_again_is_not_waited_for(kills: bool) -> None:
    environ = job()
    ranks = start_ranks(stay_at_the_door, 2, 1.5, kills, environ=environ)
    ranks.processes[1].join(30)
    limit_s = 0.7 if kills else 10.0
    again = start_ranks(knock, 1, limit_s, environ={**environ, "RANK": "1", "WORLD_SIZE": "2"})
    outcome, _ = ranks.join(40)
    assert not outcome.error and outcome.exit_code == 0, outcome.error
    assert again.join(20)[0].exit_code == 3
