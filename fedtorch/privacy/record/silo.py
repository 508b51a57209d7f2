"""A silo's key and its ledger: two files for its owner alone, in a folder of the silo's, which no other rank reads.

`key` has 32 random bytes, made when it is first asked for. `ledger.jsonl` has a line for each training whose noised
steps were about to leave, and for each noised score, of whatever run; it is on the disk before they do. The key belongs
to the data and not to a run, for one that does the same from the same start then comes to the same bits, which are no
further release.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtorch.core.errors import CheckpointError
from fedtorch.privacy.accounting import added_up
from fedtorch.privacy.digests import keyed_digest
from fedtorch.privacy.noise import ADD
from fedtorch.privacy.owner_files import append_own, read_own, whole_lines, write_own
from fedtorch.privacy.record.terms import Part
from fedtorch.privacy.release import counted
from fedtorch.privacy.stream import KEY_BYTES, Stream, derived

KEY, LEDGER = "key", "ledger.jsonl"
_FORM = 1
_RESTORE = (
    "bring it back from a backup; without one nobody knows what was released of these rows, and ε of what is released "
    "from now on would be told too small"
)


@dataclass(frozen=True)
class Training:
    """Noised steps of one training that has left the silo, or was about to; or, with no steps, the next attempt's.

    Or one noised count over units of `split`, a step of the rate 1; then `purpose` is what was counted.
    """

    run: str
    """name of the run's folder, for people"""
    round: int
    """from 0"""
    purpose: str
    """of several trainings in a round"""
    attempt: int
    """which one from this start: another where an earlier one came to other sums"""
    start: str
    """keyed digest of all that the training began with"""
    end: str
    """keyed digest of the start and of all its sums; empty: an attempt of which nothing has left yet"""
    steps: int
    """how many"""
    rate: float
    """q"""
    noise_multiplier: float
    """z"""
    delta: float
    """δ of the run"""
    split: str = ""
    """whose units were counted; empty: it is a training"""

    @classmethod
    def of(cls, line: dict[str, Any]) -> Training:
        """As it was written.

        Raises:
            ValueError, TypeError: the line is none.
        """
        found = cls(**line)
        numbers = (found.rate, found.noise_multiplier)
        if not all(type(number) in (int, float) and 0 < number <= 1000 for number in numbers) or found.rate > 1:
            raise ValueError("no account")
        if not isinstance(found.delta, float) or not 0 < found.delta < 1:
            raise ValueError("no delta")
        if not all(isinstance(text, str) for text in (found.run, found.purpose, found.start, found.end, found.split)):
            raise TypeError("no text")
        for number in (found.round, found.attempt, found.steps):
            counted(number)
        return found

    @property
    def is_open(self) -> bool:
        """Has nothing left under it?"""
        return not self.end

    def line(self) -> dict[str, Any]:
        """As it is written; of a training as it was when there were no counts."""
        return {name: value for name, value in asdict(self).items() if name != "split" or value}


@dataclass(frozen=True)
class Step:
    """Name of one noised step among all of a silo."""

    client: str
    """whose rows are in it"""
    round: int
    """from 0"""
    purpose: str
    """of several trainings in a round"""
    attempt: int
    """which one from its start"""
    number: int
    """from 0, in its training"""
    before: str
    """keyed digest of the start and of all sums before this one"""


Sum = npt.NDArray[np.float64]
Block = tuple[int, int, float]
"""First and last but one of some numbers of a sum, and the standard deviation of the noise on each, in steps."""
Blocks = tuple[tuple[Block, ...], ...]
"""Blocks of each round in turn."""
AddNoise = Callable[[Step, Sum, Sequence[Block]], str]
"""Adds a step's noise to its sum, in place; returns the keyed digest of that sum and of all before it."""


class Silo:
    """The key and the ledger in `folder`; with None, for simulations, nothing is on the disk and nothing is counted."""

    def __init__(self, key: bytes, folder: Path | None, run: str = "") -> None:
        self.key, self.folder, self.run = key, folder, run
        self.elsewhere: AddNoise | None = None
        self._known: list[Training] = []
        self._size = 0

    @classmethod
    def open(cls, folder: Path, run: str) -> Silo:
        """The silo's files, made where there are none.

        Raises:
            CheckpointError: one of the two is there and the other is not, is damaged, or others may read it; or the
                disk refuses.
        """
        key, ledger = folder / KEY, folder / LEDGER
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with _locked(folder):
                if not key.exists() and not ledger.exists():
                    append_own(ledger, [{"form": _FORM}])
                    write_own(key, os.urandom(KEY_BYTES))
        except OSError as error:
            why = f"{folder} cannot be written ({error}); free some space, or set privacy.ledger"
            raise CheckpointError(why) from error
        found = read_own(key, "the key of this silo's noise", _RESTORE)
        if len(found) != KEY_BYTES:
            raise CheckpointError(f"{key} has {len(found)} bytes instead of {KEY_BYTES}; {_RESTORE}")
        silo = cls(found, folder, run)
        silo.trainings()
        return silo

    def trainings(self) -> list[Training]:
        """All lines, read anew where the file has grown.

        Raises:
            CheckpointError: the ledger is missing, damaged, or was cut short.
        """
        if self.folder is None:
            return self._known
        path = self.folder / LEDGER
        try:
            size = path.stat().st_size
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error.strerror}); {_RESTORE}") from error
        if size != self._size:
            known, self._known = self._known, read_ledger(path)
            if self._known[: len(known)] != known:
                raise CheckpointError(f"{path} lacks lines that it had when this run began; {_RESTORE}")
            self._size = size
        return self._known

    def trained(self, run: str) -> list[Training]:
        """All trainings of a run, and no counts."""
        return [one for one in self.trainings() if one.run == run and not one.split]

    def parts(self, run: str | None = None) -> list[Part]:
        """All released steps for the account; run: of that alone."""
        return parts_of(one for one in self.trainings() if run in (None, one.run))

    def add_noise(self, step: Step, total: Sum, kind: str, blocks: Sequence[Block]) -> str:
        """Add a step's noise, in place, to its sum of whole numbers; the keyed digest of that sum and of all before it.

        The noise follows from key, step and sum alone, so one is never on two sums. kind: as `privacy.noise`. blocks:
        numbers to which it is added. Where another process adds it (`elsewhere`), by what that one knows of the run.
        """
        if self.elsewhere is not None:
            return self.elsewhere(step, total, blocks)
        content: memoryview = total.view(np.uint8).data
        found = keyed_digest(derived(self.key, "record digest"), [step.before.encode(), content])
        purpose = f"record noise/{step.purpose}/{step.number}/{found}"
        for at, (start, stop, deviation) in enumerate(blocks):
            key = derived(self.key, f"{purpose}/{at}" if at else purpose, step.round, step.attempt)
            ADD[kind](total[start:stop], deviation, Stream(key))
        return found

    def attempt(self, start: str) -> int:
        """Attempt with which a training from this start is done."""
        return max((one.attempt for one in self.trainings() if one.start == start), default=0)

    def enter(self, training: Training) -> bool:
        """May these steps leave? Their line is on the disk then.

        False: under this attempt other sums have left, from the same first batch; the next attempt's line is there.

        Raises:
            CheckpointError: the disk refuses; then nothing may leave.
        """
        if self.folder is None:
            self._known.append(training)
            return True
        with _locked(self.folder):
            before = [one for one in self.trainings() if (one.start, one.attempt) == (training.start, training.attempt)]
            released = {one.end for one in before if not one.is_open}
            may_leave = released <= {training.end}
            if not may_leave:
                next_one = asdict(training) | {"attempt": training.attempt + 1, "end": "", "steps": 0}
                training = Training.of(next_one)
            if training not in before:
                self._append(training)
        return may_leave

    def _append(self, training: Training) -> None:
        assert self.folder is not None
        path = self.folder / LEDGER
        try:
            append_own(path, [training.line()])
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be written ({error}), so the update stays here; free some space and start the run again"
            ) from error
        self._size = path.stat().st_size
        self._known.append(training)


class OwnSilos(dict[str, Silo]):
    """Silos whose rows are here by their clients' names, each opened, or made, when it is asked for by `[name]`."""

    def __init__(self, open_silo: Callable[[str], Silo]) -> None:
        super().__init__()
        self._open = open_silo
        self.elsewhere: AddNoise | None = None
        """adds the noise of all of them in another process; None: this one does"""

    def __missing__(self, client: str) -> Silo:
        self[client] = found = self._open(client)
        found.elsewhere = self.elsewhere
        return found


def parts_of(trainings: Iterable[Training]) -> list[Part]:
    """Released steps for the account; the same training, done again, counts once."""
    each = {(one.start, one.attempt, one.end): one for one in trainings}.values()
    return added_up((one.rate, one.noise_multiplier, one.steps) for one in each)


def read_ledger(path: Path) -> list[Training]:
    """All lines of a silo's ledger; its key is not looked at.

    Raises:
        CheckpointError: it is missing or damaged, or others than its owner may read it.
    """
    try:
        head, *lines = map(json.loads, whole_lines(read_own(path, "the ledger of this silo", _RESTORE)))
        if head != {"form": _FORM}:
            raise ValueError
        return [Training.of(line) for line in lines]
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged; {_RESTORE}") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Nobody else writes to the ledger meanwhile."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
