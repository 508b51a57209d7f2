"""A secure sum over the federation's group: `privacy.secure_sum` has the protocol, here it finds its way.

Small things go through the store: what a party publishes, what the server passes on. The masked parts go to the server
as payloads, windows of whole numbers of 64 bits. A rank that is lost before the server has named whose parts have
arrived breaks the attempt: it is over on all ranks, and the exchange is repeated with other keys. From then on nothing
goes over the group, so that a loss does not keep the others from answering; with enough answers the sum is whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtorch.comm.sums.aggregation import Aggregation, Term
from fedtorch.comm.sums.reproducible import SumScale
from fedtorch.comm.sums.sum_notes import Notes
from fedtorch.comm.sums.witnessed import ServersPart
from fedtorch.comm.transport.digests import window_digest
from fedtorch.comm.transport.windows import windows
from fedtorch.core.errors import PreflightError
from fedtorch.privacy.secure_sum.collector import Collector
from fedtorch.privacy.secure_sum.party import PublicKeys, Revealed
from fedtorch.privacy.secure_sum.terms import BrokenProtocolError, SumTerms
from fedtorch.privacy.secure_sum.texts import TextParty

PHASES = ("sum_keys", "sum_shares", "sum_masks", "sum_reveal")
"""For faults: before a party's part in each of the four steps."""


class Damaged(Exception):
    """Parts did not arrive as they were sent; nothing was unmasked, and the other ranks wait for a request."""

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__(f"the masked parts of ranks {list(ranks)} did not arrive as they were sent")
        self.ranks = tuple(ranks)


def take_part(
    aggregation: Aggregation,
    terms: Sequence[Term],
    own: Sequence[tuple[Tensor, float]],
    scale: SumScale,
    size: int,
) -> None:
    """On every rank but the server: hide this rank's part of the sum, send it, and answer for those that arrived.

    terms: of the sum, as far as this rank may know of them.

    Raises:
        CollectiveFailed, DeadlineError: a rank was lost before it was settled whose sum it is.
        BrokenProtocolError: the server names other parties, or a lower threshold, than this rank's config comes to.
    """
    notes, group = Notes(aggregation), aggregation.group
    begun = notes.await_server("begin")
    if begun is None:
        return
    try:
        agreed = _checked(aggregation, begun, terms, notes.attempt)
        if group.rank not in agreed.parties:
            return
        party = aggregation.party(agreed)
        aggregation.faults(PHASES[0], round=aggregation.round)
        notes.write("keys", party.keys(), group.rank)
        if (roster := notes.await_server("roster")) is None:
            return
        aggregation.faults(PHASES[1], round=aggregation.round)
        keys = {int(rank): PublicKeys(*map(bytes.fromhex, pair)) for rank, pair in roster.items()}
        signed = notes.check_roster(keys)
        notes.write("shares", party.share(keys, signed), group.rank)
        if (boxes := notes.await_server("boxes", group.rank)) is None:
            return
        party.open_shares({int(rank): bytes.fromhex(box) for rank, box in boxes.items()})
        aggregation.faults(PHASES[2], round=aggregation.round)
        part = _send_masked(aggregation, party, terms, own, scale, size)
        if (arrived := notes.await_server("reveal")) is None:
            return
        aggregation.faults(PHASES[3], round=aggregation.round)
        _answer(aggregation, notes, party, arrived, part)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise PreflightError(f"a note of the server in a secure sum is none ({type(error).__name__})") from error


def _answer(aggregation: Aggregation, notes: Notes, party: TextParty, arrived: Sequence[int], part: str) -> None:
    """Help to remove the masks of those that have arrived. part: digest of this party's own.

    Raises:
        BrokenProtocolError: the server names others to others. TrustError: this party has answered for another sum.
    """
    rank, masking = aggregation.group.rank, aggregation.masking
    if notes.is_personal:
        notes.leave("survivors", arrived, rank)
        if (signed := notes.await_server("signed")) is None:
            return
        notes.check_survivors(arrived, signed, party.terms.threshold)
    if masking is not None and masking.answers is not None:
        weights = aggregation.sworn.partition(" ")[0]  # what follows is of this meeting, and other after a restart
        about = {"weights": weights, "parties": str(sorted(arrived)), "part": part}
        masking.answers.give(aggregation.round, about)
    notes.write("answer", party.reveal(arrived), rank)


def _checked(aggregation: Aggregation, begun: Mapping[str, Any], terms: Sequence[Term], attempt: str) -> SumTerms:
    """Return the server's terms of the exchange, once they agree with what this rank knows.

    Raises:
        BrokenProtocolError: it is something else.
    """
    told = {**begun, "parties": tuple(begun["parties"]), "common": aggregation.sworn}
    said, masking = SumTerms(**told), aggregation.masking
    if masking is None:
        raise BrokenProtocolError("the server begins a secure sum, but privacy.secure_sum is not set here")
    if (said.round, said.attempt) != (aggregation.round, attempt):
        raise BrokenProtocolError(
            f"the server begins the secure sum {said.round}, {said.attempt}; expected {aggregation.round}, {attempt}"
        )
    expected = masking.parties((term.rank for term in terms), aggregation.group.members[1:])
    masking.check(said.round, said.parties, said.threshold, expected)
    return said


def _send_masked(
    aggregation: Aggregation,
    party: TextParty,
    terms: Sequence[Term],
    own: Sequence[tuple[Tensor, float]],
    scale: SumScale,
    size: int,
) -> str:
    """Window by window; what is sent is the only copy. Returns a digest of the part without masks."""
    group, digests = aggregation.group, list[int]()
    witnessed, content = aggregation.silos_part("masked", terms, scale), hashlib.sha256()
    factor = np.float64(scale.scaled(1.0))
    for start, stop in windows(size):
        part = np.zeros(stop - start, np.int64)
        for grad, weight in own:
            # the update is made of multiples of 2^-e already, so this is exact
            part += np.rint(np.multiply(grad[start:stop].numpy(), factor * weight, dtype=np.float64)).astype(np.int64)
        content.update(part.data)
        if witnessed is not None:
            witnessed.see(part)
        party.mask(part.view(np.uint64))
        if witnessed is not None:
            witnessed.see_sent(part)
        window = torch.from_numpy(part)
        digests.append(window_digest(window))
        group.wait(group.start_send(window))
    group.send_numbers(digests)
    if witnessed is not None:
        witnessed.send(party.mask_tags)
    aggregation.meter.count("up", "aggregate", physical=8 * size)
    return content.hexdigest()


def collect(
    aggregation: Aggregation,
    terms: Mapping[str, Any],
    scale: SumScale,
    size: int,
    before_opening: Callable[[], None],
) -> np.ndarray[Any, Any]:
    """On the server: the sum of the parties' parts, int64, shape (size,).

    terms: of `SumTerms`, without the attempt. before_opening: called before any party is asked to answer.

    Raises:
        Damaged: a part was; nothing was unmasked.
        TooFewPartiesError: too few answer: the sum cannot be known, and must not be asked for again.
        CollectiveFailed, DeadlineError: a rank was lost before it was settled whose sum it is.
    """
    notes = Notes(aggregation)
    agreed = SumTerms(**terms, attempt=notes.attempt, common=aggregation.sworn)
    server, parties = Collector(agreed), agreed.parties
    witnessed = aggregation.servers_part(scale, size)
    about = {name: getattr(agreed, name) for name in ("run", "round", "attempt", "parties", "threshold")}
    notes.leave("begin", about)
    try:
        _exchange_keys(notes, server, parties)
        with notes.telling():
            total, damaged = _receive(aggregation, parties, size, witnessed)
        if damaged:
            notes.again()
            raise Damaged(damaged)
        before_opening()
        notes.leave("reveal", server.close(parties))
        if notes.is_personal:
            notes.leave("signed", notes.await_parties("survivors", parties, may_lose=True))
        for party in notes.await_parties("answer", parties, may_lose=True):
            own, pairwise = (
                {int(i): int(share, 16) for i, share in kind.items()} for kind in notes.read("answer", party)
            )
            server.take(party, Revealed(own, pairwise))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise PreflightError(f"a note of a party in a secure sum is none ({type(error).__name__})") from error
    server.prepare()
    for start, stop in windows(size):
        server.unmask(total[start:stop])
    if witnessed is not None and aggregation.is_checked:
        witnessed.see_sum(0, total.view(np.int64))
        witnessed.unmask(server.unmask_tags)
    notes.forget(parties)
    return total.view(np.int64)


def _exchange_keys(notes: Notes, server: Collector, parties: Sequence[int]) -> None:
    """On the server: pass on what parties publish, and what they seal for each other."""
    for party in notes.await_parties("keys", parties, may_lose=False):
        server.keys[party] = PublicKeys(*map(bytes.fromhex, notes.read("keys", party)))
    notes.leave("roster", {rank: [key.hex() for key in pair] for rank, pair in server.roster().items()})
    for party in notes.await_parties("shares", parties, may_lose=False):
        found = notes.read("shares", party)
        server.boxes[party] = {int(rank): bytes.fromhex(box) for rank, box in found.items()}
    for party in parties:
        notes.leave("boxes", {i: box.hex() for i, box in server.boxes_for(party).items()}, party)


def _receive(
    aggregation: Aggregation, parties: Sequence[int], size: int, witnessed: ServersPart | None
) -> tuple[np.ndarray[Any, Any], list[int]]:
    """(the sum of the masked parts, modulo 2^64; the ranks of which a window is not what was sent)."""
    group, total = aggregation.group, np.zeros(size, np.uint64)
    came: dict[int, list[int]] = {party: [] for party in parties}
    for start, stop in windows(size):
        transfers = []
        for party in parties:
            buffer = torch.empty(stop - start, dtype=torch.int64)
            transfers.append((party, buffer, group.start_receive(buffer, party)))
        for party, buffer, transfer in transfers:
            group.wait(transfer)
            came[party].append(window_digest(buffer))
            if witnessed is not None:
                witnessed.see_part(party, buffer.numpy())
            total[start:stop] += buffer.numpy().view(np.uint64)
    damaged = [party for party in parties if group.receive_numbers(len(came[party]), party) != came[party]]
    if witnessed is not None:
        witnessed.finish(parties)
    aggregation.meter.count("up", "aggregate", physical=8 * size * len(parties))
    return total, damaged
