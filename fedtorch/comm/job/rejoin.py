"""How a rank comes back into a job whose others went on without it: it knocks, and is let in between two rounds.

1. A rank that finds a heartbeat of its own number in the store has been there before in this attempt of the job: its
   process was killed, or its machine. It leaves a word under `knock/RANK`, counts on under `knocks/RANK`, and waits.
2. The server looks for such words when all ranks meet before a round. In that meeting's verdict it says who is back.
3. All ranks save, close their connections and join again, as ranks of a job that is resumed do, under the store's next
   number (`Entry`); by the answer to its word the one that is back learns that number, and who is still away.
A server that stays after the run's end (`Store.stays_s`) lets ranks in that missed it, so that they hear of it. If it
is started anew for that, it says so before it opens the door: nobody looks into a store of the server's before.
Where the run cannot go on without a rank, its word tells the others that it is gone, and ends the attempt.
"""

from __future__ import annotations

import itertools
import json
import logging
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from fedtorch.comm.job.first_words import await_server
from fedtorch.comm.job.notes import read_entry
from fedtorch.comm.job.parties import Identity
from fedtorch.comm.job.store import NOBODY, Entry, JobMember, Store
from fedtorch.core.errors import DeadlineError, PreflightError

log = logging.getLogger(__name__)

OVER = "over"
"""Key that says that the job has ended in good order."""
STAYS = "stays"
"""What stands there where the server stays for ranks that missed it."""
HEARD = "heard"
"""Key, before a rank's number, of those who know that the job has ended."""
_OPEN = "open"  # key: the server has said whether the run goes on or is over
_OPENS_S = 60.0  # the longest from the store to the open door; the server does nothing between
_PAUSE_S = 0.2
_KNOCK_EVERY_S = 0.5


def join_job(
    environ: Mapping[str, str],
    timeout_s: float,
    secret: str | Identity,
    start_s: float | None,
    why_not: str = "",
    who: Mapping[int, str] = NOBODY,
) -> JobMember:
    """Find or host the job's store; a rank that was there before waits until it is let in.

    Where the job ends while it waits, it looks for the next attempt, which has to begin within `start_s`.
    why_not: why a rank cannot come back into this job; empty: it can. who: rank -> whose it is, for messages.

    Raises:
        PreflightError: see `Store.join` and `come_back`.
    """
    while True:
        member = Store.join(environ, timeout_s, secret, start_s, who)
        try:
            if not member.rank:
                member.store.set(_OPEN, "")
                return member
            if member.is_servers:
                _await_open(member)
            return come_back(member, why_not) if was_there(member) else member
        except DeadlineError as error:
            log.warning("the job ended before rank %d was let in, which looks for the next one: %s", member.rank, error)
        time.sleep(_PAUSE_S)


def _await_open(member: JobMember) -> None:
    store = member.store
    await_server(store, member.rank, lambda: store.has([_OPEN]) or None, min(_OPENS_S, store.start_s))


def was_there(member: JobMember) -> bool:
    """Has a process of this rank's number been in this attempt of the job, which is not over or awaits it?"""
    if member.store.has([OVER]):
        return member.store.get(OVER, by=0) == STAYS
    beat = f"heartbeat/{member.rank}"
    return member.store.has([beat]) and member.store.read(beat, by=member.rank) is not None


def come_back(member: JobMember, why_not: str = "") -> JobMember:
    """Knock, and wait to be let in: for as long as the job goes on, as a round may take hours.

    Raises:
        DeadlineError: the store is gone, and with it the attempt that this rank wanted to come back to.
        PreflightError: it cannot be let in.
    """
    store, word = member.store, uuid.uuid4().hex
    if why_not:
        raise PreflightError(f"rank {member.rank} was in this job before and cannot be let in again: {why_not}")
    log.warning("rank %d was in this job before; it waits to be let in after the round under way", member.rank)
    knock, welcome = f"knock/{member.rank}", f"welcome/{member.rank}/{word}"
    store.set(knock, word)
    for number in itertools.count():
        if store.wait([welcome], _KNOCK_EVERY_S):
            break
        store.set(f"knocks/{member.rank}", str(number))
        if not store.has([knock]) and not store.has([welcome]):  # the server took this rank for gone once more
            store.set(knock, word)
    told = read_entry(store.get(welcome, by=0))
    store.delete([welcome])
    return enter(member, Entry(told["number"], frozenset(told["lost"]), tuple(told["hosts"]), told["is_over"]))


def enter(member: JobMember, entry: Entry) -> JobMember:
    """The rank as it joins again."""
    member.store.enter(entry.number)
    return replace(member, entry=entry)


def waiting(store: Store, lost: Collection[int]) -> dict[int, str]:
    """On the server: which of the lost ranks knock, each with its word; looks on until they have knocked once more.

    One that is silent has gone away again, and would not be there when all join.
    """
    knocking = [rank for rank in lost if is_waiting(store, rank)]
    before = {rank: _knocks(store, rank) for rank in knocking}
    alive: set[int] = set()
    give_up_at = time.monotonic() + 6 * _KNOCK_EVERY_S
    while len(alive) < len(knocking) and time.monotonic() < give_up_at:
        time.sleep(0.05)
        alive |= {rank for rank in knocking if _knocks(store, rank) != before[rank]}
    store.door.delete([f"knock/{rank}" for rank in knocking if rank not in alive])
    words = {rank: store.door.read(f"knock/{rank}", by=rank) for rank in sorted(alive)}
    return {rank: word for rank, word in words.items() if word is not None}


def is_waiting(store: Store, rank: int) -> bool:
    """Does the rank knock, so that it is no longer where it was?"""
    return store.door.has([f"knock/{rank}"]) and store.door.read(f"knock/{rank}", by=rank) is not None


def let_in(
    member: JobMember,
    words: Mapping[int, str],
    lost: Collection[int],
    hosts: tuple[str, ...],
    *,
    is_over: bool = False,
) -> JobMember:
    """On the server: tell these ranks, which knock with these words, how to join; on the others join anew with them.

    lost: those that stay away. hosts: by rank. is_over: has the run ended?
    """
    entry = Entry(member.entry.number + 1, frozenset(lost), hosts, is_over)
    told = {"number": entry.number, "lost": sorted(lost), "hosts": list(hosts), "is_over": is_over}
    for rank, word in words.items():
        member.store.door.set(f"welcome/{rank}/{word}", json.dumps(told))
        member.store.door.delete([f"knock/{rank}"])
    return enter(member, entry)


def stay(member: JobMember, hosts: tuple[str, ...], is_over: Callable[[], bool]) -> JobMember | None:
    """On the server, after the run's end: wait for ranks that missed it, and let in those that knock.

    Returns its place in a job with them alone; None when there are none left, or `is_over` says so.
    """
    store, others = member.store, range(1, member.size)
    if not store.stays_s:
        return None
    store.stays_until = store.stays_until or time.monotonic() + store.stays_s
    is_first = True
    while missed := unheard(member):
        if is_over() or time.monotonic() > store.stays_until:
            left = "and was told to stop" if is_over() else "for as long as system.end_timeout says"
            log.warning("rank %s did not hear that the run has ended; the server stayed %s", _list(missed), left)
            return None
        if is_first:
            left_s = store.stays_until - time.monotonic()
            log.info("stays for rank %s, which missed the end, %.0f s (system.end_timeout)", _list(missed), left_s)
            is_first = False
        if words := waiting(store, missed):
            return let_in(member, words, {*others} - words.keys(), hosts, is_over=True)
        time.sleep(_KNOCK_EVERY_S)
    return None


def unheard(member: JobMember) -> list[int]:
    """On the server, after the run's end: the ranks that do not know of it."""
    return [rank for rank in range(1, member.size) if not member.store.door.has([f"{HEARD}/{rank}"])]


def stay_again(member: JobMember, missed: Collection[int], seconds: float) -> None:
    """On a server that was started anew after the run's end: `stay` is to wait for these ranks, at most so long."""
    member.store.stays_s = seconds
    member.store.door.set(OVER, STAYS)
    for rank in range(1, member.size):
        if rank not in missed:
            member.store.door.set(f"{HEARD}/{rank}", "")
    member.store.door.set(_OPEN, "")


def _list(ranks: Collection[int]) -> str:
    return ", ".join(map(str, ranks))


def _knocks(store: Store, rank: int) -> str:
    return store.door.read(f"knocks/{rank}", by=rank) or "" if store.door.has([f"knocks/{rank}"]) else ""
