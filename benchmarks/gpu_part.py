"""A part of the benchmark of GPUs: where it notes its rows, and how it starts processes that may hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 90.0
_LOCK = Lock()


@dataclass(frozen=True)
class Ended:
    """A process that was run."""

    code: int | None
    """its exit code; None: it ran past its limit and was killed"""
    seconds: float
    """until then"""
    text: str
    """what it printed"""


@dataclass(frozen=True)
class Setting:
    """The device, sizes and limits of a part."""

    part: str
    """its name"""
    device: str
    """cuda or cpu"""
    small: bool
    """with sizes for a rehearsal"""
    out: Path
    """folder of all parts"""
    jobs: int
    """processes at a time, where nothing is timed"""
    limit_s: float = LIMIT_S
    """of the part"""

    @property
    def folder(self) -> Path:
        """This part's own, for runs and logs."""
        folder = self.out / self.part
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def note(self, what: str, outcome: str = "ok", **figures: Any) -> None:
        """Write a row at once, so that it is there if the part comes to no end."""
        row = {"what": what, "outcome": outcome, **figures}
        with _LOCK, (self.out / f"{self.part}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    @contextmanager
    def noting(self, what: str) -> Iterator[dict[str, Any]]:
        """Note what is put into the dict, with the seconds that it took; an error is the outcome and is not raised."""
        figures: dict[str, Any] = {}
        begun = time.perf_counter()
        try:
            yield figures
        except Exception as error:
            outcome = "out of memory" if "out of memory" in str(error) else "failed"
            self.note(what, outcome, said=f"{type(error).__name__}: {str(error)[:600]}", **figures)
        else:
            self.note(what, figures.pop("outcome", "ok"), **{"seconds": time.perf_counter() - begun, **figures})

    def python(self, words: Sequence[str], log: str, limit_s: float, **more: Any) -> Ended:
        """Run this Python with `words`, its output in `log` of the part's folder. more: as `run_limited` takes."""
        return run_limited([sys.executable, *words], limit_s, self.folder / log, **more)


def run_limited(
    command: Sequence[str],
    limit_s: float,
    log: Path,
    *,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Ended:
    """Run a command that finds this checkout's package; after `limit_s` it is killed with all that it started."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", **os.environ}
    variables.update({"PYTHONPATH": paths, **(environ or {})})
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=cwd, env=variables)
        code: int | None
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
            _kill(process)
    return Ended(code, time.perf_counter() - begun, log.read_text(errors="replace"))


def last_lines(text: str, count: int = 6, width: int = 300) -> str:
    """The end of an output, for a cell of the table."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "\n".join(line[:width] for line in lines[-count:])


def ended_as(ended: Ended, expected: int | None = 0) -> str:
    """`ok`, or how a process ended in place of that."""
    if ended.code is None:
        return "ran past its limit"
    return "ok" if ended.code == expected else f"exit code {ended.code}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The process first, which may end what it started in an orderly way, then all that is left."""
    found: list[psutil.Process] = []
    with suppress(psutil.Error):
        found = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(3)
    process.kill()
    for each in found:
        with suppress(psutil.Error):
            each.kill()
    process.wait()
