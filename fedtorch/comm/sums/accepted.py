"""The accepted clients' updates while the server combines them: summed, or taken one at a time."""

from __future__ import annotations

import logging
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

import torch
from torch import Tensor

from fedtorch.comm.sums.checks import LimitCheck, SumCheck, claim_problem, norm_problem
from fedtorch.comm.sums.reproducible import COARSEST, SumScale
from fedtorch.comm.transport.windows import SUM_DTYPE
from fedtorch.core.errors import RefusedUpdatesError
from fedtorch.core.norms import is_finite, norm_and_max
from fedtorch.core.places import Places
from fedtorch.core.update import Report, UpdateBuffer
from fedtorch.core.weights import Layout
from fedtorch.privacy.public_sum import Masking

log = logging.getLogger(__name__)


class AcceptedUpdates(ABC):
    """The accepted clients' updates, as the server sees them while it combines them; they stay where they are.

    What an algorithm's `aggregate` gets as its `Updates`. Valid only in the `with` of `Communicator.open_updates`; may
    be summed and iterated any number of times.
    """

    reports: tuple[Report, ...]
    """Reports of the accepted clients, in the order given to `Communicator.open_updates`."""
    size: int
    """Elements of every update as an algorithm gets it."""
    dtype: torch.dtype
    """Of every update; uint8 where they are compressed messages."""
    places: Mapping[str, Places | None]
    """Client -> what travels of its update, the rest of which is 0; None: all of it."""
    lengths: Mapping[str, int]
    """Client -> how many numbers that are."""
    layout: Layout | None
    """Of each vector in an update; None: they are messages, or nobody said."""
    sum_dtype: torch.dtype
    """Of a sum; fp64 for parts of one that are still to be added."""
    round: int
    """Of the run, from 0."""
    sums_only: bool = False
    """Are no updates to be had but in sums, which silos check?"""
    all_send: bool = False
    """Is there a sum of no updates too, to which every worker sends its part?"""
    kept: dict[str, float]
    """Client -> the share of its weight that counts; for an algorithm to fill in, and for the records."""

    def __init__(self, reports: Sequence[Report], local: UpdateBuffer, round: int = 0) -> None:
        """local: of this rank; it knows what travels."""
        self.round, self.kept = round, {}
        self.reports, self.size, self.dtype = tuple(reports), local.size, local.dtype
        self.places = {report.client: local.places(report.client) for report in reports}
        self.lengths = {report.client: local.length(report.client) for report in reports}
        self.sum_dtype, self.layout = local.sum_dtype, local.layout
        self._ahead: tuple[SumScale, list[float]] | None = None
        self._coarsest = COARSEST
        self._checked: tuple[int, int, int] | None = None  # the sum that was given last, as it was then

    def __len__(self) -> int:
        return len(self.reports)

    def fix_scale(
        self, exponent: int, own: Sequence[float], divisor: float | None = None, *, always: bool = False
    ) -> None:
        """Take the weighted sum at a scale that was fixed before the updates were known, unless they do not fit it.

        own: of each report the number a_i of which the weights are made, a_i / Σ a_j. These enter the sum, and it is
        divided at the end. divisor: in place of Σ a_j. Where updates are too large for the scale, or so small that it
        is too coarse for them, the sum is that of the reports' scale; so it is of other weights. always: not where it
        is too coarse, as a public scale may be.
        """
        self._ahead = SumScale(exponent, math.fsum(own) if divisor is None else divisor), list(own)
        self._coarsest = sys.maxsize if always else COARSEST

    def weighted_sum(self, weights: Sequence[float], *, max_norm: float | None = None) -> Tensor:
        """Σ weights_i Δ_i as a new CPU vector, shape (size,): the same bits for any packing of clients onto ranks.

        weights: one finite number per report, of any sign and sum. Clients of weight 0 are not asked for.
        max_norm: of the sum, where a bound is known that does not rest on the reports; None: Σ |weights_i| norm_i.
        The `max_abs` in the reports fix the scale of the integer sum, where `fix_scale` has not.
        A sum that the reports cannot explain is not returned: the updates are then taken one by one, each is compared
        with its report, and if all are true the sum is made of them again.

        Raises:
            RefusedUpdatesError: an update is not what its client reported, or not even the second sum fits.
            ValueError: wrong number of weights, or one of them or a `max_abs` is not finite; or the updates are
                compressed messages, whose bytes have no sum (see `comm.sparse.messages.sum_of_messages`).
        """
        if not self.dtype.is_floating_point:
            raise ValueError(
                f"the updates are compressed messages ({self.dtype}), not vectors, and cannot be summed as they are; "
                "use comm.messages.sum_of_messages, which decodes them, or algorithm.exchange: dense"
            )
        if len(weights) != len(self.reports):
            raise ValueError(f"{len(weights)} weights were given for {len(self.reports)} updates; expected one each")
        scale, weights = self._scale([float(weight) for weight in weights], max_norm)
        terms = [(r, w) for r, w in zip(self.reports, weights, strict=True) if w != 0]
        check = SumCheck(terms, scale, self.size, max_norm)
        total = self._sum_by_places(scale, terms, check)
        if not check.problems:
            if all(places is None for places in self.places.values()):
                self._checked = _trace(total)
            return total
        if self.sums_only:
            self._refuse(check, terms)
        log.warning("%s; the updates are taken one by one", "; ".join(check.problems))
        if refused := self._refused():
            raise RefusedUpdatesError(refused)
        check = SumCheck(terms, scale, self.size, max_norm)
        total = self._sum_by_places(scale, terms, check, singly=True)
        if check.problems:
            self._refuse(check, terms)
        return total

    def _refuse(self, check: SumCheck, terms: Sequence[tuple[Report, float]]) -> NoReturn:
        everyone = dict.fromkeys((report.client for report, _ in terms), "; ".join(check.problems))
        raise RefusedUpdatesError(check.blamed or everyone)

    def is_finite(self, vector: Tensor) -> bool:
        """Is every element? A sum that `weighted_sum` gave, and nobody has written to, is not looked at again.

        Writes through numpy are not noticed.
        """
        is_known = self._checked is not None and not vector.is_inference() and self._checked == _trace(vector)
        return is_known or is_finite(vector)

    def _scale(self, weights: list[float], max_norm: float | None) -> tuple[SumScale, list[float]]:
        """The scale of a weighted sum, and what enters it in place of the weights."""
        largest = [report.max_abs for report in self.reports]
        if self._ahead is not None and max_norm is None:
            scale, own = self._ahead
            if all(math.isclose(a, w * scale.divisor, rel_tol=1e-12) for a, w in zip(own, weights, strict=True)):
                if scale.suits(own, largest, self._coarsest):
                    return scale, own
                log.info("round %d: the updates do not fit the scale of the round before", self.round + 1)
        return SumScale.of(weights, largest), weights

    def whole_sum(self, exponent: int, limit: float) -> Tensor:
        """Σ Δ_i · 2^exponent, whole numbers in float64, shape (size,): exact, at a scale that no report decides.

        For updates that are multiples of 2^-exponent, and so many that whole numbers stay below 2^52. Zero where there
        are none. limit: the largest norm of an update.

        Raises:
            RefusedUpdatesError: an update, or the sum, is longer than that or damaged, also when they come one by one.
        """
        wanted, scale, self.sum_dtype = self.sum_dtype, SumScale(exponent), SUM_DTYPE
        terms = [(report, 1.0) for report in self.reports]
        try:
            total, check = torch.zeros(self.size, dtype=SUM_DTYPE), None
            for singly in ((False,) if self.sums_only else (False, True)) if terms or self.all_send else ():
                check = LimitCheck(self.reports, scale, self.size, limit)
                total = self._sum_by_places(scale, terms, check, singly=singly)
                if not check.problems:
                    break
                log.warning("the sum of a round is not what it can be; the updates are taken one by one")
            if check is not None and check.problems:
                everyone = dict.fromkeys((report.client for report in self.reports), "the sum cannot be what was sent")
                raise RefusedUpdatesError(check.blamed or everyone)
        finally:
            self.sum_dtype = wanted
        return total.mul_(2.0**exponent)

    def zeros(self) -> Tensor:
        """A new vector of zeros in float64, shape (size,)."""
        return torch.zeros(self.size, dtype=SUM_DTYPE)

    def masked_sum(self, exponent: int, limit: float, masking: Masking, before_opening: Callable[[], None]) -> Tensor:
        """Return the sum of `whole_sum`, made by a secure sum over the workers: nothing but the sum is seen here.

        before_opening: called before anybody is asked to help remove the masks; from then on this sum is known or
        never will be, and none of fewer clients may be asked for.

        Raises:
            TooFewPartiesError, RefusedUpdatesError: the sum cannot be known, or is longer than so many clips.
            ValueError: all updates are here, in the server's own process.
        """
        raise ValueError("a secure sum has no parties in a run of one process; start a rank for each of them")

    def __iter__(self) -> Iterator[Tensor]:
        """Each update in report order, shape (size,), on the CPU.

        The tensor may be reused: it is valid until the next one is asked for, and is not to be changed.

        Raises:
            RefusedUpdatesError: an update is not what its client reported; messages are not looked into.
        """
        for report, (update, problem) in zip(self.reports, self._each(), strict=True):
            if problem := problem or claim_problem(report, update):
                raise RefusedUpdatesError({report.client: problem})
            places = self.places[report.client]
            yield update if places is None else places.spread(update)

    def each_window(self, see: Callable[[Tensor], None]) -> None:
        """Call `see` with every window of all updates, one after the other: shape (clients, numbers), on the CPU.

        The rows are in report order, and are overwritten by the next window; no rank has more than one window of the
        other ranks' updates. Of updates of which only some places travel these are the numbers.
        What `see` raises is raised at the end, when the other ranks have sent everything. Whether an update is what its
        client reported is known only then too: what was made of the windows is void where this raises.

        Raises:
            RefusedUpdatesError: an update is not what its client reported.
            ValueError: the updates are messages, or not all have the same places.
        """
        if not self.dtype.is_floating_point or len({_digest(places) for places in self.places.values()}) > 1:
            raise ValueError("updates go through windows only as vectors of which the same numbers travel")
        damaged: dict[str, str] = {}
        norms: list[list[tuple[float, float]]] = []
        raised: Exception | None = None
        for rows in self._windows(damaged):
            norms.append([norm_and_max(row) for row in rows])
            try:
                if raised is None:
                    see(rows)
            except Exception as error:  # raised below, when nobody is sending any more
                raised = error
        if raised is not None:
            raise raised
        for report, found in zip(self.reports, zip(*norms, strict=True), strict=False):  # without windows nothing is
            of_windows, largest = zip(*found, strict=True)
            problem = norm_problem(report, math.hypot(*of_windows), max(largest))
            damaged.setdefault(report.client, problem)
        if refused := {client: problem for client, problem in damaged.items() if problem}:
            raise RefusedUpdatesError(refused)

    def combine_windows(self, rule: Callable[[Tensor], Tensor]) -> Tensor:
        """A new vector, shape (size,), of what `rule` makes of each window of `each_window`; raises as that does."""
        parts: list[Tensor] = []
        self.each_window(lambda rows: parts.append(rule(rows)))
        whole = torch.cat(parts) if parts else torch.zeros(0, dtype=self.dtype)
        places = self.places[self.reports[0].client] if self.reports else None
        return whole if places is None else places.spread(whole)

    def _sum_by_places(
        self, scale: SumScale, terms: list[tuple[Report, float]], check: SumCheck, *, singly: bool = False
    ) -> Tensor:
        """The sum as a whole vector, from one of each kind of updates that have the same places.

        The parts are multiples of one power of two in fp64, whose sum is exact; it is rounded once, as any other.
        """
        kinds: dict[str, list[tuple[Report, float]]] = {}
        for report, weight in terms:
            places = self.places[report.client]
            kinds.setdefault(_digest(places), []).append((report, weight))
        if set(kinds) <= {""}:
            return self._sum(scale, terms, check, singly=singly)
        divisor, scale = scale.divisor, replace(scale, divisor=1.0)
        wanted, self.sum_dtype = self.sum_dtype, SUM_DTYPE
        whole = torch.zeros(self.size, dtype=SUM_DTYPE)
        try:
            for own in kinds.values():
                part = self._sum(scale, own, check, singly=singly)
                places = self.places[own[0][0].client]
                whole = whole.add_(part) if places is None else whole.index_add_(0, places.indices, part)
        finally:
            self.sum_dtype = wanted
        return whole.mul_(1.0 / divisor).to(wanted)

    def _refused(self) -> dict[str, str]:
        """Every client whose update is not what it reported, with the reason."""
        problems = [
            problem or claim_problem(report, update)
            for report, (update, problem) in zip(self.reports, self._each(), strict=True)
        ]
        return {report.client: problem for report, problem in zip(self.reports, problems, strict=True) if problem}

    @abstractmethod
    def _each(self) -> Iterator[tuple[Tensor, str]]:
        """Each update in report order, and what went wrong with it on its way."""

    @abstractmethod
    def _windows(self, damaged: dict[str, str]) -> Iterator[Tensor]:
        """Each window of all updates, shape (clients, numbers); in `damaged` what went wrong on its way, by client."""

    @abstractmethod
    def _sum(
        self, scale: SumScale, terms: list[tuple[Report, float]], check: SumCheck, *, singly: bool = False
    ) -> Tensor:
        """The sum of weight · update at `scale`, over clients with the same places; `check` sees it.

        Of shape (length of these updates,) and `sum_dtype`. singly: every update comes by itself.
        """


def _trace(vector: Tensor) -> tuple[int, int, int]:
    """Place and version of a vector: they change with it and with whatever torch writes to it."""
    return vector.data_ptr(), len(vector), vector._version


def _digest(places: Places | None) -> str:
    """Equal exactly where the same numbers travel; empty: all of them."""
    return "" if places is None else places.digest
