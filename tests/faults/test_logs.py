"""Slow or failing logs, records and event files, and a clock that jumps: training neither stops nor changes."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from supervisor import Ended, toy_config

from fedtorch.main import main
from fedtorch.tracking.event_file import EventFile


def disturbed(action: Callable[..., Any], every: int, seconds: float) -> Callable[..., Any]:
    """`action`, slowly; every so many calls it fails."""
    calls = count(1)

    def instead(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        if next(calls) % every == 0:
            raise OSError("the disk is gone")
        return action(*args, **kwargs)

    return instead


@pytest.mark.long
@pytest.mark.parametrize(("every", "seconds"), [(10**9, 0.01), (3, 0.0)], ids=["slow", "failing"])
def test_logs_and_event_files_never_stop_or_change_training(
    every: int, seconds: float, undisturbed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.StreamHandler, "flush", disturbed(logging.StreamHandler.flush, every, seconds))
    monkeypatch.setattr(EventFile, "_write", disturbed(EventFile._write, every + 6, seconds))
    assert main(["--config", str(toy_config(tmp_path)), "--set", "track.tensorboard=true"]) == 0
    ended = Ended(tmp_path / "run")
    assert ended.digest == undisturbed and ended.status["code"] == 0
    assert ("TensorBoard is off from here on: OSError" in ended.log(0)) is (every == 3)


def jumping(words: list[str]) -> None:
    """A rank whose clock of the day goes a day back and two forth with every look at it."""
    now, looks = time.time, count()
    time.time = lambda: now() + 86400 * (-1 if next(looks) % 2 else 2)
    if code := main(words):
        sys.exit(code)


@pytest.mark.processes
def test_a_clock_that_jumps_ends_no_waiting(undisturbed: str, tmp_path: Path) -> None:
    from ranks import run_ranks

    config = toy_config(tmp_path)
    run_ranks(jumping, 3, ["--config", str(config), "--set", "system.timeout=20"])
    ended = Ended(tmp_path / "run")
    assert ended.digest == undisturbed
    assert not any("gave no sign of life" in ended.log(rank) for rank in range(3))
