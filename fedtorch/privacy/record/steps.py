"""Noised steps of one training: who is in a batch, what of a gradient counts, and the noise on their sum.

    B = {u: uniform(u) < q},  k_u = trunc(g_u · min(1, C/‖g_u‖) · 2^e),  S = Σ k_u,
    G = (S + rint(z · C · 2^e · g)) · 2^-e / (q · units)

All randomness comes from the silo's key. Let h_0 be a keyed digest of what the training begins with, and h_s one of
h_{s-1} and S. Batch and coins of step s are drawn under h_{s-1}, its noise under h_s: the same step has the same bits,
and noise is never put on two sums.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedtorch.core.norms import CHUNK, norm_and_max
from fedtorch.privacy.clip import MARGIN
from fedtorch.privacy.digests import keyed_digest
from fedtorch.privacy.record.silo import Silo, Step, Training
from fedtorch.privacy.record.terms import SiloTerms
from fedtorch.privacy.stream import Stream, chosen, derived

_WRITTEN = re.compile(rb"(\d+ [0-9a-f]{64}) ([0-9a-f]{64})")
LIMIT = 2
"""The most units that a silo may have, as a multiple of what it declares: sums of so many are exact."""


@dataclass(frozen=True)
class Place:
    """Which training of a run it is."""

    round: int
    """from 0"""
    purpose: str
    """of several trainings in a round"""


class NoisedSteps:
    """One attempt at a training."""

    def __init__(self, silo: Silo, terms: SiloTerms, place: Place, noise: str, facts: Iterable[bytes | memoryview]):
        """noise: as `privacy.noise`. facts: all that the training begins with, in an order that is always the same."""
        self._silo, self._terms, self._place, self._noise = silo, terms, place, noise
        self._start = self._last = keyed_digest(derived(silo.key, "record digest"), facts)
        self._attempt = silo.attempt(self._start)
        self._step = 0

    @property
    def is_new_attempt(self) -> bool:
        """Is it another one than the first, of which nothing has left yet? It is paid for then."""
        known = [one for one in self._silo.trainings() if (one.start, one.attempt) == (self._start, self._attempt)]
        return self._attempt > 0 and all(one.is_open for one in known)

    @property
    def exponent(self) -> int:
        """e."""
        return self._terms.exponent

    def batch(self, units: int) -> list[int]:
        """Which of so many units are in the next step's batch, each by itself with probability q; often none."""
        return list(chosen(self._stream("batch"), units, self._terms.rate))

    def coins(self) -> int:
        """A seed of 63 bits for all that is drawn in the next step beside batch and noise: dropout, masked words."""
        return int(self._stream("coins").integers(1)[0] >> np.uint64(1))

    def rows(self, unit: int, rows: int, most: int) -> list[int]:
        """Which of a person's rows count in the next step: `most` of them, ascending; all where there are no more."""
        if rows <= most:
            return list(range(rows))
        order = np.argsort(self._stream(f"rows {unit}").integers(rows), kind="stable")
        return sorted(order[:most].tolist())

    def add(self, total: npt.NDArray[np.float64], gradient: Tensor) -> None:
        """Add a unit's gradient, flat on the CPU, to the step's sum; one that is not finite adds nothing."""
        add_bounded(total, gradient, self._terms.clip, self.exponent)

    def release(self, total: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The step's noised gradient, of the sum of its bounded ones, in whose place it is written.

        Where noise is shared it is this silo's part of the sum, whole numbers times 2^-e, which nothing divides yet.
        """
        terms, place, exponent = self._terms, self._place, self.exponent
        step = Step(terms.silo, place.round, place.purpose, self._attempt, self._step, self._last)
        self._last = self._silo.add_noise(step, total, self._noise, [(0, len(total), terms.deviation)])
        self._step += 1
        total *= math.ldexp(1.0, -exponent) / (terms.batch if terms.pool is None else 1)
        return total

    def written(self) -> bytes:
        """The attempt, h_0 and h_s after s steps, which tell nothing to whoever lacks the key."""
        return f"{self._attempt} {self._start} {self._last}".encode()

    def is_of(self, written: bytes) -> bool:
        """Is that of this training and attempt? One of another attempt has other batches and another noise."""
        match = _WRITTEN.fullmatch(written)
        return match is not None and match[1] == f"{self._attempt} {self._start}".encode()

    def go_on(self, written: bytes, step: int) -> None:
        """Take up the digests of so many steps, of which `is_of` is true: the next one has the bits it would have had.

        Nothing is paid for that. A step that comes to another sum than before has a noise of its own; `may_leave`
        sees to it that one end of an attempt leaves the silo.
        """
        match = _WRITTEN.fullmatch(written)
        assert match is not None and self.is_of(written)
        self._last, self._step = match[2].decode(), step

    def may_leave(self) -> bool:
        """The training is over. False: it is to be done again, as what left from this start was something else.

        Raises:
            CheckpointError: the ledger refuses.
        """
        terms, silo = self._terms, self._silo
        if not self._step:
            return True
        return silo.enter(
            Training(
                silo.run,
                self._place.round,
                self._place.purpose,
                self._attempt,
                self._start,
                self._last,
                self._step,
                terms.rate,
                terms.noise_multiplier,
                terms.delta,
            )
        )

    def _stream(self, purpose: str) -> Stream:
        about = f"record {purpose}/{self._place.purpose}/{self._step}/{self._last}"
        return Stream(derived(self._silo.key, about, self._place.round, self._attempt))


def add_bounded(total: npt.NDArray[np.float64], gradient: Tensor, clip: float, exponent: int) -> float:
    """Add k = trunc(g · min(1, C/‖g‖) · 2^e), of norm C·2^e at most, to a sum of whole numbers; returns ‖g‖.

    A gradient that is not finite adds nothing: its unit is left out (0 · NaN would be NaN). gradient: flat, on the CPU,
    fp32 or float64.
    """
    norm, _ = norm_and_max(gradient)
    if not math.isfinite(norm):
        return norm
    share = 1.0 if norm <= clip * (1 - MARGIN) else clip / norm * (1 - MARGIN)
    factor, values = np.float64(math.ldexp(share, exponent)), gradient.detach().numpy()
    for start in range(0, len(values), CHUNK):
        exact = np.multiply(values[start : start + CHUNK], factor, dtype=np.float64)
        np.trunc(exact, out=exact)
        part = total[start : start + CHUNK]
        np.add(part, exact, out=part)
    return norm
