"""Saving a run so that it continues to the same bits, on any number of ranks."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import torch

from fedtorch.checkpoint.local_disks import tidy
from fedtorch.checkpoint.manifest_form import folders
from fedtorch.checkpoint.own_disk import write_note
from fedtorch.checkpoint.store import FileEntry
from fedtorch.checkpoint.under_way import drop_under_way
from fedtorch.comm.wire import Packet
from fedtorch.config.load import run_digest
from fedtorch.core.client import ClientState
from fedtorch.core.errors import CheckpointError, NonFiniteError
from fedtorch.core.norms import is_finite
from fedtorch.core.saved_rounds import tell_saved
from fedtorch.core.state_keys import DECIDING, FAILED_SAVES
from fedtorch.core.weights import digest_of, digest_of_entries, xor
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.restored import check_client, check_server
from fedtorch.rounds.slices import bring_home

log = logging.getLogger(__name__)

_OLDEST = "oldest"
"""number of an answer: rounds done in the oldest checkpoint that is kept"""


class Saving:
    """Writes checkpoints of the state after `context.round` rounds; every worker writes its own changed clients.

    One counts once all of them have written, each on its own disk where there is no common one. A worker's leader
    writes what all its ranks have, and each of the others what it alone has, into a file of its own.

    If the disk refuses, the run goes on and tries again at the next checkpoint, `checkpoint.save_retries` times in a
    row. With `checkpoint.overlap` the server writes its part, `write`, while the clients of the next round train;
    nothing that it writes changes before `finish`.
    """

    def __init__(self, context: RoundContext) -> None:
        self.context = context
        self.saved = 0
        """rounds in the last checkpoint"""
        self._gathered: list[Packet] | None = None
        """of a checkpoint that was begun, what the workers wrote"""
        self._status = ""
        """of one that the server has written as well, what came of it"""
        self._began = self._seconds = 0.0
        """by the server's clock: when it was begun, and what writing it took"""

    def save(self, *, is_last: bool = False) -> None:
        """Write a checkpoint. Raises: see `finish`; is_last: see `write`."""
        self.begin(is_last=is_last)
        self.write(is_last=is_last)
        self.finish()

    def agree(self) -> None:
        """The server tells all ranks whether the round is saved, where no client trains and so no verdict says it."""
        context = self.context
        if context.schedule.every is None:
            word = [context.message("decision", numbers=context.schedule.word())] if context.comm.is_server else []
            (told,) = context.members.exchange("saving", answer=lambda _: word, may_stop=False).answered
            context.schedule.hear(told.numbers)

    def begin(self, *, is_last: bool = False) -> None:
        """The workers write the states of their clients. is_last: no round follows."""
        context, members, schedule = self.context, self.context.members, self.context.schedule
        with context.timed("checkpoint"):
            if schedule.every is None:  # who is late for other reasons is no cost of the checkpoint
                members.barrier("checkpoint", may_stop=False)
            self._began = schedule.clock()
            bring_home(context)
            written = {name: _write_client(context, name) for name in context.store.dirty()}
            meet = partial(members.exchange, may_stop=False) if is_last else members.end_round
            self._gathered = meet("files", _messages(context, written)).gathered
            self._seconds = schedule.clock() - self._began

    def write(self, *, is_last: bool = False) -> None:
        """The server writes its part of a checkpoint that was begun, and waits for nobody; elsewhere nothing.

        is_last: this is the last chance, a disk that refuses ends the run.
        """
        if self._gathered is not None and not self._status and self.context.comm.is_server:
            began = self.context.schedule.clock()
            with self.context.timed("checkpoint"):
                self._status = _write(self.context, self._gathered, is_last)
            self._seconds += self.context.schedule.clock() - began

    def finish(self) -> None:
        """All ranks learn what came of the checkpoint that was begun, if one was.

        Raises:
            CheckpointError: on all ranks, when the retries are used up or this was the last chance.
            NonFiniteError: on all ranks, if the global weights are not finite: the checkpoints before are the run's
                last.
        """
        if self._gathered is None:
            return
        self.write()
        context, checkpoints = self.context, self.context.components.checkpoints
        with context.timed("checkpoint"):
            answered = self._answer()
            self._gathered, self._status = None, ""
            if context.comm.is_server:
                context.schedule.saved(self._began, self._seconds, is_whole=answered.status == "ok")
            if answered.status == "nonfinite":
                raise NonFiniteError(
                    f"the global weights after round {context.round} are not finite and are not saved; what clients "
                    "send is checked, so the server's own step or training diverged (see server.lr). What was saved "
                    "before is whole"
                )
            if answered.status == "failed":
                raise CheckpointError(f"the state after round {context.round} could not be saved; see the errors above")
            if answered.status == "ok":
                self.saved = context.round
                context.store.mark_clean()
                tell_saved(context.round)
                drop_under_way(context.config.folder, context.is_open)
                leads = checkpoints.apart is not None and checkpoints.apart.leads
                if leads:
                    write_note(checkpoints.folder, context.round, run_digest(context.config))
                    tidy(checkpoints.folder, int(answered.numbers.get(_OLDEST, 0)))
                if leads or context.comm.is_server:
                    checkpoints.drop_aside()

    def _answer(self) -> Packet:
        """The server's, on all ranks."""
        context, checkpoints = self.context, self.context.components.checkpoints

        def answer(_: list[Packet]) -> list[Packet]:
            kept = {} if checkpoints.apart is None else {_OLDEST: min(folders(checkpoints.folder), default=0)}
            return [context.message("decision", status=self._status, numbers=kept)]

        (answered,) = context.members.exchange("saved", answer=answer, may_stop=False).answered
        return answered


def restore(context: RoundContext, round: int, only: Collection[str] | None = None) -> None:
    """Take the state after `round` rounds from the run's checkpoint: the server's, and each client's at its home.

    only: of these clients; None: of all.
    """
    checkpoints, placement = context.components.checkpoints, context.components.placement
    found = checkpoints.at(round)
    if context.comm.is_server:
        saved = checkpoints.load_server(found)
        check_server(context, saved, found.folder, round)
        for name, plane in context.vectors.by_name().items():
            plane.copy_(saved.tensors.pop(name))
        context.server.tensors.update(saved.tensors)
        context.server.numbers = saved.numbers
    for name in sorted(found.clients if only is None else found.clients.keys() & set(only)):
        home = placement.homes.get(name, placement.evaluators.get(name))
        if home is not None and context.role.hosts(home):
            context.comm.heartbeat(phase="restore", round=round, client=name)
            state = checkpoints.load_client(found, name, context.role.may_have)
            check_client(context, name, state, found.folder, round)
            context.store.put(name, state)
    context.progress.round = round
    context.vectors.written()
    # what decides about the loop must be known to all
    common = {name: number for name, number in context.server.numbers.items() if name in DECIDING}
    told = [context.message("decision", numbers=common)]
    (answered,) = context.members.exchange("restored", answer=lambda _: told, may_stop=False).answered
    context.server.numbers.update(answered.numbers)


def digest(context: RoundContext) -> str:
    """sha256 over the global weights and the state of every client that is not lost; equal exactly when all bits are.

    On the server. Over the weights alone where clients are hidden.
    """
    messages = []
    for name in () if context.mechanism.hides_clients else context.store.clients():
        if name in context.members.lost:
            continue
        own = {key: tensor for key, tensor in context.store.get(name).tensors.items() if context.role.keeps(key)}
        digests = [_to_words(digest_of_entries(own))]
        if context.components.worker is not None:
            digests = [tuple(words) for words in context.components.worker.all_gather_floats(digests[0])]
        if context.role.leads:
            words = _to_words(xor(*map(_from_words, digests)))
            messages.append(context.message("numbers", name, lists={"words": words}))
    states = {
        f"client/{context.name(message)}": torch.tensor(message.lists["words"], dtype=torch.float64)
        for message in context.members.exchange("digest", messages, may_stop=False).gathered
    }
    shared = {"weights": context.vectors.weights} if context.algorithm.travels.vectors else {}
    shared |= {name: tensor for name, tensor in context.server.tensors.items() if name in context.vectors.varying.held}
    return digest_of({**states, **shared}) if context.comm.is_server else ""


def _to_words(digest: bytes) -> tuple[float, ...]:
    return tuple(float(int.from_bytes(digest[i : i + 4], "big")) for i in range(0, len(digest), 4))


def _from_words(words: Sequence[float]) -> bytes:
    return b"".join(int(word).to_bytes(4, "big") for word in words)


_NO_FILE, _FAILED = (0.0, 0.0, 0.0), (-1.0, 0.0, 0.0)


def _write_client(context: RoundContext, name: str) -> tuple[float, ...]:
    """The numbers of the file with what this rank keeps of the client's state."""
    context.comm.heartbeat(phase="checkpoint", round=context.round, client=name)
    state, worker = context.store.get(name), context.components.worker
    own = ClientState(
        {key: tensor for key, tensor in state.tensors.items() if context.role.keeps(key)},
        {key: number for key, number in state.numbers.items() if context.role.keeps(key)},
    )
    if not context.role.leads and not own.tensors:
        return _NO_FILE
    try:
        part = 0 if worker is None else worker.rank
        return tuple(
            map(float, context.components.checkpoints.write_client(context.round, name, own, part).to_numbers())
        )
    except CheckpointError as error:
        log.error("%s", error)
        return _FAILED


def _messages(context: RoundContext, written: Mapping[str, tuple[float, ...]]) -> list[Packet]:
    """Packets in which the leader of a worker tells the server about its ranks' files."""
    worker, flat = context.components.worker, [number for numbers in written.values() for number in numbers]
    by_rank = [flat] if worker is None else worker.all_gather_floats(flat)
    messages = []
    for place, name in enumerate(written if context.role.leads else ()):
        files = {part: tuple(numbers[3 * place : 3 * place + 3]) for part, numbers in enumerate(by_rank)}
        status = "failed" if _FAILED in files.values() else "ok"
        lists = {f"entry{part}": numbers for part, numbers in files.items() if numbers != _NO_FILE}
        messages.append(context.message("numbers", name, status=status, lists=lists))
    return messages


def _write(context: RoundContext, gathered: Sequence[Packet], is_last: bool) -> str:
    """`ok`, `retry`, `failed` or `nonfinite`; on the server."""
    numbers, components = context.server.numbers, context.components
    varying = [context.server.tensors.get(name, held) for name, held in context.vectors.varying.held.items()]
    if not all(map(is_finite, (context.vectors.flat, *varying))):
        return "nonfinite"
    failures = int(numbers.pop(FAILED_SAVES, 0))  # no part of what is saved
    try:
        if any(message.status != "ok" for message in gathered):
            raise CheckpointError("a worker could not write a client's state; see its log")
        entries = {
            context.name(message): tuple(
                FileEntry.from_numbers(context.name(message), context.round, numbers, int(key.removeprefix("entry")))
                for key, numbers in message.lists.items()
            )
            for message in gathered
        }
        context.comm.heartbeat(phase="checkpoint", round=context.round, step=1)
        components.checkpoints.write(
            context.round, context.server, entries, config=components.config_record, facts=components.facts
        )
        return "ok"
    except CheckpointError as error:
        failures += 1
        numbers[FAILED_SAVES] = failures
        log.error("round %d is not saved: %s", context.round, error)
        return "failed" if is_last or failures > context.config.checkpoint.save_retries else "retry"
