"""From the released vector of a counting run to its tables, in which small numbers are not shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedtorch.stats.prefixes import Search, Vector
from fedtorch.stats.questions import Place, Question, shown_bins
from fedtorch.stats.rule import CountRule
from fedtorch.stats.table import Numbers, Stats, Table


def read(rule: CountRule, vector: Vector, *, min_count: int, **about: Any) -> Stats:
    """All tables. vector: after all rounds, float64, shape (plan.size,). about: the other fields of `Stats`."""
    plan, noised = rule.plan, bool(rule.noise.multiplier)
    least = None if noised else min_count
    found = []
    for question in plan.questions:
        if question.numbers:
            continue
        if question.found is not None:
            found.append(_found(rule, question, vector))
        else:
            found.append(_known(rule, question, vector, least))
    there = np.sum([vector[plan.present(round)] for round in range(plan.rounds)], axis=0)
    absent = {name: plan.rounds - int(n) for name, n in zip(plan.silos, there, strict=True) if n < plan.rounds}
    return Stats(silos=plan.silos, tables=tuple(found), min_count=least, absent=absent, **about)


def _found(rule: CountRule, question: Question, vector: Vector) -> Table:
    """Names with what they were counted as, and what a whole count had to be above to be shown."""
    search = rule.search(question.name)
    names = search.names(vector, rule.plan.rounds)
    silos = _present(rule, vector, 0)
    return Table(
        question.name,
        question.title,
        "found",
        tuple(name.text.decode() for name in names),
        (),
        question.most,
        False,
        tuple(name.count for name in names),
        rule.noise.pooled(question.most, silos),
        threshold=_limit(search, vector) if rule.noise.multiplier else float(rule.least),
    )


def _limit(search: Search, vector: Vector) -> float:
    """The largest of all levels."""
    assert search.question.found is not None
    levels = range(search.question.found.longest + 1)
    return max(search.limit(vector, level, len(search.beginnings(vector, level))) for level in levels)


def _known(rule: CountRule, question: Question, vector: Vector, least: int | None) -> Table:
    plan = rule.plan
    place = next(each for each in plan.places if each.question == question)
    cells = _cells_of(rule, question, vector, place)
    rows = [vector[place.block(at)][: len(cells)] for at in range(place.blocks)]
    silos = _present(rule, vector, place.round)
    edges = question.edges
    if edges and least is not None and least > 1:
        edges, rows = with_wide_ends(edges, rows, least)
        cells = shown_bins(edges)
    pooled, each = np.sum(rows, axis=0), dict(zip(plan.silos, rows, strict=False)) if place.blocks > 1 else {}
    if least is None or least <= 1:
        shown, own = _as_numbers(pooled), {name: _as_numbers(row) for name, row in each.items()}
    else:
        shown, own = without_small(pooled, each, least, parts=question.parts or bool(question.edges))
    return Table(
        question.name,
        question.title,
        "bins" if question.edges else "names",
        cells,
        edges,
        question.most,
        question.parts or bool(question.edges),
        shown,
        rule.noise.pooled(question.most, silos),
        own,
        rule.noise.of_silo(question.most) if own else 0.0,
    )


def _cells_of(rule: CountRule, question: Question, vector: Vector, place: Place) -> tuple[str, ...]:
    if question.edges:
        return shown_bins(question.edges)
    if question.named_by:
        names = rule.search(question.named_by).names(vector, rule.plan.rounds)
        return tuple(name.text.decode() for name in names[: place.size])
    return question.cells


def _present(rule: CountRule, vector: Vector, round: int) -> int:
    """How many silos took part in a round."""
    return int(vector[rule.plan.present(round)].sum())


def _as_numbers(row: Sequence[float] | Vector) -> Numbers:
    return tuple(float(number) for number in row)


def with_wide_ends(
    edges: Sequence[float], rows: Sequence[Vector], least: int
) -> tuple[tuple[float, ...], list[Vector]]:
    """Bins of which the first and the last are so wide that `least` units of all silos are in each, and the numbers.

    Else many bins would be hidden for a few units, and nobody could tell where these are.
    """
    pooled = np.sum(rows, axis=0)
    above, below = np.flatnonzero(np.cumsum(pooled[::-1])[::-1] >= least), np.flatnonzero(np.cumsum(pooled) >= least)
    if not len(above):
        return (edges[0], edges[-1]), [np.array([row.sum()]) for row in rows]
    last = int(above[-1])
    first = min(int(below[0]), last)
    starts = [0, *range(first + 1, last + 1)]
    return (*(edges[at] for at in starts), edges[-1]), [np.add.reduceat(row, starts) for row in rows]


def without_small(
    pooled: Vector, each: Mapping[str, Vector], least: int, *, parts: bool
) -> tuple[Numbers, dict[str, Numbers]]:
    """The numbers of a table, None where few units are behind one, or where others that are shown would give it away.

    Hidden are numbers below `least`, and where cells are parts of a whole also those that leave less than `least` of
    it. The hidden numbers of a line whose sum is known (all cells of a silo, all silos of a cell whose pooled number is
    shown) are two at least, and `least` together; so others are hidden with them, the smallest first, until that is so.
    """
    table = np.array([*each.values(), pooled]) if each else np.array([pooled])
    hidden = table < least
    if parts:
        whole = table.sum(axis=1, keepdims=True)
        hidden |= (whole - table < least) & (whole > 0)
    while _hide_one_more(table, hidden, least, parts=parts, sums=bool(each)):
        pass
    shown = [
        tuple(None if h else float(n) for n, h in zip(*row, strict=True)) for row in zip(table, hidden, strict=True)
    ]
    return shown[-1], dict(zip(each, shown, strict=False))


def _hide_one_more(table: Vector, hidden: Any, least: int, *, parts: bool, sums: bool) -> bool:
    """Hide the smallest number of the first line that tells too much of hidden ones; False: there is no such line."""
    # views, so that what is hidden in a line is hidden in the table
    lines = [(row, own, True) for row, own in zip(table, hidden, strict=True)] if parts and table.shape[1] > 1 else []
    if sums:
        lines += [(column, own, not own[-1]) for column, own in zip(table.T, hidden.T, strict=True)]
    for numbers, own, has_sum in lines:
        tells_all = int(own.sum()) == 1 or (has_sum and own.any() and float(numbers[own].sum()) < least)
        if tells_all and not own.all():
            own[int(np.argmin(np.where(own, np.inf, numbers)))] = True
            return True
    return False
