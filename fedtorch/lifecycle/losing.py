"""At a start: does a disk hold states that would be lost by where the server begins? Then nobody begins."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from fedtorch.checkpoint.own_disk import Held, held
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.base import Communicator
from fedtorch.comm.options import Network
from fedtorch.comm.wire import NO_CLIENT, Packet
from fedtorch.config.load import digest, run_digest
from fedtorch.config.schema import Config
from fedtorch.core.errors import CheckpointError, NoStoreError
from fedtorch.core.model_folder import MODEL
from fedtorch.setup.build import BuiltRun

log = logging.getLogger(__name__)


def agree_to_lose(
    built: BuiltRun, comm: Communicator, checkpoints: Checkpoints, resume: str, *, round: int, known: int
) -> None:
    """Go on if no disk of its own holds what would be lost, or its rank was started to lose it; all call it alike.

    round: after which the server goes on; -1: it begins anew. known: the newest round of which it has a checkpoint.

    Raises:
        CheckpointError: on all ranks; names the ranks that refuse, what they hold and what to do.
    """
    found = held(checkpoints.folder) if checkpoints.apart is not None and checkpoints.apart.leads else None
    runs = {"", run_digest(built.config), digest(built.config)}  # the last as earlier versions noted it
    messages = []
    if found is not None and _refuses(found, resume, runs, round=round, known=known):
        log.error("%s holds %s", checkpoints.folder.absolute(), _described(found))
        numbers = {"rank": comm.rank, "round": found.round, "clients": found.clients}
        messages = [Packet(NO_CLIENT, "numbers", numbers={**numbers, "other": int(found.run not in runs)})]
    comm.barrier("held states", round=0)
    told = comm.broadcast_packets(comm.gather(messages, round=0), round=0)
    if not told:
        return
    labels = Network(who=who(built.config)).labels(comm.hosts)
    ranks = [int(message.numbers["rank"]) for message in told]
    lines = [_line(labels.get(rank, ""), message) for rank, message in zip(ranks, told, strict=True)]
    held_there = f"in {checkpoints.folder} {'; '.join(lines)}"
    if round >= 0 and not any(message.numbers["other"] for message in told):
        raise older_copy(held_there, ranks, round=round, known=known)
    raise CheckpointError(f"{held_there}; {_advice(ranks, begins_anew=round < 0)}")


def older_copy(held_there: str, ranks: Collection[int], *, round: int, known: int) -> CheckpointError:
    """The error of all ranks where disks hold states of rounds that the server knows nothing of.

    held_there: which, where. ranks: those that were not started to give them up. round, known: see `agree_to_lose`.
    """
    return CheckpointError(
        f"{held_there}; the server's newest checkpoint is of round {known}: its run folder is an older copy. Nothing "
        f"was deleted. Restore a newer copy of the server's folder; what {_named(ranks)} saved after round {round} is "
        "given up only as docs/reliability.md says"
    )


@contextmanager
def saying_what_is_here(config: Config) -> Iterator[None]:
    """A side that found no server says what its disk has of the run.

    Raises:
        NoStoreError: with that, where it has something.
    """
    try:
        yield
    except NoStoreError as error:
        if not (here := what_is_here(config)):
            raise
        raise NoStoreError(
            f"{error}; if the server has ended the run it is gone (system.end_timeout), and if not, start this side "
            f"again when it is back. Nothing was deleted: {here}"
        ) from error


def what_is_here(config: Config) -> str:
    """Say what this side's disk has of the run; empty where that is nothing."""
    checkpoints = config.folder / "checkpoints"
    found = held(checkpoints)
    return "" if found is None else f"{_described(found)} are in {checkpoints}, models in {config.folder / MODEL}"


def who(config: Config) -> dict[int, str]:
    """Rank -> the clients whose data are with it alone."""
    system, found = config.system, dict[int, list[str]]()
    for name, rank in (system.pinned if system.pinned_to == "rank" else {}).items():
        found.setdefault(rank, []).append(name)
    return {rank: " and ".join(names[:3]) + (" and others" if names[3:] else "") for rank, names in found.items()}


def _refuses(found: Held, resume: str, runs: Collection[str], *, round: int, known: int) -> bool:
    if round < 0:
        return resume != "never"
    return resume == "auto" and (found.round > known or found.run not in runs)


def _line(label: str, message: Packet) -> str:
    found = Held(int(message.numbers["round"]), int(message.numbers["clients"]), "")
    other = ", of a run with another config" if message.numbers["other"] else ""
    return f"rank {int(message.numbers['rank'])}{label} holds {_described(found)}{other}"


def _described(found: Held) -> str:
    rounds = f"{found.round} saved rounds" if found.round else "an unknown number of rounds"
    return f"the states of {found.clients} clients after {rounds}"


def _advice(ranks: Collection[int], *, begins_anew: bool) -> str:
    if begins_anew:
        return (
            "the server would begin anew, as it has no checkpoint there, or was started with `--resume never`. Nothing "
            "was deleted. Give the server its run folder back (is its disk mounted, was it started in the same "
            f"folder?); or, to give up what {_named(ranks)} holds, start that side with `--resume never` too, or all "
            "sides with another `run.dir`"
        )
    return (
        "which this run would delete. Nothing was deleted. Move that folder away there, or start all sides with "
        "another `run.dir`"
    )


def _named(ranks: Collection[int]) -> str:
    return f"rank {' and '.join(map(str, ranks))}"
