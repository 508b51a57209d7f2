"""SIGTERM and SIGINT in every phase of a round: everything computed is saved, and the run goes on to the same bits."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ranks import start_ranks
from supervisor import PHASES, Ended, as_rank, at, supervise, toy_config

from fedtorch.main import main

CASES = [(phase, 2 * (number % 2)) for number, phase in enumerate(PHASES)]
OTHERS = [pytest.param(phase, 2 - victim, marks=pytest.mark.slow) for phase, victim in CASES]


@pytest.mark.processes
@pytest.mark.parametrize(("phase", "victim"), [*CASES, *OTHERS])
def test_sigterm_to_one_rank_in_any_phase_stops_all_and_loses_nothing(
    phase: str, victim: int, undisturbed: str, tmp_path: Path
) -> None:
    ended = supervise(toy_config(tmp_path), faults=at(phase, victim, "term"))
    assert ended.codes == [[75, 75, 75], [0, 0, 0]]
    assert ended.digest == undisturbed
    if phase not in ("init", "preflight"):
        assert "resuming after round " in ended.log(0)


@pytest.mark.processes
def test_a_second_sigint_leaves_at_once_and_the_last_checkpoint_is_whole(undisturbed: str, tmp_path: Path) -> None:
    config = toy_config(tmp_path)
    faults = {"FEDTORCH_TESTING": "1", "FEDTORCH_FAULTS": "sleep:phase=train,rank=2,round=1,step=1,seconds=120"}
    ranks = start_ranks(as_rank, 3, ["--config", str(config)], environ=faults)
    give_up_at = time.monotonic() + 60
    log = tmp_path / "run" / "log.rank2.txt"
    while not (log.exists() and "injected" in log.read_text()) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    for pause in (1.0, 0.0):
        for pid in ranks.pids:
            os.kill(pid, signal.SIGINT)
        sent = time.monotonic()
        time.sleep(pause)
    codes = [outcome.exit_code for outcome in ranks.join(30)]
    assert time.monotonic() - sent < 5
    assert codes == [75, 75, 75]
    ended = supervise(config)
    assert ended.codes == [[0, 0, 0]] and ended.digest == undisturbed
    assert "resuming after round 1 " in ended.log(0)


SLEEP = "sleep:phase={},client=b,round={},step={},seconds={}"


def stop_while_asleep(
    config: Path, size: int, fault: str, number: int = signal.SIGTERM, to: Sequence[int] | None = None
) -> tuple[list[int | None], float]:
    """A signal, by default to all ranks, while one of them sleeps; (exit codes, seconds until all had ended)."""
    environ = {"FEDTORCH_TESTING": "1", "FEDTORCH_FAULTS": fault}
    ranks = start_ranks(as_rank, size, ["--config", str(config), "--set", "system.shutdown_grace=2"], environ=environ)
    logs = [config.parent / "run" / f"log.rank{rank}.txt" for rank in range(size)]
    give_up_at = time.monotonic() + 60
    while not any(log.exists() and "injected" in log.read_text() for log in logs) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    for rank in range(size) if to is None else to:
        os.kill(ranks.pids[rank], number)
    sent = time.monotonic()
    codes = [outcome.exit_code for outcome in ranks.join(30)]
    return codes, time.monotonic() - sent


@pytest.mark.processes
@pytest.mark.parametrize(
    ("size", "phase", "done"),
    [(3, "train", 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(1, "train", 1), (3, "evaluate", 2)])],
)
def test_a_step_that_outlasts_the_grace_is_left_with_the_last_checkpoint_whole(
    size: int, phase: str, done: int, undisturbed: str, tmp_path: Path
) -> None:
    config = toy_config(tmp_path)
    codes, took_s = stop_while_asleep(config, size, SLEEP.format(phase, done, 0, 120), signal.SIGUSR2)
    assert codes == [75] * size and 2 <= took_s < 7
    status = Ended(tmp_path / "run").status
    assert (status["state"], status["code"], status["round"]) == ("interrupted", 75, 1)
    assert (
        "system.shutdown_grace = 2.0 s; 1 rounds are saved, and what came after will be repeated" in (status["reason"])
    )
    asleep = [log for log in (tmp_path / "run").glob("log.rank*.txt") if "in _happen" in log.read_text()]
    assert len(asleep) == 1  # its stack is in its log
    ended = supervise(config, size)
    assert ended.codes == [[0] * size] and ended.digest == undisturbed
    assert "resuming after round 1 " in ended.log(0)


@pytest.mark.processes
@pytest.mark.slow
def test_a_server_that_leaves_alone_has_said_why(tmp_path: Path) -> None:
    config = toy_config(tmp_path)
    codes, _ = stop_while_asleep(config, 3, SLEEP.format("train", 1, 0, 8), signal.SIGTERM, to=[0])
    assert codes == [75, 7, 7]
    assert Ended(tmp_path / "run").status["code"] == 75


@pytest.mark.processes
@pytest.mark.slow
def test_a_step_that_ends_within_the_grace_loses_no_round_that_was_done(undisturbed: str, tmp_path: Path) -> None:
    config = toy_config(tmp_path, checkpoint="{every: 3}")
    codes, took_s = stop_while_asleep(config, 3, SLEEP.format("train", 1, 1, 0.7))
    assert codes == [75] * 3 and took_s < 5
    assert Ended(tmp_path / "run").status["reason"].startswith("stopped by a signal; 1 rounds are saved")
    ended = supervise(config)
    assert ended.codes == [[0, 0, 0]] and ended.digest == undisturbed
    assert "resuming after round 1 " in ended.log(0)


@pytest.mark.parametrize("value", ["0", "30", "-1", "soon"])
def test_a_grace_that_launchers_do_not_give_is_refused(value: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["--config", str(toy_config(tmp_path)), "--set", f"system.shutdown_grace={value}"]) == 2
    assert "system.shutdown_grace" in capsys.readouterr().err
