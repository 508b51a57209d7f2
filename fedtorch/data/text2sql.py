"""Reader of the published text-to-SQL sets (jkkummerfeld/text2sql-data), and the strings a model reads and writes.

A set is `<stem>.json` (a list of entries: equivalent queries and the questions asking for them) and
`<stem>-schema.csv`. Lorar trains one client on each of eight sets, with the "question split".
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtorch.core.errors import DataError
from fedtorch.data.json_file import read_bytes, read_json

# client -> stem of its files, in the order of the paper's tables
CLIENTS = {
    "advising": "advising",
    "atis": "atis",
    "geoquery": "geography",
    "restaurants": "restaurants",
    "scholar": "scholar",
    "academic": "academic",
    "imdb": "imdb",
    "yelp": "yelp",
}
SPLITS = ("train", "dev", "test")
# Four sets carry ten numbered folds. The paper draws six, two and two at random and does not say which; these give
# its sizes (table 1) exactly but for imdb, which has 79 training questions here and 78 there.
_FOLDS = {**{str(fold): "train" for fold in range(6)}, "6": "dev", "7": "dev", "8": "test", "9": "test"}
_SPLIT_OF = {**{split: split for split in SPLITS}, **_FOLDS}


@dataclass(frozen=True)
class QuestionSet:
    """One published set."""

    splits: dict[str, list[dict[str, str]]]
    """split -> rows of `question` and `sql` (filled in, otherwise as published), in file order"""
    excluded: int
    """questions that the publisher marked `exclude` (advising: 956); in no split"""
    unfilled: int
    """questions with a variable that has a value nowhere; its name stays in the text"""
    queries: dict[str, int]
    """each different query as published, its variables not filled in -> its questions in the splits"""


def read_set(path: Path) -> QuestionSet:
    """Reads `<stem>.json`.

    The first of an entry's queries is taken, as the paper does. A variable's value is the sentence's own; an empty
    one, or none, means the entry's `example` (in advising, an empty string would spoil 834 queries).

    Raises:
        DataError: missing, not JSON, not of this structure (entry and question are named), or an unknown split.
    """
    splits: dict[str, list[dict[str, str]]] = {split: [] for split in SPLITS}
    excluded = unfilled = 0
    queries: dict[str, int] = {}
    for number, entry in enumerate(_load(path)):
        where = f"{path}, entry {number}"
        try:
            sql = entry["sql"][0]
            examples = {variable["name"]: variable["example"] for variable in entry["variables"]}
            sentences = [(item["text"], item["question-split"], item["variables"]) for item in entry["sentences"]]
        except (KeyError, IndexError, TypeError) as error:
            what = f"no `{error.args[0]}`" if isinstance(error, KeyError) else "a list or an object is missing"
            raise DataError(f"{where}: not an entry of text2sql-data ({what})") from None
        if problem := _wrong_types(sql, examples, sentences):
            raise DataError(f"{where}: not an entry of text2sql-data ({problem}); download the file again")
        for text, mark, own in sentences:
            if mark == "exclude":
                excluded += 1
                continue
            if mark not in _SPLIT_OF:
                raise DataError(f"{where}: unknown `question-split` {mark!r}; expected train, dev, test or 0-9")
            values = {**examples, **{name: value for name, value in own.items() if value}}
            known = {name: value for name, value in values.items() if value}
            missing = (examples.keys() | own.keys()) - known.keys()
            row = {"question": fill(text, known), "sql": fill(sql, known)}
            unfilled += any(name in row["question"] or name in row["sql"] for name in missing)
            splits[_SPLIT_OF[mark]].append(row)
            queries[sql] = queries.get(sql, 0) + 1
    return QuestionSet(splits, excluded, unfilled, queries)


def _wrong_types(sql: Any, examples: Mapping[Any, Any], sentences: Sequence[tuple[Any, Any, Any]]) -> str:
    """Name what in an entry is of another type than published, as a clause; empty if nothing is."""
    texts = [sql, *(part for text, mark, _ in sentences for part in (text, mark))]
    values = [examples, *(own for *_, own in sentences)]
    if not all(isinstance(text, str) for text in texts):
        return "`sql`, `text` and `question-split` are texts"
    if not all(isinstance(own, dict) for own in values):
        return "`variables` of a sentence is an object"
    if not all(isinstance(part, str) for own in values for pair in own.items() for part in pair):
        return "names and values of variables are texts"
    return "a variable has an empty name" if any("" in own for own in values) else ""


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replaces every variable name by its value, all at once and longest name first.

    Longest first because `name0` is a part of `city_name0`; at once so that a value that contains the name of
    another variable is left alone.
    """
    if not values:
        return text
    names = sorted(values, key=lambda name: (-len(name), name))
    return re.sub("|".join(map(re.escape, names)), lambda match: values[match[0]], text)


def read_schema(path: Path) -> dict[str, list[str]]:
    """Table -> columns of a `<stem>-schema.csv`, in file order, as spelled there.

    The files agree in columns 0 (table) and 1 (field) only; names are padded, rows of `-` separate tables, some
    types are quoted because they hold a comma.

    Raises:
        DataError: missing, not UTF-8, a row without a field, or no table at all.
    """
    tables: dict[str, list[str]] = {}
    data = read_bytes(path, "expected the schema beside the JSON file of the same set")
    try:
        rows = list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), skipinitialspace=True))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line} is not UTF-8; save the file as UTF-8") from None
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV file in UTF-8: {error}") from None
    for number, row in enumerate(rows[1:], start=2):
        cells = [cell.strip() for cell in row]
        if not any(cells) or set(cells[0]) == {"-"}:
            continue
        if len(cells) < 2 or not cells[0] or not cells[1]:
            raise DataError(f"{path}:{number}: expected a table and a field, found {len(cells)} cell(s)")
        tables.setdefault(cells[0], []).append(cells[1])
    if not tables:
        raise DataError(f"{path} has no tables; expected a header and rows of table, field, ...")
    return tables


def serialise(schema: Mapping[str, list[str]], values: Mapping[tuple[str, str], list[str]]) -> str:
    """`| <table> : <col> , <col> | <table> : ...` in lower case, in the schema's order.

    Cell values stand behind the columns that have some: `<col> ( <value> , <value> )`.

    Args:
        values: (table, column), both in lower case -> values, which keep their case.
    """
    tables = []
    for table, columns in schema.items():
        parts = []
        for column in columns:
            found = values.get((table.lower(), column.lower()))
            parts.append(column.lower() + (f" ( {' , '.join(found)} )" if found else ""))
        tables.append(f"| {table.lower()} : {' , '.join(parts)}")
    return " ".join(tables)


def source_text(question: str, schema: str) -> str:
    """Text that the model reads: `<question> ; structured knowledge: | <table> : <col> , ...`."""
    return f"{question.strip()} ; structured knowledge: {schema.strip()}"


def target_text(sql: str) -> str:
    """Text that the model learns to write: the authors' normal form of a query.

    White space is collapsed, ` , ` becomes `, `, and every word is lower-cased except one that has a quotation mark
    directly before or after it. So `"New York"` keeps both words, and of `"New York City"` the middle one is
    lower-cased, as in the published code; exact match ignores case.
    """
    lowered = re.sub(r"(?<![\w'\"])\w+(?![\w'\"])", lambda match: match[0].lower(), sql)
    return " ".join(lowered.split()).replace(" , ", ", ")


def _load(path: Path) -> list[Any]:
    entries = read_json(path, "--raw must be the folder with the JSON files of text2sql-data")
    if not isinstance(entries, list):
        raise DataError(f"{path} holds a {type(entries).__name__}, expected a list of entries")
    return entries
