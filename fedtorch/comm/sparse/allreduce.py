"""The sum of clients' sparse messages as a reduce-scatter and an all-gather, in which every rank owns a slice.

Ok-Topk (Li and Hoefler, arXiv 2201.07598), with exact sums and an exact second selection in place of thresholds.

    1. reduce-scatter   every rank cuts its clients' messages into slices and sends each owner its pieces
    2. check            owners tell the norms of the pieces that came; all ranks compare each client's with its report
    3. sum              the same whole numbers at the same scale as every other exchange's (`reproducible`)
    4. select           the k largest numbers of all slices together (`slices.largest_of_all`), rounded to the wire's
                        dtype (of 8 bits by powers that all owners agree on, by chance that depends on the round and
                        the place alone); what is left out is added to the slice's next sum. Or everything, if none is
                        made
    5. balance          owners that kept more than others hand some on, where that moves fewer bytes than it saves
    6. all-gather       everyone gets all that was kept

With one client per rank, P ranks and messages of k numbers, a rank receives about 2k(P-1)/P numbers in step 1 (an index
counts as one), at most that in 5 and that in 6: less than 6k(P-1)/P, however many ranks there are. Nothing is changed
here; what follows is done with what is returned, so that all of it can be repeated when a rank is lost on the way.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedtorch.comm.sparse.messages import Decode, sum_sparse, widened
from fedtorch.comm.sparse.packed import joined, pack, stretch, unpack
from fedtorch.comm.sparse.peers import Peers
from fedtorch.comm.sums.aggregation import Term
from fedtorch.comm.sums.checks import as_integers, as_numbers, norm_problem
from fedtorch.comm.sums.reproducible import SumScale
from fedtorch.compression import eight_bits
from fedtorch.compression.payload import (
    HEADER_BYTES,
    PayloadError,
    Sparse,
    decode,
    decode_as_sent,
    encode,
    from_8_bits,
    in_8_bits,
    length_of,
    num_bytes,
)
from fedtorch.compression.slices import Selection, Slices, cut, largest_of_all, nonzero, overlap, received_to_balance
from fedtorch.core.errors import RefusedUpdatesError
from fedtorch.core.norms import norm_and_max
from fedtorch.core.update import Report

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeftOut:
    """Residual of the second selections so far, as one rank has it."""

    members: tuple[int, ...] = (0,)
    """The ranks that own a slice of it, the same on all ranks; (0,): the server has all."""
    values: Tensor | None = None
    """This rank's slice; None: zeros, or it has none."""


@dataclass(frozen=True)
class SparseSum:
    """Settings of a sparse sum: the messages, and how they are added."""

    size: int
    """Of the vectors."""
    dtype: torch.dtype
    """Of the vectors."""
    decode: Decode
    """What a message stands for: Sparse."""
    selection: Selection | None
    """The second one; None: everything is kept."""
    message_bytes: int
    """Of every client's message."""
    keeps: bool
    """Whether what the second selection leaves out is added to the next sum."""
    seed: int = 0
    """Decides how the second selection rounds to 8 bits; the same on all ranks."""

    @property
    def limit_bytes(self) -> int:
        """The longest piece of a message that there can be: all numbers, 8 bytes and an index each."""
        return 2 * HEADER_BYTES + 12 * self.size


@dataclass(frozen=True)
class Reduced:
    """Result of a sparse sum that all ranks have."""

    step: Tensor
    """What was kept of the sum, dense, shape (size,); the same bits on all ranks."""
    count: int
    """How many numbers that are."""
    left_out: LeftOut
    """To be passed next time, if this one counts."""


def all_reduce(
    peers: Peers, accepted: Sequence[Report], weights: Sequence[float], rule: SparseSum, left_out: LeftOut
) -> Reduced:
    """Σ weights_i · decoded message_i over all ranks, or its largest numbers; all ranks call it.

    accepted: in the same order on all ranks, with the norms that were reported. weights: on the server.

    Raises:
        RefusedUpdatesError: on all ranks, if a message is none, or not what its client reported.
    """
    terms, own = peers.enter(accepted, weights)
    slices = Slices(rule.size, len(peers.members))
    place = peers.members.index(peers.rank)
    pieces, is_unread = _scatter(peers, terms, own, rule, slices)
    largest = _check(peers, accepted, pieces, is_unread)
    total = torch.empty(slices.length(place), dtype=rule.dtype)
    scale = SumScale.of([term.weight for term in terms], largest)
    sum_sparse(pieces, [term.weight for term in terms], scale, total)
    before = move(peers, left_out, rule.size, peers.members) if rule.keeps else LeftOut(peers.members)
    if rule.selection is None:
        chosen = nonzero(total)
    else:
        if before.values is not None:
            total = before.values + total
        chosen = largest_of_all(total, slices, place, rule.selection, peers.add)
        chosen, kept = _rounded(peers, chosen, slices, rule, rule.selection.values)
        total[chosen.indices.long()] -= kept.to(rule.dtype)
    step, count = _gather(peers, chosen, slices, rule)
    if peers.rank == 0:
        meter, item = peers.meter, chosen.values.dtype.itemsize
        meter.count("up", "aggregate", logical=rule.message_bytes * len(terms), messages=len(terms))
        down = (HEADER_BYTES + num_bytes(rule.size, count, "auto", item)) * len(terms)
        meter.count("down", "aggregate", logical=down, messages=len(terms))
    return Reduced(step, count, LeftOut(peers.members, total if rule.keeps else None))


def move(peers: Peers, left_out: LeftOut, size: int, to: tuple[int, ...]) -> LeftOut:
    """Deal what was left out to the ranks `to`, some of the members; all ranks call it, inside of an `enter`.

    The slices of ranks that are no longer members are lost, as what their clients had not sent yet.
    """
    if left_out.members == to:
        return left_out
    if gone := set(left_out.members) - set(peers.members):
        log.warning("what the second selections left out in the slices of ranks %s is lost with them", sorted(gone))
    parts = [torch.zeros(0, dtype=torch.uint8)] * len(peers.members)
    if left_out.values is not None and peers.rank in left_out.members:
        own = nonzero(left_out.values)
        places = Slices(size, len(left_out.members)).whole(left_out.members.index(peers.rank), own.indices.numpy())
        whole = Sparse(size, torch.from_numpy(places.astype(np.int32)), own.values)
        for rank, part in zip(to, Slices(size, len(to)).split(whole), strict=True):
            parts[peers.members.index(rank)] = encode(part)
    came = [part for part in peers.all_to_all(parts, 2 * HEADER_BYTES + 12 * size) if len(part)]
    if peers.rank not in to or not came:
        return LeftOut(to)
    length = Slices(size, len(to)).length(to.index(peers.rank))
    found = [decode(part, length) for part in came]
    values = torch.zeros(length, dtype=found[0].values.dtype)
    for part in found:
        values[part.indices.long()] = part.values
    return LeftOut(to, values)


def _rounded(
    peers: Peers, chosen: Sparse, slices: Slices, rule: SparseSum, dtype: torch.dtype
) -> tuple[Sparse, Tensor]:
    """(this rank's chosen numbers as they travel, the values that these stand for); all ranks call it."""
    if dtype != torch.int8:
        sent = Sparse(chosen.size, chosen.indices, chosen.values.to(dtype))
        return sent, sent.values
    places = slices.whole(peers.members.index(peers.rank), chosen.indices.numpy())
    own = torch.from_numpy(eight_bits.powers_of(places, chosen.values.numpy(), rule.size))
    powers = torch.stack(peers.all_gather(own, rule.limit_bytes)).amax(0)
    codes = torch.from_numpy(eight_bits.rounded(places, chosen.values.numpy(), powers.numpy(), rule.seed))
    sent = Sparse(chosen.size, chosen.indices, codes, powers)
    return sent, from_8_bits(sent, places, rule.size).values


def _scatter(
    peers: Peers, terms: Sequence[Term], own: Sequence[Tensor], rule: SparseSum, slices: Slices
) -> tuple[list[Sparse], list[bool]]:
    """(the pieces of all messages in this rank's slice, which of its own messages cannot be read), by term."""
    nothing = Sparse(rule.size, torch.zeros(0, dtype=torch.int32), torch.zeros(0, dtype=rule.dtype))
    parts: list[list[Tensor]] = [[] for _ in peers.members]
    is_unread = [False] * len(terms)
    messages = iter(own)
    for place, term in enumerate(terms):
        if term.rank != peers.rank:
            continue
        try:
            sparse = rule.decode(next(messages))
            assert isinstance(sparse, Sparse), "what is dense is not summed in slices"
        except PayloadError as error:
            log.warning("a message cannot be read: %s", error)
            sparse, is_unread[place] = nothing, True
        sent = sparse if sparse.powers is None else in_8_bits(sparse)
        for part, piece in zip(parts, slices.split(sent), strict=True):
            part.append(encode(piece))
            if sent.powers is not None:
                part.append(sent.powers)
    empty = torch.zeros(0, dtype=torch.uint8)
    came = peers.all_to_all([torch.cat([empty, *part]) for part in parts], rule.limit_bytes * max(1, len(terms)))
    length = slices.length(peers.members.index(peers.rank))
    left = dict(zip(peers.members, came, strict=True))
    pieces = []
    for term in terms:
        stop = HEADER_BYTES + length_of(left[term.rank])
        piece = decode_as_sent(left[term.rank][:stop].clone(), length)  # a view would not be aligned
        left[term.rank] = left[term.rank][stop:]
        if piece.values.dtype == torch.int8:
            powers, left[term.rank] = left[term.rank].tensor_split([eight_bits.stretches(rule.size)])
            own_places = slices.whole(peers.members.index(peers.rank), piece.indices.numpy())
            piece = from_8_bits(replace(piece, powers=powers), own_places, rule.size)
        pieces.append(piece)
    return pieces, is_unread


def _check(
    peers: Peers, accepted: Sequence[Report], pieces: Sequence[Sparse], is_unread: Sequence[bool]
) -> list[float]:
    """Each client's largest absolute value.

    Raises:
        RefusedUpdatesError: on all ranks.
    """
    seen = [norm_and_max(widened(piece.values)) for piece in pieces]
    numbers = [*map(float, is_unread), *(norm for norm, _ in seen), *(largest for _, largest in seen)]
    count = len(accepted)
    rows = [as_numbers(row) for row in peers.all_gather_numbers(as_integers(numbers))]
    found: list[float] = []
    refused: dict[str, str] = {}
    for place, report in enumerate(accepted):
        norm = math.hypot(*(row[count + place] for row in rows))
        each = [row[2 * count + place] for row in rows]
        found.append(math.nan if any(map(math.isnan, each)) else max(each))
        problem = "its message cannot be read" if any(row[place] for row in rows) else ""
        if problem := problem or norm_problem(report, norm, found[-1]):
            refused[report.client] = problem
    if refused:
        raise RefusedUpdatesError(refused)
    return found


def _gather(peers: Peers, chosen: Sparse, slices: Slices, rule: SparseSum) -> tuple[Tensor, int]:
    """(everybody's chosen numbers as one dense vector, how many they are); powers are those that all ranks have."""
    counts = [row[0] for row in peers.all_gather_numbers([chosen.indices.numel()])]
    place, others = peers.members.index(peers.rank), len(counts) - 1
    total = sum(counts)
    first = slices.starts[place]
    stretches = [pack(first, chosen)]
    saved = others * (max(counts) - -(-total // len(counts)))
    if others and received_to_balance(counts) < saved:
        begin = sum(counts[:place])
        held = begin, begin + counts[place]
        common = [overlap(held, wanted) for wanted in cut(total, len(counts))]
        parts = [pack(first, stretch(chosen, start - begin, stop - begin)) for start, stop in common]
        stretches = [part for part in peers.all_to_all(parts, rule.limit_bytes) if len(part)]
        stretches = [pack(0, joined(stretches, rule.size))] if stretches else []
    mine = stretches[0] if stretches else torch.zeros(0, dtype=torch.uint8)
    step = torch.zeros(rule.size, dtype=rule.dtype)
    for part in peers.all_gather(mine, rule.limit_bytes):
        if not len(part):
            continue
        found = unpack(part, rule.size)
        places = slices.unlaid(found.indices.numpy())
        if found.values.dtype == torch.int8:
            found = from_8_bits(replace(found, powers=chosen.powers), places, rule.size)
        step[torch.from_numpy(places)] = found.values.to(rule.dtype)
    return step, total
