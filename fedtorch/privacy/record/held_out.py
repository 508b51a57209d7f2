"""Scores of a silo's held-out units, by noised counts: Σ over units of a number from 0 to 1, and noise on the sum.

One unit more changes the sum by 1 at most, so a count is a Gaussian mechanism of sensitivity 1 on all units of a split.
Its noise is keyed by a digest of weights, rows, metric and sum: the same weights have the same score however often they
are evaluated, which is no further release, and one noise is never put on two sums.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from fedtorch.privacy.clip import exponent_of
from fedtorch.privacy.digests import keyed_digest
from fedtorch.privacy.noise import ADD
from fedtorch.privacy.record.silo import Silo, Training
from fedtorch.privacy.record.steps import LIMIT
from fedtorch.privacy.record.terms import SiloTerms
from fedtorch.privacy.stream import Stream, derived

PER_ROW = ("accuracy", "exact_match")
"""Metrics that are a number from 0 to 1 for each row."""


def numbers_of(values: Sequence[float], units: Iterable[Sequence[int]]) -> list[float]:
    """Each unit's number from 0 to 1: the mean over its rows, of which one that does not count (NaN) has 0."""
    bounded = [0.0 if math.isnan(value) else min(max(value, 0.0), 1.0) for value in values]
    return [math.fsum(bounded[place] for place in unit) / len(unit) for unit in units]


def noised_count(
    silo: Silo,
    terms: SiloTerms,
    numbers: Sequence[float],
    *,
    round: int,
    split: str,
    metric: str,
    noise: str,
    facts: Iterable[bytes | memoryview],
) -> tuple[float, Training]:
    """The noised sum of units' numbers, and the line that must be in the ledger before it leaves.

    numbers: of each unit. round: rounds done. split: whose units they are. metric: which number they have. noise: as
    `privacy.noise`. facts: all that the numbers follow from, in an order that is always the same.
    """
    assert terms.held_out is not None
    declared, z = terms.held_out.units[split], terms.held_out.noise_multiplier
    exponent = exponent_of(1.0, LIMIT * declared)
    total = np.array([math.fsum(math.trunc(math.ldexp(number, exponent)) for number in numbers)])
    about = repr((split, metric, declared, z, noise)).encode()
    digest = keyed_digest(derived(silo.key, "record digest"), [b"count", about, *facts, total.view(np.uint8).data])
    ADD[noise](total, math.ldexp(z, exponent), Stream(derived(silo.key, f"record count/{digest}")))
    line = Training(silo.run, round, metric, 0, digest, digest, 1, 1.0, z, terms.delta, split)
    return math.ldexp(float(total[0]), -exponent), line


def counts_of(trainings: Iterable[Training]) -> dict[str, int]:
    """Split -> noised counts of it; one that was made again counts once."""
    each = {one.end: one.split for one in trainings if one.split}
    return dict(Counter(each.values()))
