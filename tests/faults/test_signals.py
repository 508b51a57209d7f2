"""SIGTERM and SIGINT in every phase of a round: everything computed is saved, and the run goes on to the same bits."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from ranks import start_ranks
from supervisor import PHASES, as_rank, at, supervise, toy_config

CASES = [(phase, 2 * (number % 2)) for number, phase in enumerate(PHASES)]
OTHERS = [pytest.param(phase, 2 - victim, marks=pytest.mark.slow) for phase, victim in CASES]


@pytest.mark.parametrize(("phase", "victim"), [*CASES, *OTHERS])
def test_sigterm_to_one_rank_in_any_phase_stops_all_and_loses_nothing(
    phase: str, victim: int, undisturbed: str, tmp_path: Path
) -> None:
    ended = supervise(toy_config(tmp_path), faults=at(phase, victim, "term"))
    assert ended.codes == [[75, 75, 75], [0, 0, 0]]
    assert ended.digest == undisturbed
    if phase not in ("init", "preflight"):
        assert "resuming after round " in ended.log(0)


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
