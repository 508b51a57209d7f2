"""Exact match of SQL strings, and the averages over clients reported with it."""

from __future__ import annotations

import re
from collections.abc import Sequence


def normalise(sql: str) -> str:
    """The form in which two queries are compared: Lorar's published evaluation code, step by step and in its order.

    Lower case (values too), runs of spaces to one, strip, no blank after `(`, before `)` or `;`, double quotes to
    single ones, `;` appended if there is none, and last no blank before `,`. Only spaces are collapsed: a tab or a
    line break makes a query different. `<= 3` and `<=3` stay different as well.
    """
    text = re.sub(" +", " ", sql.lower()).strip()
    text = text.replace("( ", "(").replace(" )", ")").replace(" ;", ";").replace('"', "'")
    if ";" not in text:
        text += ";"
    return text.replace(" ,", ",")


def exact_match(prediction: str, gold: str, *, normalised: bool = True) -> bool:
    """Whether the prediction is the gold query; `normalised=False` compares the bare strings, as the paper words it.

    `gold` is the raw SQL of the data set, not the training target.
    """
    if not normalised:
        return prediction == gold
    return normalise(prediction) == normalise(gold)


def macro_micro(correct: Sequence[int], total: Sequence[int]) -> tuple[float, float]:
    """MacroAvg (mean of the clients' shares) and MicroAvg (share of all examples), both in percent, not rounded.

    Args:
        correct, total: one entry per client, in the same order.

    Raises:
        ValueError: no clients, different lengths, a total of zero (leave such a client out), or more correct answers
            than examples.
    """
    if not total or len(correct) != len(total):
        raise ValueError(f"got {len(correct)} counts of correct answers for {len(total)} clients; expected one each")
    if any(not 0 <= right <= size or size == 0 for right, size in zip(correct, total, strict=True)):
        raise ValueError(f"correct {list(correct)} does not fit total {list(total)}; each total must be at least 1")
    shares = [right / size for right, size in zip(correct, total, strict=True)]
    return 100.0 * sum(shares) / len(shares), 100.0 * sum(correct) / sum(total)
