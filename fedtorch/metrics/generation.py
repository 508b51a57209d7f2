"""CrossFit's metrics: one number for all predictions of a task together, each with one or several gold answers.

The names are CrossFit's. Accuracy, exact match, QA-F1 and Rouge-L are means over examples; macro-F1, Matthews and
Pearson are not, so the predictions of a task must be scored together.
"""

from __future__ import annotations

import math
import re
import string
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

Golds = Sequence[Sequence[str]]
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without punctuation and the articles a, an, the; white space squeezed (SQuAD's normal form)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def accuracy(predictions: Sequence[str], golds: Golds, *, strip: bool = True) -> float:
    """Share of predictions that equal a gold answer in lower case.

    CrossFit does not strip ("no " is not "no"); `strip=False` is its form.
    """

    def form(text: str) -> str:
        return text.lower().strip() if strip else text.lower()

    return _mean(form(p) in {form(gold) for gold in answers} for p, answers in zip(predictions, golds, strict=True))


def exact_match(predictions: Sequence[str], golds: Golds) -> float:
    """Share of predictions that equal a gold answer after `normalise`."""
    return _mean(
        normalise(p) in {normalise(gold) for gold in answers} for p, answers in zip(predictions, golds, strict=True)
    )


def qa_f1(predictions: Sequence[str], golds: Golds) -> float:
    """Mean F1 of the bags of normalised words, against the best gold answer; 0 where no word is common."""
    return _mean(
        max(_bag_f1(normalise(p).split(), normalise(gold).split()) for gold in answers)
        for p, answers in zip(predictions, golds, strict=True)
    )


def macro_f1(predictions: Sequence[str], golds: Golds, *, strip: bool = True) -> float:
    """Mean F1 over all strings that occur as first gold answer or as prediction (scikit-learn).

    A prediction that is no label at all adds a class with F1 0, as in CrossFit, which does not strip either.
    """
    from sklearn.metrics import f1_score

    truth, found = [answers[0] for answers in golds], list(predictions)
    if strip:
        truth, found = [text.strip() for text in truth], [text.strip() for text in found]
    return float(f1_score(truth, found, average="macro", zero_division=0.0)) if truth else 0.0


def matthews(predictions: Sequence[str], golds: Golds) -> float:
    """Matthews' correlation (scikit-learn) of "is acceptable"; 0 where predictions or golds are all the same.

    CrossFit has it for CoLA alone: `acceptable` against everything else, so that a stray answer is `unacceptable` and
    no class of its own.
    """
    from sklearn.metrics import matthews_corrcoef

    truth = [answers[0].strip() == "acceptable" for answers in golds]
    found = [p.strip() == "acceptable" for p in predictions]
    return float(matthews_corrcoef(truth, found)) if truth else 0.0


def cannot_tell(metric: str, golds: Golds) -> bool:
    """Is the metric 0 whatever is predicted, since it looks for an answer that these rows never have?

    Matthews' correlation looks for `acceptable`: of rows with `good` and `bad` it says nothing.
    """
    first = {answers[0].strip() for answers in golds}
    return metric == "Matthew-Correlation" and "acceptable" not in first and bool(first - {"unacceptable"})


def pearson(predictions: Sequence[str], golds: Golds) -> float:
    """Pearson's correlation (scipy) of predictions and first gold answers as numbers.

    0 where it is not defined: fewer than two examples, a prediction that is no finite number, all equal. CrossFit
    has NaN there; `is_undefined` tells such a 0 from a real one.
    """
    value = _pearson(predictions, golds)
    return 0.0 if math.isnan(value) else value


def is_undefined(metric: str, predictions: Sequence[str], golds: Golds) -> bool:
    """Is the metric 0 only because it has no value? Can happen for Pearson's correlation."""
    return metric == "Pearson-Correlation" and math.isnan(_pearson(predictions, golds))


def rouge_l(predictions: Sequence[str], golds: Golds) -> float:
    """Mean F1 of the longest common subsequence of white-space words, against the best gold answer.

    Computed by `rouge-score`, with our word splitter in place of its own (which drops case and all but a-z0-9).
    CrossFit uses the package `rouge`, which counts distinct words per sentence: 0.7273 in place of our 0.6667 for
    "the cat sat on the mat" and "the cat lay on a mat". An empty prediction has 0 (there: an error).
    """
    scorer = _rouge()
    return _mean(
        float(scorer.score_multi(list(answers), p)["rougeL"].fmeasure)
        for p, answers in zip(predictions, golds, strict=True)
    )


METRICS: dict[str, Callable[..., float]] = {
    "ACC": accuracy,
    "Classification-F1": macro_f1,
    "EM": exact_match,
    "QA-F1": qa_f1,
    "Matthew-Correlation": matthews,
    "Pearson-Correlation": pearson,
    "Rouge-L": rouge_l,
}

LIBRARIES = {
    "Classification-F1": "sklearn",
    "Matthew-Correlation": "sklearn",
    "Pearson-Correlation": "scipy",
    "Rouge-L": "rouge_score",
}
"""The package, as imported, that computes a metric for us: an extra, see `core.extras`."""

STRIPPING = ("ACC", "Classification-F1")
"""Those that may leave blanks at both ends out of the comparison (`strip`); the others never look at them."""

MEANS = ("ACC", "EM", "QA-F1", "Rouge-L")
"""Those that are means over examples."""

SHORT = {
    "ACC": "acc",
    "Classification-F1": "f1",
    "EM": "em",
    "QA-F1": "qa_f1",
    "Matthew-Correlation": "matthews",
    "Pearson-Correlation": "pearson",
    "Rouge-L": "rouge_l",
}
"""How a metric is called in records and logs."""


class _Words:
    def tokenize(self, text: str) -> list[str]:
        return text.split()


@cache
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], tokenizer=_Words())


def _pearson(predictions: Sequence[str], golds: Golds) -> float:
    from scipy.stats import pearsonr

    if len(predictions) < 2:
        return math.nan
    try:
        found, truth = [float(p) for p in predictions], [float(answers[0]) for answers in golds]
    except ValueError:
        return math.nan
    if not all(map(math.isfinite, (*found, *truth))):
        return math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a constant vector; the NaN is dealt with
        return float(pearsonr(found, truth).statistic)


def _bag_f1(prediction: list[str], gold: list[str]) -> float:
    common = sum((Counter(prediction) & Counter(gold)).values())
    return 2 * common / (len(prediction) + len(gold)) if common else 0.0


def _mean(values: Any) -> float:
    numbers = [float(value) for value in values]
    return math.fsum(numbers) / len(numbers) if numbers else 0.0
