"""Embedding rows: those that are not zero in an update are the tokens of the client's texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedtorch.audit.channels import channels
from fedtorch.audit.finding import FAILED, Finding, percent, share
from fedtorch.audit.layers import FirstLayers
from fedtorch.audit.pictures import bars
from fedtorch.audit.subject import Subject

NAME = "rows"
ABOUT = "the tokens that a client has, by the rows of the embedding table that its update changes"
NEEDS = "one look at the update; no weights, no computation"
TELLING = 0.9
"""A row tells of a token where at least this share of the rows named is right; by chance it is the texts' own share."""


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
        named = set(table.ne(0).any(1).nonzero().flatten().tolist())
        right = len(named & truth)
        figures.append(
            {
                "channel": seen.channel,
                "client": seen.whose,
                "tokens": len(truth),
                "named": len(named),
                "recovered": share(right, len(truth)),
                "right": share(right, len(named)),
            }
        )
        if subject.options.show and seen.channel == "update":
            shown[seen.whose] = sorted(named & truth)
    return Finding(NAME, ABOUT, NEEDS, _said(figures), figures, bars(figures, "recovered", "right"), shown=shown)


def _said(figures: Sequence[Mapping[str, Any]]) -> str:
    told = [row for row in figures if row["channel"] == "update"]
    best = max(told, key=lambda row: ((row["right"] or 0.0) >= TELLING, row["recovered"] or 0.0), default=None)
    if best is None or (best["right"] or 0.0) < TELLING:
        most = max((row["right"] or 0.0 for row in told), default=0.0)
        return (
            f"{FAILED}: of the rows that change at most {percent(most)} are tokens of the client "
            "(rows change without a token where embeddings and output share a table, or weights decay)"
        )
    named = f"up to {percent(best['recovered'])} of a client's token set is named"
    return f"{named}, {percent(best['right'])} of the names are right"
