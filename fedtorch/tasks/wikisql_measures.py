"""The seven measures of HydraNet's evaluator, and WikiSQL's own logical-form accuracy."""

from __future__ import annotations

from fedtorch.data.hydranet import Gold, Question
from fedtorch.models.networks.hydranet import Query

MEASURES = ("overall", "agg", "sel", "wn", "wc", "op", "val")
LOGICAL_FORM = "logical_form"


def measures(gold: Gold, query: Query) -> dict[str, int]:
    """1 or 0 for each of MEASURES.

    agg: of the *predicted* select column. op and val look at the rows of the *gold* columns, predicted or not, so they
    can exceed wn and wc; values are compared as token positions. overall: all six are right.
    """
    right = {
        "agg": query.agg == gold.agg,
        "sel": query.sel == gold.sel,
        "wn": len(query.where) == gold.num_conditions,
        "wc": set(query.where) == set(gold.conditions),
        "op": all(query.conditions[column][0] == op for column, (op, _) in gold.conditions.items()),
        "val": all(query.conditions[column][1] == span for column, (_, span) in gold.conditions.items()),
    }
    return {"overall": int(all(right.values())), **{name: int(is_right) for name, is_right in right.items()}}


def logical_form(question: Question, query: Query) -> int:
    """WikiSQL's evaluator: selection, aggregation and the *set* of (column, operator, text in lower case) are equal."""
    gold = question.gold
    assert gold is not None
    ours = {(c, query.conditions[c][0], question.value(c, query.conditions[c][1]).lower()) for c in query.where}
    theirs = {(column, op, value.lower()) for column, op, value in gold.texts}
    return int((query.sel, query.agg, ours) == (gold.sel, gold.agg, theirs))
