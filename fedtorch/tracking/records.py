"""metrics.jsonl: one JSON object a line, the only source of curves, tables and reports.

kinds: `run` (clients, rounds), `resume`, `client` and `steps` (one per client and round), `round` (after its clients:
a round without it is incomplete; its `total` is of all rounds so far), `eval` (one per client), `eval_total`,
`examples` (scores of single examples, one per client), `result`. Rounds count from 1, an evaluation before the first
round has 0. A number that is not finite is null.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from fedtorch.core.files import replace_file
from fedtorch.core.names import Names
from fedtorch.core.scores import means

logger = logging.getLogger(__name__)

NAME = "metrics.jsonl"
RECEIVED = "received/"
"""Before the names of a received model's scores, where both it and the client's own are evaluated."""
Record = dict[str, Any]
Scores = Mapping[str, Mapping[str, tuple[float, int]]]
"""client -> metric -> (sum over examples, number of examples)."""

# `bytes_up`, `physical_up`, `messages_up` and the same down, and what clients counted, such as `kv_bytes`
_COUNTED = ("bytes", "physical", "messages")


def counted(record: Mapping[str, Any]) -> dict[str, int]:
    """The bytes and messages of a `round` or `end` record; see `Meter` for what they are."""
    names = [name for name in record if name.split("_")[0] in _COUNTED and "_" in name or name.endswith("_bytes")]
    return {name: record[name] for name in names}


_AT_ONCE = 10_000
"""so many names at a time"""


class Log:
    """Appends records to a file. A disk that refuses costs records and one warning, never the run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None
        self._is_torn = self._is_warned = False

    def append(self, record: Record) -> None:
        """Write one line; when this returns, a killed process no longer loses it."""
        pieces = _pieces(plain(record))
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("ab", buffering=0)
            self._write(b"\n" * self._is_torn + next(pieces))
            for piece in pieces:
                self._write(piece)
            self._is_torn = False
        except OSError as error:
            if not self._is_warned:
                logger.warning("records are lost: could not write %s: %s", self.path, error)
            self._is_warned = True

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        self._is_torn = True
        while data:
            data = data[self._file.write(data) :]

    def close(self) -> None:
        """Close the file; a later `append` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _pieces(record: Record) -> Iterator[bytes]:
    """A record's line. Names, of which there may be a million, are not made all at once."""
    text, divider = "{", ""
    for key, value in record.items():
        text += f"{divider}{_json(key)}:"
        divider = ","
        if not isinstance(value, Names):
            text += _json(value)
            continue
        text += "["
        for start in range(0, len(value), _AT_ONCE):
            yield (text + _json(value[start : start + _AT_ONCE])[1:-1]).encode()
            text = ","
        text = "]" if value else f"{text}]"
    yield f"{text}}}\n".encode()


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def read(path: Path) -> Iterator[Record]:
    """The records of a file; lines that are not whole JSON objects (a process died in them) are left out."""
    with path.open("rb") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:  # malformed, or not UTF-8
                continue
            if isinstance(record, dict) and "kind" in record:
                yield record


def trim(path: Path, last_round: int) -> list[Record]:
    """Drop what is later than `last_round`, the end and torn lines from the file; what is kept is returned.

    Later is also what was found out about that round in the next one (`late`): it is no part of the checkpoint.
    """
    if not path.exists():
        return []
    kept = [
        r
        for r in read(path)
        if r["kind"] not in ("end", "result") and r.get("round", 0) + int(r.get("late", False)) <= last_round
    ]
    replace_file(path, "".join(f"{_json(record)}\n" for record in kept))
    return kept


def totals(scores: Scores) -> dict[str, dict[str, float | int | None]]:
    """metric -> macro, micro and count as `means` gives them; macro and micro are None if no client has examples."""
    names = list(dict.fromkeys(metric for metrics in scores.values() for metric in metrics))
    result: dict[str, dict[str, float | int | None]] = {}
    for name in names:
        macro, micro, count = means(metrics[name] for metrics in scores.values() if name in metrics)
        result[name] = {"macro": macro if count else None, "micro": micro if count else None, "count": count}
    return result


def plain(value: Any) -> Any:
    """The value as JSON can hold it: numpy's and torch's numbers as plain ones, not finite ones as None; Names stay."""
    if value is None or isinstance(value, (str, int)):  # first: there may be 100 000 clients' names
        return value
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Names):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (int, str)) else str(value)
