"""Saving a run so that it continues to the same bits, on any number of ranks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch

from fedtorch.checkpoint.store import FileEntry
from fedtorch.comm.wire import Message
from fedtorch.core.client import ClientState
from fedtorch.core.errors import CheckpointError
from fedtorch.core.weights import digest_of, digest_of_entries, xor
from fedtorch.rounds.context import Rank

log = logging.getLogger(__name__)


def save(rank: Rank, *, is_last: bool = False) -> bool:
    """Write a checkpoint of the state after `rank.round` rounds; every worker writes its own changed clients.

    Its leader writes what all its ranks have, and each of the others what it alone has, into a file of its own.

    If the disk refuses, the run goes on and tries again at the next checkpoint, `checkpoint.save_retries` times in a
    row; False means that this one was not written.

    Raises:
        CheckpointError: on all ranks, when the retries are used up or this was the last chance (`is_last`).
    """
    with rank.timed("checkpoint"):
        rank.arrive("checkpoint", may_stop=False)
        written = {name: _write_client(rank, name) for name in rank.store.dirty()}
        rank.arrive("files", may_stop=False)  # writing may take long, and nobody waits for long in a collective
        messages = _messages(rank, written)
        gathered = rank.together("files", lambda: rank.comm.gather(messages, round=rank.round))
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
            rank.store.put(name, checkpoints.load_client(found, name, rank.may_have))
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
    for name in rank.store.clients():
        if name in rank.lost:
            continue
        own = {key: tensor for key, tensor in rank.store.get(name).tensors.items() if rank.keeps(key)}
        digests = [_to_words(digest_of_entries(own))]
        if rank.setting.worker is not None:
            digests = [tuple(words) for words in rank.setting.worker.numbers(digests[0])]
        if rank.leads:
            words = _to_words(xor(*map(_from_words, digests)))
            messages.append(rank.message("numbers", name, lists={"words": words}))
    states = {
        f"client/{rank.name(message)}": torch.tensor(message.lists["words"], dtype=torch.float64)
        for message in rank.together("digest", lambda: rank.comm.gather(messages, round=rank.round))
    }
    shared = {"weights": rank.server.weights} if rank.algorithm.exchanged else {}
    return digest_of({**states, **shared}) if rank.comm.is_server else ""


def _to_words(digest: bytes) -> tuple[float, ...]:
    return tuple(float(int.from_bytes(digest[i : i + 4], "big")) for i in range(0, len(digest), 4))


def _from_words(words: Sequence[float]) -> bytes:
    return b"".join(int(word).to_bytes(4, "big") for word in words)


_NO_FILE, _FAILED = (0.0, 0.0, 0.0), (-1.0, 0.0, 0.0)


def _write_client(rank: Rank, name: str) -> tuple[float, ...]:
    """The numbers of the file with what this rank keeps of the client's state."""
    rank.comm.heartbeat(phase="checkpoint", round=rank.round, client=name)
    state, worker = rank.store.get(name), rank.setting.worker
    own = ClientState(
        {key: tensor for key, tensor in state.tensors.items() if rank.keeps(key)},
        {key: number for key, number in state.numbers.items() if rank.keeps(key)},
    )
    if not rank.leads and not own.tensors:
        return _NO_FILE
    try:
        part = 0 if worker is None else worker.rank
        return tuple(map(float, rank.setting.checkpoints.write_client(rank.round, name, own, part).to_numbers()))
    except CheckpointError as error:
        log.error("%s", error)
        return _FAILED


def _messages(rank: Rank, written: Mapping[str, tuple[float, ...]]) -> list[Message]:
    """What the leader of a worker tells the server about its ranks' files."""
    worker, flat = rank.setting.worker, [number for numbers in written.values() for number in numbers]
    by_rank = [flat] if worker is None else worker.numbers(flat)
    messages = []
    for place, name in enumerate(written if rank.leads else ()):
        files = {part: tuple(numbers[3 * place : 3 * place + 3]) for part, numbers in enumerate(by_rank)}
        status = "failed" if _FAILED in files.values() else "ok"
        lists = {f"entry{part}": numbers for part, numbers in files.items() if numbers != _NO_FILE}
        messages.append(rank.message("numbers", name, status=status, lists=lists))
    return messages


def _write(rank: Rank, gathered: Sequence[Message], is_last: bool) -> str:
    """`ok`, `retry` or `failed`; on the server."""
    numbers, setting = rank.server.numbers, rank.setting
    try:
        if any(message.status != "ok" for message in gathered):
            raise CheckpointError("a worker could not write a client's state; see its log")
        entries = {
            rank.name(message): tuple(
                FileEntry.from_numbers(rank.name(message), rank.round, numbers, int(key.removeprefix("entry")))
                for key, numbers in message.lists.items()
            )
            for message in gathered
        }
        failures = numbers.pop("failed_saves", 0)
        rank.comm.heartbeat(phase="checkpoint", round=rank.round, step=1)
        setting.checkpoints.write(rank.round, rank.server, entries, config=setting.config_record, facts=setting.facts)
        return "ok"
    except CheckpointError as error:
        failures = int(numbers.get("failed_saves", 0)) + 1
        numbers["failed_saves"] = failures
        log.error("round %d is not saved: %s", rank.round, error)
        return "failed" if is_last or failures > rank.config.checkpoint.save_retries else "retry"
