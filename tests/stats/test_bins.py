"""Quantiles and shares from bins: within the bin of the exact one, and bounds that noise and hidden numbers respect."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from fedtorch.data.own.overview import ClientRows
from fedtorch.stats.bins import Bins, in_words, longest_below
from fedtorch.stats.table import Stats, Table

EDGES = (0.0, *(2 ** (k / 2) for k in range(17)), math.inf)


def bins(
    numbers: Sequence[float | None], deviation: float = 0.0, hidden: float = 0.0, edges: Sequence[float] = ()
) -> Bins:
    edges = tuple(edges) or (*map(float, range(len(numbers))), math.inf)
    cells = tuple(f"[{low:g}, {high:g})" for low, high in zip(edges, edges[1:], strict=False))
    table = Table("tokens", "tokens", "bins", cells, edges, 1, True, tuple(numbers), deviation)
    return Bins(table, numbers, deviation, hidden)


def counted(lengths: Sequence[int]) -> list[int]:
    return [sum(low <= n < high for n in lengths) for low, high in zip(EDGES, EDGES[1:], strict=False)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("share", [0.5, 0.95])
def test_a_quantile_is_in_its_bin(seed: int, share: float) -> None:
    draw = random.Random(seed)
    lengths = [int(draw.lognormvariate(3, 1)) for _ in range(draw.choice([1, 2, 5, 40, 301]))]
    low, high = bins(counted(lengths), edges=EDGES).quantile(share) or (0, 0)
    assert low <= ClientRows(tokens=lengths).quantile(share) < high
    assert EDGES.index(high) == EDGES.index(low) + 1


@pytest.mark.parametrize("seed", range(20))
def test_bounds_hold_with_noise_and_with_hidden_numbers(seed: int) -> None:
    draw = random.Random(seed)
    lengths = [int(draw.lognormvariate(3, 1)) for _ in range(400)]
    exact = bins(counted(lengths), edges=EDGES)
    noised = bins([number + draw.gauss(0, 2) for number in counted(lengths)], 2.0, edges=EDGES)
    small = sum(number for number in counted(lengths) if number < 5)
    hidden = bins([number if number >= 5 else None for number in counted(lengths)], hidden=small, edges=EDGES)
    for share in (0.5, 0.95):
        value = ClientRows(tokens=lengths).quantile(share)
        for found in (noised, hidden):
            low, high = found.quantile(share) or (0, 0)
            assert low <= value < high
    for place in range(len(EDGES) - 1):
        share = exact.share(place) or 0.0
        assert share == sum(n >= EDGES[place] for n in lengths) / 400 == exact.most_share(place)
        assert share <= noised.most_share(place) + 1e-12 and share <= hidden.most_share(place)


def test_figures_by_hand() -> None:
    found = bins([6, 2, 1, 1])  # values 0, 1, 2, 3 or more
    assert found.quantile(0.5) == (0.0, 1.0) and found.quantile(0.6) == (1.0, 2.0)  # 6 of 10 are not more than .6
    assert found.quantile(0.95) == (3.0, math.inf) and found.quantile(1.0) == (3.0, math.inf)
    assert (found.total(), found.from_edge(1), found.share(1), found.most_share(1)) == (10, 4, 0.4, 0.4)
    some = bins([6, None, None, 1], hidden=6)
    assert some.quantile(0.5) == (0.0, 3.0)  # 6 of 7 to 13: of 13 the median may be a 1, or a 2
    assert some.quantile(0.4) == (0.0, 1.0)  # 6 are more than .4 of 13
    assert (some.total(), some.share(1), some.most_from_edge(1), some.most_from_edge(3)) == (7, 1 / 7, 7, 1)
    unknown = bins([6, None, None, 1], hidden=math.inf)
    assert unknown.quantile(0.5) == (0.0, 3.0) and unknown.most_share(1) == 1.0 and unknown.most_share(3) == 1 / 7
    assert bins([None, 6], hidden=math.inf).quantile(0.5) == (0.0, math.inf)
    noised = bins([60.0, 30.0, -1.0, 11.0], 2.0)  # a median of 100 is beyond 60 by 50 ± 3
    assert noised.total() == 100 and noised.total(least=True) == 100 - 3 * 2 * 2
    assert noised.most_from_edge(2) == pytest.approx(10 + 3 * 2 * math.sqrt(2))
    assert noised.most_share(2) == pytest.approx((10 + 6 * math.sqrt(2)) / 88)
    assert noised.quantile(0.5) == (0.0, 1.0)  # 10 ± 6
    assert bins([55.0, 30.0, 4.0, 11.0], 2.0).quantile(0.5) == (0.0, 2.0)  # 5 ± 6
    # (1 − .9)·(60 + 30 + -1) − .9·11 = -1, and 3·2·√(.01·3 + .81·1) = 5.5
    assert noised.quantile(0.9) == (1.0, math.inf)


def test_of_nothing_there_is_nothing() -> None:
    assert bins([0, 0]).quantile(0.5) is None and bins([0, 0]).share(1) is None and bins([0, 0]).most_share(1) == 1.0
    assert bins([5.0, 0.2], 2.0).quantile(0.5) is None  # no more than noise: 3·2·√2 is 8.5
    assert bins([None, None]).quantile(0.5) is None
    assert bins([-3.0, 20.0], 0.1).from_edge(0) == 17.0 and bins([20.0, -3.0], 0.1).from_edge(1) == 0.0


def test_a_silo_has_its_own_numbers_and_noise_and_hides_what_its_units_leave_over() -> None:
    table = Table("tokens", "", "bins", ("a", "b"), (0, 2, math.inf), 1, True, (9, 9), 1.0, {"x": (4, 5)}, 0.5)
    stats = Stats("row", ("x",), (table,), 5)
    assert Bins.of(stats, table) == Bins(table, (9, 9), 1.0) and Bins.of(stats, table).hidden == 0.0
    assert Bins.of(stats, table, "x") == Bins(table, (4, 5), 0.5)
    few = replace(table, pooled=(9, None), silos={"x": (None, None)}, deviation=0.0, silo_deviation=0.0)
    assert Bins.of(replace(stats, tables=(few,)), few).hidden == math.inf
    units = Table("units", "", "names", ("units",), (), 1, False, (16,), 0.0, {"x": (7,)})
    known = replace(stats, tables=(few, units))
    assert (Bins.of(known, few).hidden, Bins.of(known, few, "x").hidden) == (7, 7)
    assert Bins.of(replace(stats, tables=(few, replace(units, pooled=(8,), silos={}))), few).hidden == 0
    rows = replace(units, name="rows", cells=("train", "dev"), pooled=(16, 2), silos={"x": (7, None)})
    assert Bins.of(replace(stats, tables=(few, rows)), few).hidden == 9
    assert Bins.of(replace(stats, tables=(few, rows)), few, "x").hidden == math.inf


def test_bounds_are_whole_numbers_in_words() -> None:
    assert in_words((2**4.5, 32.0)) == "23 to 31" and in_words((16.0, 2**4.5)) == "16 to 22"
    assert in_words((1.0, 2.0)) == "1" and in_words((512.0, math.inf)) == "512 or more" and in_words(None) == "-"
    assert longest_below(129.0) == 128 and longest_below(2**4.5) == 22 and longest_below(math.inf) is None
