"""Saving a run so that it continues to the same bits, on any number of ranks."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from fedtorch.checkpoint import FileEntry
from fedtorch.comm.wire import Message
from fedtorch.errors import CheckpointError
from fedtorch.rank import Rank
from fedtorch.weights import digest_of

log = logging.getLogger(__name__)


def save(rank: Rank, *, is_last: bool = False) -> bool:
    """Write a checkpoint of the state after `rank.round` rounds; every worker's leader writes its changed clients.

    If the disk refuses, the run goes on and tries again at the next checkpoint, `checkpoint.save_retries` times in a
    row; False means that this one was not written.

    Raises:
        CheckpointError: on all ranks, when the retries are used up or this was the last chance (`is_last`).
    """
    with rank.timed("checkpoint"):
        rank.arrive("checkpoint", may_stop=False)
        written = [_write_client(rank, name) for name in rank.store.dirty()] if rank.leads else []
        rank.arrive("files", may_stop=False)  # writing may take long, and nobody waits for long in a collective
        gathered = rank.together("files", lambda: rank.comm.gather(written, round=rank.round))
        answer = [rank.message("decision", status=_write(rank, gathered, is_last))] if rank.comm.is_server else []
        rank.arrive("saved", may_stop=False)
        (answered,) = rank.together("saved", lambda: rank.comm.share(answer, round=rank.round))
        if answered.status == "failed":
            raise CheckpointError(f"the state after round {rank.round} could not be saved; see the errors above")
        if answered.status == "ok":
            rank.store.mark_clean()
        return answered.status == "ok"


def restore(rank: Rank, round: int) -> None:
    """Take the state after `round` rounds from the run's checkpoint: the server's, and each client's at its home."""
    checkpoints = rank.setting.checkpoints
    found = checkpoints.at(round)
    if rank.comm.is_server:
        saved = checkpoints.load_server(found)
        for name, plane in rank.planes(rank.received).items():
            if name not in saved.tensors or saved.tensors[name].shape != plane.shape:
                raise CheckpointError(
                    f"{found.folder} has no `{name}` of {plane.numel()} numbers, which this algorithm and model need; "
                    "begin anew with `--resume never`"
                )
            plane.copy_(saved.tensors.pop(name))
        rank.server.tensors.update(saved.tensors)
        rank.server.numbers = saved.numbers
    for name in sorted(found.clients):
        home = rank.homes.get(name, rank.judges.get(name))
        if home is not None and rank.hosts(home):
            rank.comm.heartbeat(phase="restore", round=round, client=name)
            rank.store.put(name, checkpoints.load_client(found, name))
    rank.arrive("restored", may_stop=False)
    rank.round, rank.is_fresh = round, False
    # what decides about the loop must be known to all
    deciding = ("stopped", "evaluated", "server_trained", "best_round")
    common = {name: number for name, number in rank.server.numbers.items() if name in deciding}
    (answered,) = rank.comm.share(
        [rank.message("decision", numbers=common)] if rank.comm.is_server else [], round=round
    )
    rank.server.numbers.update(answered.numbers)


def digest(rank: Rank) -> str:
    """sha256 over the global weights and the state of every client that is not lost; equal exactly when all bits are.

    On the server.
    """
    rank.arrive("digest", may_stop=False)
    messages = []
    for name in rank.store.clients() if rank.leads else ():
        if name in rank.lost:
            continue
        parts = bytes.fromhex(digest_of(rank.store.get(name).tensors))
        words = tuple(float(int.from_bytes(parts[i : i + 4], "big")) for i in range(0, len(parts), 4))
        messages.append(rank.message("numbers", name, lists={"words": words}))
    states = {
        f"client/{rank.name(message)}": torch.tensor(message.lists["words"], dtype=torch.float64)
        for message in rank.together("digest", lambda: rank.comm.gather(messages, round=rank.round))
    }
    shared = {"weights": rank.server.weights} if rank.algorithm.exchanged else {}
    return digest_of({**states, **shared}) if rank.comm.is_server else ""


def _write_client(rank: Rank, name: str) -> Message:
    rank.comm.heartbeat(phase="checkpoint", round=rank.round, client=name)
    try:
        entry = rank.setting.checkpoints.write_client(rank.round, name, rank.store.get(name))
    except CheckpointError as error:
        log.error("%s", error)
        return rank.message("numbers", name, status="failed")
    return rank.message("numbers", name, lists={"entry": tuple(map(float, entry.to_numbers()))})


def _write(rank: Rank, gathered: Sequence[Message], is_last: bool) -> str:
    """`ok`, `retry` or `failed`; on the server."""
    numbers, setting = rank.server.numbers, rank.setting
    try:
        if any(message.status != "ok" for message in gathered):
            raise CheckpointError("a worker could not write a client's state; see its log")
        entries = {}
        for message in gathered:
            name = rank.name(message)
            entries[name] = FileEntry.from_numbers(name, rank.round, message.lists["entry"])
        failures = numbers.pop("failed_saves", 0)
        rank.comm.heartbeat(phase="checkpoint", round=rank.round, step=1)
        setting.checkpoints.write(rank.round, rank.server, entries, config=setting.config_record, facts=setting.facts)
        return "ok"
    except CheckpointError as error:
        failures = int(numbers.get("failed_saves", 0)) + 1
        numbers["failed_saves"] = failures
        log.error("round %d is not saved: %s", rank.round, error)
        return "failed" if is_last or failures > rank.config.checkpoint.save_retries else "retry"
