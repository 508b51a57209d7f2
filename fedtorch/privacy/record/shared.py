"""Privacy of rows with the noise of a trusted server and without one: silos add shares of it under a secure sum.

A round is one sum of bounded gradients at the weights that everybody received. Silo c sends S_c + n_c, where n_c has
the variance (zC)²/(t − a): a sum that is opened has t parts or more, at most a of them of the server's accomplices, so
that what these do not know has noise of zC at least. Kairouz, Liu and Steinke 2021, arXiv 2102.06387, with rounded
normal numbers: the sum of h of them is the rounding of one such number and h − 1 uniform ones, but for a probability of
2e-5 at a deviation of one step, and of nothing at ours, which is some 2^30 steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedtorch.core.mechanism import RoundFacts
from fedtorch.core.server import ServerState
from fedtorch.core.silo_work import SiloWork
from fedtorch.core.update import Report
from fedtorch.privacy.public_sum import Masking, exact_sum, settled_clients
from fedtorch.privacy.record.level import RecordLevel

BEYOND = 12.0
"""Deviations of the noise that no sum is longer than, times the root of its length."""


class SharedNoise(RecordLevel):
    """The mechanism of `noise_at: shared`: the server sees the sum of all silos' parts, and no norm of one."""

    update_dtype = torch.float64

    def __init__(self, *about: Any, masking: Masking) -> None:
        """masking: of the secure sum; about: as `RecordLevel`."""
        super().__init__(*about)
        self.masking, self.public_exponent = masking, self._exponent

    def work(self, client: str, round: int, examples: Sequence[Any], cohort: Sequence[str]) -> SiloWork:
        """One sum of the client; its share of the noise is another one where others take part."""
        found = super().work(client, round, examples, cohort)
        about = [name.encode() for name in cohort]
        return replace(found, begin=lambda purpose, facts: found.begin(purpose, [*about, *facts]))

    def reported(self, report: Report) -> Report:
        """Without norm and largest number, which are of one silo's part."""
        return replace(super().reported(report), norm=0.0, max_abs=0.0)

    def combine(self, updates: Any, otherwise: Callable[[Any], Tensor]) -> Tensor:
        """Sum of all parts, opened once."""
        return exact_sum(updates, self._exponent, self._longest(updates.size), self.masking)

    def settled(self, round: int) -> Collection[str] | None:
        """Return what became of the round; None: nothing yet."""
        return settled_clients(self.masking, round)

    def release(self, round: int, total: Tensor, server: ServerState, places: Any) -> Tensor | None:
        """The sum over q · units of all silos in it, which are public."""
        super().release(round, total, server, places)
        return self.step_of(total, self._exponent, [report.client for report in server.accepted], server.dtype)

    def step_of(self, sums: Tensor, exponent: int, clients: Sequence[str], dtype: Any) -> Tensor:
        """Return the mean gradient of all units that were expected in it."""
        units = math.fsum(self.terms[client].batch for client in clients)
        found: Tensor = sums.mul_(math.ldexp(1.0, -exponent) / units).to(dtype)
        return found

    def facts(self, round: int, facts: RoundFacts, server: ServerState) -> RoundFacts:
        """As of local noise, without norms of parts."""
        found = super().facts(round, facts, server)
        return replace(found, figures={k: v for k, v in found.figures.items() if not k.startswith("privacy/norm/")})

    def summary(self, server: ServerState) -> dict[str, Any]:
        """With what the promise rests on beside the silos' own numbers."""
        any_terms = next(iter(self.terms.values()))
        shares = {"threshold": any_terms.honest + self.settings.colluders, "colluders": self.settings.colluders}
        return {**super().summary(server), "noise_at": "shared", **shares}

    @property
    def _exponent(self) -> int:
        return next(iter(self.terms.values())).exponent

    def _longest(self, size: int) -> float:
        """Norm that no part is longer than: of all units at their clip, and of noise beyond what is drawn."""
        return max(
            2 * terms.units * terms.clip + BEYOND * math.ldexp(terms.deviation, -terms.exponent) * math.sqrt(size)
            for terms in self.terms.values()
        )
