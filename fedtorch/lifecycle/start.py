"""Where a run starts: anew, or after the rounds of a checkpoint that fits."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fedtorch.checkpoint.manifest_form import folders
from fedtorch.checkpoint.own_disk import write_note
from fedtorch.checkpoint.store import Checkpoints, Manifest
from fedtorch.checkpoint.under_way import drop_under_way
from fedtorch.comm.base import Communicator
from fedtorch.comm.wire import NO_CLIENT, Packet
from fedtorch.config.load import run_digest, to_dict
from fedtorch.core.errors import FedtorchError
from fedtorch.core.weights import digest_of
from fedtorch.lifecycle.disks import find_disks, keep_apart
from fedtorch.lifecycle.losing import agree_to_lose
from fedtorch.lifecycle.losses import forget_losses
from fedtorch.lifecycle.more_rounds import changes_that_forbid
from fedtorch.lifecycle.run_files import set_aside
from fedtorch.lifecycle.states import agree_on_states
from fedtorch.setup.build import UNTRAINED, BuiltRun

log = logging.getLogger(__name__)

RESUME_MODES = ("auto", "never", "force")
"""The values of `--resume` that are no path."""


def begin(built: BuiltRun, comm: Communicator, resume: str) -> tuple[Checkpoints, int | None]:
    """The run's checkpoints, as this rank sees them, and the round that it is resumed from; None: it begins anew."""
    config = built.config
    apart = keep_apart(comm, find_disks(comm, config.folder), built.placement, built.topology)
    checkpoints = Checkpoints(config.folder / "checkpoints", keep=config.checkpoint.keep, apart=apart)
    start = find_start(built, comm, checkpoints, resume)
    if start is None and checkpoints.apart is not None and checkpoints.apart.leads:
        set_aside(config, checkpoints.aside)
    if start is None:
        built.show_remarks()  # a resumed run has them in its log already
    return checkpoints, start


@contextmanager
def telling_refusal(comm: Communicator | None) -> Iterator[None]:
    """Inside the block a rank works alone; where the server refuses there, the others end at once, with its code.

    They would wait for it to come back. Which of its files it is, and what is in them, they are not told. Nothing that
    ranks do together may be in it. comm: None: they have not met.

    Raises:
        FedtorchError: what the rank has refused with.
    """
    try:
        yield
    except FedtorchError as error:
        if comm is not None and comm.is_server:
            why = f": {error.told}" if error.told else "; its own log says why"
            comm.refuse(f"the server refused to begin{why}", error.exit_code)
        raise


def find_start(built: BuiltRun, comm: Communicator, checkpoints: Checkpoints, resume: str) -> int | None:
    """The round to resume from, decided by the server and told to all; None to begin anew.

    Raises:
        CheckpointError: on all ranks, if there are checkpoints but none that can be used, a client's state is not where
            the client lives, see `agree_on_states`, or a disk holds what would be lost, see `agree_to_lose`.
    """
    messages, found = [], None
    is_apart = checkpoints.apart is not None
    leads = checkpoints.apart is not None and checkpoints.apart.leads
    if comm.is_server:
        with telling_refusal(comm):
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
        if resume == "never":
            drop_under_way(built.config.folder)
        if (comm.is_server or leads) and checkpoints.set_aside():
            forget_losses(built.config.folder)  # of the run that was there
        if leads:
            write_note(checkpoints.folder, 0, run_digest(built.config))
        return None
    if found is not None:
        log.info("resuming after round %d from %s", found.round, found.folder)
    if start.numbers["apart"]:
        source, newest = None if resume in RESUME_MODES else Path(resume), max(round, known)
        gives_up = resume == "force"
        agree_on_states(
            built, comm, checkpoints, found=found, round=round, known=newest, source=source, gives_up=gives_up
        )
    if leads:
        write_note(checkpoints.folder, round, run_digest(built.config))
    return round


def _decision(found: Manifest | None, is_apart: bool) -> dict[str, int | float]:
    """apart: are states on other disks than the server's, now or when they were saved?"""
    if found is None:
        return {"round": -1}
    return {"round": found.round, "apart": int(is_apart or bool(found.homes))}


def lasting_facts(built: BuiltRun) -> dict[str, str]:
    """The facts that a checkpoint must agree with; other library versions or code may change bits but are allowed.

    The initial weights are among them on ranks that have some before they meet.
    """
    facts = built.facts()
    lasting = ("shared parameters", "private parameters", UNTRAINED, "data")
    kept = {key: facts[key] for key in lasting if key in facts}
    if any(part.is_meta for part in built.engine.initial()):
        return kept
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
        differs = partial(changes_that_forbid, config=built.config, done=found.round)
        checkpoints.check_fits(found, present, differs, lasting_facts(built))
    return checkpoints.adopt(found) if is_path else found
