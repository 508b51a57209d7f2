"""How a weighted sum travels: the way in which the busiest wire carries the fewest bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fedtorch.comm.transport.header import Op
from fedtorch.comm.transport.windows import SUM_DTYPE

Exchange = Literal["auto", "reduce", "send"]


def choose(
    held: Sequence[int],
    item_bytes: int,
    exchange: Exchange = "auto",
    *,
    machines: Sequence[int] | None = None,
    is_secret: bool = False,
) -> Op:
    """One of SEND_SUMS, REDUCE, SEND_UPDATES; by the bytes that the server's wire carries for each number of a vector.

    SEND_UPDATES: the server receives every remote client's update. SEND_SUMS: the server receives one sum, of 8 bytes,
    from every other rank that has clients. REDUCE: of two places the server receives the other's sum, of more in
    gloo's ring every place moves some two sums, however many there are; a place is a rank, or a machine whose ranks
    are added up there. At a tie the earliest of SEND_SUMS, REDUCE, SEND_UPDATES: in the first two all ranks add at the
    same time.

    held: updates on each rank, the server's first. item_bytes: of a number of an update. machines: of each rank,
    where its ranks add up within it; what they exchange there is on no wire. is_secret: in a ring, ranks see sums of
    others, so there is none.
    """
    places = range(len(held)) if machines is None else machines
    remote = [count for count, place in zip(held, places, strict=True) if place != places[0] and count]
    width = SUM_DTYPE.itemsize
    sums = (width * len(remote), 0, Op.SEND_SUMS)
    reduce = (width * min(2, len(set(places)) - 1), 1, Op.REDUCE)
    updates = (item_bytes * sum(remote), 2, Op.SEND_UPDATES)
    allowed = {"auto": (sums, reduce, updates), "reduce": (sums, reduce), "send": (updates,)}
    return min((sums, updates) if is_secret else allowed[exchange])[2]
