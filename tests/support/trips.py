"""Counts the round trips for which a worker waits, by the phase that its heartbeat shows.

A round trip: the rank waits for something of the server's and has sent something since it last waited. What the server
sends unasked, right behind something else, costs none; nor does what an early sum's thread alone waits for. By kind:

- a message over the links, or a meeting's verdict: as said;
- an operation of the store: one where it has an answer, two where torch asks twice (`get`), none for `set`;
- a payload of gloo's: one for a rank that receives it, for gloo sends what its receiver has asked for; none for one
  that sends it, as the server asks in time.
"""

from __future__ import annotations

from collections import Counter
from threading import current_thread
from typing import Any

from fedtorch.comm.job.links import Links
from fedtorch.comm.job.liveness import Liveness
from fedtorch.comm.job.store import Store
from fedtorch.comm.transport.process_group import Direct


class Trips:
    """Of the rank that this process is, which is a worker."""

    def __init__(self, patch: Any) -> None:
        """patch: a `pytest.MonkeyPatch`, or anything with its `setattr`."""
        self.counted: Counter[str] = Counter()
        self._phase = ""
        self._has_sent = self._looks = False
        self._wrap_look(patch)
        self._wrap(patch, Links, "send", self._sent)
        self._wrap(patch, Links, "take", self._answered)
        self._wrap_wait(patch)
        self._wrap_beat(patch)
        for name, trips in (("get", 2), ("read", 2), ("has", 1), ("wait", 1), ("add", 1), ("delete", 1)):
            self._wrap(patch, Store, name, lambda trips=trips: self._add(trips))
        for name in ("send", "reduce"):
            self._wrap(patch, Direct, name, self._sent)
        for name in ("broadcast", "receive", "gather", "all_gather", "all_to_all", "all_reduce"):
            self._wrap(patch, Direct, name, lambda: self._add(1))

    def _wrap(self, patch: Any, owner: type, name: str, note: Any) -> None:
        original = getattr(owner, name)

        def method(*args: Any, **kwargs: Any) -> Any:
            if current_thread().name != "fedtorch-early":
                note()
            return original(*args, **kwargs)

        patch.setattr(owner, name, method)

    def _wrap_look(self, patch: Any) -> None:
        original = Liveness.missing

        def missing(liveness: Liveness, awaited: Any) -> list[int]:
            self._looks = True
            found = original(liveness, awaited)
            self._looks = False
            return found

        patch.setattr(Liveness, "missing", missing)

    def _wrap_wait(self, patch: Any) -> None:
        original = Links.wait

        def wait(links: Links, topic: str, ranks: Any, limit_s: float) -> bool:
            is_there = original(links, topic, ranks, limit_s)
            if is_there and current_thread().name != "fedtorch-early":
                self._answered()
            return is_there

        patch.setattr(Links, "wait", wait)

    def _wrap_beat(self, patch: Any) -> None:
        original = Liveness.beat

        def beat(liveness: Liveness, **what: Any) -> None:
            self._phase = what.get("phase", self._phase)
            original(liveness, **what)

        patch.setattr(Liveness, "beat", beat)

    def _sent(self) -> None:
        self._has_sent = True

    def _answered(self) -> None:
        self._add(int(self._has_sent))
        self._has_sent = False

    def _add(self, trips: int) -> None:
        if trips and not self._looks:
            self.counted[self._phase] += trips
