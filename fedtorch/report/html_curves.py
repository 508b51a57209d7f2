"""The curves of a page: losses, scores, weights and bytes by round, of runs and of their clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from statistics import median

from fedtorch.core.scores import LOSS, RECEIVED
from fedtorch.metrics.about import counts_hits
from fedtorch.report.groups import Band, Group, charts
from fedtorch.report.svg import line_chart

MOST_CHARTS = 40
MOST_CLIENTS = 10
"""So many clients have a curve of their own; of more there are the middle ones and the ends."""
MEGA = 1e6


def curves(groups: Sequence[Group], metric: str) -> str:
    """All charts, the chosen rounds marked; of one group its clients too, of several each client with all groups."""
    chosen = {group.label: group.chosen_rounds for group in groups}
    known = [key for key in charts(groups) if not key[1].startswith(RECEIVED)][:MOST_CHARTS]
    losses = {group.label: group.losses() for group in groups}
    pictures = [("train loss, mean of each round's clients", line_chart(losses, "train loss", chosen=chosen))]
    for split, name in known:
        bands = {group.label: group.scores(split, name) for group in groups}
        pictures.append((f"{name} on {split}", line_chart(bands, name, chosen=chosen, bounds=_bounds(name))))
    pictures += _of_clients(groups[0], known, metric) if len(groups) == 1 else _by_client(groups)
    pictures += _bytes(groups)
    figures = [f"<figure><figcaption>{escape(name)}</figcaption>{svg}</figure>" for name, svg in pictures if svg]
    return f"<div class='charts'>{''.join(figures)}</div>" if figures else ""


def _bounds(metric: str) -> tuple[float, float]:
    """Limits of a score: a band of one deviation may not leave them."""
    return (0.0, 1.0) if counts_hits(metric) else (-math.inf, math.inf)


def _of_clients(group: Group, known: Sequence[tuple[str, str]], metric: str) -> list[tuple[str, str]]:
    """Draw one group's clients: every one's loss, the score that counts, and its weight."""
    rounds = group.chosen_rounds
    pictures = [_clients_chart("train loss of each client", "train loss", group.of_clients("loss_mean"), rounds)]
    for split, name in known:
        if name in (metric, LOSS):
            bands = group.scores_of_clients(split, name)
            pictures.append(_clients_chart(f"{name} on {split} of each client", name, bands, rounds, _bounds(name)))
    weights = {client: band for client, band in group.of_clients("weight").items() if band.xs}
    return [*pictures, _clients_chart("weight of each client in the combined update", "weight", weights, rounds)]


def _clients_chart(
    title: str,
    y_label: str,
    bands: Mapping[str, Band],
    chosen: Sequence[int],
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> tuple[str, str]:
    if len(bands) < 2:
        return title, ""
    if len(bands) > MOST_CLIENTS:
        title, bands = f"{title}: {len(bands)} clients", _middle(bands)
    return title, line_chart(bands, y_label, chosen={"": chosen}, bounds=bounds)


def _middle(bands: Mapping[str, Band]) -> dict[str, Band]:
    """The median over clients and the lowest and highest of them, round by round."""
    at: dict[int, list[float]] = {}
    for band in bands.values():
        for x, y in zip(band.xs, band.mean, strict=True):
            at.setdefault(x, []).append(y)
    xs = sorted(at)
    return {
        name: Band(xs, [of(at[x]) for x in xs], [0.0] * len(xs))
        for name, of in (("median", median), ("highest client", max), ("lowest client", min))
    }


def _by_client(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Draw several groups: the losses of each of the first clients in one and in the other."""
    found = {group.label: group.of_clients("loss_mean") for group in groups}
    clients = list(dict.fromkeys(client for bands in found.values() for client in bands))
    more = f", {MOST_CLIENTS} of {len(clients)}" if len(clients) > MOST_CLIENTS else ""
    pictures = []
    for client in clients[:MOST_CLIENTS] if len(clients) > 1 else ():
        bands = {label: own[client] for label, own in found.items() if client in own}
        pictures.append((f"train loss of {client}{more}", line_chart(bands, "train loss")))
    return pictures


def _bytes(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Draw what all clients sent and received in each round."""
    ways = (("bytes_up", "up"), ("bytes_down", "down"))
    if len(groups) == 1:
        bands = {f"MB {word}": groups[0].of_round(key, MEGA) for key, word in ways}
        chart = line_chart(bands, "MB", from_zero=True)
        return [("bytes of each round, all clients together", chart)] if _moves(bands) else []
    found = []
    for key, word in ways:
        bands = {group.label: group.of_round(key, MEGA) for group in groups}
        chart = line_chart(bands, "MB", from_zero=True)
        found += [(f"MB {word} in each round, all clients together", chart)] if _moves(bands) else []
    return found


def _moves(bands: Mapping[str, Band]) -> bool:
    return any(any(band.mean) for band in bands.values())
