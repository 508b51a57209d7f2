"""Whole words as a vocabulary, and their vectors out of a GloVe file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import torch
from torch import Tensor

from fedtorch.core.errors import ConfigError, DataError

PADDING, UNKNOWN, FIRST = 0, 1, 2
FILE = "words.txt"


@dataclass(frozen=True)
class Words:
    """The words of `words.txt`; the word of line n (from 0) has id n + 2, padding is 0, unknown 1."""

    words: tuple[str, ...]
    """in the order of their ids; without padding and unknown"""

    @cached_property
    def ids(self) -> dict[str, int]:
        """Word to id."""
        return {word: number for number, word in enumerate(self.words, FIRST)}

    def __len__(self) -> int:
        return len(self.words) + FIRST


def read_words(folder: Path) -> Words:
    """The vocabulary in `<folder>/words.txt`, one lower-cased word a line.

    Raises:
        DataError: the file is missing or empty, or a line is empty, holds a blank or capitals, or came before.
    """
    path = folder / FILE
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read ({type(error).__name__}); expected one lower-cased word a line, as "
            f"`fedtorch data prepare` writes it"
        ) from error
    words = lines[:-1] if lines[-1] == "" else lines
    if not words:
        raise DataError(f"{path} is empty; expected one lower-cased word a line")
    seen: dict[str, int] = {}
    for number, word in enumerate(words, 1):
        if word.split() != [word] or word != word.lower():
            raise DataError(f"{path}:{number} is not one lower-cased word; write one word a line, without blanks")
        if seen.setdefault(word, number) != number:
            raise DataError(f"{path}:{number} repeats the word of line {seen[word]}; remove one of them")
    return Words(tuple(words))


class Vectors:
    """Word vectors out of a file, in the file's order."""

    def __init__(self, found: list[int], rows: Tensor) -> None:
        self.found = found
        """ids of the words that have one"""
        self.rows = rows
        """fp32, shape (found, width)"""


@lru_cache(maxsize=1)
def read_vectors(path: str, width: int, words: Words) -> Vectors:
    """The vectors of the known words from a GloVe text file: a word and `width` numbers a line, single blanks between.

    Lines of other words are not looked at, but for the first one, whose width is checked. If a word comes twice its
    first line counts.

    Raises:
        ConfigError: the file cannot be read.
        DataError: a line has another number of numbers, or something else than finite numbers; or no word is known.
    """
    rows: dict[int, list[float]] = {}
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                word = words.ids.get(line.partition(" ")[0])
                if number == 1 or (word is not None and word not in rows):
                    values = _numbers(line, width, f"{path}:{number}")
                    if word is not None:
                        rows[word] = values
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"task.model.vectors is {path!r}, which cannot be read ({type(error).__name__}); give a text file of "
            f"word vectors such as glove.840B.300d.txt, or null for random ones"
        ) from error
    if not rows:
        raise DataError(f"{path} has a vector for none of the {len(words.words)} words; are its words lower-cased?")
    return Vectors(list(rows), torch.tensor(list(rows.values())))


def _numbers(line: str, width: int, place: str) -> list[float]:
    parts = line.rstrip().split(" ")[1:]
    if len(parts) != width:
        raise DataError(
            f"{place} has {len(parts)} numbers after the word; expected task.model.embedding = {width} "
            f"(GloVe files have no header line)"
        )
    try:
        values = [float(part) for part in parts]
    except ValueError:
        values = [math.nan]
    if not all(map(math.isfinite, values)):
        raise DataError(f"{place} has something else than {width} finite numbers after the word")
    return values
