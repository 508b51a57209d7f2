"""Counts of silos' units at a public scale, with noise of each silo's own, or shares of it under a secure sum, or none.

Numbers are multiples of 2^-20. Where a unit adds at most 1 to each of at most m cells of a table, the table with noise
of z √m on each cell, empty ones too, is a Gaussian mechanism with the noise multiplier z: one release of all units.
What is noised is on the silo's ledger before it leaves; the same numbers have the same noise, and are no further
release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedtorch.core.errors import UpdateError
from fedtorch.core.mechanism import Mechanism, RoundFacts
from fedtorch.core.server import ServerState
from fedtorch.core.silo_work import SiloWork
from fedtorch.core.update import Report
from fedtorch.privacy.digests import keyed_digest
from fedtorch.privacy.public_sum import Masking, exact_sum, settled_clients
from fedtorch.privacy.record.silo import Block, OwnSilos, Silo, Step, Training, parts_of
from fedtorch.privacy.record.terms import RELATION, Part, epsilon_of
from fedtorch.privacy.stream import derived

EXPONENT = 20
"""e: counts are multiples of 2^-e once they are noised."""
LONGEST = 2.0**32
"""The norm of all silos' numbers of a round together is below it, so that their sum is exact."""
_LEFT = "releases"
_KEPT = "privacy/releases/"

Cells = Sequence[tuple[slice, int]]
"""(numbers, m) of tables of a round: a unit is in at most m of these cells."""


@dataclass(frozen=True)
class CountTerms:
    """Public numbers of a counting run."""

    noise_multiplier: float
    """z; 0: nothing is noised"""
    honest: int | None
    """t − a, where silos add shares of the noise; None: each adds all of it"""
    delta: float
    """δ"""
    max_epsilon: float | None
    """by all that was ever released of a silo's units; None: no limit"""
    unit: str
    """what is protected, for people"""
    noise: str
    """how it is drawn, as `privacy.noise`"""
    releases: tuple[int, ...]
    """of each round: its tables"""

    def deviation(self, most: int) -> float:
        """Standard deviation of a silo's noise on a number, in steps of 2^-e. most: m of its table."""
        return self.noise_multiplier * math.sqrt(most / (self.honest or 1)) * 2.0**EXPONENT

    def blocks(self, cells: Cells) -> list[Block]:
        """Numbers of these tables with the deviation of the noise on each."""
        return [(part.start, part.stop, self.deviation(most)) for part, most in cells]

    def parts(self, releases: int) -> list[Part]:
        """So many tables, for the account: every unit is in them."""
        return [(1.0, self.noise_multiplier, releases)] if self.noise_multiplier and releases else []

    def epsilon(self, releases: int) -> float:
        """ε of so many tables."""
        return epsilon_of(self.parts(releases), self.delta)


class NoisedCounts:
    """One silo's numbers of one round, on their way out."""

    def __init__(
        self, silo: Silo, terms: CountTerms, round: int, cells: Cells, facts: Iterable[bytes], client: str = ""
    ) -> None:
        """facts: what else the noise must differ by, such as who takes part in a sum of shares."""
        self._silo, self._terms, self._round, self._cells, self._facts = silo, terms, round, cells, tuple(facts)
        self._client = client

    def choose(self, unit: bytes, names: Sequence[bytes], most: int) -> list[bytes]:
        """Which `most` of a unit's names count: a draw of the silo's own, the same in every round and run."""
        if len(names) <= most:
            return list(names)
        key = derived(self._silo.key, "counts draw")
        return sorted(names, key=lambda name: keyed_digest(key, [unit, name]))[:most]

    def release(self, numbers: npt.NDArray[np.float64], unasked: Collection[int] = ()) -> None:
        """Add the noise, in place, once the line of it is on the silo's ledger.

        unasked: places, among the round's tables, of those with no cell that was asked for: these stay 0, and cost
        nothing. They follow from what was released before.

        Raises:
            CheckpointError: the ledger refuses.
        """
        silo, terms = self._silo, self._terms
        cells = [cells for at, cells in enumerate(self._cells) if at not in unasked]
        about = [repr((terms, self._round, cells)).encode(), *self._facts]
        before = keyed_digest(derived(silo.key, "counts digest"), about)
        numbers *= 2.0**EXPONENT
        step = Step(self._client, self._round, "counts", 0, 0, before)
        digest = silo.add_noise(step, numbers, terms.noise, terms.blocks(cells))
        numbers *= 2.0**-EXPONENT
        z = terms.noise_multiplier
        if cells:
            silo.enter(Training(silo.run, self._round, "counts", 0, digest, digest, len(cells), 1.0, z, terms.delta))


class CountsLevel(Mechanism):
    """The mechanism of a counting run."""

    needs_homes = True
    update_dtype = torch.float64
    shows_losses = False
    shows_scores = False
    public_exponent = EXPONENT
    public_figures = (_LEFT,)

    def __init__(
        self,
        terms: CountTerms,
        clients: Sequence[str],
        open_silo: Callable[[str], Silo],
        units: Callable[[str, Sequence[Any]], Sequence[Sequence[int]]],
        cells: Callable[[str, int], Cells],
        masking: Masking | None,
    ) -> None:
        """open_silo: key and ledger of a client that is counted here. units(client, rows): places of each unit's rows.

        cells(client, round): what it noises of its vector.
        """
        self.terms, self._clients = terms, tuple(clients)
        self._units, self._cells = units, cells
        self.masking = masking
        self.silos = OwnSilos(open_silo)
        self._left: dict[str, int] = {}

    def silo(self, client: str) -> Silo:
        """The client's key and ledger.

        Raises:
            CheckpointError: they are damaged, or not for their owner alone.
        """
        return self.silos[client]

    def rests(self, client: str, round: int) -> str:
        """Why the client takes no part: what is left of the run would pass its limit, by its ledger; empty: it does.

        What this run has released already is not paid twice.
        """
        terms = self.terms
        if terms.max_epsilon is None or not terms.noise_multiplier:
            return ""
        silo = self.silo(client)
        known = silo.trainings()
        paid = {one.round for one in known if one.run == silo.run}
        left = sum(count for at, count in enumerate(terms.releases) if at >= round and at not in paid)
        needed = epsilon_of([*parts_of(known), *terms.parts(left)], terms.delta)
        if needed <= terms.max_epsilon:
            return ""
        return (
            f"the tables of this run would come to epsilon {needed:.4f} of its units, above "
            f"stats.privacy.max_epsilon {terms.max_epsilon:g}; it takes no part"
        )

    def work(self, client: str, round: int, examples: Sequence[Any], cohort: Sequence[str]) -> SiloWork | None:
        """Units of the client, and the noise on their counts; None where nothing is noised."""
        if not self.terms.noise_multiplier:
            return None
        facts = [name.encode() for name in cohort] if self.terms.honest is not None else []
        cells = self._cells(client, round)

        def begin(purpose: str, more: Iterable[bytes | memoryview]) -> Any:
            return NoisedCounts(self.silo(client), self.terms, round, cells, facts, client)

        return SiloWork(examples, self._units(client, examples), 1, 1, "loop", 1, True, cast(Any, begin))

    def outgoing(self, update: Tensor, report: Report) -> Report:
        """As it is, if it can be added exactly.

        Raises:
            UpdateError: it cannot.
        """
        if not float(update.norm()) <= self._limit:
            raise UpdateError("the counts are too large to be added exactly; are these rows?")
        return report

    def reported(self, report: Report) -> Report:
        """That it took part; what leaves is in the counts."""
        extra = {}
        if (silo := self.silos.get(report.client)) is not None and self.terms.noise_multiplier:
            extra[_LEFT] = float(sum(steps for *_, steps in parts_of(silo.trained(silo.run))))
        found = Report(report.client, report.status, extra=extra)
        return replace(found, examples=1, steps=1) if report.status == "ok" else found

    def combine(self, updates: Any, otherwise: Callable[[Any], Tensor]) -> Tensor:
        """Sum of all numbers, exact."""
        total = exact_sum(updates, EXPONENT, self._limit, self.masking)
        return self.step_of(total, EXPONENT, [r.client for r in updates.reports], updates.sum_dtype)

    def settled(self, round: int) -> Collection[str] | None:
        """Return what became of the round; None: nothing yet."""
        return None if self.masking is None else settled_clients(self.masking, round)

    def release(self, round: int, total: Tensor, server: ServerState, places: Any) -> Tensor | None:
        """As it is."""
        self._see(server.accepted, server)
        return total

    def facts(self, round: int, facts: RoundFacts, server: ServerState) -> RoundFacts:
        """How many silos were counted, and ε so far."""
        taken = [report for report in facts.reports or () if report.status == "ok"]
        figures = {**facts.figures, "stats/silos": float(len(taken))}
        shown: list[tuple[str, str]] = [("silos", str(len(taken)))]
        if self.terms.noise_multiplier:
            spent = max(self._left.values(), default=0)
            figures["privacy/epsilon"] = epsilon = self.terms.epsilon(spent)
            shown.append(("largest ε", f"{epsilon:.4f}"))
        return RoundFacts(None, figures=figures, shown=shown)

    def summary(self, server: ServerState) -> dict[str, Any]:
        """For results.json and whatever is made of it; nothing where nothing is promised."""
        terms = self.terms
        if not terms.noise_multiplier:
            return {}
        left = {name: int(server.numbers.get(_KEPT + name, 0)) for name in self._clients}
        shared = {} if terms.honest is None else {"honest": terms.honest}
        return {
            "kind": "counts",
            "simulated": False,
            "unit": terms.unit,
            "relation": RELATION,
            "noise_at": "local" if terms.honest is None else "shared",
            "noise": terms.noise,
            "noise_multiplier": terms.noise_multiplier,
            "delta": terms.delta,
            "tables": max(left.values(), default=0),
            **shared,
            "silos": {n: {"releases": count, "epsilon": terms.epsilon(count)} for n, count in left.items()},
            "epsilon": terms.epsilon(max(left.values(), default=0)),
            "accountant": f"privacy loss distribution, dp-accounting {version('dp-accounting')}",
        }

    @property
    def _limit(self) -> float:
        """Norm that no silo's numbers are longer than."""
        return LONGEST / max(1, len(self._clients))

    def _see(self, reports: Sequence[Report], server: ServerState) -> None:
        for report in reports:
            if _LEFT in report.extra:
                self._left[report.client] = max(self._left.get(report.client, 0), int(report.extra[_LEFT]))
        kept: Mapping[str, int] = {_KEPT + name: count for name, count in self._left.items()}
        server.numbers.update(kept)
