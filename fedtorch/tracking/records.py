"""metrics.jsonl: one JSON object a line, the only source of curves, tables and reports.

kinds: `run` (clients, rounds), `resume`, `arrival` (of asynchronous rounds, one per training: who started when from
which version, and what it counts), `client` and `steps` (one per client and round), `round` (after its clients:
a round without it is incomplete; its `total` is of all rounds so far), `eval` (one per client; with `shared: true` its
rows are those of all clients that have this, and count once in sums), `eval_total` (the same: of all clients),
`examples` (scores of single examples, one per client), `result`. Rounds count from 1, an evaluation before the first
round has 0. A number that is not finite is null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedtorch.core.files import replace_file
from fedtorch.core.names import Names
from fedtorch.core.scores import means_of

NAME = "metrics.jsonl"
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


def pieces_of(record: Record) -> Iterator[bytes]:
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


def round_of(record: Record) -> int:
    """Where a record's points stand in a curve: scores of chosen weights at the round that these are of."""
    found: int = record["weights_of"] if "weights_of" in record else record["round"]
    return found


def kept(path: Path, last_round: int) -> list[Record]:
    """The records that a run keeps which goes on after `last_round`: none that is later, nor those of an end.

    Of an end are also its last scores, which a run that goes on makes again: it may have more rounds now.

    Later is also what was found out about that round in the next one (`late`): it is no part of the checkpoint.
    """
    if not path.exists():
        return []
    return [r for r in read(path) if not _is_of_end(r) and r.get("round", 0) + int(r.get("late", False)) <= last_round]


def _is_of_end(record: Record) -> bool:
    return record["kind"] in ("end", "result", "examples") or record.get("label") == "final"


def rewrite(path: Path, kept: Iterable[Record]) -> None:
    """Put these records in place of the file's, in one step."""
    replace_file(path, "".join(f"{_json(record)}\n" for record in kept))


def missing_rounds(found: Iterable[Record], rounds: int) -> list[int]:
    """Those of the first `rounds` rounds of which there is no record."""
    there = {record["round"] for record in found if record["kind"] == "round"}
    return [round for round in range(1, rounds + 1) if round not in there]


def as_ranges(rounds: Iterable[int]) -> list[list[int]]:
    """Rounds as [first, last] of each stretch of them."""
    found: list[list[int]] = []
    for round in sorted(rounds):
        if found and found[-1][1] == round - 1:
            found[-1][1] = round
        else:
            found.append([round, round])
    return found


def about_gap(gap: Mapping[str, Any]) -> str:
    """A gap, in words."""
    shown = [str(first) if first == last else f"{first} to {last}" for first, last in gap["missing_rounds"]]
    one = shown[0].isdecimal() and len(shown) == 1
    text = f"records of round{'' if one else 's'} {', '.join(shown)} are missing ({gap['reason']})"
    if "unknown_rounds" in gap:  # rounds before a resume, which only the records could have told of
        return f"{text}; the traffic in results.json is without some of them, and so may be clients' last losses"
    return text


def totals(scores: Scores, shared: Collection[str] = ()) -> dict[str, dict[str, float | int | None]]:
    """metric -> macro, micro and count as `means_of` gives them; macro and micro are None if no client has examples."""
    names = list(dict.fromkeys(metric for metrics in scores.values() for metric in metrics))
    result: dict[str, dict[str, float | int | None]] = {}
    for name in names:
        macro, micro, count = means_of(scores, name, shared)
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
