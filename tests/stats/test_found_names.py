"""Names found byte by byte: exactly those that are there without noise, few others with it."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from fedtorch.stats.counting import CountedRow, SiloCounts, Unit
from fedtorch.stats.prefixes import Noise, Search, threshold
from fedtorch.stats.questions import BRANCHES, CountPlan, Question, bins, shown_bins
from fedtorch.stats.settings import Found, Words

SILOS = ("north", "south")


def row(text: str, label: str = "good") -> CountedRow:
    return CountedRow("train", text.encode(), (text,), (label,), None)


def found(
    texts: dict[str, list[str]], words: Words, *, noise: Noise | None = None, least: int = 1, seed: int = 0
) -> Any:
    """Search and vector after all rounds, of one-word texts that each silo has; noise on the sum, by numpy."""
    plan = CountPlan(SILOS, (Question("words", "words", found=words, most=words.per_unit or 1),), by_silo=False)
    search = Search(plan, plan.questions[0], noise or Noise(0.0), least)
    counts = [SiloCounts(plan, words, [Unit((row(text),)) for text in texts[name]], None) for name in SILOS]
    vector, draw = np.zeros(plan.size), np.random.default_rng(seed)
    for round in range(plan.rounds):
        beginnings = {"words": search.beginnings(vector, round)} if round <= words.longest else {}
        for silo, own in enumerate(counts):
            out = np.zeros(plan.size)
            own.fill(out, silo, round, beginnings)
            vector += out
        for place in plan.in_round(round):
            part = vector[place.start : place.stop]
            part += draw.normal(0.0, search.noise.pooled(1, len(SILOS)), len(part)) if noise is not None else 0.0
    return search, vector


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text("abé", min_size=1, max_size=3), min_size=1, max_size=30), st.integers(1, 3))
def test_without_noise_the_names_are_those_that_are_frequent_enough(texts: list[str], least: int) -> None:
    words = Words(longest=6, width=64)
    half = {"north": texts[::2], "south": texts[1::2]}
    search, vector = found(half, words, least=least)
    expected = Counter(texts)
    names = {name.text.decode(): name.count for name in search.names(vector, 7)}
    assert names == {text: float(count) for text, count in expected.items() if count >= least}


def test_a_name_that_is_too_long_is_not_found_and_of_too_many_the_frequent_are_followed() -> None:
    texts = {"north": ["abc"] * 3 + ["xy"] * 2, "south": ["longer"]}
    search, vector = found(texts, Words(longest=3, width=1))
    assert [(name.text, name.count) for name in search.names(vector, 4)] == [(b"abc", 3.0)]


def test_an_empty_cell_passes_the_threshold_as_often_as_was_said() -> None:
    deviation, cells = 3.0, 100_000
    noise = np.random.default_rng(5).normal(0.0, deviation, cells)
    passed = int((noise > threshold(deviation, 1, chance=0.01)).sum())
    assert binom.ppf(1e-4, cells, 0.01) <= passed <= binom.ppf(1 - 1e-4, cells, 0.01)
    assert threshold(deviation, 100, chance=1.0) == pytest.approx(threshold(deviation, 1, chance=0.01))


def test_with_noise_frequent_names_are_found_and_hardly_others() -> None:
    draw = random.Random(1)
    frequent, rare = ["fever", "cough", "pain"], [f"r{number:03}" for number in range(200)]
    texts = {name: frequent * 100 + draw.sample(rare, 50) for name in SILOS}
    wrong = 0
    for seed in range(5):
        search, vector = found(texts, Words(longest=6, width=32), noise=Noise(5.0), seed=seed)
        names = {name.text.decode(): name.count for name in search.names(vector, 7)}
        assert names.keys() >= set(frequent)
        assert all(abs(names[name] - 200) < 5 * search.noise.pooled(1, 2) for name in frequent)
        wrong += len(names) - len(frequent)
    assert wrong <= 6  # 0.1 of each of 7 levels, and of 5 runs


def test_names_are_in_order_of_their_counts_and_of_as_many_rounds_as_there_were() -> None:
    texts = {"north": ["b"] * 3 + ["ab"] * 5 + ["a"] * 3, "south": ["b", "c"]}
    search, vector = found(texts, Words(longest=3, width=8))
    every = [("ab", 5.0), ("b", 4.0), ("a", 3.0), ("c", 1.0)]
    assert [(name.text.decode(), name.count) for name in search.names(vector, 99)] == every
    assert [(name.text.decode(), name.count) for name in search.names(vector, 2)] == every[1:]


def test_the_noise_that_arrived_makes_the_threshold() -> None:
    assert Noise(2.0).pooled(4, 9) == pytest.approx(2.0 * 2 * 3)  # √n σ_c of local noise, √m of a unit in m cells
    assert Noise(2.0, honest=4).pooled(1, 6) == pytest.approx(2.0 * (6 / 4) ** 0.5)  # √(survivors / (t − a)) σ
    texts = {"north": ["a"] * 9, "south": []}
    search, vector = found(texts, Words(longest=2, width=4), noise=Noise(1.0))
    assert search.limit(vector, 0, 1) == pytest.approx(threshold(2**0.5, BRANCHES))
    vector[search.plan.present(0)] = [1.0, 0.0]
    assert search.limit(vector, 0, 1) == pytest.approx(threshold(1.0, BRANCHES))


def test_bins_are_powers_of_the_root_of_two() -> None:
    edges = bins()
    assert edges[:12] == (0, 1, 2, 3, 4, 6, 8, 12, 16, 23, 32, 46)
    assert edges[-1] == float("inf") and edges[-2] == 2**20
    assert shown_bins(edges)[:6] == ("0", "1", "2", "3", "4–5", "6–7") and shown_bins(edges)[-1] == "1048576 and more"
    assert {17, 101} <= set(bins(more=(16, 100)))  # how many are above 16, and above 100, is known exactly


def test_rounds_follow_from_the_longest_name() -> None:
    known, named = Question("rows", "rows", cells=("train",)), Question("labels", "labels", named_by="found_labels")
    labels = Question("found_labels", "labels", found=Found(longest=3, width=2))
    assert CountPlan(SILOS, (known,), by_silo=True).rounds == 1
    plan = CountPlan(SILOS, (known, labels, named), by_silo=True)
    assert plan.rounds == 5 and [len(plan.in_round(round)) for round in range(5)] == [2, 1, 1, 1, 1]
    assert plan.releases == 6
    assert [place.size for place in plan.in_round(4)] == [2] and plan.in_round(4)[0].blocks == 2
    assert plan.size == 5 * 2 + 2 * 1 + BRANCHES + 3 * 2 * BRANCHES + 2 * 2
