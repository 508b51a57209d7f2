"""Rows of files, saved data sets and those of the hub, each with the place where it was written."""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.core.extras import require
from fedtorch.data.own.keys import Hub
from fedtorch.data.own.nested import leaves, split_path, value_at
from fedtorch.data.own.saved_set import check_saved
from fedtorch.data.own.text_files import READERS, TextRows
from fedtorch.data.own.text_form import TextForm

KINDS = (*READERS, ".parquet", ".arrow")
"""Endings of files that can be read."""


@dataclass(frozen=True)
class Table:
    """Rows of one file or one split."""

    rows: Any
    """`TextRows`, or a `datasets.Dataset`, which is memory-mapped: of any size"""
    name: str
    """the file or split, for messages"""
    owner: str
    """the client whose file it is, where files are clients: its name, or its folder's, without an ending"""
    split: str
    """as the source calls it; empty where the source has no splits"""

    def where(self, index: int) -> str:
        """The place of row `index` for messages: file and line, or row."""
        if isinstance(self.rows, TextRows):
            return f"{self.name}:{self.rows.line(index)}"
        return f"{self.name}, row {index + 1}"


@contextmanager
def open_tables(
    source: str | Sequence[str] | Hub, scratch: Path, form: TextForm | None = None
) -> Iterator[list[Table]]:
    """The tables of a source, in order of their names. form: of text files.

    `datasets` copies the Parquet files that it reads. The copy is made below `scratch`, a folder that exists, and
    removed at the end: kept, it would give old rows for a changed file of equal size and time (*measured*, datasets
    5.2), and other users could read it where the home folder is shared.

    Raises:
        ConfigError: the source names nothing. DataError: a file cannot be read, with its line where that is known.
    """
    with tempfile.TemporaryDirectory(prefix=".rows-", dir=scratch) as cache:
        if isinstance(source, Hub):
            yield _of_hub(source, cache)
            return
        given = [source] if isinstance(source, str) else list(source)
        yield [table for one in given for table in _of_path(one, cache, form or TextForm())]


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
        found = sorted(file for file in path.rglob("*") if file.is_file() and not _is_hidden(file.relative_to(path)))
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


def _is_hidden(path: Path) -> bool:
    """Such as what editors and notebooks leave in folders of their own."""
    return any(part.startswith(".") for part in path.parts)


def _of_path(text: str, cache: str, form: TextForm) -> list[Table]:
    path = Path(text).expanduser()
    if path.is_dir():
        if _is_saved(path):
            return _saved(path)
        if inside := sorted(folder for folder in path.iterdir() if folder.is_dir() and _is_saved(folder)):
            return [table for folder in inside for table in _saved(folder)]
    found = _files(text)
    if unknown := [file for file in found if file.suffix.lower() not in KINDS and form.format is None]:
        raise ConfigError(
            f"task.data.source: {unknown[0]} has none of the endings {', '.join(KINDS)}; rename it, or give a glob "
            "such as notes/*.jsonl, which leaves out other files"
        )
    root = path if path.is_dir() else path.parent if path.is_file() else _root(path)
    return [_read(file, root, cache, form) for file in found]


def _root(pattern: Path) -> Path:
    """The part of a glob before its first wildcard: of notes/*/rows.jsonl the folders in notes are the clients."""
    fixed = list(takewhile(lambda part: not glob.has_magic(part), pattern.parent.parts))
    return Path(*fixed)


def _is_saved(folder: Path) -> bool:
    """Did `save_to_disk` write it?"""
    return any((folder / name).is_file() for name in ("dataset_dict.json", "dataset_info.json"))


def _saved(folder: Path) -> list[Table]:
    _require()
    from datasets import DatasetDict, load_from_disk

    check_saved(folder)
    try:
        found = load_from_disk(str(folder))
        for part in found.values() if isinstance(found, DatasetDict) else [found]:
            part.data.validate(full=True)
    except Exception as error:
        raise DataError(f"{folder} cannot be read as what save_to_disk wrote: {_first(error)}") from error
    splits = found.items() if isinstance(found, DatasetDict) else [("", found)]
    return [Table(rows, f"{folder}/{name}".rstrip("/"), folder.name, str(name)) for name, rows in splits]


def _of_hub(source: Hub, cache: str) -> list[Table]:
    _require()
    from datasets import DatasetDict, load_dataset

    try:
        found = load_dataset(source.hub, source.config, revision=source.revision, cache_dir=cache)
    except Exception as error:  # the hub client's many
        raise ConfigError(
            f"task.data.source: {source.hub!r} could not be had from the hub ({_first(error)}); check the name, or "
            "download it where there is a network, `save_to_disk`, and give the folder"
        ) from error
    assert isinstance(found, DatasetDict)
    return [Table(rows, f"{source.hub}/{name}", str(name), str(name)) for name, rows in found.items()]


def _read(file: Path, root: Path, cache: str, form: TextForm) -> Table:
    owner = file.stem if file.parent == root else file.relative_to(root).parts[0]
    if file.suffix.lower() in READERS or form.format is not None:
        return Table(TextRows(file, form), str(file), owner, "")
    _require()
    from datasets import Dataset, disable_progress_bars
    from datasets.utils.logging import CRITICAL, set_verbosity

    disable_progress_bars()
    set_verbosity(CRITICAL)  # its own account of an error, beside ours
    try:
        if file.suffix.lower() == ".arrow":
            rows = Dataset.from_file(str(file))
            rows.data.validate(full=True)  # offsets that point elsewhere would end the process
        else:
            rows = Dataset.from_parquet(str(file), cache_dir=cache)
    except Exception as error:  # of pyarrow, wrapped by `datasets`
        raise DataError(f"{file} cannot be read: {_first(error)}") from error
    return Table(rows, str(file), owner, "")


def _require() -> None:
    require("task.data.source (Parquet, Arrow, save_to_disk or the hub)", "datasets", extra="own")


def _first(error: BaseException) -> str:
    """The first line of what lies at the bottom of an error of `datasets`, which wraps them."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def column_names(tables: Sequence[Table]) -> list[str]:
    """Those of all tables, in order of their first appearance; then paths within those that hold objects."""
    names = dict.fromkeys(name for table in tables for name in table.rows.column_names)
    return list(names | dict.fromkeys(path for table in tables for path in _nested(table)))


def _nested(table: Table) -> list[str]:
    return table.rows.nested if isinstance(table.rows, TextRows) else list(leaves(table.rows.features))


def rows_of(table: Table, columns: Mapping[str, str]) -> Iterator[tuple[int, dict[str, Any] | ValueError]]:
    """(number of the row from 0, role -> value) of every row; a column that the table lacks gives None.

    A column may be a path, see `split_path`. In place of the values there may be an error that says why the row has
    none. Numbers of a `ClassLabel` column come as the names that they stand for, −1 as None.
    """
    paths = {role: split_path(name, table.rows.column_names) for role, name in columns.items()}
    kept = [name for name in dict.fromkeys(name for name, _ in paths.values()) if name in table.rows.column_names]
    if isinstance(table.rows, TextRows):
        rows: Any = table.rows
    else:
        rows = table.rows.select_columns(kept) if kept else ({} for _ in range(len(table.rows)))
        rows = _named(rows, {name: table.rows.features[name] for name in kept})
    for index, row in enumerate(_read_on(rows, table)):
        if isinstance(row, ValueError):
            yield index, row
        else:
            yield index, {role: value_at(row.get(name), steps) for role, (name, steps) in paths.items()}


def _read_on(rows: Any, table: Table) -> Iterator[Any]:
    """The rows; what a damaged file raises becomes a DataError, which quotes nothing of it."""
    count, iterator = 0, iter(rows)
    while True:
        try:
            row = next(iterator)
        except StopIteration:
            return
        except (DataError, ConfigError):
            raise
        except Exception as error:  # of pyarrow, numpy or Python, as the damage has it
            raise DataError(f"{table.where(count)} cannot be read ({type(error).__name__}); write it anew") from None
        count += 1
        yield row


def _named(rows: Any, features: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    numbered = {column: feature for column, feature in features.items() if _has_names(feature)}
    for row in rows:
        for column, feature in numbered.items():
            row[column] = _with_names(row[column], feature)
        yield row


def _has_names(feature: Any) -> bool:
    inner = feature.values() if isinstance(feature, dict) else [getattr(feature, "feature", None)]
    return hasattr(feature, "int2str") or any(_has_names(one) for one in inner if one is not None)


def _with_names(value: Any, feature: Any) -> Any:
    """The value with names in place of numbers of labels, in lists and objects too."""
    if hasattr(feature, "int2str"):
        return feature.names[value] if isinstance(value, int) and 0 <= value < len(feature.names) else None
    if isinstance(value, dict) and isinstance(feature, dict):
        return {name: _with_names(one, feature.get(name)) for name, one in value.items()}
    if isinstance(value, list) and (inner := getattr(feature, "feature", None)) is not None:
        return [_with_names(one, inner) for one in value]
    return value
