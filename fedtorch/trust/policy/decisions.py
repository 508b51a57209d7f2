"""A site's `policy.jsonl`: a line for each decision about what may leave it, on the disk before anything does."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtorch.core.errors import CheckpointError
from fedtorch.privacy.owner_files import append_own, whole_lines
from fedtorch.trust.policy.judge import Line

FILE = "policy.jsonl"
"""Name of the file, in the folder of the run."""


@dataclass(frozen=True)
class Decisions:
    """The file; its owner alone can read it."""

    folder: Path
    """Folder of the run."""

    def add(self, *decisions: Mapping[str, object]) -> None:
        """Write decisions down, each with the time of this machine, in seconds since 1970.

        Raises:
            CheckpointError: the disk refuses; then nothing may leave.
        """
        now, path = round(time.time(), 3), self.folder / FILE
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # `join` and the gate both write here
            append_own(path, [dict(sorted({"time": now, **each}.items())) for each in decisions], shared=True)
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be written ({error.strerror or error}); without it nothing leaves"
            ) from error

    def judged(self, lines: Iterable[Line]) -> None:
        """Write down how a run was judged at its start."""
        self.add(*({"at": "start", "verdict": line.verdict, "line": line.key, "about": line.about} for line in lines))


def read_decisions(folder: Path) -> list[Mapping[str, Any]]:
    """Lines of the file in a run's folder, in their order; none where there is no file.

    Raises:
        CheckpointError: it cannot be read, or has something else in it.
    """
    path = folder / FILE
    try:
        found = [json.loads(line) for line in whole_lines(path.read_bytes())] if path.exists() else []
        for number, line in enumerate(found, 1):
            if not isinstance(line, dict) or not all(isinstance(line.get(key), str) for key in ("at", "verdict")):
                raise ValueError(f"line {number} is no decision")
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable(path, error) from error
    return found


def unreadable(path: Path, error: Exception) -> CheckpointError:
    """The error of a file of decisions that cannot be read."""
    return CheckpointError(
        f"{path} says how much has left this site, and cannot be read ({error}); restore it from a copy, or begin a "
        "new run with `--resume never`"
    )
