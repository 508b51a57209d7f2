"""Guesses what a file is for: its task, which columns the task reads, and which column says whose a row is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.data.own.columns import Column, Looked, look
from fedtorch.data.own.guess_task import decide
from fedtorch.data.own.guessed import (
    CLIENT_NAMES,
    FEW_ROWS,
    FILE,
    ID_NAMES,
    NONE,
    SHOWN,
    SPLIT_NAMES,
    Guess,
    Wishes,
    by_name,
    is_client_like,
)
from fedtorch.data.own.model_kind import ModelKind
from fedtorch.data.own.rows import SPLIT_NAMES as SPLIT_OF
from fedtorch.data.own.source import Table
from fedtorch.data.paths import check_client_names

MOST_TOLD = 10
"""Columns that are named as passed over."""


def guess(
    tables: Sequence[Table], wishes: Wishes | None = None, *, model: ModelKind | None = None, are_shards: bool = False
) -> Guess:
    """Look at a source. model: that is to be used; are_shards: its files are parts of one, and no clients.

    Raises:
        ConfigError: a wish cannot be met, or the model cannot do the task.
        DataError: there are no rows, or no column of texts.
    """
    wishes = wishes or Wishes()
    own = [name.rpartition(".")[2].casefold() for name in (wishes.client,) if name]
    looked = look(tables, {*CLIENT_NAMES, *ID_NAMES, *own})
    if not looked.seen:
        raise DataError(looked.problems[0] if looked.problems else f"{tables[0].name} has no rows")
    found = Guess(rows=looked.rows, splits=[table.split for table in tables if table.split])
    columns = {name: column for name, column in looked.columns.items() if column.kind != "empty"}
    _check_wishes(wishes, columns, tables)
    given = {name for name in (wishes.text, wishes.label) if name}
    _find_split(found, {name: column for name, column in columns.items() if name not in given})
    _find_clients(found, columns, looked, [] if are_shards else tables, wishes)
    _find_id(found, columns, looked, given)
    taken = {found.by, found.id, found.split} - given
    decide(found, {name: column for name, column in columns.items() if name not in taken}, wishes, tables[0].name)
    (model or ModelKind()).fit(found, wishes.task)
    _measure(found, columns)
    found.why += _odd_texts(found, columns)
    if passed := list(_passed_over(found, columns)):
        more = f"; and {len(passed) - MOST_TOLD} more" if len(passed) > MOST_TOLD else ""
        found.why.append(("passed over", "; ".join(passed[:MOST_TOLD]) + more))
    return found


def _check_wishes(wishes: Wishes, columns: Mapping[str, Column], tables: Sequence[Table]) -> None:
    for option, name in (("text", wishes.text), ("label", wishes.label), ("client", wishes.client)):
        if name is not None and name not in columns and not (option == "client" and name in (FILE, NONE)):
            near = get_close_matches(name, columns, 1)
            words = ", file or none" if option == "client" else ""
            hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(columns) or 'no columns'}{words}"
            raise ConfigError(f"--{option} is {name!r}, but {tables[0].name} has no such column with values; {hint}")
    if wishes.text is not None and wishes.text == wishes.label:
        raise ConfigError(f"--text and --label are both {wishes.text!r}; name the column that is to be predicted")


def _find_split(found: Guess, columns: Mapping[str, Column]) -> None:
    for name, column in columns.items():
        if column.parts & SPLIT_NAMES and column.values.keys() <= SPLIT_OF.keys() and "train" in column.values:
            found.split = name
            found.why.append(("splits", f"column `{name}` says {', '.join(sorted(column.values))}"))
            return


def _find_clients(
    found: Guess, columns: Mapping[str, Column], looked: Looked, tables: Sequence[Table], wishes: Wishes
) -> None:
    if wishes.client not in (None, FILE, NONE):
        _take_clients(found, columns[str(wishes.client)], looked)
        return
    scalar = [column for column in columns.values() if column.kind in ("text", "whole")]
    scalar = [column for column in scalar if column.name not in (wishes.text, wishes.label)]
    for column in by_name(scalar, CLIENT_NAMES) if wishes.client is None else ():
        names = looked.values[column.name]
        if not is_client_like(column) or len(names) < 2 or len(names) * FEW_ROWS > found.rows:
            continue
        try:
            check_client_names(sorted(names))
        except DataError as error:
            found.why.append(("not the clients", f"column `{column.name}`: {error}"))
            continue
        found.by, found.clients = column.name, len(names)
        found.why.append((f"{len(names)} clients", f"the values of column `{column.name}`"))
        return
    files = {table.owner for table in tables if not table.split}
    if wishes.client == FILE or (wishes.client is None and len(files) > 1):
        found.by, found.clients = FILE, max(1, len(files))
        found.why.append((_counted(len(files)), "one for each file or sub-folder"))
        return
    found.iid = found.clients = max(1, min(10, found.rows // 10))
    why = "as you said," if wishes.client == NONE else "no column says whose a row is, so"
    found.why.append((_counted(found.iid), f"{why} rows are shuffled and dealt"))


def _take_clients(found: Guess, column: Column, looked: Looked) -> None:
    """The column that the user named.

    Raises:
        ConfigError: it holds no names.
    """
    names = looked.values.get(column.name) or set()
    if column.kind not in ("text", "whole"):
        raise ConfigError(
            f"--client is {column.name!r}, whose values are no names ({column.kind}); name another column"
        )
    try:
        check_client_names(sorted(names))
    except DataError as error:
        raise ConfigError(f"--client is {column.name!r}: {error}") from None
    found.by, found.clients = column.name, len(names)
    found.why.append((_counted(len(names)), f"the values of column `{column.name}`, as you said"))


def _counted(clients: int) -> str:
    return f"{clients} client{'s' if clients != 1 else ''}"


def _find_id(found: Guess, columns: Mapping[str, Column], looked: Looked, given: Iterable[str]) -> None:
    for name, column in columns.items():
        if column.parts & ID_NAMES and name not in (found.by, *given) and column.kind in ("text", "whole"):
            if len(looked.values[name]) == found.rows:
                found.id = name
                found.why.append(("ids of rows", f"column `{name}`, all different"))
                return


def _measure(found: Guess, columns: Mapping[str, Column]) -> None:
    """How long rows are."""
    read = {role: columns[name].share_below(0.99) + 2 for role, name in found.roles.items()}
    for role in ("tags", "spans", *(("label",) if found.task in ("text_classification", "preference") else ())):
        read.pop(role, None)
    if "choices" in read:  # of which one is read
        longest = max(len(text.split()) for text in columns[found.roles["choices"]].values)
        read |= {"choices": 0, "completion": int(1.5 * longest) + 2}
    if "rejected" in read:  # of two answers, the longer one
        read["chosen"] = max(read["chosen"], read.pop("rejected"))
    if found.is_chat and "tools" in columns:
        read["tools"] = columns["tools"].share_below(0.99) + 2
    found.answer_tokens = read.pop("target", 0)
    found.tokens = sum(read.values())
    if len(read) == 1:
        found.lengths = columns[found.roles[next(iter(read))]].tokens


def _odd_texts(found: Guess, columns: Mapping[str, Column]) -> Iterable[tuple[str, str]]:
    """Columns whose texts all look like the objects or lists of a program."""
    for name in found.roles.values():
        texts = columns[name].values if columns[name].kind == "text" else ()
        if texts and all(text.startswith('{"') for text in texts):
            yield "JSON?", f"every value of `{name}` begins as an object does; let the file's name end in .jsonl"
        elif texts and all(text.startswith("[") and text.endswith("]") for text in texts):
            yield "lists?", f"every value of `{name}` is a list as a text that is no JSON; write JSON there"


def _passed_over(found: Guess, columns: Mapping[str, Column]) -> Iterable[str]:
    """Say what other columns may be, for whoever looks at the guess."""
    used = {*found.roles.values(), found.by, found.id, found.split}
    for name, column in columns.items():
        if name in used or (name == "tools" and found.is_chat):
            continue
        few = 2 <= column.distinct and column.distinct * FEW_ROWS <= found.rows and column.words <= 3
        is_number = column.is_numeric or column.has_commas
        if column.kind in ("text", "whole") and few:
            asked = "client" if is_client_like(column) or ("label" in found.roles and not is_number) else "label"
            yield f"{asked}? `{name}`, {column.distinct} values"
        elif column.kind in ("text", "whole") and column.distinct == 1 and found.rows > 1:
            yield f"`{name}`, one value"
        elif column.kind == "flag" or is_number:
            yield f"label? `{name}`, {'true or false' if column.kind == 'flag' else 'numbers'}"
        elif column.kind == "text" and is_client_like(column):
            yield f"client? `{name}`, {column.distinct} values, too few rows of each"
        elif column.kind == "text":
            yield f"text? `{name}`"
        else:
            yield f"`{name}` ({SHOWN.get(column.kind, column.kind)})"
