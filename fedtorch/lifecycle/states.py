"""At a resume: is every client's state where the client lives now? What is missing is named, or begins anew."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path

from fedtorch.checkpoint import local_disks as apart
from fedtorch.checkpoint.store import Checkpoints, Manifest
from fedtorch.comm.base import Communicator
from fedtorch.comm.wire import Packet
from fedtorch.core.errors import CheckpointError
from fedtorch.lifecycle.losing import older_copy
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
    known: int,
    source: Path | None,
    gives_up: bool,
) -> None:
    """Make `checkpoints.resumed` the checkpoint after `round` rounds, as every rank can read it; all call it alike.

    found: on the server, the checkpoint. known: the newest round of which the server has one. source: the folder of
    another run's, which this one goes on from. gives_up: was this rank started to lose what is newer than `known`?

    Raises:
        CheckpointError: on all ranks, if a state is missing and `checkpoint.missing_clients` is `refuse`, or if there
            is a newer one in its place, and the rank was not started to give it up.
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
    missing, kept = _told_of(comm, checkpoints, faults, gives_up=gives_up)
    if newer := {name: saved for name, saved in missing.items() if saved > known and name in kept}:
        ranks = sorted({rank for name in newer if (rank := _home(built, name)) is not None})
        raise older_copy(_listed(built, comm, here, newer), ranks, round=round, known=known)
    if missing:
        _refuse_or_say(built, comm, here, missing)
    checkpoints.resumed = apart.without(here, missing)
    if checkpoints.apart is not None and checkpoints.apart.leads:
        apart.set_aside_after(checkpoints.folder, round, checkpoints.aside)


def _told_of(
    comm: Communicator, checkpoints: Checkpoints, faults: Collection[str], *, gives_up: bool
) -> tuple[dict[str, int], set[str]]:
    """(Client without the right state -> the round of the newest one there, -1: none; those not given up), everywhere.

    faults: this rank's.
    """
    mine = [
        Packet(
            comm.names.place(name),
            "numbers",
            status="failed",
            numbers={"newest": apart.newest(checkpoints.folder, name), "given_up": int(gives_up)},
        )
        for name in faults
    ]
    told = comm.broadcast_packets(comm.gather(mine, round=0), round=0)
    newest = {comm.names[message.client]: int(message.numbers["newest"]) for message in told}
    return newest, {comm.names[message.client] for message in told if not message.numbers["given_up"]}


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
    shown = _listed(built, comm, here, missing)
    what = f"after {here.round} rounds the states of {len(missing)} clients are not where the clients live: {shown}"
    if built.config.checkpoint.missing_clients == "refuse":
        raise CheckpointError(
            f"{what}; bring these files back, or start the ranks where they were, or let these clients start anew with "
            "`checkpoint.missing_clients: restart`"
        )
    if comm.is_server:
        log.warning("%s; these clients start anew (checkpoint.missing_clients)", what)


def _listed(built: BuiltRun, comm: Communicator, here: Manifest, missing: Mapping[str, int]) -> str:
    shown = "; ".join(_lost(built, comm, here, name, missing[name]) for name in list(missing)[:_SHOWN])
    return shown + (f"; and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else "")


def _lost(built: BuiltRun, comm: Communicator, here: Manifest, name: str, newest: int) -> str:
    home = _home(built, name)
    host = comm.hosts[home] if comm.hosts and home is not None else ""
    where = f" on host `{host}` (rank {home})" if host else ""
    saved = here.homes.get(name, "")
    moved = f", saved on host `{saved}`" if saved and saved != host else ""
    older = f", where there is one of round {newest}, so that this disk is the older side" if newest >= 0 else ""
    found = f" has one of round {newest}" if newest > here.round else f": {here.locate(here.clients[name][0])}{older}"
    return f"client `{name}`{where}{found}{moved}"
