"""Which ranks are on one machine, found out by all of them together, and the way of payloads that follows from it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from fedtorch.comm.transport.node_sums import NodeSums
from fedtorch.comm.transport.pieces import InPieces
from fedtorch.comm.transport.process_group import Direct, Transport
from fedtorch.comm.transport.segment import Segment, machine, path_of
from fedtorch.comm.transport.shared import SLOT_BYTES, SLOTS, Shared, all_gather

log = logging.getLogger(__name__)

Connect = Callable[[str, int, int], Any]
"""A process group of gloo for some of the ranks: its name, this rank's place in it, how many they are."""


def connect(
    sockets: Direct,
    place: int,
    size: int,
    connect_some: Connect,
    beat: Callable[[], None],
    *,
    wanted: bool,
    in_pieces: bool,
    staged: Callable[[str, int, int], Transport] | None = None,
) -> Transport:
    """How payloads travel; all ranks call it alike, `size` is their number and `place` this one's, the server's is 0.

    Through shared memory where all ranks are on one machine and want it; within machines through it and between them
    by one rank of each, where some machine has several; else over sockets. A rank that does not say where
    it is counts as alone there. If a rank cannot open memory that it should, all ranks use sockets.

    connect_some: see `Connect`. beat: called now and then while something long is under way. in_pieces: does what goes
    over sockets alone go in pieces? staged: takes the place of sockets where payloads move through a device (NCCL), by
    name, place and number as in `Connect`; then memory is shared only where there are several machines, and not where
    vectors lie on devices (`wanted` is False): a device's own way between ranks knows which are near.
    """
    machines, segment, peers = _meet(sockets, place, size, wanted)
    own = [each for each, number in enumerate(machines) if number == machines[place]]
    others: Transport = InPieces(sockets, beat) if staged is None else staged("/payload", place, size)
    if peers is None or len(set(machines)) == size:
        return others if in_pieces or staged is not None else sockets
    if len(own) == size and segment is not None:
        return Shared(sockets, segment, peers) if staged is None else others
    within: Shared | None = None
    between: Transport | None = None
    if len(own) > 1 and segment is not None:
        group = connect_some(f"/machine{machines[place]}", own.index(place), len(own))
        within = Shared(Direct(group), segment, peers)
    leaders = first_of_each(machines)
    if place in leaders:
        as_leader = "/leaders", machines[place], len(leaders)
        between = Direct(connect_some(*as_leader)) if staged is None else staged(*as_leader)
    return NodeSums(others, within, between, machines, place, beat)


def _meet(
    sockets: Direct, place: int, size: int, wanted: bool
) -> tuple[tuple[int, ...], Segment | None, dict[int, Segment] | None]:
    """(the machine of each rank, memory of this one, that of its machine's others or None: some rank cannot open it)"""
    segment, where = None, [0, 0, 0]
    if wanted and size > 1:
        with suppress(OSError):  # there may be no /proc
            here = machine()
            segment = Segment(SLOTS * SLOT_BYTES)
            where = [os.getpid(), segment.file, here]
    try:
        places = all_gather(sockets, where, size)
        machines = numbered([there for *_, there in places])
        own = [each for each, number in enumerate(machines) if number == machines[place]]
        peers = _open([places[each][:2] for each in own], own.index(place))
        all_can = all(can for (can,) in all_gather(sockets, [int(peers is not None)], size))
    finally:
        if segment is not None:
            segment.close_file()
    return machines, segment, peers if all_can else None


def numbered(found: Sequence[int]) -> tuple[int, ...]:
    """The machine of each rank, numbered as they first occur; found: what the ranks say of theirs, 0: nothing."""
    keys = [number or -1 - place for place, number in enumerate(found)]
    order = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return tuple(order[key] for key in keys)


def first_of_each(machines: Sequence[int]) -> list[int]:
    """The first rank of each machine, which leads it; machines: of each rank, numbered as they first occur."""
    return [machines.index(number) for number in range(max(machines) + 1)]


def _open(own: Sequence[Sequence[int]], at: int) -> dict[int, Segment] | None:
    """The memory of those of this machine that the rank at `at` exchanges with: the first one with all others.

    own: process and file of each. None: it cannot be opened.
    """
    peers: dict[int, Segment] = {}
    try:
        for other in range(1, len(own)) if at == 0 else [0]:
            peers[other] = Segment(SLOTS * SLOT_BYTES, path_of(*own[other]))
            peers[other].close_file()
    except OSError as error:
        log.info("ranks exchange over sockets, for memory cannot be shared: %s", error.strerror or error)
        return None
    return peers
