"""Rows of any source that the `datasets` library reads, each with the place where it was written."""

from __future__ import annotations

import csv
import glob
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.data.own.settings import Hub

KINDS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".txt": "text"}
KINDS |= {".arrow": "arrow"}
_SPLIT_NAMES = {"validation": "dev", "valid": "dev", "val": "dev"}


@dataclass(frozen=True)
class Table:
    """Rows of one file or one split."""

    rows: Any
    """a `datasets.Dataset`: memory-mapped, so of any size"""
    name: str
    """the file or split, for messages"""
    owner: str
    """the client whose file it is, where files are clients: its name, or its folder's, without an ending"""
    split: str
    """train, dev, test or another; empty where the source has no splits"""
    lines: Path | None = None
    """the file, where a row is a line of it"""
    header: int = 0
    """lines before the first row"""

    def where(self, index: int) -> str:
        """The place of row `index` for messages: file and line, or row."""
        if self.lines is None:
            return f"{self.name}, row {index + 1}"
        if self.header:
            return f"{self.name}, row {index + 1} after the header"
        line = _line_of(self.lines, index) if self.lines.suffix.lower() == ".jsonl" else index + 1
        return f"{self.name}:{line}"


@contextmanager
def open_tables(source: str | Sequence[str] | Hub, scratch: Path) -> Iterator[list[Table]]:
    """The tables of a source, in order of their names.

    `datasets` copies what it reads. The copy is made below `scratch`, a folder that exists, and removed at the end:
    kept, it would give old rows for a changed file of equal size and time (*measured*, datasets 5.2), and other users
    could read it where the home folder is shared.

    Raises:
        ConfigError: the source names nothing. DataError: a file cannot be read, with its line where that is known.
    """
    with tempfile.TemporaryDirectory(prefix=".rows-", dir=scratch) as cache:
        if isinstance(source, Hub):
            yield _of_hub(source, cache)
            return
        given = [source] if isinstance(source, str) else list(source)
        yield [table for one in given for table in _of_path(one, cache)]


def files_of(source: str | Sequence[str]) -> list[Path]:
    """All files that a source on disk consists of, sorted.

    Raises:
        ConfigError: there are none.
    """
    given = [source] if isinstance(source, str) else list(source)
    return [path for one in given for path in _files(one)]


def _files(text: str) -> list[Path]:
    path = Path(text).expanduser()
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
    elif path.is_file():
        found = [path]
    else:
        found = sorted(Path(match) for match in glob.glob(str(path), recursive=True) if Path(match).is_file())
    if not found:
        raise ConfigError(
            f"task.data.source names {text!r}, where no file is; give a file, a glob such as notes/*.jsonl, a folder, "
            "or {hub: NAME}; a relative path is taken from where the run is started"
        )
    return found


def _of_path(text: str, cache: str) -> list[Table]:
    path = Path(text).expanduser()
    if path.is_dir() and any((path / name).is_file() for name in ("dataset_dict.json", "dataset_info.json")):
        return _saved(path)
    found, root = _files(text), path if path.is_dir() else None
    if unknown := [file for file in found if file.suffix.lower() not in KINDS]:
        raise ConfigError(f"task.data.source: {unknown[0]} has none of the endings {', '.join(KINDS)}")
    return [_read(file, root, cache) for file in found]


def _saved(folder: Path) -> list[Table]:
    from datasets import DatasetDict, load_from_disk

    try:
        found = load_from_disk(str(folder))
    except Exception as error:
        raise DataError(f"{folder} cannot be read as what save_to_disk wrote: {_first(error)}") from error
    splits = found.items() if isinstance(found, DatasetDict) else [("", found)]
    return [Table(rows, f"{folder}/{name}".rstrip("/"), folder.name, _split(str(name))) for name, rows in splits]


def _of_hub(source: Hub, cache: str) -> list[Table]:
    from datasets import DatasetDict, load_dataset

    try:
        found = load_dataset(source.hub, source.config, revision=source.revision, cache_dir=cache)
    except Exception as error:  # the hub client's many
        raise ConfigError(
            f"task.data.source: {source.hub!r} could not be had from the hub ({_first(error)}); check the name, or "
            "download it where there is a network, `save_to_disk`, and give the folder"
        ) from error
    assert isinstance(found, DatasetDict)
    return [Table(rows, f"{source.hub}/{name}", str(name), _split(str(name))) for name, rows in found.items()]


def _read(file: Path, root: Path | None, cache: str) -> Table:
    from datasets import Dataset, Features, Value, disable_progress_bars
    from datasets.utils.logging import set_verbosity_error

    disable_progress_bars()
    set_verbosity_error()  # its own account of an error, beside ours
    suffix = file.suffix.lower()
    kind, path = KINDS[suffix], str(file)
    try:
        if file.stat().st_size == 0:
            rows = Dataset.from_dict({})
        elif kind == "json":
            rows = Dataset.from_json(path, cache_dir=cache)
        elif kind == "csv":  # every cell is a string: pandas would take "NA" and "null" for missing ones
            separator = "\t" if suffix == ".tsv" else ","
            cells = Features({name: Value("string") for name in _header(file, separator)})
            rows = Dataset.from_csv(path, features=cells, cache_dir=cache, sep=separator, keep_default_na=False)
        elif kind == "text":
            rows = Dataset.from_text(path, cache_dir=cache)
        elif kind == "arrow":
            rows = Dataset.from_file(path)
        else:
            rows = Dataset.from_parquet(path, cache_dir=cache)
    except Exception as error:
        known = _bad_line(file) if suffix == ".jsonl" else ""
        raise DataError(known or f"{file} cannot be read: {_first(error)}") from error
    owner = file.stem if root is None or file.parent == root else file.relative_to(root).parts[0]
    is_lines = suffix in (".jsonl", ".txt", ".csv", ".tsv")
    return Table(rows, str(file), owner, "", file if is_lines else None, int(kind == "csv"))


def _header(file: Path, separator: str) -> list[str]:
    """The names of a table's columns.

    Raises:
        ValueError: one stands twice.
    """
    with file.open(newline="", encoding="utf-8-sig") as lines:
        names = next(csv.reader(lines, delimiter=separator), [])
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"the column `{twice[0]}` stands twice in its first line")
    return names


def _split(name: str) -> str:
    return _SPLIT_NAMES.get(name, name)


def _line_of(file: Path, index: int) -> int:
    """The line of the `index`-th row of a file in which empty lines are no rows."""
    seen = -1
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            seen += bool(line.strip())
            if seen == index:
                return number
    return index + 1


def _bad_line(file: Path) -> str:
    """What is wrong with the first line of a JSONL file that is no object, or whose types are not the first rows'."""
    kinds: dict[str, tuple[type, int]] = {}
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                return f"{file}:{number}: byte {error.start + 1} is not UTF-8; save the file as UTF-8"
            except (ValueError, RecursionError) as error:
                reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
                return f"{file}:{number}: not JSON ({reason}); expected one JSON object a line"
            if not isinstance(row, dict):
                return f"{file}:{number}: a JSON {type(row).__name__}, expected an object"
            for name, value in row.items():
                if value is None:
                    continue
                kind, first = kinds.setdefault(name, (type(value), number))
                if type(value) is not kind and {type(value), kind} != {int, float}:
                    return (
                        f"{file}:{number}: `{name}` is a {type(value).__name__}, in line {first} it is a "
                        f"{kind.__name__}; give it one type"
                    )
    return ""


def _first(error: BaseException) -> str:
    """The first line of what lies at the bottom of an error of `datasets`, which wraps them."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def column_names(tables: Sequence[Table]) -> list[str]:
    """Those of all tables, in order of their first appearance."""
    return list(dict.fromkeys(name for table in tables for name in table.rows.column_names))


def rows_of(table: Table, columns: Mapping[str, str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number of the row from 0, role -> value) of every row; a column that the table lacks gives None."""
    kept = [name for name in dict.fromkeys(columns.values()) if name in table.rows.column_names]
    rows = table.rows.select_columns(kept) if kept else []
    for index, row in enumerate(rows):
        yield index, {role: row.get(column) for role, column in columns.items()}
