"""Where a run starts: anew, or after the rounds of a checkpoint that fits."""

from __future__ import annotations

import logging
from pathlib import Path

from fedtorch.checkpoint.manifest_form import folders
from fedtorch.checkpoint.own_disk import write_note
from fedtorch.checkpoint.store import Checkpoints, Manifest
from fedtorch.comm.base import Communicator
from fedtorch.comm.wire import NO_CLIENT, Packet
from fedtorch.config.load import digest, record_difference, to_dict
from fedtorch.core.weights import digest_of
from fedtorch.lifecycle.disks import find_disks, keep_apart
from fedtorch.lifecycle.losing import agree_to_lose
from fedtorch.lifecycle.losses import forget_losses
from fedtorch.lifecycle.run_files import set_aside
from fedtorch.lifecycle.states import agree_on_states
from fedtorch.setup.build import UNTRAINED, BuiltRun

log = logging.getLogger(__name__)

RESUME_MODES = ("auto", "never", "force")
"""The values of `--resume` that are no path."""


def begin(built: BuiltRun, comm: Communicator, resume: str) -> tuple[Checkpoints, int | None]:
    """The run's checkpoints, as this rank sees them, and the round that it is resumed from; None: it begins anew."""
    config = built.config
    checkpoints = Checkpoints(config.folder / "checkpoints", keep=config.checkpoint.keep)
    disks = find_disks(comm, config.folder)
    checkpoints.apart = keep_apart(comm, disks, built.placement, built.topology)
    start = find_start(built, comm, checkpoints, resume)
    if start is None and checkpoints.apart is not None and checkpoints.apart.leads:
        set_aside(config, checkpoints.aside)
    if start is None:
        built.show_remarks()  # a resumed run has them in its log already
    return checkpoints, start


def find_start(built: BuiltRun, comm: Communicator, checkpoints: Checkpoints, resume: str) -> int | None:
    """The round to resume from, decided by the server and told to all; None to begin anew.

    Raises:
        CheckpointError: on the server, if there are checkpoints but none that can be used; on all ranks, if a client's
            state is not where the client lives, see `agree_on_states`, or a disk holds what would be lost, see
            `agree_to_lose`.
    """
    messages, found = [], None
    is_apart = checkpoints.apart is not None
    leads = checkpoints.apart is not None and checkpoints.apart.leads
    if comm.is_server:
        found = _fitting(built, checkpoints, resume)
        comm.heartbeat(phase="start", round=0)
        known = -1 if resume == "never" else max(folders(checkpoints.folder), default=-1)  # damaged ones too
        messages = [Packet(NO_CLIENT, "decision", numbers=_decision(found, is_apart) | {"known": known})]
    comm.barrier("start", round=0)  # checking a checkpoint may take long, and nobody waits for long in a collective
    (start,) = comm.broadcast_packets(messages, round=0)
    round, known = int(start.numbers["round"]), int(start.numbers["known"])
    if is_apart:
        agree_to_lose(built, comm, checkpoints, resume, round=round, known=max(round, known))
    if round < 0:
        if (comm.is_server or leads) and checkpoints.set_aside():
            forget_losses(built.config.folder)  # of the run that was there
        if leads:
            write_note(checkpoints.folder, 0, digest(built.config))
        return None
    if found is not None:
        log.info("resuming after round %d from %s", found.round, found.folder)
    if start.numbers["apart"]:
        source = None if resume in RESUME_MODES else Path(resume)
        agree_on_states(built, comm, checkpoints, found=found, round=round, source=source)
    if leads:
        write_note(checkpoints.folder, round, digest(built.config))
    return round


def _decision(found: Manifest | None, is_apart: bool) -> dict[str, int | float]:
    """apart: are states on other disks than the server's, now or when they were saved?"""
    if found is None:
        return {"round": -1}
    return {"round": found.round, "apart": int(is_apart or bool(found.homes))}


def lasting_facts(built: BuiltRun) -> dict[str, str]:
    """The facts that a checkpoint must agree with; other library versions or code may change bits but are allowed."""
    facts = built.facts()
    lasting = ("shared parameters", "private parameters", UNTRAINED, "data")
    kept = {key: facts[key] for key in lasting if key in facts}
    return kept | {"initial weights": digest_of({str(i): t for i, t in enumerate(built.engine.initial())})[:16]}


def _fitting(built: BuiltRun, checkpoints: Checkpoints, resume: str) -> Manifest | None:
    """The checkpoint to go on from, in the run's own folder."""
    is_path = resume not in RESUME_MODES
    if resume == "never":
        return None
    found = checkpoints.open(Path(resume)) if is_path else checkpoints.latest()
    if found is None:
        return None
    if resume != "force":
        present = to_dict(built.config, masked=True)
        checkpoints.check_fits(found, present, record_difference, lasting_facts(built))
    return checkpoints.adopt(found) if is_path else found
