"""WikiSQL's published files: reading them, splitting questions into words, and finding a condition's value in them.

A question file has one JSON object a line, `{"table_id", "question", "sql": {"sel", "agg", "conds": [[column, operator,
value], ...]}}`, the table file `{"id", "header", "types", ...}`; rows of tables may be there or not.
"""

from __future__ import annotations

import gzip
import unicodedata
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedtorch.core.errors import DataError
from fedtorch.data.json_file import parse_json, read_bytes

AGGREGATIONS = ("", "MAX", "MIN", "COUNT", "SUM", "AVG")
OPERATORS = ("=", ">", "<", "OP")
MOST_CONDITIONS = 4
TYPES = {"text": "string", "real": "real"}
"""A column's type as published -> as it stands in the model's input."""

TABLE_ID = "table_id"
"""In what `read_split` gives: the published name of the question's table; prepared rows lack it."""

Row = dict[str, Any]
"""question, header, types (as in the input), agg, sel, conds: [column, operator, value as text]."""


def read_split(folder: Path, split: str) -> list[Row]:
    """The questions of `split` with their tables' headers, in file order; `.jsonl` or `.jsonl.gz`.

    Raises:
        DataError: a file is missing; a line is no JSON object or lacks a field; a question refers to a table or a
            column that is not there, or to an unknown aggregation or operator. The message has file and line, and
            no text of the question.
    """
    tables = read_tables(folder, split)
    return [_row(row, tables, f"{path}:{number}") for path, number, row in _lines(folder, f"{split}.jsonl")]


def read_tables(folder: Path, split: str) -> dict[str, Row]:
    """Id -> `header`, `types` and `rows` (empty where the file has none) of a split's tables.

    Raises:
        DataError: as `read_split`.
    """
    found = _lines(folder, f"{split}.tables.jsonl")
    return {str(table.get("id")): _table(table, f"{path}:{number}") for path, number, table in found}


def words(text: str) -> tuple[list[str], list[int]]:
    """(words, the character each starts at): HydraNet's splitting.

    A word ends at white space; every punctuation sign or symbol is a word by itself; digits followed by something
    else end a word (`3rd` is `3`, `rd`).
    """
    found: list[str] = []
    starts: list[int] = []
    joins = in_number = False  # may the next character be part of the last word?
    for place, char in enumerate(text):
        if _is_space(char):
            joins = False
            continue
        if joins and not _is_sign(char) and (not in_number or char.isnumeric()):
            found[-1] += char
        else:
            found.append(char)
            starts.append(place)
        joins, in_number = not _is_sign(char), char.isnumeric()
    return found, starts


def value_words(question: str, value: str) -> tuple[int, int] | None:
    """(first, last) word of the value's first occurrence in the question, both included; None if there is none.

    Words are compared without case, and so are the characters they cover. HydraNet's code takes the place of the
    value before when a later one is not found; here it counts as not found.
    """
    split, starts = words(question)
    lowered, wanted = [word.lower() for word in split], [word.lower() for word in words(value)[0]]
    size = len(wanted)
    for first in range(len(lowered) - size + 1) if wanted else ():
        if lowered[first : first + size] == wanted:
            covered = span_text(question, starts, first, first + size - 1)
            if covered.strip().lower() == value.lower():
                return first, first + size - 1
    return None


def span_text(question: str, starts: list[int], first: int, last: int) -> str:
    """The question's text from word `first` to word `last`, without the white space that follows it."""
    end = starts[last + 1] if last + 1 < len(starts) else len(question)
    return question[starts[first] : end].rstrip()


def is_labelable(row: Row) -> bool:
    """Can the model's labels express this query? Every value must be in the question, and the conditions be few."""
    found = all(value_words(row["question"], value) is not None for _, _, value in row["conds"])
    return found and len(row["conds"]) <= MOST_CONDITIONS


def _is_space(char: str) -> bool:
    return char in " \t\n\r" or unicodedata.category(char) == "Zs"


def _is_sign(char: str) -> bool:
    return (char.isascii() and not char.isalnum() and char.isprintable()) or unicodedata.category(char)[0] in "PS"


def _lines(folder: Path, name: str) -> Iterator[tuple[Path, int, Row]]:
    """(file, line number, object) of every line that is not blank."""
    path = folder / name
    if not path.is_file():
        path = folder / f"{name}.gz"
    if not path.is_file():
        raise DataError(f"{folder / name} is missing (and so is {name}.gz); --raw must be a folder of WikiSQL's files")
    data = read_bytes(path, "fetch it again")
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path} is not a whole gzip file ({error}); fetch it again") from None
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        found = parse_json(line, f"{path}:{number}", "correct or delete the line")
        if not isinstance(found, dict):
            raise DataError(f"{path}:{number} is a JSON {type(found).__name__}; expected an object")
        yield path, number, found


def _table(table: Mapping[str, Any], where: str) -> Row:
    header, types = table.get("header"), table.get("types")
    if not isinstance(header, list) or not isinstance(types, list) or len(header) != len(types) or not header:
        raise DataError(f"{where}: a table needs `header` and `types`, two lists of the same length, at least 1")
    if strange := [kind for kind in types if kind not in [*TYPES]]:
        raise DataError(f"{where}: a column has type {ascii(strange[0])[:40]}; expected text or real")
    if not all(type(name) in (str, int, float) for name in header):
        raise DataError(f"{where}: a column's name in `header` is no text; expected a string")
    rows = table.get("rows", [])
    if not isinstance(rows, list) or not all(_is_table_row(row, len(header)) for row in rows):
        raise DataError(f"{where}: `rows` is no list of rows of {len(header)} texts or numbers; correct or remove it")
    return {"header": [str(name) for name in header], "types": [TYPES[kind] for kind in types], "rows": rows}


def _is_table_row(row: Any, width: int) -> bool:
    return isinstance(row, list) and len(row) == width and all(type(c) in (str, int, float, type(None)) for c in row)


def _row(row: Mapping[str, Any], tables: Mapping[str, Row], where: str) -> Row:
    """A question joined with its table, checked."""
    sql, question = row.get("sql"), row.get("question")
    if not isinstance(question, str) or not isinstance(sql, dict):
        raise DataError(f"{where}: a question needs `question` (a string) and `sql` (an object)")
    if (table := tables.get(str(row.get("table_id")))) is None:
        raise DataError(f"{where}: table {ascii(row.get('table_id'))[:40]} is not in the table file; add it")
    try:
        agg, sel = int(sql["agg"]), int(sql["sel"])
        conditions: list[list[Any]] = [
            [int(column), int(operator), _text(value)] for column, operator, value in sql["conds"]
        ]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        kind = type(error).__name__
        raise DataError(f"{where}: `sql` needs agg, sel and conds as numbers and triples ({kind})") from None
    found = {"question": question, "header": table["header"], "types": table["types"]}
    found |= {"agg": agg, "sel": sel, "conds": conditions, TABLE_ID: str(row["table_id"])}
    _check_references(found, where)
    return found


def check_prepared(row: Mapping[str, Any], where: str, *, labelled: bool) -> None:
    """Whether a row of a prepared pool is as `read_split` makes it; labelled: its query too.

    Raises:
        DataError: a field is missing or has another type, or the query refers to what is not there.
    """
    fields: dict[str, type] = {"question": str, "header": list, "types": list}
    fields |= {"agg": int, "sel": int, "conds": list} if labelled else {}
    if wrong := [name for name, kind in fields.items() if type(row.get(name)) is not kind]:
        raise DataError(f"{where}: `{wrong[0]}` is no {fields[wrong[0]].__name__}; prepare the data again")
    texts, kinds = row["header"], row["types"]
    is_table = all(type(name) is str for name in texts) and all(kind in [*TYPES.values()] for kind in kinds)
    if not is_table or not texts or len(texts) != len(kinds):
        raise DataError(f"{where}: `header` and `types` are no table's; prepare the data again")
    if type(row.get("table", 0)) is not int or row.get("table", 0) < 0:
        raise DataError(f"{where}: `table` is no number of a table; prepare the data again")
    if labelled and not all(type(cond) is list and [*map(type, cond)] == [int, int, str] for cond in row["conds"]):
        raise DataError(f"{where}: `conds` are no triples of column, operator and text; prepare the data again")
    if labelled:
        _check_references(row, where)


def _check_references(row: Mapping[str, Any], where: str) -> None:
    columns = len(row["header"])
    references = [("aggregation", row["agg"], len(AGGREGATIONS)), ("column", row["sel"], columns)]
    for column, operator, _ in row["conds"]:
        references += [("column", column, columns), ("operator", operator, len(OPERATORS))]
    for kind, number, limit in references:
        if not 0 <= number < limit:
            raise DataError(
                f"{where}: the query refers to {kind} {ascii(number)[:20]}, but there are {limit} (from 0 on)"
            )


def _text(value: Any) -> str:
    if type(value) not in (str, int, float):
        raise TypeError
    return str(value)
