"""The weighted sum on one machine: every rank adds up a slice of all updates and writes it, all where they are.

Nothing but numbers moves, and all ranks add at the same time, those without clients too. What is added are whole
numbers, so the bits are those of any other way. The steps of `aggregation` from its fourth on, on all ranks alike but
where one is named:

    5. the ranks tell each other where their updates are and where each writes its slice of the sum, and the server
       which way it would take otherwise, whose bytes the meter counts
    6. all updates are found; if a rank cannot reach one, all go back to step 3, for that other way
    7. every rank writes its slice of the sum, in memory of its own that others only read
    8. each tells the server Σ of the squares of every client's whole numbers in its slice, and of the slice's own. What
       the ranks found of a client must come to what that client reported, and every slice must be as large as was said.
       The server copies the slices of others and measures them in the same pass: what is checked is what it has

Nobody changes an update, nor a slice, before all ranks have met for the next round. Who does changes no more than he
could have written in the first place: of what others write every number is read once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedtorch.comm.sums.aggregation import Aggregation, Term
from fedtorch.comm.sums.checks import TOLERANCE, SumCheck, as_integers, as_numbers
from fedtorch.comm.sums.reproducible import SumScale, add_all
from fedtorch.comm.transport.digests import DAMAGED
from fedtorch.comm.transport.header import Op
from fedtorch.comm.transport.update_memory import NOWHERE
from fedtorch.comm.transport.windows import slice_of
from fedtorch.core.kernels import Fold
from fedtorch.core.norms import copied


@dataclass
class _Found:
    """Updates and vectors that a rank works with."""

    updates: list[Tensor]
    """Whole ones, of each term."""
    out: Tensor
    """Whole, in memory of this rank: its slice of the sum is written there."""
    slices: list[Tensor]
    """The same of every rank, to be read; elsewhere than on the server empty."""
    scale: SumScale
    """Of the sum, with the server's divisor."""
    otherwise: Op
    """How it would travel."""


def take_part(aggregation: Aggregation, terms: Sequence[Term], scale: SumScale) -> None:
    """On every rank but the server: steps 5 to 8."""
    if (found := _find(aggregation, terms, scale, Op.SUM_SLICES, None)) is not None:
        place = aggregation.group.members.index(aggregation.group.rank)
        aggregation.group.send_numbers(as_integers(_add(found, terms, *_slice(aggregation, found, place))))
        sent = aggregation.sent_as(found.otherwise, terms, len(found.out))[place]
        aggregation.meter.count("up", "aggregate", physical=sent)


def collect(
    aggregation: Aggregation, terms: Sequence[Term], scale: SumScale, into: tuple[Tensor, SumCheck], otherwise: Op
) -> bool:
    """On the server: the same; False: a rank cannot reach an update. into: where the sum is written, and its check."""
    if (found := _find(aggregation, terms, scale, otherwise, into[0])) is None:
        return False
    group, (out, check), back = aggregation.group, into, scale.back()
    *each, squares = _add(found, terms, *_slice(aggregation, found, 0))
    for place, rank in enumerate(group.members[1:], start=1):
        *others, claimed = told = as_numbers(group.receive_numbers(len(terms) + 1, rank))
        if min(told) < 0:
            check.problems.append(f"rank {rank} reported {min(told):.6g} as a sum of squares in its slice")
            others, claimed = [0.0] * len(terms), 0.0
        each = [sum(pair) for pair in zip(each, others, strict=True)]
        start, stop = _slice(aggregation, found, place)
        norm = copied(found.slices[place][start:stop], out[start:stop])[0] / back
        # both are of the same numbers, rounded once more in `out`
        if not abs(norm - math.sqrt(claimed)) <= TOLERANCE * norm + 0.5 * math.sqrt(stop - start):
            check.problems.append(f"a slice of the sum, that of rank {rank}, {DAMAGED}")
        squares += norm * norm  # infinity, where `**` would raise
    for term, own in zip(terms, each, strict=True):
        check.see_client(aggregation.names[term.client], own)
    check.see_sum(squares, out)
    aggregation.meter.count("up", "aggregate", physical=sum(aggregation.sent_as(otherwise, terms, len(out))[1:]))
    return True


def _find(
    aggregation: Aggregation, terms: Sequence[Term], scale: SumScale, otherwise: Op, out: Tensor | None
) -> _Found | None:
    """Steps 5 and 6; None: a rank cannot reach what it needs.

    otherwise, scale's divisor: the server's count. out: of the server; the others take a vector of their own.
    """
    group, memory, local = aggregation.group, aggregation.memory, aggregation.local
    memory.begin(group.generation)
    size, own = aggregation.length(terms), {}
    for number, term in enumerate(terms):
        if term.rank == group.rank:
            own[number] = local.get(aggregation.names[term.client])
    places = [memory.place(own[number]) if number in own else NOWHERE for number in range(len(terms))]
    out = local.sums.lend(size, local.dtype) if out is None else out
    told = [otherwise, *as_integers([scale.divisor]), *memory.place(out)]
    rows = group.all_gather_numbers([*told, *(number for place in places for number in place)])
    head, held = rows[0], [row[len(told) :] for row in rows]
    found: list[Tensor | None] = []
    for number, term in enumerate(terms):
        of_rank = held[group.members.index(term.rank)][4 * number :][:4]
        found.append(memory.find(of_rank, size, local.dtype) if number not in own else own[number])
    updates = [update for update in found if update is not None]
    others = [memory.find(row[2:6], size, local.dtype) for row in rows[1:]] if group.rank == 0 else []
    slices = [out, *(each for each in others if each is not None)]
    can = len(updates) == len(terms) and len(slices) == len(others) + 1
    if not all(can for (can,) in group.all_gather_numbers([int(can)])):
        memory.is_open = False
        return None
    return _Found(updates, out, slices, SumScale(scale.exponent, *as_numbers(head[1:2])), Op(head[0]))


def _slice(aggregation: Aggregation, found: _Found, place: int) -> tuple[int, int]:
    return slice_of(len(found.out), aggregation.group.size, place)


def _add(found: _Found, terms: Sequence[Term], start: int, stop: int) -> list[float]:
    """Write a slice of the sum; Σ of the squares of each update's whole numbers in it, and of the sum's."""
    updates, out = [update.detach().numpy()[start:stop] for update in found.updates], found.out.numpy()[start:stop]
    factors, back = [found.scale.scaled(term.weight) for term in terms], found.scale.back()
    fold = Fold(updates, factors, None, fresh=True, out=out, back=back, measures_each=True)
    add_all(fold, stop - start)
    return [*fold.each_squares, fold.squares]
