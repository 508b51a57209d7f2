"""Which task fits the columns of a file: the table of signs, the surest first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.data.own.columns import Column
from fedtorch.data.own.guessed import FEW_ROWS, LABEL_NAMES, NUMBER_NAMES, SHOWN, Guess, Wishes, by_name, is_client_like

PROMPTS = ("prompt completion", "instruction response", "instruction output", "prompt response", "question answer")
CHOICES, RIGHT = ("choices", "options", "endings"), ("completion", "answer", "label", "gold", "target", "correct")
PREFERENCE_PROMPTS, VERDICTS = ("prompt", "instruction", "question"), ("label", "desirable", "liked", "thumbs_up")
PAIRS = ("source target", "src tgt", "src target", "document summary", "article highlights", "article summary")
TEXT_PAIRS = ("premise hypothesis", "question passage", "query document", "query passage")
WORDS, TAGS = ("tokens", "words"), ("tags", "ner_tags", "labels", "pos_tags")
MOST_LABELS = 100
_TAG = re.compile(r"O|[BIESLU]-.+", re.DOTALL)
_NUMBERED = re.compile(r"(.*?[^\W\d_])[_ ]?(1|2|a|b)", re.DOTALL)

Columns = Mapping[str, Column]


def decide(found: Guess, columns: Columns, wishes: Wishes, name: str) -> None:
    """Take the first task whose signs are there. name: of the file, for messages.

    Raises:
        ConfigError: a wish cannot be met. DataError: there is no column of texts.
    """
    for task, rule in RULES:
        if wishes.task in (None, task) and rule(found, columns, wishes):
            if strange := {wishes.text, wishes.label} - {None, *found.roles.values()}:
                raise ConfigError(
                    f"`{strange.pop()}` is named, but {found.task} of {name} would read "
                    f"{', '.join(f'`{column}`' for column in found.roles.values())}; say which task with --task, and "
                    "its columns with --text and --label"
                )
            return
    kinds = ", ".join(f"{name} ({SHOWN.get(column.kind, column.kind)})" for name, column in columns.items())
    if wishes.task or wishes.text or wishes.label:
        said = ", ".join(f"--{key} {value}" for key, value in vars(wishes).items() if value and key != "client")
        raise ConfigError(
            f"{name} has no columns that fit {said}: it has {kinds or 'no columns'}; name those of the task with "
            "--text and --label, docs/your-data.md shows what each task reads"
        )
    raise DataError(
        f"{name} has no column of texts that a task reads, it has {kinds or 'no columns'}; docs/your-data.md shows "
        "what each task wants"
    )


def _turns(found: Guess, columns: Columns, wishes: Wishes) -> bool:
    for name, column in columns.items():
        if column.kind == "turns" and wishes.text in (None, name) and wishes.label is None:
            found.is_chat = True
            return found.take("causal_lm", {"messages": name}, f"column `{name}` holds turns with role and content")
    return False


def _preferences(found: Guess, columns: Columns, wishes: Wishes) -> bool:
    pair = [_called(columns, (name,), ("text", "turns")) for name in ("chosen", "rejected")]
    if wishes.label is not None or not all(pair):
        return False
    chosen, rejected = pair[0][0], pair[1][0]
    names, is_text = {chosen.name, rejected.name}, chosen.kind == "text"
    prompts = [columns[wishes.text]] if wishes.text else _called(columns, PREFERENCE_PROMPTS, ("text", "turns"))
    prompts = [column for column in prompts if column.name not in names]
    if is_text and not prompts:
        prompts = [column for column in [_text(columns, wishes, names)] if column is not None]
    if is_text and not prompts:
        return False
    found.is_chat = not is_text
    roles = {**({"prompt": prompts[0].name} if prompts else {}), "chosen": chosen.name, "rejected": rejected.name}
    return found.take("preference", roles, f"columns `{chosen.name}` and `{rejected.name}` hold answers to compare")


def _verdicts(found: Guess, columns: Columns, wishes: Wishes) -> bool:
    kinds = ("flag", "whole", "text") if wishes.task else ("flag",)  # numbers may be anything, unless it is said
    labels = [columns[wishes.label]] if wishes.label else _called(columns, VERDICTS, kinds)
    label = next((column for column in labels if column.kind in kinds), None)
    pair = _named_pair(columns, PROMPTS, ("text", "turns"))
    if label is None or pair is None or wishes.text not in (None, pair[0]):
        return False
    found.is_chat = columns[pair[0]].kind == "turns"
    roles = {"prompt": pair[0], "completion": pair[1], "label": label.name}
    return found.take("preference", roles, f"column `{label.name}` says whether `{pair[1]}` is good")


def _choices(found: Guess, columns: Columns, wishes: Wishes) -> bool:
    choices = _called(columns, CHOICES, ("words",))
    right = [columns[wishes.label]] if wishes.label else _called(columns, RIGHT, ("text", "whole"))
    names = {column.name for column in right}
    prompt = _text(columns, wishes, names)
    if not choices or not right or prompt is None:
        return False
    roles = {"prompt": prompt.name, "choices": choices[0].name, "completion": right[0].name}
    why = f"column `{choices[0].name}` holds answers to choose `{right[0].name}` from"
    return found.take("causal_lm", roles, why)


def _spans(found: Guess, columns: Columns, wishes: Wishes) -> bool:
    spans = [column for column in columns.values() if column.kind == "spans" and wishes.label in (None, column.name)]
    text = _text(columns, wishes, ())
    if not spans or text is None:
        return False
    why = f"column `{spans[0].name}` holds spans of `{text.name}`"
    return found.take("token_classification", {"text": text.name, "spans": spans[0].name}, why)


def _tags(found: Guess, columns: Columns, wishes: Wishes) -> bool:
    lists = {name: column for name, column in columns.items() if column.kind == "words"}
    words = [lists[wishes.text]] if wishes.text in lists else _called(lists, WORDS)
    tags = [lists[wishes.label]] if wishes.label in lists else _called(lists, TAGS)
    numbers = [column for column in _called(columns, TAGS, ("numbers",)) if words and column.sizes == words[0].sizes]
    if words and numbers and not tags:
        raise DataError(
            f"`{numbers[0].name}` holds numbers in place of tags; write O, B-KIND and I-KIND there, or read the "
            "data set with the names of its labels (save_to_disk keeps them, JSON does not)"
        )
    tags = [column for column in tags if words and column is not words[0] and column.sizes == words[0].sizes]
    if not words or not tags:
        return False
    if strange := [tag for tag in tags[0].values if not _TAG.fullmatch(tag)]:
        raise DataError(
            f"`{tags[0].name}` has {len(strange)} tags, such as {sorted(strange)[0][:20]!r}, that are none of O, "
            "B-KIND and I-KIND; token_classification finds spans of words, and nothing reads tags of single words yet"
        )
    if any(tag[:2] in ("E-", "S-", "L-", "U-") for tag in tags[0].values):
        found.scheme = "bioes"
    elif tags[0].begins_inside:
        found.scheme = "iob1"
    found.labels = sorted({tag[2:] for tag in tags[0].values if tag != "O"})
    why = f"columns `{words[0].name}` and `{tags[0].name}` hold lists of equal length"
    if found.scheme != "iob2":
        why += f", the tags as {found.scheme.upper()} has them"
    return found.take("token_classification", {"tokens": words[0].name, "tags": tags[0].name}, why)


def _prompts(found: Guess, columns: Columns, wishes: Wishes) -> bool:
    return _answers(found, columns, wishes, "causal_lm", ("prompt", "completion"), PROMPTS)


def _pairs(found: Guess, columns: Columns, wishes: Wishes) -> bool:
    return _answers(found, columns, wishes, "seq2seq", ("source", "target"), PAIRS)


def _answers(
    found: Guess, columns: Columns, wishes: Wishes, task: str, roles: tuple[str, str], names: Sequence[str]
) -> bool:
    """Two columns of texts that are called like what is asked and what is answered, or that the user named."""
    pair = _named_pair(columns, names)
    if wishes.task == task and pair is None:  # the other task's names are as good
        pair = _named_pair(columns, (*PROMPTS, *PAIRS))
    texts = [name for name, column in columns.items() if column.kind == "text"]
    is_answer = wishes.label in texts and (wishes.task == task or _is_long(columns[str(wishes.label)], found.rows))
    if is_answer and (wishes.task or task == "causal_lm"):
        text = _text(columns, wishes, {str(wishes.label)})
        pair = (text.name, str(wishes.label)) if text else None
    elif wishes.label is not None and pair and wishes.label not in pair:
        return False
    elif pair is None and wishes.task == task == "seq2seq" and len(texts) == 2:
        pair = texts[0], texts[1]
    if pair is None or (wishes.text is not None and wishes.text not in pair):
        return False
    return found.take(task, dict(zip(roles, pair, strict=True)), f"columns `{pair[0]}` and `{pair[1]}`")


def _classes(found: Guess, columns: Columns, wishes: Wishes) -> bool:
    label = columns[wishes.label] if wishes.label else _label(columns, found.rows, wishes)
    if label is None or label.kind in ("turns", "spans", "other"):
        return False
    pair = _text_pair(columns, label.name, wishes)
    text = columns[pair[0]] if pair else _text(columns, wishes, {label.name})
    if text is None:
        return False
    roles = {"text": text.name, **({"text_pair": pair[1]} if pair else {}), "label": label.name}
    why = f"column `{label.name}` has {label.distinct} values"
    if label.kind in ("words", "numbers"):
        found.problem, why = "multi_label", f"column `{label.name}` holds lists of {label.distinct} labels"
    elif label.has_commas or (label.is_numeric and (label.has_fractions or not _can_label(label, found.rows))):
        found.problem, why = "regression", f"column `{label.name}` holds numbers, so it is a regression"
        if label.has_commas:
            found.decimal, why = ",", f"{why}; they have commas before their decimals"
    if found.problem != "regression":
        found.labels = sorted({value.lower() for value in label.values} if label.kind == "flag" else label.values)
    if pair:
        why += f", the texts are `{pair[0]}` and `{pair[1]}`"
    return found.take("text_classification", roles, why)


def _plain(found: Guess, columns: Columns, wishes: Wishes) -> bool:
    text = _text(columns, wishes, ())
    if text is None or wishes.label is not None:
        return False
    why = f"column `{text.name}` holds texts, and no other one labels"
    return found.take("causal_lm", {"text": text.name}, why)


RULES: tuple[tuple[str, Callable[[Guess, Columns, Wishes], bool]], ...] = (
    ("preference", _preferences),
    ("preference", _verdicts),
    ("causal_lm", _turns),
    ("causal_lm", _choices),
    ("token_classification", _spans),
    ("token_classification", _tags),
    ("causal_lm", _prompts),
    ("seq2seq", _pairs),
    ("text_classification", _classes),
    ("causal_lm", _plain),
)
"""(task, whether its signs are there; fills in the guess), the surest sign first."""


def _label(columns: Columns, rows: int, wishes: Wishes) -> Column | None:
    """The column with labels: one that is called so, else the one with the fewest values; never one of clients."""
    own = [column for column in columns.values() if column.name != wishes.text and not is_client_like(column)]
    for column in by_name(own, LABEL_NAMES):
        if column.kind in ("text", "whole", "words", "numbers", "flag") and _can_label(column, rows):
            return column
    for column in by_name(own, NUMBER_NAMES):
        if (column.is_numeric or column.has_commas) and column.distinct > 1:
            return column
    few = [
        column
        for column in own
        if column.kind in ("text", "whole", "flag") and 2 <= column.distinct <= max(2, min(30, rows // 10))
        if column.words <= 3
    ]
    lists = [column for column in own if column.kind == "words" and _can_label(column, rows)]
    fractions = [column for column in own if column.kind == "number" or column.has_commas]
    best = min(few, key=lambda column: column.distinct, default=None)
    return best or (lists[0] if lists else fractions[0] if len(fractions) == 1 else None)


def _can_label(column: Column, rows: int) -> bool:
    """Are the values few enough, or the lists short enough?"""
    if column.has_commas or not 2 <= column.distinct <= max(2, min(MOST_LABELS, rows // FEW_ROWS)):
        return False
    return column.kind not in ("words", "numbers") or median(column.sizes or [1]) <= 5


def _is_long(column: Column, rows: int) -> bool:
    """Is it an answer more likely than a label?"""
    return not column.is_numeric and column.distinct > max(2, min(MOST_LABELS, rows // FEW_ROWS))


def _text(columns: Columns, wishes: Wishes, others: Iterable[str]) -> Column | None:
    """The text that is read: that of the user, else the longest one that is none of the others."""
    if wishes.text is not None:
        column = columns[wishes.text]
        return column if column.kind == "text" else None
    left_out = {*others, wishes.label}
    texts = [column for name, column in columns.items() if column.kind == "text" and name not in left_out]
    return max((column for column in texts if not column.is_numeric), key=lambda column: column.words, default=None)


def _text_pair(columns: Columns, label: str, wishes: Wishes) -> tuple[str, str] | None:
    """Two texts that are read together: called so, or alike but for a last 1 and 2, or a and b."""
    texts = {name: column for name, column in columns.items() if column.kind == "text" and name != label}
    pair = _named_pair(texts, TEXT_PAIRS) or _named_pair(texts, ("text text_pair",))
    heads: dict[str, list[str]] = {}
    for name, column in texts.items():
        if not column.is_numeric and (match := _NUMBERED.fullmatch(column.short)):
            heads.setdefault(match[1], []).append(name)
    alike = next(((names[0], names[1]) for names in heads.values() if len(names) == 2), None)
    pair = pair or alike
    return pair if pair and wishes.text in (None, pair[0]) else None


def _called(columns: Columns, names: Sequence[str], kinds: Sequence[str] = ("words",)) -> list[Column]:
    """Columns of such names, in the order of the names."""
    by_short = {column.short: column for column in columns.values() if column.kind in kinds}
    return [by_short[name] for name in names if name in by_short]


def _named_pair(columns: Columns, pairs: Sequence[str], kinds: Sequence[str] = ("text",)) -> tuple[str, str] | None:
    by_short = {column.short: name for name, column in columns.items() if column.kind in kinds}
    for pair in pairs:
        first, second = pair.split()
        if first in by_short and second in by_short:
            return by_short[first], by_short[second]
    return None
