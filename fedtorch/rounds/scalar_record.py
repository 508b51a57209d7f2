"""RUN/scalars.jsonl: what each round has changed in the sums that the weights follow from, a line a round.

Base weights and these lines are the model of every round. A line is on the disk before its round counts.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedtorch.core.direction_model import DirectionModel
from fedtorch.core.directions import numbers
from fedtorch.core.errors import CheckpointError
from fedtorch.core.files import replace_file
from fedtorch.core.weights import digest_of

NAME = "scalars.jsonl"
"""In a run's folder."""
FORM = 1
"""Of the lines."""
Whole = npt.NDArray[np.int64]
_PROBED = 1000  # numbers of a direction that are compared between machines


class ScalarRecord:
    """The record of one run, written by its server.

    The first line says what the weights follow from. A process that dies may leave the last line torn: it is cut off
    when the run goes on, with all lines of rounds that are done again.
    """

    def __init__(self, folder: Path, head: Mapping[str, Any]) -> None:
        """head: of `head_of`."""
        self.path, self.head = folder / NAME, dict(head)
        self._sums: Whole = np.zeros(0, np.int64)

    def begin(self, sums: Tensor, rounds: int) -> None:
        """Have the lines of so many rounds, which came to these sums, and no others.

        Where the run goes on in another folder, or from sums that the lines do not lead to because there are none, one
        line takes the place of all of them.

        Raises:
            CheckpointError: a line was changed or is missing, or they come to other sums; or the disk refuses.
        """
        self._sums = sums.numpy().astype(np.int64)
        lines = [self._text(self.head)]
        if rounds and self.path.is_file():
            reader = Reader(self.path)
            reader.check(self.head)
            lines += [text for _, text in reader.up_to(rounds)]
            if not np.array_equal(reader.sums, self._sums):
                raise CheckpointError(
                    f"the lines of {self.path} come to other sums after round {rounds} than the checkpoint has; "
                    f"bring back the file of this run, or remove it to begin a new one from here"
                )
        elif rounds:
            lines.append(self._line(rounds, np.zeros_like(self._sums), since=0))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_file(self.path, "".join(lines))
            self._sync()
        except OSError as error:
            raise self._refused(error) from error

    def add(self, rounds: int, sums: Tensor) -> None:
        """Write the line of a round, after which so many are done, and wait for the disk.

        Raises:
            CheckpointError: the disk refuses.
        """
        before, self._sums = self._sums, sums.numpy().astype(np.int64)
        try:
            with self.path.open("a") as file:
                file.write(self._line(rounds, before, since=rounds - 1))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._refused(error) from error

    def _line(self, rounds: int, before: Whole, *, since: int) -> str:
        changes = self._sums - before
        places = np.flatnonzero(changes)
        line = {
            "round": rounds,
            **({} if since == rounds - 1 else {"since": since}),
            "gaps": np.diff(places, prepend=0).tolist(),
            "sums": changes[places].tolist(),
            "digest": digest(self._sums),
        }
        return self._text(line)

    def _text(self, line: Mapping[str, Any]) -> str:
        return json.dumps(line, separators=(",", ":")) + "\n"

    def _sync(self) -> None:
        with self.path.open("rb") as file:
            os.fsync(file.fileno())

    def _refused(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"{self.path} could not be written ({error}); make room, and start the run again")


class Reader:
    """A record as it is read, line by line; every line is compared with the digest that it ends with."""

    def __init__(self, path: Path) -> None:
        """Raises:
        CheckpointError: there is no such file, or its first line is none of a record.
        """
        self.path = path
        try:
            self._lines = path.read_text().splitlines(keepends=True)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        if self._lines and not self._lines[-1].endswith("\n"):  # torn when its process died
            del self._lines[-1]
        self.head = self._parsed(0)
        if self.head.get("scalars") != FORM or not isinstance(self.head.get("length"), int):
            raise CheckpointError(f"line 1 of {path} does not begin a record of scalars in form {FORM}")
        self.sums: Whole = np.zeros(self.head["length"], np.int64)
        """after the lines that were read"""
        self.first = 0
        """rounds before the first one whose weights the lines tell"""

    def check(self, head: Mapping[str, Any]) -> None:
        """Compare what the weights follow from with what a run says.

        Raises:
            CheckpointError: it is something else; it names what.
        """
        for key, value in head.items():
            if self.head.get(key) != value:
                raise CheckpointError(
                    f"line 1 of {self.path} has `{key}` {self.head.get(key)}, but here it is {value}: "
                    f"{_ABOUT.get(key, 'the algorithm has other settings')}"
                )

    def up_to(self, rounds: int) -> Iterator[tuple[Mapping[str, Any], str]]:
        """Each line of the first so many rounds, and its text; `sums` are then those after it.

        Raises:
            CheckpointError: a line was changed, or lines are missing.
        """
        done = 0
        for number in range(1, len(self._lines)):
            if done >= rounds:
                return
            line = self._parsed(number)
            at = line.get("round")
            if "since" in line and number == 1 and type(at) is int and at > 1:
                self.first = at
            elif at != done + 1 or type(at) is not int or "since" in line:
                raise self._wrong(number, f"is of round {at}, where {done + 1} belongs")
            if self.first > rounds:
                raise CheckpointError(
                    f"{self.path} begins with the sums after round {self.first}; rounds before it are in the record "
                    "of the run that this one has gone on from"
                )
            self._add(number, line)
            done = at
            yield line, self._lines[number]
        if done < rounds:
            raise CheckpointError(f"{self.path} ends with round {done}, but round {rounds} was asked for")

    @property
    def rounds(self) -> int:
        """Rounds that there are lines of."""
        return int(self._parsed(len(self._lines) - 1).get("round", 0)) if len(self._lines) > 1 else 0

    def _add(self, number: int, line: Mapping[str, Any]) -> None:
        gaps, changes = _whole_numbers(line.get("gaps")), _whole_numbers(line.get("sums"))
        if gaps is None or changes is None or len(gaps) != len(changes):
            raise self._wrong(number, "has no list of gaps and one of as many whole sums")
        places = list(accumulate(gaps))
        if places and not (0 <= places[0] and places[-1] < len(self.sums) and all(gap > 0 for gap in gaps[1:])):
            raise self._wrong(number, f"has sums at other places than 0 to {len(self.sums) - 1}")
        self.sums[places] += np.array(changes, np.int64)
        if line.get("digest") != digest(self.sums):
            raise self._wrong(number, "does not come to the sums of its digest: it, or one before it, was changed")

    def _parsed(self, number: int) -> Mapping[str, Any]:
        try:
            found = json.loads(self._lines[number])
        except (IndexError, ValueError) as error:
            raise self._wrong(number, f"is no JSON object ({error})") from error
        if not isinstance(found, dict):
            raise self._wrong(number, "is no JSON object")
        return found

    def _wrong(self, number: int, what: str) -> CheckpointError:
        return CheckpointError(f"line {number + 1} of {self.path} {what}; bring back the file as the run wrote it")


def _whole_numbers(values: Any) -> list[int] | None:
    """The list, if it is one of whole numbers that int64 has."""
    is_one = isinstance(values, list) and all(type(value) is int and abs(value) < 2**62 for value in values)
    return values if is_one else None


def digest(sums: Whole) -> str:
    """Digest of the sums after a round: BLAKE2b of their bytes as int64, lowest byte first; 32 hexadecimal digits."""
    return hashlib.blake2b(sums.astype("<i8").tobytes(), digest_size=16).hexdigest()


def head_of(model: DirectionModel, initial: Tensor) -> dict[str, Any]:
    """The first line, which says what the weights follow from beside the sums. initial: w0, flat on the CPU."""
    return {
        "scalars": FORM,
        "length": len(model.seeds),
        "numbers": initial.numel(),
        "base": digest_of({"base": initial}),
        "z": model.kind,
        "seeds": hashlib.blake2b(np.array(model.seeds, "<i8").tobytes(), digest_size=16).hexdigest(),
        "direction": direction_digest(model),
        "step": float(model.step).hex(),
    }


def direction_digest(model: DirectionModel) -> str:
    """Digest of the first numbers of the first direction, as this machine makes them."""
    probe = numbers(model.kind, model.seeds[0], 0, _PROBED)
    return hashlib.blake2b(probe.astype("<f8").tobytes(), digest_size=16).hexdigest()


_ABOUT = {
    "base": "the base is another one; give the model's files of that run (`--set task.model=...`)",
    "numbers": "the model has another number of trained parameters",
    "length": "there are other seeds (algorithm.seeds, client.steps, rounds)",
    "seeds": "the directions have other seeds",
    "z": "algorithm.z is another one",
    "direction": "numbers of the same seed are others on this kind of machine (algorithm.z: normal)",
    "step": "client.lr, algorithm.bits or algorithm.perturbations is another one",
}


def sums_of(lines: Iterable[Any], reader: Reader) -> Tensor:
    """The sums after all of the lines, float64."""
    for _ in lines:
        pass
    return torch.from_numpy(reader.sums.astype(np.float64))
