"""Exact match of SQL strings."""

from __future__ import annotations

import re


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
