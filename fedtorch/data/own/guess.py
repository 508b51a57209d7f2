"""Guesses what a file is for: its task, which columns the task reads, and which column says whose a row is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from fedtorch.core.errors import DataError
from fedtorch.data.own.columns import Column, Looked, look
from fedtorch.data.own.source import Table
from fedtorch.data.paths import check_client_names

CLIENT_NAMES = (
    "client hospital clinic site center centre institution organisation organization org company bank school branch "
    "department device user author speaker account customer patient owner region country state city store shop "
    "station team publisher domain"
).split()
"""Words in the name of a column that say whose a row is, the better ones first."""
LABEL_NAMES = (
    "label labels class category target diagnosis sentiment intent topic outcome verdict rating tag tags y".split()
)
NUMBER_NAMES = "label score rating similarity target y".split()
ID_NAMES = {"id", "uid", "uuid", "guid"}
SPLIT_NAMES = {"split", "set", "fold", "partition", "subset"}
SPLITS = {"train", "dev", "test", "validation", "valid", "val"}
PROMPTS = ("prompt completion", "instruction response", "instruction output", "prompt response", "question answer")
CHOICES, RIGHT = ("choices", "options", "endings"), ("completion", "answer", "label", "gold", "target", "correct")
PAIRS = ("source target", "src tgt", "src target", "document summary", "article highlights", "article summary")
TEXT_PAIRS = ("premise hypothesis", "sentence1 sentence2", "text1 text2", "text text_pair", "question passage")
WORDS, TAGS = ("tokens", "words"), ("tags", "ner_tags", "labels", "pos_tags")
FEW_ROWS = 3
"""A column with fewer rows to a value than this is none of clients or labels."""
MOST_LABELS = 100


@dataclass
class Guess:
    """Facts that a config is written from."""

    task: str = ""
    """`task.name` of the config; empty until `guess` has decided"""
    roles: dict[str, str] = field(default_factory=dict)
    """what the task needs -> column"""
    problem: str = "single_label"
    """of `text_classification`"""
    by: str | None = None
    """the column with clients, or `file`; None: rows are dealt"""
    iid: int = 0
    """clients that rows are dealt to"""
    clients: int = 0
    """how many there are"""
    id: str | None = None
    """the column that tells rows apart"""
    split: str | None = None
    """the column that says train, dev or test"""
    splits: list[str] = field(default_factory=list)
    """those that the data set comes in"""
    labels: list[str] = field(default_factory=list)
    """those that were seen"""
    rows: int = 0
    """in all files"""
    tokens: int = 0
    """a length that 99 of 100 rows hardly exceed, in tokens, estimated from words"""
    answer_tokens: int = 0
    """the same of `target`, which is not counted in `tokens`"""
    why: list[tuple[str, str]] = field(default_factory=list)
    """(what was guessed, from what)"""


def guess(tables: Sequence[Table], *, can_generate: bool | None = None) -> Guess:
    """Look at a source.

    can_generate: is the model to be used an encoder-decoder (True) or not (False); None: it is not known.

    Raises:
        DataError: there are no rows, or no column of texts.
    """
    looked = look(tables, {*CLIENT_NAMES, *ID_NAMES})
    if not looked.seen:
        raise DataError(looked.problems[0] if looked.problems else f"{tables[0].name} has no rows")
    found = Guess(rows=looked.rows, splits=[table.split for table in tables if table.split])
    columns = {name: column for name, column in looked.columns.items() if column.kind != "empty"}
    _find_split(found, columns)
    _find_clients(found, columns, looked, tables)
    _find_id(found, columns, looked)
    taken = {found.by, found.id, found.split}
    free = {name: column for name, column in columns.items() if name not in taken}
    prompts = partial(_answers, "causal_lm", ("prompt", "completion"), PROMPTS)
    pairs = partial(_answers, "seq2seq", ("source", "target"), PAIRS)
    for rule in (_turns, _choices, _tags, prompts, pairs, _classes, _plain):
        if rule(found, free):
            break
    else:
        kinds = ", ".join(f"{name} ({column.kind})" for name, column in columns.items())
        raise DataError(
            f"{tables[0].name} has no column of texts that a task reads, it has {kinds or 'no columns'}; "
            "docs/your-data.md shows what each task wants"
        )
    if can_generate is not None:
        _fit_model(found, can_generate)
    read = {role: _tokens(columns[name]) for role, name in found.roles.items()}
    if "choices" in read:  # of which one is read
        longest = max(len(text.split()) for text in columns[found.roles["choices"]].values)
        read |= {"choices": 0, "completion": int(1.5 * longest) + 2}
    if "messages" in read and "tools" in columns:
        read["tools"] = _tokens(columns["tools"])
    found.answer_tokens = read.pop("target", 0)
    found.tokens = sum(read.values())
    _tell_gaps(found, columns, looked)
    return found


def _find_split(found: Guess, columns: Mapping[str, Column]) -> None:
    for name, column in columns.items():
        if column.parts & SPLIT_NAMES and column.values.keys() <= SPLITS and "train" in column.values:
            found.split = name
            found.why.append(("splits", f"column `{name}` says {', '.join(sorted(column.values))}"))
            return


def _find_clients(found: Guess, columns: Mapping[str, Column], looked: Looked, tables: Sequence[Table]) -> None:
    scalar = [column for column in columns.values() if column.kind in ("text", "whole")]
    for column in _by_name(scalar, CLIENT_NAMES):
        names = sorted(looked.values[column.name])
        if len(names) < 2 or len(names) * FEW_ROWS > found.rows:
            continue
        try:
            check_client_names(names)
        except DataError as error:
            found.why.append(("not the clients", f"column `{column.name}`: {error}"))
            continue
        found.by, found.clients = column.name, len(names)
        found.why.append((f"{len(names)} clients", f"the values of column `{column.name}`"))
        return
    files = {table.owner for table in tables if not table.split}
    if len(files) > 1:
        found.by, found.clients = "file", len(files)
        found.why.append((f"{len(files)} clients", "one for each file or sub-folder"))
        return
    found.iid = found.clients = max(1, min(10, found.rows // 10))
    plural = "s" if found.iid > 1 else ""
    found.why.append((f"{found.iid} client{plural}", "no column says whose a row is, so rows are shuffled and dealt"))


def _find_id(found: Guess, columns: Mapping[str, Column], looked: Looked) -> None:
    for name, column in columns.items():
        if column.parts & ID_NAMES and name != found.by and column.kind in ("text", "whole"):
            if len(looked.values[name]) == found.rows:
                found.id = name
                found.why.append(("ids of rows", f"column `{name}`, all different"))
                return


# Tasks, the surest sign first. Each fills in the guess and says whether it applies.


def _turns(found: Guess, columns: Mapping[str, Column]) -> bool:
    for name, column in columns.items():
        if column.kind == "turns":
            return _take(found, "causal_lm", {"messages": name}, f"column `{name}` holds turns with role and content")
    return False


def _choices(found: Guess, columns: Mapping[str, Column]) -> bool:
    choices = [name for name in CHOICES if name in columns and columns[name].kind == "words"]
    right = [name for name in RIGHT if name in columns and columns[name].kind in ("text", "whole")]
    prompt = _longest(column for name, column in columns.items() if name not in right)
    if not choices or not right or prompt is None:
        return False
    roles = {"prompt": prompt.name, "choices": choices[0], "completion": right[0]}
    return _take(found, "causal_lm", roles, f"column `{choices[0]}` holds answers to choose `{right[0]}` from")


def _tags(found: Guess, columns: Mapping[str, Column]) -> bool:
    words = [name for name in WORDS if name in columns and columns[name].kind == "words"]
    tags = [name for name in TAGS if name in columns and columns[name].kind in ("words", "numbers")]
    if not words or not tags or columns[words[0]].sizes != columns[tags[0]].sizes:
        return False
    found.labels = sorted(columns[tags[0]].values)
    why = f"columns `{words[0]}` and `{tags[0]}` hold lists of equal length"
    return _take(found, "token_classification", {"tokens": words[0], "tags": tags[0]}, why)


def _answers(
    task: str, roles: tuple[str, str], names: Sequence[str], found: Guess, columns: Mapping[str, Column]
) -> bool:
    """Two columns of texts that are called like what is asked and what is answered."""
    pair = _named_pair(columns, names)
    if pair is None:
        return False
    return _take(found, task, dict(zip(roles, pair, strict=True)), f"columns `{pair[0]}` and `{pair[1]}`")


def _classes(found: Guess, columns: Mapping[str, Column]) -> bool:
    label = _label(columns, found.rows)
    text = _longest(column for column in columns.values() if column is not label)
    if label is None or text is None:
        return False
    roles = {"text": text.name}
    if (pair := _named_pair(columns, TEXT_PAIRS)) is not None and label.name not in pair:
        roles = {"text": pair[0], "text_pair": pair[1]}
    why = f"column `{label.name}` has {label.distinct} values"
    if label.kind == "words":
        found.problem, why = "multi_label", f"column `{label.name}` holds lists of {label.distinct} different values"
    elif label.is_numeric and label.distinct > MOST_LABELS or label.kind == "number":
        found.problem, why = "regression", f"column `{label.name}` holds numbers"
    if found.problem != "regression":
        found.labels = sorted(label.values)
    return _take(found, "text_classification", roles | {"label": label.name}, why)


def _plain(found: Guess, columns: Mapping[str, Column]) -> bool:
    text = _longest(columns.values())
    if text is None:
        return False
    return _take(found, "causal_lm", {"text": text.name}, f"column `{text.name}` holds texts, and no other one labels")


def _label(columns: Mapping[str, Column], rows: int) -> Column | None:
    """The column with labels: one that is called so, else the one with the fewest values."""
    named = _by_name(columns.values(), LABEL_NAMES)
    for column in named:
        if column.kind in ("text", "whole", "words") and 2 <= column.distinct <= _most_labels(rows):
            if column.kind == "words" or median(column.sizes or [1]) <= 5:
                return column
    for column in _by_name(columns.values(), NUMBER_NAMES):
        if column.is_numeric and column.distinct > 1:
            return column
    few = [
        column
        for column in columns.values()
        if column.kind in ("text", "whole") and 2 <= column.distinct <= max(2, min(30, rows // 10))
        if column.words <= 3
    ]
    return min(few, key=lambda column: column.distinct, default=None)


def _most_labels(rows: int) -> int:
    return max(2, min(MOST_LABELS, rows // FEW_ROWS))


def _longest(columns: Iterable[Column]) -> Column | None:
    texts = [column for column in columns if column.kind == "text" and not column.is_numeric]
    return max(texts, key=lambda column: column.words, default=None)


def _by_name(columns: Iterable[Column], names: Sequence[str]) -> list[Column]:
    """Those with such a word in their name, in the order of the words."""
    found = [(min(names.index(part) for part in column.parts & set(names)), column)
             for column in columns if column.parts & set(names)]  # fmt: skip
    return [column for _, column in sorted(found, key=lambda pair: pair[0])]


def _named_pair(columns: Mapping[str, Column], pairs: Sequence[str]) -> tuple[str, str] | None:
    by_name = {name.casefold(): name for name, column in columns.items() if column.kind == "text"}
    for pair in pairs:
        first, second = pair.split()
        if first in by_name and second in by_name:
            return by_name[first], by_name[second]
    return None


def _take(found: Guess, task: str, roles: dict[str, str], why: str) -> bool:
    found.task, found.roles = task, roles
    found.why.insert(0, (task, why))
    return True


def _fit_model(found: Guess, can_generate: bool) -> None:
    """Prompts are answered by encoder-decoders too, and targets by decoders."""
    if can_generate and found.task == "causal_lm" and "prompt" in found.roles and "choices" not in found.roles:
        found.task, found.roles = "seq2seq", {"source": found.roles["prompt"], "target": found.roles["completion"]}
        found.why.append(("seq2seq", "the model is an encoder with a decoder"))
    elif not can_generate and found.task == "seq2seq":
        found.task, found.roles = "causal_lm", {"prompt": found.roles["source"], "completion": found.roles["target"]}
        found.why.append(("causal_lm", "the model has no encoder beside its decoder"))


def _tokens(column: Column) -> int:
    return int(1.5 * column.share_below(0.99)) + 2


def _tell_gaps(found: Guess, columns: Mapping[str, Column], looked: Looked) -> None:
    if looked.problems:
        found.why.append(("correct first", f"{len(looked.problems)} rows cannot be read, as {looked.problems[0]}"))
    used = [*found.roles.values(), *(name for name in (found.by, found.split) if name in columns)]
    for name in used:
        if name is not None and columns[name].missing:
            text = f"{columns[name].missing} of {looked.seen} rows have nothing in `{name}`: training refuses them"
            found.why.append(("correct first", text))
