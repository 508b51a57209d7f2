"""Metrics of generated texts: those that are means over rows, and those made from counts that can be added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

ROUGE = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}
"""Ours -> the name in rouge-score."""
MEANS = ("exact_match", *ROUGE)
POOLED = ("bleu", "chrf")


def row_scores(predictions: Sequence[str], golds: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """Sum over rows of each of `names` that is a mean over rows, in [0, 1] each."""
    sums = {}
    if "exact_match" in names:
        sums["exact_match"] = float(sum(p.strip() == g.strip() for p, g in zip(predictions, golds, strict=True)))
    if rouges := [name for name in ROUGE if name in names]:
        scorer = _rouge(tuple(ROUGE[name] for name in rouges))
        found = [scorer.score(g, p) for p, g in zip(predictions, golds, strict=True)]
        sums |= {name: float(sum(row[ROUGE[name]].fmeasure for row in found)) for name in rouges}
    return sums


def statistics(predictions: Sequence[str], golds: Sequence[str], names: Sequence[str]) -> dict[str, list[float]]:
    """Counts of n-grams and lengths, as sacrebleu has them: added over rows and clients they give a corpus' figure."""
    found = {}
    for name in [name for name in POOLED if name in names]:
        rows = _metric(name)._extract_corpus_statistics(list(predictions), [list(golds)])
        found[name] = [float(sum(column)) for column in zip(*rows, strict=True)]
    return found


def of_statistics(name: str, counts: Sequence[float]) -> float:
    """BLEU or chrF, 0 to 100, of added counts: sacrebleu's own figure of all rows together."""
    return float(_metric(name)._compute_score_from_stats([int(count) for count in counts]).score)


def numbered(counts: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """`bleu/0`, `bleu/1`, ...: the counts by name."""
    return {f"{name}/{place}": value for name, values in counts.items() for place, value in enumerate(values)}


def from_numbered(totals: Mapping[str, float], name: str) -> list[float]:
    """The counts of one metric back, in their order; empty if there are none."""
    places = sorted(int(key.partition("/")[2]) for key in totals if key.startswith(f"{name}/"))
    return [totals[f"{name}/{place}"] for place in places]


@cache
def _metric(name: str) -> Any:
    from sacrebleu.metrics import BLEU, CHRF

    return BLEU() if name == "bleu" else CHRF()


@cache
def _rouge(names: tuple[str, ...]) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(names), use_stemmer=True)
