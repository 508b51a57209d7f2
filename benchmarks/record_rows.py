"""Real rows of silos for what privacy costs in score: questions of WikiSQL and utterances of SGD.

WikiSQL: a question's label is the aggregate that its query has; tables are dealt to five silos and a public part; a
person is a table. SGD: what a user says, whose label is its first act; a silo for each of six domains; a person is a
dialog; the dev files are the public part.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Rows:
    """Rows of one kind, where they are read from, and who has them."""

    name: str
    folder: str
    """where they lie in the folder of all data"""
    read: Callable[[Path], tuple[dict[str, list[Row]], list[Row], list[Row]]]
    """rows of each silo, of the public part and of the test, from the folder"""
    person: str
    """the column that says whose a row is"""
    most: int
    """rows of a person in a step"""
    labels: tuple[str, ...]
    units: tuple[str, ...]
    """of the cells: `row`, or the column; the first has all of them"""
    steps: int
    """in a round, of each silo"""
    batch: Mapping[str, int]
    """of so many units of each kind; without privacy of rows, so many rows"""
    scores: str
    """whose macro F1 it is"""


AGGREGATES = ("none", "max", "min", "count", "sum", "avg")
ACTS = (
    "INFORM",
    "REQUEST",
    "INFORM_INTENT",
    "SELECT",
    "THANK_YOU",
    "NEGATE",
    "AFFIRM",
    "REQUEST_ALTS",
    "AFFIRM_INTENT",
    "NEGATE_INTENT",
)
SILOS, PUBLIC = 5, 2
"""of seven parts of the tables, as many are silos' and public"""


def read_questions(folder: Path) -> tuple[dict[str, list[Row]], list[Row], list[Row]]:
    """Tables in turn to five silos and the public part; the test file is nobody's."""
    places: dict[str, int] = {}
    silos: dict[str, list[Row]] = {f"s{place}": [] for place in range(SILOS)}
    public: list[Row] = []
    for row in _questions(folder / "train.jsonl"):
        place = places.setdefault(row["table"], len(places)) % (SILOS + PUBLIC)
        (silos[f"s{place}"] if place < SILOS else public).append(row)
    return silos, public, list(_questions(folder / "test.jsonl"))


def _questions(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines():
        row = json.loads(line)
        yield {"text": row["question"], "table": row["table_id"], "label": AGGREGATES[row["sql"]["agg"]]}


def read_dialogs(folder: Path) -> tuple[dict[str, list[Row]], list[Row], list[Row]]:
    """Domains of the train files, the dev files as the public part, and the test files, which are nobody's."""
    silos: dict[str, list[Row]] = {}
    for domain, row in _utterances(folder / "train"):
        silos.setdefault(domain, []).append(row)
    public, test = ([row for _, row in _utterances(folder / split)] for split in ("dev", "test"))
    return silos, public, test


def _utterances(folder: Path) -> Iterator[tuple[str, Row]]:
    """Domain and row of everything that a user says."""
    for path in sorted(folder.glob("dialogues_*.json")):
        for dialog in json.loads(path.read_text()):
            domain = dialog["services"][0].split("_")[0].lower()
            for turn in dialog["turns"]:
                if turn["speaker"] == "USER":
                    act = next(action["act"] for frame in turn["frames"] for action in frame["actions"])
                    yield domain, {"text": turn["utterance"], "dialog": dialog["dialogue_id"], "label": act}


KINDS = {
    "questions": Rows(
        "questions", "wikisql", read_questions, "table", 6, AGGREGATES, ("row", "table"), 12,
        {"row": 128, "table": 32}, "test questions",
    ),
    "dialogs": Rows(
        "dialogs", "dialog/sgd", read_dialogs, "dialog", 4, ACTS, ("dialog",), 6,
        {"row": 192, "dialog": 48}, "users' utterances in test dialogs",
    ),
}  # fmt: skip


def with_words(rows: Iterable[Row]) -> list[Row]:
    """Public rows with a label of their own: the first of their fairly frequent words."""
    rows = list(rows)
    words = [re.findall(r"[a-z]+", row["text"].lower()) for row in rows]
    frequent = [word for word, _ in Counter(word for each in words for word in set(each)).most_common(60)][10:]
    label = [next((word for word in each if word in frequent), "other") for each in words]
    return [{"text": row["text"], "label": one} for row, one in zip(rows, label, strict=True)]


def write_rows(kind: Rows, data: Path, out: Path) -> dict[str, dict[str, int]]:
    """Files of the silos, of the public part and of the test.

    Returns silo -> unit -> how many it has, rounded down to tens, which is declared; the public part is named so.
    """
    silos, public, test = kind.read(data / kind.folder)
    out.mkdir(parents=True, exist_ok=True)
    persons = sorted({row[kind.person] for row in public})
    kept = set(persons[: len(persons) // 4])  # of the public part, to score on
    nobody = _of("nobody", "test", test)
    train = {name: _of(name, "train", rows) for name, rows in silos.items()}
    known = [row for row in public if row[kind.person] not in kept]
    files: dict[str, Sequence[Row]] = {
        "silos": [row for rows in train.values() for row in rows],
        "test": test,
        "words": with_words(public),
        "all": [row for rows in train.values() for row in rows] + nobody,
        "together": [row for rows in silos.values() for row in _of("all", "train", rows)] + nobody,
        "public": _of("public", "train", known)
        + _of("nobody", "test", [row for row in public if row[kind.person] in kept]),
    }
    for name, rows in files.items():
        (out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        name: {
            "row": len(rows) // 10 * 10,
            kind.person: len({row[kind.person] for row in rows}) // 10 * 10,
        }
        for name, rows in [*silos.items(), ("public", known)]
    }


def _of(silo: str, part: str, rows: Iterable[Row]) -> list[Row]:
    return [{**row, "silo": silo, "part": part} for row in rows]
