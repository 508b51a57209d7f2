"""Faults made on purpose: what is asked for happens once, where all its conditions hold."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from fedtorch.comm.job.faults import Fault, Faults
from fedtorch.core.errors import ConfigError


def test_a_wait_ends_when_its_file_is_there_and_happens_once(tmp_path: Path) -> None:
    """Two ranks, or a rank and a test, meet by a file where seconds would be a bet on how busy the machine is."""
    gate = tmp_path / "gate"
    faults = Faults((Fault.parse(f"wait:phase=train,round=1,file={gate}"),))
    faults("train", round=0)  # in another round nobody waits
    waits = threading.Thread(target=faults, args=("train",), kwargs={"round": 1}, daemon=True)
    waits.start()
    time.sleep(0.2)
    assert waits.is_alive()
    gate.touch()
    waits.join(30)
    assert not waits.is_alive()
    gate.unlink()
    faults("train", round=1)


def test_an_unknown_kind_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"the kind 'wiat'; choose one of .*sleep, wait, hang"):
        Fault.parse("wiat:rank=1")


def test_a_wait_for_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="a wait without a file"):
        Fault.parse("wait:rank=1")
