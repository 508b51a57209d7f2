"""Ledger of all runs on one set of data: a file beside the data, for its owner alone, that is only added to.

ε belongs to the data and not to a run: repeats, the points of a sweep and runs whose folder is gone add up here. A line
for each run has the numbers that its account rests on, one for each release says which; both are on the disk before
what they are about leaves the server. Runs may write at the same time.

A copy of a run has its key, and so its draws and noise. Here the two meet: under an attempt at a round one sum is
released, that of whoever comes first, and the other takes the next attempt.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from fedtorch.core.errors import CheckpointError
from fedtorch.privacy.accounting import parts_of, shared, total_epsilon
from fedtorch.privacy.owner_files import append_own, read_own, sync_folder
from fedtorch.privacy.release import Release, counted, merge

SUFFIX = ".privacy.jsonl"
"""Of the file beside a folder of data, after the folder's name."""
_KEPT = ("rate", "clients", "noise_multiplier", "delta")
_WHAT = "the ledger of all runs on these data"
_ADVICE = "make it readable and writable for its owner alone, or name another file with privacy.ledger"
_RESTORE = (
    "bring it back from a backup. If there is none: `--resume force` enters this run's releases anew, and what other "
    "runs released of these data is then counted nowhere"
)
_CHAIN = b', "chain": "'


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
    releases: dict[tuple[int, int], Release] = field(default_factory=dict)
    """(round, attempt) -> the release"""

    @property
    def spent(self) -> Counter[int]:
        """As the account counts them."""
        return shared((release.round, release.draw) for release in self.releases.values())

    def __post_init__(self) -> None:
        numbers = (self.rate, self.noise_multiplier, self.delta)
        if not all(type(number) in (int, float) and 0 < number < math.inf for number in numbers):
            raise ValueError("numbers of an account are finite and above 0")
        if not isinstance(self.folder, str) or self.rate > 1 or self.delta >= 1 or counted(self.clients) < 1:
            raise ValueError("a share is at most 1, a folder is a text, and clients are counted")


class DataLedger:
    """The file at `path`; it need not be there yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[tuple[int, int, int], dict[str, KnownRun], str] | None = None
        """of the file as it was read last: its stamp, what it says, and the end of its chain"""

    def runs(self) -> dict[str, KnownRun]:
        """All runs, by the names that their keys give them; none where there is no file.

        Raises:
            CheckpointError: the file is damaged or was edited, or others than its owner may read it.
        """
        return self._read()[0] if self.path.exists() else {}

    def account(self) -> dict[str, Any]:
        """Account of all runs together: how many, how many releases, ε and its δ; the last one where it is unreadable.

        Raises:
            CheckpointError: it could never be read.
        """
        try:
            found = self.runs()
        except CheckpointError:
            if self._seen is None:
                raise
            found = self._seen[1]
        runs = list(found.values())
        releases = sum(len(run.releases) for run in runs)
        delta = min((run.delta for run in runs), default=1.0)
        return {"runs": len(runs), "releases": releases, "epsilon": epsilon_of(runs), "delta": delta}

    def begin(
        self, run: str, terms: Mapping[str, Any], folder: Path, releases: Sequence[Release], *, is_known: bool
    ) -> None:
        """A run begins or goes on, whose releases so far are these; what the file lacks of it is added.

        is_known: it was begun here before, so its line and its releases must be there.

        Raises:
            CheckpointError: the file cannot be read or written; or it lacks what it must have.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error
        if is_known:
            self._check_known(run, releases)
        if (known := self.runs().get(run)) is not None:
            self._check_terms(known, terms)
        with self._locked(os.O_CREAT) as found:
            lines: list[dict[str, Any]] = []
            if run not in found:
                lines.append({"run": run, "folder": str(folder), **{name: terms[name] for name in _KEPT}})
            there = found[run].releases if run in found else {}
            lines += [{"run": run, **r.line()} for r in releases if (r.round, r.attempt) not in there]
            self._append(lines)
        if known is None:  # without its name in the folder a new file is lost with the power
            sync_folder(self.path.parent)

    def of(self, run: str) -> list[Release]:
        """The run's releases, also those of its copies, in the order of rounds and attempts.

        Raises:
            CheckpointError: see `runs`; or the run's line is not there any more.
        """
        found = self._read()[0]
        if run not in found:
            raise CheckpointError(f"{self.path}, {_WHAT}, has lost the line of this run; {_RESTORE}")
        return [release for _, release in sorted(found[run].releases.items())]

    def enter(self, run: str, release: Release) -> bool:
        """A sum that is about to be released is on the disk when this returns; the same one again counts once.

        False: another one was released under the same attempt, by a copy of the run; nothing is written then.

        Raises:
            CheckpointError: the disk refuses, or the file is gone; then nothing may leave.
        """
        with self._locked() as found:
            there = self._own(found, run).releases.get((release.round, release.attempt))
            if there is None or there.is_open:
                self._append([{"run": run, **release.line()}])
                return True
            return there.digest == release.digest

    def renew(self, run: str, round: int, least: int) -> Release:
        """The next attempt at a round, from `least` on, that no copy of the run has; on the disk when this returns.

        Raises:
            CheckpointError: see `enter`.
        """
        with self._locked() as found:
            taken = [attempt for place, attempt in self._own(found, run).releases if place == round]
            release = Release.begun(round, max([least - 1, *taken]) + 1)
            self._append([{"run": run, **release.line()}])
        return release

    def _check_known(self, run: str, releases: Iterable[Release]) -> None:
        """The file has what a run that was begun here has left.

        Raises:
            CheckpointError: it has not.
        """
        if not self.path.exists():
            raise CheckpointError(f"{self.path}, {_WHAT}, is gone, though this run was entered there; {_RESTORE}")
        known = self.runs().get(run)
        if known is None:
            raise CheckpointError(f"{self.path}, {_WHAT}, has lost the line of this run; {_RESTORE}")
        for release in releases:
            there = known.releases.get((release.round, release.attempt))
            if there is None or not there.covers(release):
                raise CheckpointError(
                    f"{self.path}, {_WHAT}, lacks the release of round {release.round + 1}, attempt {release.attempt}, "
                    f"of this run; {_RESTORE}"
                )

    def _check_terms(self, known: KnownRun, terms: Mapping[str, Any]) -> None:
        for name in _KEPT:
            if getattr(known, name) != terms[name]:
                raise CheckpointError(
                    f"{self.path}, {_WHAT}, says that {name} of this run is {getattr(known, name)}, its own ledger "
                    f"{terms[name]}; one of them was edited: bring it back from a backup, or begin anew with "
                    "`--resume never`"
                )

    def _own(self, found: Mapping[str, KnownRun], run: str) -> KnownRun:
        if run not in found:
            raise CheckpointError(
                f"{self.path}, {_WHAT}, has lost the line of this run, so the round's sum stays here; bring it back "
                "and start the run again"
            )
        return found[run]

    @contextmanager
    def _locked(self, flags: int = 0) -> Iterator[dict[str, KnownRun]]:
        """Read the file while nobody else may write."""
        handle = -1
        try:
            try:
                handle = os.open(self.path, os.O_RDWR | flags, 0o600)
                fcntl.flock(handle, fcntl.LOCK_EX)
            except FileNotFoundError:
                raise CheckpointError(
                    f"{self.path}, {_WHAT}, is gone, so the round's sum stays here; bring it back and start the run "
                    "again"
                ) from None
            except OSError as error:
                raise self._unwritable(error) from error
            yield self._read()[0]
        finally:
            if handle >= 0:
                os.close(handle)

    def _append(self, lines: Sequence[dict[str, Any]]) -> None:
        """Only under the lock."""
        if not lines:
            return
        found, end = self._read()
        for line in lines:
            end = line["chain"] = _next(end, json.dumps(line).encode()[:-1])
        try:
            append_own(self.path, lines)
        except OSError as error:
            raise self._unwritable(error) from error
        for line in lines:
            _take(found, line)
        self._seen = stamp(self.path), found, end

    def _read(self) -> tuple[dict[str, KnownRun], str]:
        """Read the file and the end of its chain, again only where it has changed."""
        now = stamp(self.path)  # before the content: what comes later has another one
        if self._seen is None or self._seen[0] != now:
            self._seen = now, *self._parsed(read_own(self.path, _WHAT, _ADVICE))
        return self._seen[1:]

    def _parsed(self, content: bytes) -> tuple[dict[str, KnownRun], str]:
        found: dict[str, KnownRun] = {}
        end = ""
        for number, raw in enumerate(content.splitlines(keepends=True), start=1):
            if not raw.endswith(b"\n"):
                break  # a process died in it, and nothing left after that
            body, sep, chain = raw[:-1].rpartition(_CHAIN)
            end = _next(end, body if sep else raw[:-1])
            if sep and chain != f'{end}"}}'.encode():
                raise CheckpointError(
                    f"{self.path}, {_WHAT}, was edited: line {number} does not follow from the lines before it; bring "
                    "it back from a backup"
                )
            try:
                _take(found, json.loads(raw))
            except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
                raise CheckpointError(
                    f"{self.path}, {_WHAT}, is damaged ({type(error).__name__}); {_ADVICE}"
                ) from error
        return found, end

    def _unwritable(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"{self.path}, {_WHAT}, cannot be written ({error.strerror}); {_ADVICE}")


def epsilon_of(runs: Iterable[KnownRun], more: Sequence[tuple[float, float, int]] = (), delta: float = 1.0) -> float:
    """ε of all releases of `runs` and of `more` (q, z, how many), at the least of their deltas and `delta`."""
    runs = list(runs)
    parts = [part for run in runs for part in parts_of(run.rate, run.noise_multiplier, run.spent)]
    return total_epsilon([*parts, *more], min([delta, *(run.delta for run in runs)]))


def _take(found: dict[str, KnownRun], line: Mapping[str, Any]) -> None:
    if "rate" in line:
        found.setdefault(line["run"], KnownRun(line["folder"], *(line[name] for name in _KEPT)))
    else:
        merge(found[line["run"]].releases, Release.of(line))


def _next(end: str, line: bytes) -> str:
    """Chain a line, without its end, to those before it, so that an edited or missing line shows in the next."""
    return blake2b(end.encode() + line, digest_size=8).hexdigest()


def stamp(path: Path) -> tuple[int, int, int]:
    """Another one where somebody has written to the file, or put another in its place."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return found.st_ino, found.st_size, found.st_mtime_ns
