"""Signs of life in the store, and who has given none for too long."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fedtorch.comm.job.awake import awake_s
from fedtorch.comm.job.links import Links
from fedtorch.comm.job.notes import name, read_heartbeat
from fedtorch.comm.job.rejoin import is_waiting
from fedtorch.comm.job.store import Store
from fedtorch.core.errors import (
    DeadlineError,
    Death,
    FedtorchError,
    OtherPartyError,
    TrustError,
    is_ours,
    trust_error_of,
)

log = logging.getLogger(__name__)

EVERY_S = 1.0  # between two writes of the same phase and client
STACKS_AT = 0.9  # of the timeout: so long after its last heartbeat a rank writes its stacks, before it is ended


@dataclass
class _Seen:
    """Knowledge of this rank about another one."""

    beat: dict[str, Any]
    """Its last heartbeat."""
    since: float
    """When this rank first saw it, by the clock of `awake`."""


class Liveness:
    """Writes this rank's heartbeat and watches the others'.

    A heartbeat is a counter, what the rank is doing, and, when it has left because of an error, the error's class
    name (never its text, which could quote a client's). Clocks of different machines are never compared: a rank is
    silent since the moment at which this rank first saw its present counter, without the time in which this rank did
    not run itself. Of a rank on the same machine it is seen at once when its process is gone; of any other, where it
    `sees_ends`.
    """

    rank: int
    """This rank."""
    size: int
    """Ranks of the job."""
    timeout_s: float
    """How long a rank may be silent."""
    links: Links
    """Connections between the server and the workers."""
    sees_ends: bool
    """Is a rank gone when its connection has ended?"""
    labels: dict[int, str]
    """What messages add to a rank's number: who and where it is."""

    def __init__(
        self,
        store: Store,
        links: Links,
        rank: int,
        size: int,
        timeout_s: float,
        stacks: IO[str] | None = None,
        *,
        sees_ends: bool = False,
    ) -> None:
        """stacks: an open file for the stacks of this rank's threads when it is about to be taken for dead."""
        self.rank, self.size, self.timeout_s, self.links, self.sees_ends = rank, size, timeout_s, links, sees_ends
        self._stacks, self.labels = stacks, {}
        self._back: set[int] = set()  # ranks that have come back, so that what was known of them is over
        if stacks is not None:
            faulthandler.enable(stacks)
        self._store = store
        self._doing: dict[str, Any] = {"phase": "init", "round": 0, "client": "", "step": 0}
        self._process = this_process()
        self._count, self._written_at = 0, 0.0
        self._written: tuple[Any, ...] = ()
        self._has_failed = False
        self._seen = {other: _Seen({}, awake_s()) for other in range(size) if other != rank}

    def beat(self, *, left: str = "", failed: bool = False, **doing: Any) -> None:
        """Note what this rank does (`phase`, `round`, `client`, `step`); written at once if phase or client is new.

        left: class name of the error with which this rank leaves. failed: a collective has failed on this rank.
        """
        self._doing.update(doing)
        self._has_failed = self._has_failed or failed
        now = time.monotonic()
        what = (self._doing["phase"], self._doing["client"], left, failed)
        if what == self._written and now - self._written_at < min(EVERY_S, self.timeout_s / 4):
            return
        self._count += 1
        self._written, self._written_at = what, now
        beat = {**self._doing, "count": self._count, "left": left, "failed": self._has_failed, **self._process}
        self._store.set(f"heartbeat/{self.rank}", json.dumps(beat))
        if self._stacks is not None:  # a thread of its own writes them, whatever the main one hangs in
            faulthandler.dump_traceback_later(STACKS_AT * self.timeout_s, file=self._stacks)

    def stop(self) -> None:
        """From now on this rank may be silent."""
        if self._stacks is not None:
            faulthandler.cancel_dump_traceback_later()

    def check(self, awaited: Collection[int], came: Callable[[Sequence[int]], bool] = lambda missing: False) -> None:
        """Look for awaited ranks that have left, are dead or were silent for the timeout.

        came: is what these are awaited for there all the same? It may have been their last act.

        Raises:
            DeadlineError, OtherPartyError: there are some; see `error_of`.
        """
        if (missing := self.missing(awaited)) and not came(missing):
            raise self.error_of(missing)

    def error_of(self, ranks: Sequence[int], more: str = "") -> FedtorchError:
        """The error that ends this rank since these are gone; names all of them. more: follows their names.

        A party that has left with a TrustError takes all with it: a restart would meet the same again.
        """
        refusing = self._refusing(ranks)
        text = "; ".join(map(self.describe, refusing or ranks)) or "every rank is alive, but a connection broke"
        return OtherPartyError(text) if refusing else DeadlineError(text + more, tuple(ranks), self.deaths(ranks))

    def check_refusals(self, ranks: Collection[int]) -> None:
        """Look whether one of the ranks, without which the others would go on, has left with a TrustError.

        Raises:
            OtherPartyError: it has; see `error_of`.
        """
        if self._refusing(ranks):
            raise self.error_of([*ranks])

    def _refusing(self, ranks: Collection[int]) -> list[int]:
        """Where one of the ranks has left with a TrustError, those that were the first to, whichever they are."""
        if not self._of_refusals(ranks):
            return []
        with suppress(FedtorchError):  # the store may be gone too
            self.read_all()
        found = self._of_refusals(self._seen)
        return [rank for rank, kind in found.items() if kind is not OtherPartyError] or [*found]

    def _of_refusals(self, ranks: Collection[int]) -> dict[int, type[TrustError]]:
        kinds = {rank: trust_error_of(self._seen[rank].beat.get("left", "")) for rank in ranks}
        return {rank: kind for rank, kind in kinds.items() if kind is not None}

    def missing(self, awaited: Collection[int]) -> list[int]:
        """Which of the awaited ranks have left or are dead; if none, which were silent for the timeout."""
        self._read(awaited)
        now = awake_s()
        gone = [r for r in awaited if self._seen[r].beat.get("left") or self._is_gone(r)]
        return gone or [r for r in awaited if now - self._seen[r].since > self.patience(r)]

    def spared(self, recovers: bool) -> list[int]:
        """Which of the others are missing, where the rest `recovers`.

        Raises:
            DeadlineError, OtherPartyError: some are missing, and it does not; or the server is, or one has left with a
                TrustError.
        """
        missing = self.missing(self.others)
        if missing and (not recovers or 0 in missing or self._refusing(missing)):
            raise self.error_of(missing)
        return missing

    def dead(self, ranks: Collection[int]) -> list[int]:
        """Those of the ranks whose process is known to be gone."""
        return [rank for rank in ranks if self._is_gone(rank)]

    @property
    def others(self) -> list[int]:
        """The other ranks of the job, without those that were lost."""
        return list(self._seen)

    def forget(self, ranks: Collection[int]) -> None:
        """These ranks were lost; they are not watched any more."""
        for rank in ranks:
            del self._seen[rank]

    def read_all(self) -> None:
        """Read every other rank's heartbeat."""
        self._read(self._seen)

    def _read(self, ranks: Collection[int]) -> None:
        for other in ranks:
            seen = self._seen[other]
            key = f"heartbeat/{other}"
            if self._store.has([key]) and (text := self.read(key, other)) is not None:
                beat = read_heartbeat(text, other)
                if beat != seen.beat:
                    self._seen[other] = _Seen(beat, awake_s())

    def read(self, key: str, other: int) -> str | None:
        """Return the rank's note under `key`, which exists; None, and a line in the log, where another one wrote it."""
        before = self._store.ignored.get(key, 0)
        value = self._store.read(key, by=other)
        if (count := self._store.ignored.get(key, 0)) > before and str(count).rstrip("0") == "1":  # 1, 10, 100
            log.warning(
                "what stands in the store under `%s` was not written by %s, nor by another rank of this job: it is "
                "ignored (%d so far), and the rank itself is awaited. Somebody else writes there, or has another %s",
                key,
                name(other) + self.labels.get(other, ""),
                count,
                self._store.signature.called,
            )
        return value

    def patience(self, other: int) -> float:
        """How long the rank may be silent."""
        return self.timeout_s if self._seen[other].beat else self._store.start_s

    def unaccounted(self) -> list[int]:
        """After a failed collective: the ranks that did not say that it failed for them too, nor that they left."""
        self.read_all()
        return [other for other, seen in self._seen.items() if not (seen.beat.get("failed") or seen.beat.get("left"))]

    def left(self, *, first: bool = False) -> list[int]:
        """Ranks that left because of an error; with `first` only those whose error was not a collective's."""
        beats = {other: seen.beat for other, seen in self._seen.items() if seen.beat.get("left")}
        return [other for other, beat in beats.items() if not (first and beat["failed"])]

    def deaths(self, ranks: Collection[int]) -> tuple[Death, ...]:
        """Where those of the ranks came to their end that are known to have: killed, ended by an error of their own."""
        found = []
        for rank in ranks:
            beat = self._seen[rank].beat
            is_dead = self._is_gone(rank) if not beat.get("left") else not is_ours(beat["left"])
            if beat and is_dead:
                process = " ".join(str(beat.get(key, "")) for key in ("machine", "pid", "started"))
                found.append(Death(beat["client"], beat["round"], beat["phase"], f"{rank} {process}"))
        return tuple(found)

    def describe(self, other: int) -> str:
        """One line on the rank: for how long it is silent and what it was doing then."""
        seen = self._seen[other]
        beat, silence = seen.beat, awake_s() - seen.since
        role = name(other) + self.labels.get(other, "")
        if not beat:
            return f"{role} was never there in {silence:.0f} s (system.start_timeout); look for its log or its machine"
        doing = f"round {beat['round']}, phase {beat['phase']}, step {beat['step']}"
        if beat["client"]:
            doing = f"client `{beat['client']}`, {doing}"
        if (kind := trust_error_of(beat["left"])) is not None:
            return f"{self._store.signature.party(other) or role} {kind.heard} ({doing}); its log has the reason"
        if beat["left"]:
            return f"{role} left the job with {beat['left']}: {doing}; its log has the reason"
        state = self._process_state(other)
        if state == "gone":
            return f"the process of {role} is gone, killed or out of memory: {doing}"
        if other in self._back:
            return f"{role} was started anew and waits to be let in: {doing}"
        stopped = " (its process is stopped)" if state == "stopped" else ""
        return f"{role} gave no sign of life for {silence:.0f} s{stopped}: {doing}"

    def _is_gone(self, other: int) -> bool:
        if is_waiting(self._store, other):
            self._back.add(other)
        return other in self._back or self._process_state(other) == "gone"

    def _process_state(self, other: int) -> str:
        if self.sees_ends and other in self.links.ended:
            return "gone"
        return process_state(self._process, self._seen[other].beat)


def this_process() -> dict[str, str | int]:
    """Identify this process among all others: by its machine, its number, and when it was started.

    Empty but on Linux: of such processes, and of those of other machines, nothing is known. Two containers have process
    numbers of their own, so the namespace belongs to the machine's name.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        machine = f"{boot} {os.readlink('/proc/self/ns/pid')}"
        return {"machine": machine, "pid": os.getpid(), "started": _stat(os.getpid())[1]}
    except OSError:
        return {}


def process_state(mine: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """`gone`, `stopped`, or empty if it runs or cannot be seen from here; both as `this_process` gave them."""
    if not mine or mine["machine"] != other.get("machine"):
        return ""
    try:
        state, started = _stat(other["pid"])
    except OSError:
        return "gone"
    if state in "ZX" or started != other["started"]:
        return "gone"
    return "stopped" if state == "T" else ""


def _stat(pid: int) -> tuple[str, str]:
    """State and start time; the name before them, in brackets, may contain anything."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return words[0], words[19]
