"""One silo's rows in numbers: which cells of which tables its units are in."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedtorch.stats.prefixes import Vector, add_level
from fedtorch.stats.questions import DIGESTS, FOUND_LABELS, RECUR, WORDS, CountPlan, Place, Question
from fedtorch.stats.recurring import write_digests
from fedtorch.stats.settings import Words

_WORD = re.compile(r"\w+|[^\w\s]+")
Choose = Callable[[bytes, Sequence[bytes], int], Sequence[bytes]]
"""choose(unit, names, most): which of a unit's names count, by the silo's own key; unit: what tells it from others."""


@dataclass(frozen=True)
class CountedRow:
    """Facts of a row that can be counted."""

    split: str
    """train, dev or test"""
    digest: bytes
    """equal for rows whose texts differ in case and spaces alone"""
    texts: tuple[str, ...]
    """all that is read"""
    labels: tuple[str, ...]
    """its label, its labels, or the kinds of its spans"""
    tokens: int | None
    """of all texts; None: they are not counted"""
    is_empty: bool = False
    """has it no letter and no digit?"""
    roles: tuple[str, ...] = ()
    """of its messages, one each"""
    sides: tuple[tuple[str, int], ...] = ()
    """(chosen or rejected, characters) of each of two answers"""


@dataclass(frozen=True)
class Unit:
    """Rows that count as one."""

    rows: tuple[CountedRow, ...]
    """at least one"""

    @property
    def name(self) -> bytes:
        """Digests of its rows, which tell it from others of the silo; two alike are alike."""
        return b"".join(row.digest for row in self.rows)


class SiloCounts:
    """All that one silo counts, round by round."""

    def __init__(
        self, plan: CountPlan, words: Words | None, units: Sequence[Unit], choose: Choose | None, key: bytes = b""
    ) -> None:
        """choose: which names of a unit with too many count; None: all, and words as often as they occur.

        key: of digests by which rows are compared; empty: they are not.
        """
        self._plan, self._words, self._units, self._choose, self._key = plan, words, units, choose, key
        self._chosen: dict[str, list[Mapping[bytes, int]]] = {}

    def fill(self, out: Vector, silo: int, round: int, beginnings: Mapping[str, Sequence[bytes]]) -> None:
        """Write the round's numbers of a silo, by its place among all, into a vector of zeros.

        beginnings: question -> what is announced; of one whose cells are names found before, these names.
        """
        out[round * len(self._plan.silos) + silo] = 1.0
        for place in self._plan.in_round(round):
            cells, question = out[place.block(silo)], place.question
            if question.found is not None:
                add_level(cells, beginnings[question.name], self._names(question), once=self._choose is not None)
            elif question.named_by:
                self._count(cells, place, {name: at for at, name in enumerate(beginnings[question.name])})
            else:
                self._count(cells, place, {name.encode(): at for at, name in enumerate(question.cells)})

    def _count(self, cells: Vector, place: Place, known: Mapping[bytes, int]) -> None:
        question = place.question
        if question.name == "units":
            cells[0] = len(self._units)
        elif question.name == DIGESTS:
            write_digests(cells, self._key, {row.digest for unit in self._units for row in unit.rows})
        elif question.name == RECUR:
            pass  # the server compares digests
        elif question.name == "empty":
            cells[0] = sum(any(row.is_empty for row in unit.rows) for unit in self._units)
        elif question.name == "twice":
            cells[0] = self._twice()
        elif question.edges:
            for unit in self._units:
                places = [bin_of(question.edges, number) for row in unit.rows for number in _numbers(question, row)]
                cells[self._bounded(unit, question, Counter(places))] += 1.0
        else:
            for unit in self._units:
                places = [known[name] for row in unit.rows for name in _names_of(question, row) if name in known]
                cells[self._bounded(unit, question, Counter(places))] += 1.0

    def _twice(self) -> int:
        """Units less different ones, by one row of each: one unit more or less changes it by 1 at most."""
        firsts = [self._one(unit) for unit in self._units]
        return len(firsts) - len(set(firsts))

    def _one(self, unit: Unit) -> bytes:
        digests = list(dict.fromkeys(row.digest for row in unit.rows))
        return digests[0] if self._choose is None else self._choose(unit.name + b"/twice", digests, 1)[0]

    def _bounded(self, unit: Unit, question: Question, places: Mapping[int, int]) -> list[int]:
        """Cells of a unit that count, each once."""
        if self._choose is None or len(places) <= question.most:
            return list(places)
        names = {str(place).encode(): place for place in places}
        return [names[name] for name in self._choose(unit.name + question.name.encode(), list(names), question.most)]

    def _names(self, question: Question) -> list[Mapping[bytes, int]]:
        """Names of each unit with how often it has them; drawn once for all rounds."""
        if question.name not in self._chosen:
            self._chosen[question.name] = [self._names_of(question, unit) for unit in self._units]
        return self._chosen[question.name]

    def _names_of(self, question: Question, unit: Unit) -> Mapping[bytes, int]:
        found = Counter(name for row in unit.rows for name in self._said(question, row))
        assert question.found is not None
        if self._choose is None:
            return found
        kept = self._choose(unit.name + question.name.encode(), sorted(found), question.most)
        return dict.fromkeys(kept, 1)

    def _said(self, question: Question, row: CountedRow) -> list[bytes]:
        if question.name == FOUND_LABELS:
            return list(dict.fromkeys(label.encode() for label in row.labels))
        assert question.name == WORDS and self._words is not None
        return words_of(row.texts, self._words)


def words_of(texts: Sequence[str], settings: Words) -> list[bytes]:
    """Words of texts, or as many in a row as `n` says; runs of letters and digits, and of other signs."""
    found = []
    for text in texts:
        words = _WORD.findall(text.lower() if settings.lower else text)
        found += [" ".join(words[at : at + settings.n]).encode() for at in range(len(words) - settings.n + 1)]
    return found


def bin_of(edges: Sequence[float], number: float) -> int:
    """Which bin has the number; edges: ascending, from 0 to infinity."""
    return int(np.searchsorted(np.asarray(edges), number, side="right")) - 1


def _numbers(question: Question, row: CountedRow) -> list[int]:
    """Numbers of a row that fall into bins."""
    if question.name == "characters":
        return [sum(map(len, row.texts))]
    if question.name == "tokens":
        return [] if row.tokens is None else [row.tokens]
    if question.name == "turns":
        return [len(row.roles)]
    return [number for side, number in row.sides if side == question.name]


def _names_of(question: Question, row: CountedRow) -> list[bytes]:
    """Names of a row that are cells."""
    if question.name == "rows":
        return [row.split.encode()]
    found = row.roles if question.name == "roles" else row.labels
    return [name.encode() for name in dict.fromkeys(found)]
