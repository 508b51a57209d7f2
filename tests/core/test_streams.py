"""A process whose descriptors 0 to 2 are closed, or whose disk is full when it begins or ends."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from supervisor import Ended, toy_config

from fedtorch.core import files, streams
from fedtorch.core.files import replace_file
from fedtorch.lifecycle.signals import StopFlag
from fedtorch.lifecycle.status import write_status
from fedtorch.main import main

ROOT = Path(__file__).parents[2]


@pytest.mark.processes
def test_a_run_without_stdin_stdout_and_stderr_ends_as_any_other(tmp_path: Path) -> None:
    config = toy_config(tmp_path, track="{progress: lines}")
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "support")))
    words = f"exec {sys.executable} -m fedtorch.main --config {config} <&- >&- 2>&-"
    code = subprocess.run(["bash", "-c", words], env={**os.environ, "PYTHONPATH": paths}, timeout=120).returncode
    assert code == 0 and Ended(tmp_path / "run").status["code"] == 0


def test_a_newline_that_is_printed_where_stdout_was_is_no_signal() -> None:
    """Its code is SIGUSR1's number; a pipe that takes the place of a closed descriptor is written to by `print`."""
    kept = {number: os.dup(number) for number in (1, 2)}
    for number in kept:
        os.close(number)
    try:
        stop = StopFlag()
        with stop.listening():
            for number in kept:
                with suppress(OSError):  # still closed, as it should be
                    os.write(number, b"\n")
            time.sleep(0.05)
            assert stop.signal is None
            signal.raise_signal(signal.SIGUSR1)
            give_up_at = time.monotonic() + 10
            while stop.signal is None and time.monotonic() < give_up_at:
                time.sleep(0.01)
        assert stop.signal == signal.SIGUSR1
    finally:
        for number, copy in kept.items():
            os.dup2(copy, number)
            os.close(copy)


def test_what_is_closed_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = os.dup(2)
    monkeypatch.setattr(sys, "stderr", None)
    os.close(2)
    try:
        streams.keep_standard_streams()
        assert os.readlink("/proc/self/fd/2") == os.devnull
        print("nobody reads this", file=sys.stderr, flush=True)
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and no new file can be written by `replace_file` any more."""

    def refuse(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    return lambda: monkeypatch.setattr(Path, "write_text", refuse)


def test_the_last_status_is_written_over_the_first_on_a_full_disk(no_room: Callable[[], None], tmp_path: Path) -> None:
    write_status(tmp_path, code=None, reason="running", command="again")
    no_room()
    write_status(tmp_path, code=8, reason="no space is left, " * 20, command="again")
    record = json.loads((tmp_path / "status.json").read_text())
    assert (record["state"], record["code"]) == ("failed", 8)
    write_status(tmp_path, code=0, reason="done", command="again")
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "done"


def test_what_has_no_room_leaves_what_was_there(
    no_room: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_file(tmp_path / "file", "before\n")
    no_room()
    monkeypatch.setattr(files, "_room", lambda path: 10)
    with pytest.raises(OSError, match="No space left"):
        replace_file(tmp_path / "file", "longer than before\n")
    with pytest.raises(OSError, match="No space left"):
        replace_file(tmp_path / "other", "x")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "before\n"}


def test_a_full_disk_at_the_start_is_code_8(
    no_room: Callable[[], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = toy_config(tmp_path)
    no_room()
    assert main(["--config", str(config)]) == 8
    assert "cannot be written" in capsys.readouterr().err


def test_a_full_disk_while_data_are_generated_is_code_8_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "write_bytes", refuse)
    assert main([]) == 8
    assert "No space left" in capsys.readouterr().err
    assert Ended(next(tmp_path.glob("runs/*"))).status["code"] == 8


def test_too_little_memory_is_not_the_configs_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "greedy.py").write_text("raise MemoryError('no memory for the module')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["--config", str(toy_config(tmp_path)), "--set", "task.name=greedy:Task"]) == 1
    said = capsys.readouterr().err
    assert "fedtorch: out of memory (no memory for the module)" in said and "task.name" not in said.splitlines()[-1]
