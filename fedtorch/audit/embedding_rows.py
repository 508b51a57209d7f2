"""Embedding rows: those that move as no other does in an update are the tokens of the client's texts.

Where rows of other tokens stay as they are, those that change are named. Where all rows change (embeddings and output
share a table, weights decay) the others change nearly alike: rows are ranked by their distance from the median row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedtorch.audit.channels import channels
from fedtorch.audit.finding import LITTLE, Finding, percent, share
from fedtorch.audit.layers import FirstLayers
from fedtorch.audit.membership import auc
from fedtorch.audit.pictures import bars
from fedtorch.audit.subject import Subject

NAME = "rows"
ABOUT = "the tokens that a client has, by the rows of the embedding table that its update changes"
NEEDS = "one look at the update; no weights, no computation"
TELLING = 0.9
"""A row tells of a token where at least this share of the rows named is right; by chance it is the texts' own share."""

STAYING = 0.01
"""A larger share of rows that stay as they are says that no row moves without a token."""


def why_not(subject: Subject) -> str:
    """Why the attack does not apply; empty if it does."""
    if why := subject.why_no_first_layers:
        return why
    assert isinstance(subject.layers, FirstLayers)
    return "" if subject.layers.embedding_weight else "the embedding table is not sent (frozen, private, an adapter)"


def attack(subject: Subject) -> Finding:
    """Share of the token set that is named, and of the names that are right, in every channel."""
    layers, figures = subject.layers, list[dict[str, Any]]()
    shown: dict[str, Any] = {}
    assert isinstance(layers, FirstLayers)
    for seen in channels(subject):
        truth = set[int]().union(*map(subject.tokens, seen.clients))
        table = subject.named(seen.flat)[layers.embedding_weight]
        away = distances(table)
        named = set(apart(away).nonzero().flatten().tolist())
        right = len(named & truth)
        figures.append(
            {
                "channel": seen.channel,
                "client": seen.whose,
                "tokens": len(truth),
                "named": len(named),
                "recovered": share(right, len(truth)),
                "right": share(right, len(named)),
                "auc": _auc(away, truth),
            }
        )
        if subject.options.show and seen.channel == "update":
            shown[seen.whose] = sorted(named & truth)
    return Finding(NAME, ABOUT, NEEDS, _said(figures), figures, bars(figures, "recovered", "right"), shown=shown)


def distances(table: Tensor) -> Tensor:
    """How far each row is from one that has no token, shape (rows,): from 0 where rows stay, else from the median."""
    rows = table.double()
    usual = torch.zeros_like(rows[0]) if stays(rows) else rows.median(0).values
    return (rows - usual).norm(dim=1)


def stays(rows: Tensor) -> bool:
    """Do rows without a token stay as they are? A few that do may be padding, which nothing ever moves."""
    return int((~rows.ne(0).any(1)).sum()) > max(2, STAYING * len(rows))


def apart(away: Tensor) -> Tensor:
    """Which of the distances are large, shape (rows,), bool: those above 0, or the upper of two groups.

    The groups are those with the largest variance between them (Otsu 1979).
    """
    if int((away == 0).sum()) > max(2, STAYING * len(away)):
        return away > 0
    ordered = away.sort().values
    count, total = len(ordered), ordered.cumsum(0)
    below = torch.arange(1, count, dtype=torch.float64)
    if not count > 1:
        return away > 0
    gap = (total[-1] - total[:-1]) / (count - below) - total[:-1] / below
    cut = int((below * (count - below) * gap**2).argmax())
    return away > ordered[cut]


def _auc(away: Tensor, truth: set[int]) -> float | None:
    """That a row of a token of the client is ranked above another row."""
    inside = [-one for place, one in enumerate(away.tolist()) if place in truth]
    outside = [-one for place, one in enumerate(away.tolist()) if place not in truth]
    return auc(inside, outside) if inside and outside else None


def _said(figures: Sequence[Mapping[str, Any]]) -> str:
    told = [row for row in figures if row["channel"] == "update"]
    best = max(told, key=lambda row: ((row["right"] or 0.0) >= TELLING, row["recovered"] or 0.0), default=None)
    if best is None or (best["right"] or 0.0) < TELLING:
        most = max((row["right"] or 0.0 for row in told), default=0.0)
        ranked = max((row["auc"] or 0.0 for row in told), default=0.0)
        return (
            f"{LITTLE} no set of rows that is nearly right: at most {percent(most)} of those named are tokens of the "
            f"client; ranked by their distance from the median row the AUC is up to {ranked:.3f} (0.5: chance)"
        )
    named = f"up to {percent(best['recovered'])} of a client's token set"
    return f"{LITTLE} {named}, {percent(best['right'])} of the names are right"
