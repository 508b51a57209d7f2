"""A client's text in an error or a warning stays in the log file of its rank, also where that cannot be written."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedtorch.lifecycle.kept_texts import LogFile
from fedtorch.tracking.console import TerminalHandler

pytestmark = pytest.mark.processes

CANARY = "vermilionaxolotl"
CARELESS = """
import atexit, gc, logging, threading, warnings
from dataclasses import dataclass
from fedtorch.algorithms.fedavg import FedAvg

TEXT = "vermilion" + "axolotl"


class Object:
    def __del__(self):
        raise ValueError(TEXT)


def fails():
    raise ValueError(TEXT)


@dataclass(frozen=True)
class Careless(FedAvg):
    way: str = ""

    def client_update(self, job):
        report = super().client_update(job)
        if self.way == "ignored":
            warnings.warn(TEXT)
            thread = threading.Thread(target=fails)
            thread.start()
            thread.join()
            Object()
            gc.collect()
            logging.getLogger("fedtorch.careless").debug("%d", TEXT)
            atexit.register(fails)
            if job.client.name == "cinema":
                fails()
        return report

    def weigh(self, reports):
        if self.way == "defect":
            try:
                fails()
            except ValueError as error:
                raise KeyError(TEXT) from error
        return super().weigh(reports)
"""
WAYS = ("ignored", "defect")  # nobody catches, and the run goes on; it ends the run


def run(folder: Path, way: str, ranks: int, *, is_full: bool, changes: tuple[str, ...] = ()) -> tuple[int, str]:
    """Exit code, and all that came to the terminal."""
    (folder / "careless.py").write_text(CARELESS)
    run = folder / "run"
    run.mkdir()
    for rank in range(ranks):
        if is_full:
            (run / f"log.rank{rank}.txt").symlink_to("/dev/full")
    words = [sys.executable, "-m", "fedtorch.cli", "run", "--config", "smoke/fedavg"]
    if ranks > 1:
        words += ["--ranks", str(ranks), "--max-restarts", "1"]
    words += ["--set", f"run.dir={run}", "rounds=1", "eval.every=0", "task.max_train=2", *changes]
    words += [f"algorithm={{name: 'careless:Careless', way: {way}}}", "clients.min=1"]
    environ = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("way", WAYS)
def test_one_process_shows_no_text_of_a_client(way: str, tmp_path: Path) -> None:
    code, shown = run(tmp_path, way, 1, is_full=False)
    assert CANARY not in shown
    assert CANARY in (tmp_path / "run" / "log.rank0.txt").read_text()
    assert (code == 0) is (way != "defect"), shown
    if way == "defect":
        assert "KeyError (its text is in this rank's log file alone" in shown and "in weigh" in shown
        files = set(re.findall(r'File "(.*?)"', shown))
        assert files == {str(tmp_path / "careless.py")}, "the user's own frames, and no others"
        assert f"all frames: {tmp_path / 'run' / 'log.rank0.txt'}" in shown
        assert "fedtorch/rounds/runner.py" in (tmp_path / "run" / "log.rank0.txt").read_text()
    else:
        assert "WARNING UserWarning at careless.py:" in shown
        assert re.search(r"WARNING client cinema failed in round 1: ValueError at careless\.py:\d+ in fails\n", shown)
        assert "ended with ValueError (its text is" in shown and "ValueError was ignored in" in shown


SLOW_WAYS = [pytest.param(1, "defect", marks=pytest.mark.slow), pytest.param(3, "ignored", marks=pytest.mark.slow)]


@pytest.mark.parametrize(("ranks", "way"), [(1, "ignored"), (3, "defect"), *SLOW_WAYS])
def test_nor_where_the_log_is_on_a_full_disk(way: str, ranks: int, tmp_path: Path) -> None:
    code, shown = run(tmp_path, way, ranks, is_full=True, changes=("track.tensorboard=true",))
    assert CANARY not in shown and "Logging error" not in shown
    assert (code == 0) is (way != "defect"), shown
    said = shown.count("log.rank0.txt are lost (No space left on device); the run goes on")
    assert said == 1 or (said > 1 and ranks > 1 and way == "defect")  # once in each attempt
    # what other ranks print goes to files, which are no logs
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and "data" not in path.parts]
    assert len(written) > 2
    assert [path for path in written if CANARY.encode() in path.read_bytes()] == []


class Torn:
    """A stream that nobody reads any more."""

    def write(self, text: str) -> None:
        raise BrokenPipeError(CANARY)

    def flush(self) -> None:
        raise BrokenPipeError(CANARY)


@pytest.mark.parametrize("arguments", [(), ("too", "many")])
def test_a_line_that_cannot_be_shown_or_formatted_is_lost(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    logger = logging.Logger("own")
    logger.addHandler(TerminalHandler())
    logger.addHandler(LogFile(tmp_path / "log.txt"))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Torn())
        logger.error(CANARY, *arguments)
    assert CANARY not in capsys.readouterr().err


def test_the_reason_is_said_once_and_without_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    handler = LogFile("/dev/full")
    logger = logging.Logger("own")
    logger.addHandler(handler)
    for _ in range(3):
        try:
            raise ValueError(CANARY)
        except ValueError:
            logger.exception("it failed with %s", CANARY)
    handler.close()
    said = capsys.readouterr().err
    assert said == "fedtorch: lines of /dev/full are lost (No space left on device); the run goes on\n"
