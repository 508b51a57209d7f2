"""The seven measures of HydraNet's evaluator, and WikiSQL's own: accuracy of the logical form and of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedtorch.data.hydranet import Gold, Question
from fedtorch.data.wikisql_tables import answer
from fedtorch.models.networks.hydranet import Query
from fedtorch.tasks.base import Scores

MEASURES = ("overall", "agg", "sel", "wn", "wc", "op", "val")
LOGICAL_FORM = "logical_form"
EXECUTION = "execution"


def scores(questions: Sequence[Question], queries: Sequence[Query], tables: Path | None) -> Scores:
    """Every measure's sum and number of questions; with `tables` that of the answers too, of those that have one."""
    totals = dict.fromkeys((*MEASURES, LOGICAL_FORM), 0)
    right = asked = 0
    for question, query in zip(questions, queries, strict=True):
        assert question.gold is not None
        for name, hit in measures(question.gold, query).items():
            totals[name] += hit
        totals[LOGICAL_FORM] += logical_form(question, query)
        if tables is not None:
            hit, counts = execution(tables, question, query)
            right, asked = right + hit, asked + counts
    found = {name: (float(total), len(questions)) for name, total in totals.items()}
    return found | ({EXECUTION: (float(right), asked)} if tables is not None else {})


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


def execution(tables: Path, question: Question, query: Query) -> tuple[int, int]:
    """(1 if the query gives the gold query's answer, 1); (0, 0) where there is none: no rows, no such operator.

    WikiSQL's evaluator: values in lower case, numbers where the column has numbers; rows in the table's order. A query
    that cannot be run, takes longer than 2 s or compares words with numbers is wrong.
    """
    if question.table is None:
        return 0, 0
    gold = question.gold
    assert gold is not None
    theirs = answer(tables, *question.table, gold.agg, gold.sel, gold.texts)
    if theirs is None:
        return 0, 0
    ours = [(c, query.conditions[c][0], question.value(c, query.conditions[c][1])) for c in query.where]
    return int(answer(tables, *question.table, query.agg, query.sel, ours) == theirs), 1
