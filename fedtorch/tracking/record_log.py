"""Writing metrics.jsonl: what a disk refuses waits in memory, and what somebody takes away is written once more."""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from fedtorch.tracking import records
from fedtorch.tracking.records import Record, pieces_of, plain

logger = logging.getLogger(__name__)

MOST_WAITING = 32 << 20
"""Bytes of records that wait for a disk that refuses; beyond them the oldest are lost."""
_BLOCK = 1 << 20


class Log:
    """Appends records to a file. A disk that refuses costs one warning, and records only if it goes on to refuse.

    1. A record that cannot be written waits, and those after it with it, so that their order stays.
    2. A file that is gone, or has another one in its place, is written anew from the one that is still open.
    3. What is missing in the end is known: see `gap`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None
        self._waiting: deque[tuple[Record, int]] = deque()
        self._held = self._size = 0
        self._lost: set[int] = set()
        self._is_torn = self._is_warned = False
        self.reason = ""
        """why the disk refused, last"""

    def append(self, record: Record) -> None:
        """Write one line; when this returns, a killed process no longer loses it, unless the disk refuses."""
        record = plain(record)
        if not self._waiting and self._try(lambda: self._write(record)):
            return
        size = sum(map(len, pieces_of(record)))
        self._waiting.append((record, size))
        self._held += size
        while self._held > MOST_WAITING:
            lost, size = self._waiting.popleft()
            self._held -= size
            self._lost.add(lost.get("round", 0))
        self._try(self._write_waiting)

    def sync(self) -> None:
        """Write what waits, and see to it that the file is where it belongs."""
        self._try(self._put_back)
        self._try(self._write_waiting)

    def close(self) -> None:
        """Close the file, after a last attempt; a later `append` opens it again."""
        if self._file is not None or self._waiting:
            self.sync()
        if self._file is not None:
            self._file.close()
            self._file = None

    def gap(self, rounds: int) -> dict[str, Any]:
        """Which of so many rounds are not in the file whole, as [first, last] of each stretch, and the `reason`.

        Empty where all are. What still waits counts as missing.
        """
        self.sync()
        try:
            missing = set(records.missing_rounds(records.read(self.path), rounds))
        except OSError as error:
            missing, self.reason = set(range(1, rounds + 1)), self.reason or str(error)
        waits = {record.get("round", 0) for record, _ in self._waiting}
        missing |= {round for round in self._lost | waits if 0 < round <= rounds}
        if not missing:
            return {}
        return {"missing_rounds": records.as_ranges(missing), "reason": self.reason or "they are not in the file"}

    def _try(self, what: Callable[[], None]) -> bool:
        """Whether the disk took it."""
        try:
            what()
            return True
        except OSError as error:
            self.reason = error.strerror or str(error)
            if not self._is_warned:
                logger.warning("could not write %s: %s; records wait in memory, training goes on", self.path, error)
            self._is_warned = True
            return False

    def _write_waiting(self) -> None:
        while self._waiting:
            record, size = self._waiting[0]
            self._write(record)
            self._waiting.popleft()
            self._held -= size

    def _write(self, record: Record) -> None:
        """One whole line, or (where this raises) none, or a part that no reader takes for one."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = FileIO(self.path, "a+")
            self._size = os.fstat(self._file.fileno()).st_size
        try:
            if self._is_torn:
                _write_whole(self._file, b"\n")
            for piece in pieces_of(record):
                _write_whole(self._file, piece)
        except OSError:
            self._is_torn = True
            os.ftruncate(self._file.fileno(), self._size)
            self._is_torn = False
            raise
        self._is_torn = False
        self._size = os.fstat(self._file.fileno()).st_size

    def _put_back(self) -> None:
        """The file that is open, where its name is gone or is another file's."""
        if self._file is None:
            return
        own = os.fstat(self._file.fileno())
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            there = None
        if there is not None and (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino):
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f"{self.path.name}.partial")
        try:
            with FileIO(partial, "w") as copy:
                for start in range(0, own.st_size, _BLOCK):
                    _write_whole(copy, os.pread(self._file.fileno(), _BLOCK, start))
            os.replace(partial, self.path)
        except OSError:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        self._file.close()
        self._file = FileIO(self.path, "a+")
        logger.warning("%s was taken away while the run went on; it is written anew", self.path)


def take_up(path: Path, resume_round: int | None) -> list[Record]:
    """The records that a run goes on from, or none; the file then has these alone, unless the disk refuses."""
    try:
        if resume_round is None:
            path.unlink(missing_ok=True)
            return []
        kept = records.kept(path, resume_round)
    except OSError as error:
        logger.warning("old records stay in %s: %s; training goes on", path, error)
        return []
    try:
        records.rewrite(path, kept)
    except OSError as error:
        logger.warning("records of later rounds stay in %s: %s; training goes on", path, error)
    return kept


def _write_whole(file: FileIO, data: bytes) -> None:
    while data:
        taken = file.write(data)
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        data = data[taken:]
