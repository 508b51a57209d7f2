"""Where each number of a count stands: tables laid end to end in one vector, and which of them a round fills.

Everything here follows from the config and the names of the clients, so every rank knows it before anything is counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedtorch.stats.settings import Found, StatsConfig

BYTES = 256
END = BYTES
"""Place, after the 256 bytes, of the cell of names that end here."""
BRANCHES = BYTES + 1
"""Cells of a beginning: it goes on with one of 256 bytes, or ends."""
LONGEST_TEXT = 2.0**20
"""Above so many characters, tokens or turns all fall into the last bin."""
FOUND_LABELS, WORDS, RECUR, DIGESTS = "found_labels", "words", "recur", "digests"


@dataclass(frozen=True)
class Question:
    """One table, before it is filled."""

    name: str
    """as `Table.name`"""
    title: str
    """for people"""
    cells: tuple[str, ...] = ()
    """names of the cells; empty: bins, or names that are found"""
    edges: tuple[float, ...] = ()
    """of bins"""
    most: int = 1
    """m: in so many cells a unit is at most"""
    parts: bool = False
    """is a unit in exactly one cell?"""
    found: Found | None = None
    """how its names are found; None: they are known"""
    named_by: str = ""
    """the question whose found names its cells are, in their order; empty: its cells are known"""
    numbers: int = 0
    """so many numbers of each silo that are for the server alone, and no table; 0: it is one"""
    is_shared: bool = False
    """is there one block for all, whether silos have blocks of their own or not?"""

    @property
    def size(self) -> int:
        """Cells of one block."""
        return self.numbers or len(self.cells) or max(0, len(self.edges) - 1)


@dataclass(frozen=True)
class Place:
    """Where a round's numbers of one question are."""

    question: Question
    """what is counted"""
    round: int
    """in which round, from 0"""
    start: int
    """of its first number in the vector"""
    size: int
    """cells of a block"""
    blocks: int
    """1, or one for each silo, in the order of their names"""
    level: int | None = None
    """of found names: how many bytes its beginnings have; None: its cells are known"""

    @property
    def stop(self) -> int:
        """After its last number."""
        return self.start + self.size * self.blocks

    def block(self, silo: int) -> slice:
        """Numbers of a silo, by its place among all; where there is one block for all, that."""
        start = self.start + self.size * (silo if self.blocks > 1 else 0)
        return slice(start, start + self.size)


@dataclass(frozen=True)
class CountPlan:
    """All places of a run. In the first `rounds` x `silos` numbers a silo writes 1 for each round that it took part in.

    These are not noised: who takes part is public.
    """

    silos: tuple[str, ...]
    """names of the clients, in the manifest's order"""
    questions: tuple[Question, ...]
    """in the order in which they are shown"""
    by_silo: bool
    """has each silo a block of its own, where names are known?"""

    @cached_property
    def rounds(self) -> int:
        """Rounds of the run: one for known names and the first byte of found ones, one for each further byte, and one.

        The last one is for tables whose cells are names that were found before.
        """
        return 1 + max(self._level_rounds, default=0) + self._has_named

    @property
    def _level_rounds(self) -> list[int]:
        return [question.found.longest for question in self.questions if question.found is not None]

    @property
    def _has_named(self) -> bool:
        return any(question.named_by for question in self.questions)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Places of all rounds, in the order of the vector."""
        found: list[Place] = []
        start = self.rounds * len(self.silos)
        for round in range(self.rounds):
            for question, level, size, blocks in self._asked(round):
                found.append(Place(question, round, start, size, blocks, level))
                start = found[-1].stop
        return tuple(found)

    def _asked(self, round: int) -> Iterator[tuple[Question, int | None, int, int]]:
        """(question, level, cells of a block, blocks) of a round."""
        for question in self.questions:
            by_silo = question.numbers or (self.by_silo and not question.is_shared)
            blocks = len(self.silos) if by_silo else 1
            if question.found is not None:
                if round <= question.found.longest:
                    yield question, round, BRANCHES * (question.found.width if round else 1), 1
            elif question.named_by:
                if round == self.rounds - 1:
                    yield question, None, self.named(question.named_by).width, blocks
            elif round == 0:
                yield question, None, question.size, blocks

    def of(self, name: str) -> Place | None:
        """Place of a question whose cells are known; None: it is not asked."""
        return next((place for place in self.places if place.question.name == name and place.level is None), None)

    def named(self, name: str) -> Found:
        """How the names of a question are found."""
        return next(each.found for each in self.questions if each.name == name and each.found is not None)

    @cached_property
    def size(self) -> int:
        """Numbers of the vector."""
        return self.places[-1].stop

    def in_round(self, round: int) -> list[Place]:
        """Places that a round fills; each is one release, where there is noise."""
        return [place for place in self.places if place.round == round]

    def present(self, round: int) -> slice:
        """Where silos say that they took part in a round."""
        return slice(round * len(self.silos), (round + 1) * len(self.silos))

    @property
    def releases(self) -> int:
        """Tables of all rounds together."""
        return len(self.places)


def bins(largest: float = LONGEST_TEXT, more: Sequence[int] = ()) -> tuple[float, ...]:
    """Edges of bins for whole numbers: 0, 1, then every whole number at or above a power of √2, up to infinity.

    more: numbers n for which it is to be known exactly how many are above n: n + 1 is an edge too.
    """
    powers = (math.isqrt(2**k - 1) + 1 for k in range(math.ceil(2 * math.log2(largest)) + 1))
    return tuple(map(float, sorted({0, *powers, *(n + 1 for n in more)}))) + (math.inf,)


def shown_bins(edges: Sequence[float]) -> tuple[str, ...]:
    """Names of bins: what whole numbers are in each."""
    found = []
    for low, high in zip(edges, edges[1:], strict=False):
        last = high - 1
        if math.isinf(high):
            found.append(f"{low:.0f} and more")
        else:
            found.append(f"{low:.0f}" if last == low else f"{low:.0f}–{last:.0f}")
    return tuple(found)


def questions_of(settings: StatsConfig, about: TaskFacts) -> tuple[Question, ...]:
    """Questions that are asked of a task's rows."""
    most = settings.most_cells

    def asked(name: str, title: str, **more: object) -> Question:
        return Question(name, title, most=most.get(name, 1), **more)  # type: ignore[arg-type]

    lengths = bins()
    found = [
        asked("rows", "rows", cells=("train", "dev", "test"), parts=True),
        Question("units", "units", cells=("units",)),
        Question("empty", "rows without a word", cells=("empty",)),
        Question("twice", "rows that a silo has more than once", cells=("from the second time on",)),
    ]
    if about.label_table:
        name, title = about.label_table
        if about.labels:
            found.append(asked(name, title, cells=about.labels, parts=about.one_label))
        else:
            found.append(Question(FOUND_LABELS, f"{title}, found", found=settings.labels, most=most.get(name, 1)))
            found.append(asked(name, title, named_by=FOUND_LABELS, parts=about.one_label))
    if about.roles:
        found += [asked("roles", "messages by role", cells=about.roles), asked("turns", "turns", edges=lengths)]
    found.append(asked("characters", "characters of a row", edges=lengths))
    if about.tokens:
        found.append(asked("tokens", "tokens of a row", edges=bins(more=about.max_lengths)))
    for side in about.sides:
        found.append(asked(side, f"characters of the {side} answer", edges=lengths))
    if settings.words is not None:
        words = settings.words
        title = "words" if words.n == 1 else f"{words.n} words in a row"
        found.append(Question(WORDS, title, found=words, most=words.per_unit or 1))
    return tuple(found)


@dataclass(frozen=True)
class TaskFacts:
    """Facts about a task that decide what is asked; public, read off its keys and not off rows."""

    label_table: tuple[str, str] | None = None
    """(name, title) of the table of labels; None: rows have none"""
    labels: tuple[str, ...] = ()
    """as declared; empty: they are to be found"""
    one_label: bool = False
    """has every row exactly one?"""
    roles: tuple[str, ...] = ()
    """of messages"""
    sides: tuple[str, ...] = ()
    """of pairs of answers"""
    tokens: bool = False
    """is there a tokenizer?"""
    max_lengths: tuple[int, ...] = ()
    """in tokens, of interest"""
