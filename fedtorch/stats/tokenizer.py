"""A tokenizer from counted words: everybody's words, and nobody's text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtorch.core.errors import DataError
from fedtorch.core.files import replace_file
from fedtorch.core.shown import markdown_row
from fedtorch.data.own.first_config import LABELLED
from fedtorch.stats.said import how_often, promise
from fedtorch.stats.table import Stats, Table
from fedtorch.text.byte_bpe import Kind, least_size, train_subwords

FOLDER = "tokenizer"
"""Name of the folder beside the tables, in a run folder."""
MADE_OF, CARD = "made_of.json", "README.md"
"""Files beside the tokenizer: how it was made, for programs and for people."""
MOST_ENTRIES = 32_000
"""A vocabulary whose size nobody has said has so many entries at most."""
MOST_READ = 20_000_000
"""So many words are read in training; larger counts are all divided by one number, which takes a minute at most."""
_RARE = 2  # pieces that occur less often are not joined
_AT_ONCE = 1000


@dataclass(frozen=True)
class Made:
    """How a tokenizer was made, in numbers; no word is among them."""

    kind: str
    """wordpiece or bpe"""
    entries: int
    """of the vocabulary, special tokens and bytes among them"""
    size: int
    """the most that it could have"""
    words: int
    """that it was trained on"""
    occurrences: int
    """of them in all, as counted"""
    divided_by: float
    """what counts were divided by, as there were so many; 1: they were not"""


def words_of(table: Table) -> dict[str, float]:
    """Words of a table and their pooled counts; those that are not shown are left out."""
    return {word: count for word, count in zip(table.cells, table.pooled, strict=True) if count is not None}


def train(
    words: Mapping[str, float],
    folder: Path,
    *,
    kind: Kind = "wordpiece",
    size: int | None = None,
    lower: bool = False,
    about: Mapping[str, Any] | None = None,
) -> Made:
    """Train a tokenizer on counted words and write it to `folder`, from where `task.tokenizer` loads it.

    It is what training on a text gives in which each word stands as often as it was counted, byte for byte: counts are
    rounded, and words whose count rounds to less than 1 are left out. All bytes are entries, so nothing is unknown. A
    space stands before each word, also before the first of a text. Accents stay as they are.

    Args:
        words: word -> its count, which may have noise in it.
        size: the most entries; None: pieces are joined until each word is one piece, up to 32,000 entries. Words that
            occur once are not joined.
        lower: words were counted without regard to capitals, so texts are read so too.
        about: what the card and `made_of.json` say beside: who counted, epsilon, noise. Texts and numbers stand in the
            card, everything in the file.

    Raises:
        DataError: no word is left.
        ConfigError: `size` has no room for bytes and special tokens.
    """
    counts = {word: round(count) for word, count in sorted(words.items()) if round(count) >= 1}
    if not counts:
        raise DataError(
            "no word was counted that a tokenizer could be trained on; count words in more rows, or with less noise"
        )
    total = sum(counts.values())
    divisor = max(1.0, total / MOST_READ)
    most = size or max(MOST_ENTRIES, least_size(kind))
    train_subwords(
        _texts(counts, divisor), folder, size=most, kind=kind, min_frequency=_RARE, prefix_space=True, lower=lower
    )
    entries = len(json.loads((folder / "tokenizer.json").read_bytes())["model"]["vocab"])
    made = Made(kind, entries, most, len(counts), total, divisor)
    _describe(folder, made, about or {})
    return made


def train_from(
    stats: Stats, folder: Path, *, kind: Kind | None = None, size: int | None = None, lower: bool = False
) -> Made:
    """Train on the words that a run has found, see `train`; card and file tell its protection.

    kind: None is WordPiece for tasks with labels, whose models read alone, and BPE for those whose models write, which
    need a token for the end.

    Raises:
        DataError: the run has found no words.
        ConfigError: `size` has no room for bytes and special tokens.
    """
    table = stats.table("words")
    if table is None:
        raise DataError("the run has counted no words, so no tokenizer can be made of them; count words too")
    about = {
        "counted by": f"{len(stats.silos)} silos, each over its own rows",
        "unit": stats.unit,
        "protection": promise(stats),
        "noise on each count": f"standard deviation {table.deviation:g}" if table.deviation else "none",
        "a word is shown if it is counted": how_often(table) or "at all",
        "words of a unit at most": table.most,
        "privacy": dict(stats.privacy),
    }
    kind = kind or ("wordpiece" if stats.task in LABELLED else "bpe")
    return train(words_of(table), folder, kind=kind, size=size, lower=lower, about=about)


def _texts(counts: Mapping[str, int], divisor: float) -> Iterator[list[str]]:
    """Each word as often as it counts, many at once."""
    for word, count in counts.items():
        left = max(1, round(count / divisor))
        while left:
            now = min(left, _AT_ONCE)
            yield [word] * now
            left -= now


def _describe(folder: Path, made: Made, about: Mapping[str, Any]) -> None:
    replace_file(folder / MADE_OF, json.dumps({**vars(made), "about": dict(about)}, indent=1) + "\n")
    rows = [
        ("kind", f"{made.kind} over bytes; nothing is unknown"),
        ("entries", f"{made.entries} of {made.size} at most"),
        ("trained on", f"{made.words} words, which occur {made.occurrences} times as counted"),
        *((key, value) for key, value in about.items() if isinstance(value, str | int | float)),
    ]
    text = [
        "---",
        "library_name: transformers",
        "tags: [federated-learning, fedtorch]",
        "---",
        "",
        "# A tokenizer from counted words",
        "",
        "It was trained on words and how often they occur together at all silos. No text was read for it.",
        "",
        "| | |",
        "|---|---|",
        *map(markdown_row, rows),
        "",
        "Its entries are words of the silos, or parts of such words; who has the tokenizer can read them.",
        "",
    ]
    replace_file(folder / CARD, "\n".join(text))
