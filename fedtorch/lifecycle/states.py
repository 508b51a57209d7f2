"""At a resume: is every client's state where the client lives now? What is missing is named, or begins anew."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from fedtorch.checkpoint import local_disks as apart
from fedtorch.checkpoint.store import Checkpoints, Manifest
from fedtorch.comm.base import Communicator
from fedtorch.comm.wire import Packet
from fedtorch.core.errors import CheckpointError
from fedtorch.setup.build import BuiltRun

log = logging.getLogger(__name__)

_SHOWN = 10


def agree_on_states(
    built: BuiltRun,
    comm: Communicator,
    checkpoints: Checkpoints,
    *,
    found: Manifest | None,
    round: int,
    source: Path | None,
) -> None:
    """Make `checkpoints.resumed` the checkpoint after `round` rounds, as every rank can read it; all call it alike.

    found: on the server, the checkpoint. source: the folder of another run's, which this one goes on from.

    Raises:
        CheckpointError: on all ranks, if a state is missing and `checkpoint.missing_clients` is `refuse`, or if there
            is a newer one in its place, which is nobody's to throw away.
    """
    messages = []
    if found is not None:
        clients = [name for name in found.clients if name in comm.names]
        messages = [Packet(comm.names.place(name), "numbers", lists=apart.to_lists(found, name)) for name in clients]
    comm.barrier("states", round=0)
    told = comm.broadcast_packets(messages, round=0)
    here = found or apart.told(checkpoints.folder, round, {comm.names[m.client]: m.lists for m in told})
    own = [name for name in here.clients if _home(built, name) == comm.rank]
    if source is not None:
        apart.copy_states(here, source.parent, own)
    faults = {name: fault for name in own if (fault := _fault(here, name, comm))}
    for name, fault in faults.items():
        log.error("the state of client %s after %d rounds: %s", name, round, fault)
    comm.barrier("states are checked", round=0)
    found_there: dict[str, dict[str, int | float]] = {
        name: {"newest": apart.newest(checkpoints.folder, name)} for name in faults
    }
    gathered = comm.gather(
        [Packet(comm.names.place(n), "numbers", status="failed", numbers=has) for n, has in found_there.items()],
        round=0,
    )
    missing = {
        comm.names[message.client]: int(message.numbers.get("newest", -1))
        for message in comm.broadcast_packets(gathered, round=0)
    }
    if missing:
        _refuse_or_say(built, comm, here, missing)
    checkpoints.resumed = apart.without(here, missing)
    if checkpoints.apart is not None and checkpoints.apart.leads:
        apart.set_aside_after(checkpoints.folder, round, checkpoints.aside)


def _home(built: BuiltRun, name: str) -> int | None:
    """The rank that speaks for the worker where a client lives."""
    placement = built.placement
    worker = placement.homes.get(name, placement.evaluators.get(name))
    return None if worker is None else built.topology.workers[worker][0]


def _fault(here: Manifest, name: str, comm: Communicator) -> str:
    for path in here.clients[name]:
        comm.heartbeat(phase="states", round=0, client=name)
        if fault := here.fault(path):
            return fault
    return ""


def _refuse_or_say(built: BuiltRun, comm: Communicator, here: Manifest, missing: Mapping[str, int]) -> None:
    """missing: client -> the round of the newest state that is there in place of the right one; -1: there is none."""
    newer = {name: round for name, round in missing.items() if round > here.round}
    listed = newer or missing
    shown = "; ".join(_lost(built, comm, here, name, listed[name]) for name in list(listed)[:_SHOWN])
    shown += f"; and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    if newer:
        raise CheckpointError(
            f"the server's checkpoint is older than the states of {len(newer)} clients: it is of round {here.round} "
            f"({here.folder}), and these go on from a later one: {shown}; was the server's folder restored from a "
            "backup? Put its newest checkpoint back, or bring the states of that round back to where these clients "
            "live; nothing was deleted"
        )
    what = f"after {here.round} rounds the states of {len(missing)} clients are not where the clients live: {shown}"
    if built.config.checkpoint.missing_clients == "refuse":
        raise CheckpointError(
            f"{what}; bring these files back, or start the ranks where they were, or let these clients start anew with "
            "`checkpoint.missing_clients: restart`"
        )
    if comm.is_server:
        log.warning("%s; these clients start anew (checkpoint.missing_clients)", what)


def _lost(built: BuiltRun, comm: Communicator, here: Manifest, name: str, newest: int) -> str:
    home = _home(built, name)
    host = comm.hosts[home] if comm.hosts and home is not None else ""
    where = f" on host `{host}` (rank {home})" if host else ""
    saved = here.homes.get(name, "")
    moved = f", saved on host `{saved}`" if saved and saved != host else ""
    older = f", where there is one of round {newest}, so that this disk is the older side" if newest >= 0 else ""
    found = f" has one of round {newest}" if newest > here.round else f": {here.locate(here.clients[name][0])}{older}"
    return f"client `{name}`{where}{found}{moved}"
