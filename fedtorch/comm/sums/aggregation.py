"""One aggregation, from both sides: what the server does, what every other rank does meanwhile, and what both share.

All ranks enter `Communicator.open_updates`. Nothing is sent that the server has not requested, so no rank guesses what
comes next.

       the server (`server_updates`)                    every other rank (`local_updates`)
    1. has accepted updates                             has its own at hand
    2. its block asks for weighted sums, or             waits for a request
       iterates over the updates
    3. `broadcast_request`: operation, round, number    `receive_request`
       of terms, exponent of the sum's scale; then
       the terms (client, rank, weight)
    4. `agree` on the operation: finds its own          the same; a rank that cannot find one, or would send
       updates among the terms                          more or less than the server expects, says so, and all
                                                        ranks raise the same error
    5. window by window, all clients of a window
       before the next window:
         REDUCE        adds its own; group reduce       adds its own; group reduce
         SEND_SUMS     adds its own; receives one       adds its own; sends the sum, if it has any
                       sum of each rank that has any    (of one update the update: `leaves_as_update`)
         SEND_UPDATES  adds its own; receives and       sends its updates
                       adds those of the others
         MASKED        adds what others hid; removes    hides the sum of its own, sends it and helps to
                       the masks of the sum             remove the masks (`masked`)
       or, as a whole:
         SEND_ONE      receives the update, unless      sends the update, if it is its own
                       it is its own
       and whoever has sent anything then sends its digests or projections, which the server compares (`checks`)
    6. its block goes on: back to 2                     back to 2
    7. the block has ended: requests DONE               its own block begins, with None
       has refused updates: requests REFUSED, raises    raises RefusedUpdatesError
       has raised: requests ABORT, raises               raises FedtorchError

All updates of one operation have the same length, which step 4 compares; where clients send other places of their
updates (`core.places`) the server makes a request for each kind.

Where all ranks are on one machine, a sum may be made of slices, from updates that are read where they are: then steps 5
on are those of `sum_slices`.

Where the scale was fixed before the round, the sum may be there already when it is asked for: then step 2 goes on at
once, and steps 3 to 5 are those of `early`.

If a rank is lost on the way, operations raise on the others (`Group`); what was received until then counts nowhere.
An `all_gather_updates` is steps 3 and 4 and one all-gather (`messages`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedtorch.comm.job.faults import Faults
from fedtorch.comm.job.witness import Witness
from fedtorch.comm.sums.reproducible import SumScale
from fedtorch.comm.sums.witnessed import ServersPart, SilosPart
from fedtorch.comm.transport.group import Group
from fedtorch.comm.transport.header import Op, Problem, problem_of
from fedtorch.comm.transport.meter import Meter
from fedtorch.comm.transport.update_memory import UpdateMemory
from fedtorch.comm.transport.windows import SUM_DTYPE
from fedtorch.core.errors import PreflightError
from fedtorch.core.update import UpdateBuffer
from fedtorch.privacy.public_sum import Masking
from fedtorch.privacy.secure_sum.party import Party
from fedtorch.privacy.secure_sum.terms import SumTerms
from fedtorch.privacy.secure_sum.texts import OwnParty, TextParty

IN_FLIGHT = 4  # windows on the way per sending rank


class Term(NamedTuple):
    """An update that an operation is about."""

    client: int
    """Index in the manifest."""
    rank: int
    """The rank that has the update."""
    weight: float
    """Of it in the sum."""


class Request(NamedTuple):
    """An operation that the server wants from all ranks."""

    op: Op
    """How the sum travels, or how the exchange ends."""
    terms: Sequence[Term] = ()
    """In the order in which they are added or sent."""
    scale: SumScale = SumScale(0)
    """Of the sum."""


@dataclass(frozen=True)
class Aggregation:
    """State that a rank needs for one aggregation, on either side of it."""

    group: Group
    """The ranks that take part."""
    local: UpdateBuffer
    """The updates of this rank's clients."""
    names: Sequence[str]
    """The clients in manifest order."""
    meter: Meter
    """Counts what is sent and received."""
    faults: Faults
    """None but in tests."""
    round: int
    """Of the run; a request for another one is an error."""
    memory: UpdateMemory
    """Of this rank's updates, and how to read those of others."""
    masking: Masking | None
    """Masking of a secure sum, beside which nothing may be asked of a rank; None: there is no secure sum."""
    witness: Witness | None
    """Where parties sign what they send: what this one needs for that. Then each sends it to the server alone."""
    sworn: str = ""
    """What all parties have sworn to before; empty where they do not sign with keys of their own."""
    is_secret: bool = False
    """Does every rank learn of its own terms alone?"""

    @property
    def reads_in_place(self) -> bool:
        """May ranks read each other's updates? All ranks know the same, once the group is connected."""
        return self.memory.is_open and self.group.shares_memory and not self.sends_to_server

    @property
    def sends_to_server(self) -> bool:
        """Must each rank send what it has to the server, and nothing to another? As it is secret, or signed."""
        return self.is_secret or self.witness is not None

    @property
    def all_send(self) -> bool:
        """Does every worker send a sum, one of nothing too, so that what parties sign does not tell who has a part?"""
        return self.is_checked and self.is_secret

    @property
    def is_checked(self) -> bool:
        """Do silos look at records of rounds, in which each of them has sent one part?"""
        return self.witness is not None and self.witness.has_records

    def leaves_as_update(self, count: int) -> bool:
        """Does the sum of so many updates of a rank leave as the one update that it is made of, in fewer bytes?

        So it does where each silo sends one part, whose whole numbers both sides make of it alike; elsewhere such
        updates are asked for as they are.
        """
        is_part = self.is_checked and not self.is_secret
        return is_part and count == 1 and self.local.dtype.itemsize < SUM_DTYPE.itemsize

    def party(self, terms: SumTerms) -> TextParty:
        """On a silo: its side of a secure sum; where it has a gate the secrets of that are there."""
        gate = None if self.witness is None else self.witness.gate
        return OwnParty(Party(self.group.rank, terms)) if gate is None else gate.party(terms)

    def silos_part(self, way: str, terms: Sequence[Term], scale: SumScale) -> SilosPart | None:
        """On a silo: what it does with its part beside sending it, where parties sign what they send."""
        if self.witness is None:
            return None
        told = [(self.names[term.client], term.weight) for term in terms]
        own = [(self.names[term.client], term.weight) for term in terms if term.rank == self.group.rank]
        return SilosPart(self.witness, self.group, self.round, scale.exponent, told, own, way)

    def servers_part(self, scale: SumScale, size: int = 0) -> ServersPart | None:
        """On the server: what it does with the parts beside adding them. size: numbers of the sum, for silos to check.

        Where they do not check it, it is not kept.
        """
        if self.witness is None:
            return None
        return ServersPart(self.witness, self.group, self.round, scale.exponent, size if self.is_checked else 0)

    def broadcast_request(self, request: Request) -> None:
        """On the server: tell the other ranks what comes next."""
        op, terms, scale = request
        if self.is_secret:
            for rank in self.group.members[1:]:
                own = [term for term in terms if term.rank == rank]
                self.group.say(torch.tensor([op, self.round, len(own), scale.exponent], dtype=torch.int64), rank)
                if own:
                    self.group.say(_table(own), rank)
            return
        self.group.broadcast_numbers(torch.tensor([op, self.round, len(terms), scale.exponent], dtype=torch.int64))
        if terms:
            self.group.broadcast_numbers(_table(terms))

    def receive_request(self) -> Request:
        """Elsewhere: what the server wants.

        Raises:
            PreflightError: it is no operation of this round; the group is closed.
        """
        head = torch.zeros(4, dtype=torch.int64)
        self.group.hear(head, 0)
        op, round, count, exponent = head.tolist()
        if op not in list(Op) or round != self.round or count < 0:
            self.group.drop()
            raise PreflightError(f"the server requested {head.tolist()}; expected an operation of round {self.round}")
        table = torch.zeros(3, count, dtype=torch.int64)
        if count:
            self.group.hear(table, 0)
        weights = table[2].view(torch.float64).tolist()
        terms = [Term(*term) for term in zip(table[0].tolist(), table[1].tolist(), weights, strict=True)]
        return Request(Op(op), terms, SumScale(exponent))

    def length(self, terms: Sequence[Term]) -> int:
        """Numbers in each vector of an operation about these updates, which have the same places.

        Raises:
            PreflightError: they have not.
        """
        lengths = {self.local.length(self.names[term.client]) for term in terms if 0 <= term.client < len(self.names)}
        if len(lengths) > 1:
            self.group.drop()
            raise PreflightError(f"an operation is about updates of {sorted(lengths)} numbers; expected one length")
        if not lengths and self.is_secret and self.names:  # others' are as long as those of a client that is not here
            return self.local.length(self.names[0])
        return lengths.pop() if lengths else self.local.size

    def agree(self, op: Op, terms: Sequence[Term]) -> list[tuple[Tensor, float]]:
        """This rank's updates among `terms` with their weights, once all ranks have found theirs.

        Those that lie on a device stay there for a sum that is reduced from there, and come to the CPU for another way.

        Raises:
            PreflightError: on all ranks, if one of them has not an update that it should have.
        """
        own: list[tuple[Tensor, float]] = []
        problem, length = 0, self.length(terms)
        for term in terms:
            if term.rank == self.group.rank and not problem:
                found = self._find(term.client, length)
                if isinstance(found, Tensor) and op is not Op.REDUCE:
                    found = found.cpu()
                if isinstance(found, Tensor):
                    own.append((found, term.weight))
                else:
                    problem = problem_of(found, term.client)
        sent = self.sent_as(op, terms, length)
        self.group.agree(
            op,
            round=self.round,
            length=length,
            dtype=self.local.dtype,
            problem=problem,
            num_bytes=0 if problem else sent[self.group.members.index(self.group.rank)],
            expected=sent if self.group.rank == 0 else None,
        )
        self.faults("payload", round=self.round)
        return own

    def sent_as(self, op: Op, terms: Sequence[Term], length: int) -> list[int]:
        """Bytes that every member has to send in an operation; the server's own are among them where ranks add up."""
        each = length * self.local.dtype.itemsize
        held = Counter(term.rank for term in terms)
        if op in (Op.REDUCE, Op.MASKED):
            return [length * SUM_DTYPE.itemsize for _ in self.group.members]
        if op is Op.SEND_SUMS:
            sends = [held[rank] or (self.all_send and rank) for rank in self.group.members]
            whole = [length * SUM_DTYPE.itemsize if each else 0 for each in sends]
            as_update = [bool(rank) and self.leaves_as_update(held[rank]) for rank in self.group.members]
            return [each if one else sums for one, sums in zip(as_update, whole, strict=True)]
        return [each * held[rank] if op in (Op.SEND_UPDATES, Op.SEND_ONE) else 0 for rank in self.group.members]

    def _find(self, client: int, length: int) -> Tensor | Problem:
        if not 0 <= client < len(self.names) or self.names[client] not in self.local:
            return Problem.MISSING
        try:
            grad = self.local.get(self.names[client])
        except (OSError, RuntimeError):
            return Problem.UNREADABLE
        fits = grad.shape == (length,) and grad.dtype == self.local.dtype
        fits &= grad.device in (torch.device("cpu"), self.local.device)
        return grad.contiguous() if fits else Problem.MISFIT


def _table(terms: Sequence[Term]) -> Tensor:
    """Terms, of which there are some, as int64, shape (3, their number); the weights' bits as they are."""
    clients, ranks, weights = zip(*terms, strict=True)
    bits = torch.tensor(weights, dtype=torch.float64).view(torch.int64)
    return torch.stack([torch.tensor(clients), torch.tensor(ranks), bits])
