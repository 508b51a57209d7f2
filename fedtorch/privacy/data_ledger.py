"""What all runs on one set of data have released: a file beside the data, for its owner alone, that is only added to.

ε belongs to the data and not to a run: repeats, the points of a sweep and runs whose folder is gone add up here. A line
for each run has the numbers that its account rests on, one for each release says which; both are on the disk before
what they are about leaves the server. Runs may write at the same time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedtorch.core.errors import CheckpointError
from fedtorch.privacy.accounting import total_epsilon
from fedtorch.privacy.owner_files import append_own, read_own

SUFFIX = ".privacy.jsonl"
"""Of the file beside a folder of data, after the folder's name."""
_KEPT = ("rate", "clients", "noise_multiplier", "delta")
_WHAT = "the ledger of all runs on these data"
_ADVICE = "make it readable and writable for its owner alone, or name another file with privacy.ledger"


@dataclass
class KnownRun:
    """A run on the data, there or not any more."""

    folder: str
    """where it was"""
    rate: float
    """q"""
    clients: int
    """N"""
    noise_multiplier: float
    """z"""
    delta: float
    """the least ε is told at, in that run"""
    releases: set[tuple[int, int]] = field(default_factory=set)
    """(round, attempt) of each"""

    def __post_init__(self) -> None:
        numbers = (self.rate, self.noise_multiplier, self.delta)
        if not all(type(number) in (int, float) and 0 < number < math.inf for number in numbers):
            raise ValueError("numbers of an account are finite and above 0")
        if not isinstance(self.folder, str) or self.rate > 1 or self.delta >= 1 or counted(self.clients) < 1:
            raise ValueError("a share is at most 1, a folder is a text, and clients are counted")


def counted(number: object) -> int:
    """A whole number that is not negative, as it was written.

    Raises:
        ValueError: it is something else.
    """
    if type(number) is not int or number < 0:
        raise ValueError("not a count")
    return number


class DataLedger:
    """The file at `path`; it need not be there yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def runs(self) -> dict[str, KnownRun]:
        """All runs, by the names that their keys give them.

        Raises:
            CheckpointError: the file is damaged, or others than its owner may read it.
        """
        found: dict[str, KnownRun] = {}
        if not self.path.exists():
            return found
        lines = read_own(self.path, _WHAT, _ADVICE).splitlines(keepends=True)
        try:
            for line in map(json.loads, (line for line in lines if line.endswith(b"\n"))):
                if "rate" in line:
                    found.setdefault(line["run"], KnownRun(line["folder"], *(line[name] for name in _KEPT)))
                else:
                    found[line["run"]].releases.add((counted(line["round"]), counted(line["attempt"])))
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            kind = type(error).__name__
            raise CheckpointError(f"{self.path}, {_WHAT}, is damaged ({kind}); {_ADVICE}") from error
        return found

    def begin(self, run: str, terms: Mapping[str, Any], folder: Path, releases: Iterable[tuple[int, int]]) -> None:
        """A run begins or goes on, whose releases so far are these; what the file lacks of it is added.

        Raises:
            CheckpointError: the file cannot be read or written; then nothing may be released.
        """
        known = self.runs().get(run)
        lines: list[dict[str, Any]] = []
        if known is None:
            lines.append({"run": run, "folder": str(folder), **{name: terms[name] for name in _KEPT}})
        there = known.releases if known else set()
        lines += [{"run": run, "round": r, "attempt": a} for r, a in releases if (r, a) not in there]
        self._append(lines)

    def enter(self, run: str, round: int, attempt: int) -> None:
        """A release, on the disk when this returns; the same one again counts once.

        Raises:
            CheckpointError: the disk refuses; then nothing may leave.
        """
        self._append([{"run": run, "round": round, "attempt": attempt}])

    def _append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        if not lines:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_own(self.path, lines, shared=True)
        except OSError as error:
            raise CheckpointError(f"{self.path}, {_WHAT}, cannot be written ({error.strerror}); {_ADVICE}") from error


def epsilon_of(runs: Iterable[KnownRun], more: Sequence[tuple[float, float, int]] = (), delta: float = 1.0) -> float:
    """Of all releases of `runs` and of `more` (q, z, how many) together, at the least of their deltas and `delta`."""
    runs = list(runs)
    parts = [(run.rate, run.noise_multiplier, len(run.releases)) for run in runs]
    return total_epsilon([*parts, *more], min([delta, *(run.delta for run in runs)]))
