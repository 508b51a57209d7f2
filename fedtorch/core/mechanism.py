"""Steps between clients' updates and whoever sees them, as the round loop asks for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedtorch.core.client import Client
from fedtorch.core.overrides import overrides
from fedtorch.core.places import Places
from fedtorch.core.server import ServerState
from fedtorch.core.silo_work import SiloWork
from fedtorch.core.update import Report


@dataclass(frozen=True)
class RoundFacts:
    """Facts that the records have of a round."""

    reports: Sequence[Report] | None
    """of the clients that took part; None: who and how many did is not recorded"""
    weights: Mapping[str, float] = field(default_factory=dict)
    """client -> its weight in the combination"""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """by phase"""
    traffic: Mapping[str, float] = field(default_factory=dict)
    """`bytes_up`, `bytes_down`, and more; names with a slash are recorded, not drawn"""
    figures: Mapping[str, float] = field(default_factory=dict)
    """further numbers of the server, drawn as `round/<name>`; a name with a slash is the tag itself"""
    loss: float | None = None
    """the mean over the clients where there are no reports, if it is known"""
    shown: Sequence[tuple[str, str]] = ()
    """(name, text) of what else the console's line says"""
    arrivals: Sequence[Mapping[str, Any]] = ()
    """of asynchronous rounds: one record for each client that arrived since the version before"""


class Mechanism:
    """Stands between clients and those who see what is released; this one does nothing, and promises nothing.

    In a round: `begin` and `draw` on the server, `enter` elsewhere; `outgoing` and `reported` where a client trained;
    `combine` and, once the exchange counts, `release` on the server; `facts` for its record. Where `release` gives
    nothing, all of it is done again, from `begin` on.
    """

    hides_clients: bool = False
    """is it kept from all but the server who takes part? Then the server draws (`draw`) and tells each worker its own
    clients; `Communicator.open_updates` is called with `secret`; and what is said of clients names none of them"""
    update_dtype: Any = None
    """of the vectors that clients send; None: that of the weights"""
    needs_homes: bool = False
    """must each client be trained at its home, where its own files are?"""
    shows_losses: bool = True
    """may the mean loss of a round be recorded?"""
    shows_scores: bool = True
    """may clients that train be evaluated, each by itself?"""
    public_exponent: int | None = None
    """of the scale 2^e at which updates are whole numbers, where no report decides it and all weigh the same"""
    public_figures: tuple[str, ...] = ()
    """names of further numbers of a report that follow from the config and from what was noised alone"""
    masking: Any = None
    """what the ranks of a secure sum have in common (`privacy.public_sum.Masking`); None: updates are not hidden"""
    may_withhold: bool = False
    """may `release` give nothing, or raise BudgetError? Then the server tells all ranks what came of it"""

    @property
    def changes_updates(self) -> bool:
        """May `outgoing` change them?"""
        return overrides(type(self), "outgoing", Mechanism)

    def least(self, configured: int) -> int:
        """How many usable updates a round needs. configured: `clients.min`."""
        return configured

    def shown(self, client: str) -> str:
        """Name of a client in messages, logs and signs of life."""
        return client

    def begin(self, round: int, server: ServerState) -> Mapping[str, float]:
        """On the server, before a round (from 0): what the workers must know of it.

        Raises:
            BudgetError: there must not be another one; the other ranks are told.
        """
        return {}

    def enter(self, numbers: Mapping[str, float]) -> None:
        """On every rank: a round begins for which `begin` has said this."""

    def draw(self, clients: Sequence[Client], round: int) -> list[Client]:
        """On the server, with `hides_clients`: who takes part, of all clients of the run, in their order."""
        raise NotImplementedError

    def expect(self, round: int, numbers: int) -> None:
        """On the server, which now waits while others train: so many numbers are to be released in this round."""

    def rests(self, client: str, round: int) -> str:
        """Where a client trains: why it must not, in this round (from 0); empty: it may."""
        return ""

    def work(self, client: str, round: int, examples: Sequence[Any], cohort: Sequence[str]) -> SiloWork | None:
        """How the client's steps are noised; None: they are as they are.

        examples: its training rows. cohort: all clients of the round.
        """
        return None

    def counts(self, client: str, split: str) -> bool:
        """May a client that trains be evaluated on a split, where its scores leave as `counted` makes them?"""
        return False

    def counted(
        self, client: str, round: int, split: str, rows: Mapping[str, Sequence[float]], about: Sequence[Any]
    ) -> dict[str, tuple[float, int]]:
        """Where a client is evaluated that `counts`: its scores as they may leave; none at all where they must not.

        rows: metric -> one number for each of its examples there, NaN: it does not count. about: the examples, and
        after them the flat weights that they were scored with.
        """
        raise NotImplementedError

    def told(self, client: str) -> Mapping[str, float]:
        """Where a client is evaluated: numbers that go with its scores."""
        return {}

    def heard(self, client: str, numbers: Mapping[str, float], server: ServerState) -> None:
        """On the server: what `told` said of a client."""

    def outgoing(self, update: Tensor, report: Report) -> Report:
        """A client's update is complete: it may be changed in place; the report with what follows from that."""
        return report

    def reported(self, report: Report) -> Report:
        """Report of a client's round, as the server gets it."""
        return report

    def combine(self, updates: Any, otherwise: Callable[[Any], Tensor]) -> Tensor:
        """On the server: the accepted updates as one vector; otherwise: the algorithm's own way to make it."""
        return otherwise(updates)

    def step_of(self, sums: Tensor, exponent: int, clients: Sequence[str], dtype: Any) -> Tensor:
        """Return what `combine` and `release` make of a sum, where all they need is the sum of whole numbers.

        The bits are the same. sums: whole numbers at the scale 2^exponent, float64, flat; overwritten. clients: whose
        updates were accepted. dtype: of the weights.
        """
        found: Tensor = sums.mul_(math.ldexp(1.0, -exponent)).to(dtype)
        return found.add_(0.0)  # never −0.0

    def settled(self, round: int) -> Collection[str] | None:
        """On the server: the clients of whom the round's sum is known already, which no repetition changes.

        None: whoever is accepted. None at all of them: the round is given up.
        """
        return None

    def release(self, round: int, total: Tensor, server: ServerState, places: Places | None) -> Tensor | None:
        """On the server, once it counts: what the algorithm steps along, of what `combine` made.

        None, only with `may_withhold`: nothing of it may leave, and the round is done again with whom `draw` then
        names. server: `server.accepted` are the reports behind it. places: what of the vectors travelled; None: all.

        Raises:
            BudgetError: only with `may_withhold`: it would be one release too many.
        """
        return total

    def facts(self, round: int, facts: RoundFacts, server: ServerState) -> RoundFacts:
        """On the server, after a round (from 0): what is recorded of it."""
        return facts

    def summary(self, server: ServerState) -> dict[str, Any]:
        """On the server: what results.json says under `privacy`; nothing where nothing is promised."""
        return {}
