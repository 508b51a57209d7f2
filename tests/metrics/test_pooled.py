"""Figures made of sums that are added over clients: by hand, and as other packages have them of all rows together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import sacrebleu
from scipy.stats import pearsonr, spearmanr

from fedtorch.metrics.chosen import is_pooled, spearman, sums_of
from fedtorch.metrics.correlation import moments, pearson
from fedtorch.metrics.text import from_numbered, numbered, of_statistics, row_scores, statistics

CLIENTS = [([1.0, 2.0, 4.0], [2.0, 3.0, 3.0]), ([-1.0], [7.0]), ([0.5, 8.0], [1.0, -2.0])]


def test_moments_by_hand() -> None:
    assert moments(*CLIENTS[0]) == {"n": 3.0, "x": 7.0, "y": 8.0, "xx": 21.0, "yy": 22.0, "xy": 20.0}
    assert moments([], []) == dict.fromkeys(("n", "x", "y", "xx", "yy", "xy"), 0.0)


def test_pearsons_correlation_of_added_sums_is_that_of_all_pairs() -> None:
    parts = [moments(*client) for client in CLIENTS]
    added = {name: sum(part[name] for part in parts) for name in parts[0]}
    true, found = (sum((list(client[side]) for client in CLIENTS), []) for side in (0, 1))
    assert pearson(added) == pytest.approx(pearsonr(true, found).statistic, abs=1e-14)


@pytest.mark.parametrize("sums", [{}, moments([], []), moments([1.0], [2.0]), moments([1.0, 2.0], [3.0, 3.0])])
def test_where_a_correlation_is_undefined_it_is_0(sums: dict[str, float]) -> None:
    assert pearson(sums) == 0.0


@pytest.mark.parametrize(
    ("found", "true"),
    [([3.0, 1.0, 2.0, 2.0, 2.0], [1.0, 1.0, 5.0, 7.0, 6.0]), ([1.0, 9.0, 4.0], [0.5, 0.9, 0.6])],
)
def test_spearmans_correlation_is_scipys_with_and_without_ties(found: list[float], true: list[float]) -> None:
    assert spearman(found, true) == pytest.approx(spearmanr(found, true).statistic, abs=1e-14)


class Given:
    """Sums that were chosen."""

    def __init__(self, *sums: float) -> None:
        self.given = np.array(sums)

    def sums(self, predictions: Sequence[str], references: Sequence[str]) -> Sequence[float]:
        return self.given  # type: ignore[return-value]

    def score(self, sums: Sequence[float]) -> float:
        return sums[0]


def test_sums_are_plain_finite_numbers_of_which_there_is_one() -> None:
    found = sums_of(Given(1, 2), [], [])
    assert found == [1.0, 2.0] and {type(value) for value in found} == {float}
    for sums in ((), (1.0, math.nan), (math.inf, 1.0)):
        with pytest.raises(ValueError, match="gave none, or one that is not finite"):
            sums_of(Given(*sums), [], [])
    assert is_pooled(Given()) and not is_pooled(len)


def test_means_over_rows_by_hand() -> None:
    """Words with one stem are the same: 3 of 3 words, then 2 of 3 words and 1 of 2 pairs, then nothing."""
    rows = [" the cat sat\n", "the cat sat", "a"], ["the cat sat", "the cats run", "b"]
    names = ("exact_match", "rouge_1", "rouge_2", "rouge_l")
    assert row_scores(*rows, names) == pytest.approx(
        {"exact_match": 1.0, "rouge_1": 1 + 2 / 3, "rouge_2": 1.5, "rouge_l": 1 + 2 / 3}
    )
    assert set(row_scores(*rows, ("rouge_l", "bleu"))) == {"rouge_l"} and row_scores(*rows, ("bleu",)) == {}


def test_bleu_and_chrf_of_added_counts_are_sacrebleus_of_all_rows() -> None:
    found = ["the cat is on the mat there", "a dog barks at the moon", "nothing"]
    gold = ["the cat is on a mat there", "a dog barks at a full moon", "something"]
    parts = [statistics(found[part], gold[part], ("chrf", "exact_match", "bleu")) for part in (slice(2), slice(2, 3))]
    assert [list(part) for part in parts] == [["bleu", "chrf"]] * 2
    for name, whole in (("bleu", sacrebleu.corpus_bleu), ("chrf", sacrebleu.corpus_chrf)):
        counts = [sum(column) for column in zip(*(part[name] for part in parts), strict=True)]
        expected = whole(found, [gold]).score
        assert 0 < expected < 100 and of_statistics(name, counts) == pytest.approx(expected, abs=1e-12)


def test_counts_come_back_from_their_names_in_order() -> None:
    counts = {"bleu": [float(place) for place in range(12)], "chrf": [7.0, 8.0]}
    names = numbered(counts)
    assert names["bleu/11"] == 11.0 and names["chrf/0"] == 7.0 and len(names) == 14
    shuffled = dict(sorted(names.items(), reverse=True))
    assert {name: from_numbered(shuffled, name) for name in counts} == counts
    assert from_numbered(shuffled, "rouge") == []
