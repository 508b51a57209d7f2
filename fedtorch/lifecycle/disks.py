"""Which ranks see the same run folder: tried, with a file that each of them writes, where there are several hosts."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from pathlib import Path

from fedtorch.checkpoint.local_disks import Apart
from fedtorch.comm.base import Communicator
from fedtorch.comm.wire import NO_CLIENT, Packet
from fedtorch.core.errors import CheckpointError, PreflightError
from fedtorch.rounds.placement import Placement
from fedtorch.rounds.topology import Topology

log = logging.getLogger(__name__)

_BITS = 48  # exact as a number of any kind


def find_disks(comm: Communicator, folder: Path) -> tuple[int, ...]:
    """For every rank the lowest one that has the same `folder`, for one that is away itself; all ranks call it alike.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    if not comm.hosts:
        return (0,) * comm.size
    comm.barrier("disks", round=0)
    word = secrets.randbits(_BITS)
    own = _canary(folder, comm.rank)
    try:
        own.write_text(str(word))
        mine = Packet(NO_CLIENT, "numbers", numbers={"rank": comm.rank, "word": word})
        told = comm.broadcast_packets(comm.gather([mine], round=0), round=0)
        words = {int(message.numbers["rank"]): int(message.numbers["word"]) for message in told}
        disk = next(rank for rank in sorted(words) if _sees(folder, rank, words))
        comm.barrier("disks are known", round=0)
    except OSError as error:
        raise CheckpointError(f"the run folder {folder} cannot be written ({error}); set `run.dir`") from error
    finally:
        own.unlink(missing_ok=True)
    mine = Packet(NO_CLIENT, "numbers", numbers={"rank": comm.rank, "disk": disk})
    told = comm.broadcast_packets(comm.gather([mine], round=0), round=0)
    disks = {int(message.numbers["rank"]): int(message.numbers["disk"]) for message in told}
    return tuple(disks.get(rank, rank) for rank in range(comm.size))


def keep_apart(comm: Communicator, disks: Sequence[int], placement: Placement, topology: Topology) -> Apart | None:
    """Where states are kept when not all ranks have the server's disk; None when they have.

    Raises:
        PreflightError: the ranks of a worker, which read each other's parts of a state, have different disks.
    """
    if not any(disks):
        return None
    for number, ranks in enumerate(topology.workers):
        if len({disks[rank] for rank in ranks}) > 1 and not comm.lost & set(ranks):
            raise PreflightError(
                f"worker {number} has ranks {', '.join(map(str, ranks))}, which do not see the same run folder; give "
                "them one on a file system that they share, or start a worker's ranks on one host"
            )
    if comm.is_server:
        others = dict.fromkeys(comm.hosts[rank] for rank, disk in enumerate(disks) if disk)
        log.info("the run folder is not common: states of clients stay on the disks of %s", ", ".join(others))
    homes = {**placement.evaluators, **placement.homes}
    leaders = {name: topology.workers[worker][0] for name, worker in homes.items()}
    return Apart(
        homes={name: comm.hosts[rank] for name, rank in leaders.items() if disks[rank]},
        leads=comm.rank > 0 and disks[comm.rank] == comm.rank,
    )


def _canary(folder: Path, rank: int) -> Path:
    return folder / f"canary.rank{rank}"


def _sees(folder: Path, rank: int, words: dict[int, int]) -> bool:
    try:
        return _canary(folder, rank).read_text() == str(words[rank])
    except FileNotFoundError:
        return False
