"""Robust rules: what one may define, and how it is applied: alone, or to means of groups of clients (bucketing)."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedtorch.algorithms.robust import RULES
from fedtorch.algorithms.robust.products import inner_products
from fedtorch.core.errors import QuorumError
from fedtorch.core.ranges import Count, Whole
from fedtorch.core.seeds import generator_for
from fedtorch.core.update import Report

Matrix = npt.NDArray[np.float64]


class WindowedUpdates(Protocol):
    """A round's updates as a rule reads them."""

    @property
    def reports(self) -> Sequence[Report]: ...

    @property
    def round(self) -> int: ...

    @property
    def kept(self) -> dict[str, float]: ...

    def weighted_sum(self, weights: Sequence[float], *, max_norm: float | None = None) -> Tensor: ...

    def each_window(self, see: Callable[[Tensor], None]) -> None: ...

    def combine_windows(self, rule: Callable[[Tensor], Tensor]) -> Tensor: ...


class Bucket(NamedTuple):
    """Clients whose weighted mean stands for all of them."""

    places: Sequence[int]
    """Among the reports."""
    shares: Sequence[float]
    """Of each in the mean; 1.0 of one that is alone."""
    weight: float
    """Of all together."""


@dataclass(frozen=True)
class Rule:
    """Combines the updates of a round in place of their weighted sum; its fields are keys beside `name`.

    Clients of weight 0 have no say. One step of bucketing (Karimireddy et al. 2022, Algorithm 1) may come before: in a
    random order, drawn anew each round, every `bucket` clients in a row are averaged by their weights, and the rule
    gets these means; the limits that a rule has for clients are then about buckets.
    """

    bucket: Count = 1
    """clients whose updates are averaged before the rule sees them; 1: every client is seen by itself"""
    bucket_seed: Whole = 0
    """of the order in which buckets are filled, together with the round"""

    @property
    def least(self) -> int:
        """The fewest clients (or buckets) that it works with."""
        return 1

    def combine(self, updates: WindowedUpdates, weights: Sequence[float]) -> Tensor:
        """The combination as a new vector; `updates.kept` then says what share of its weight each client kept.

        Raises:
            QuorumError: fewer updates than the rule needs.
        """
        buckets = self.buckets(weights, updates.round)
        if len(buckets) < self.least:
            raise QuorumError(
                f"algorithm.robust needs {self.least} {'clients' if self.bucket == 1 else 'buckets'} but round "
                f"{updates.round + 1} has {len(buckets)}; set clients.per_round and clients.min to more, or let the "
                "rule stand fewer attackers"
            )
        combined, kept = self.of_buckets(updates, buckets)
        for bucket, share in zip(buckets, kept, strict=True):
            updates.kept.update({updates.reports[place].client: share for place in bucket.places})
        silent = (report for report, weight in zip(updates.reports, weights, strict=True) if not weight)
        updates.kept.update({report.client: 0.0 for report in silent})
        return combined

    def of_buckets(self, updates: WindowedUpdates, buckets: Sequence[Bucket]) -> tuple[Tensor, list[float]]:
        """(the combination, of each bucket the share of its weight that is in it)."""
        raise NotImplementedError

    def buckets(self, weights: Sequence[float], round: int) -> list[Bucket]:
        """The clients that weigh something, in their order if each is alone."""
        counted = [place for place, weight in enumerate(weights) if weight > 0]
        if self.bucket == 1:
            return [Bucket((place,), (1.0,), weights[place]) for place in counted]
        drawn = torch.randperm(len(counted), generator=generator_for(self.bucket_seed, "buckets", round)).tolist()
        made = []
        for start in range(0, len(counted), self.bucket):
            places = sorted(counted[k] for k in drawn[start : start + self.bucket])
            weight = math.fsum(weights[place] for place in places)
            made.append(Bucket(places, [weights[place] / weight for place in places], weight))
        return made


@dataclass(frozen=True)
class LinearRule(Rule):
    """One whose result is a weighted sum with other weights, which follow from the updates' inner products.

    These are summed once, window by window. What follows is about as many numbers as there are clients, in float64, and
    does not touch the updates; the result is then the exact sum that plain averaging is.
    """

    def of_buckets(self, updates: WindowedUpdates, buckets: Sequence[Bucket]) -> tuple[Tensor, list[float]]:
        """Sums over clients are `math.fsum`, the same bits in any order."""
        before = [bucket.weight for bucket in buckets]
        after = self.weights(before, self.products(updates, buckets))
        weights = [0.0] * len(updates.reports)
        for bucket, weight in zip(buckets, after, strict=True):
            for place, share in zip(bucket.places, bucket.shares, strict=True):
                weights[place] = weight * share
        kept = [min(1.0, max(0.0, new / old)) for new, old in zip(after, before, strict=True)]
        return updates.weighted_sum(weights), kept

    def products(self, updates: WindowedUpdates, buckets: Sequence[Bucket]) -> Matrix:
        """⟨Δ_i, Δ_j⟩ of the buckets' means, shape (buckets, buckets)."""
        found = inner_products(updates)
        mixing = np.zeros((len(buckets), len(found)))
        for row, bucket in enumerate(buckets):
            mixing[row, list(bucket.places)] = bucket.shares
        if self.bucket == 1:
            places = [bucket.places[0] for bucket in buckets]
            return found[np.ix_(places, places)]
        half = np.array([[math.fsum(row * column) for column in found] for row in mixing])
        return np.array([[math.fsum(row * column) for column in half] for row in mixing])

    def weights(self, weights: Sequence[float], products: Matrix) -> list[float]:
        """The weights in place of `weights`, which are above 0."""
        raise NotImplementedError


@dataclass(frozen=True)
class CoordinateRule(Rule):
    """One that looks at each number by itself, at all clients' values of it; window by window."""

    def of_buckets(self, updates: WindowedUpdates, buckets: Sequence[Bucket]) -> tuple[Tensor, list[float]]:
        """Buckets go in by rising weight, so that equal values come in an order that no order of clients changes."""
        order = sorted(range(len(buckets)), key=lambda place: buckets[place].weight)
        rising = [buckets[place] for place in order]
        whole = whole_weights([bucket.weight for bucket in rising])
        total = math.fsum(bucket.weight for bucket in rising)
        counts = torch.zeros(len(rising), dtype=torch.float64)
        seen = 0

        def of_window(rows: Tensor) -> Tensor:
            nonlocal seen
            out = torch.empty(rows.shape[1], dtype=rows.dtype)
            for start in range(0, rows.shape[1], CHUNK):
                part = _means(rows[:, start : start + CHUNK], rising)
                values, counted = self.of_values(part, whole)
                out[start : start + CHUNK] = values * total
                counts.add_(counted)
            seen += rows.shape[1]
            return out

        combined = updates.combine_windows(of_window)
        shares = dict(zip(order, (counts / max(1, seen)).clamp(0, 1).tolist(), strict=True))
        return combined, [shares[place] for place in range(len(buckets))]

    def of_values(self, rows: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
        """(what each column of `rows` comes to in float64, of each row over how many columns it has counted).

        rows: shape (clients, numbers). whole: the clients' weights as whole numbers, ascending.
        """
        raise NotImplementedError


CHUNK = 1 << 15
"""Columns that are sorted together, so that they stay in the cache."""
WEIGHT_BITS = 40


def whole_weights(weights: Sequence[float]) -> Tensor:
    """The weights as whole numbers, int64, of some 2^40 together: sums of them are exact, so in any order the same."""
    total = math.fsum(weights)
    return torch.tensor([max(1, round(weight / total * 2**WEIGHT_BITS)) for weight in weights], dtype=torch.int64)


def _means(rows: Tensor, buckets: Sequence[Bucket]) -> Tensor:
    """Mean of the clients' rows of each bucket; a client alone is as it is."""
    made = torch.empty(len(buckets), rows.shape[1], dtype=rows.dtype)
    for row, bucket in zip(made, buckets, strict=True):
        if len(bucket.places) == 1:
            row.copy_(rows[bucket.places[0]])
            continue
        mean = torch.zeros(rows.shape[1], dtype=torch.float64)
        for place, share in zip(bucket.places, bucket.shares, strict=True):
            mean += rows[place].double() * share
        row.copy_(mean)
    return made


def kept_counts(kept: Mapping[str, float]) -> dict[str, float]:
    """Numbers of a round's record: clients that were left out, and that kept less than all of their weight."""
    if not kept:
        return {}
    shrunk = sum(0 < share < 1 - 1e-9 for share in kept.values())
    return {"robust/left_out": float(sum(share == 0 for share in kept.values())), "robust/shrunk": float(shrunk)}


def rule_of(value: str | Mapping[str, Any]) -> Rule:
    """The rule that a name, or a mapping of `name` and fields, stands for: one of `RULES`, or `module:Class`."""
    fields = {"name": value} if isinstance(value, str) else dict(value)
    name = fields.pop("name")
    module, _, cls = RULES.get(name, name).partition(":")
    rule = getattr(importlib.import_module(module), cls)(**fields)
    assert isinstance(rule, Rule)
    return rule
