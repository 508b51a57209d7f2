"""Events in one order that all ranks share, by no clock of any of them: who is done with which job, and who does it."""

from __future__ import annotations

from fedtorch.comm.job.store import Store


class EventLog:
    """The events of one process, one after the other; `begin` empties it. All ranks begin alike."""

    def __init__(self) -> None:
        self._begun = 0
        self._texts: list[str] = []
        self._claimed: set[int] = set()

    def begin(self) -> None:
        """Begin anew: nothing has happened, and no job is anybody's."""
        self._begun += 1
        self._texts, self._claimed = [], set()

    def add(self, text: str) -> None:
        """Add an event after all others."""
        self._texts.append(text)

    def read(self) -> list[str]:
        """All events so far, in their order."""
        return list(self._texts)

    def claim(self, job: int) -> bool:
        """Is the job this rank's from now on? It is the first one's that asks."""
        is_first = job not in self._claimed
        self._claimed.add(job)
        return is_first


class SharedEventLog(EventLog):
    """The events of several ranks, kept in the store; any rank of the job may add one."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def add(self, text: str) -> None:
        """Add an event; where two do so at once, the store says which came first."""
        place = self._store.add(self._key("count"), 1) - 1
        self._store.set(self._key(f"event/{place}"), text)

    def read(self) -> list[str]:
        """All events so far; waits for those whose rank has a place and is about to write them.

        Raises:
            DeadlineError: one of them was not written in the time that a call may take.
            ForgedNoteError: one is by somebody outside the job.
        """
        count = self._store.add(self._key("count"), 0)
        for place in range(len(self._texts), count):
            key = self._key(f"event/{place}")
            if not self._store.has([key]):
                self._store.wait([key], self._store.timeout_s)
            self._texts.append(self._store.get(key, by=None))
        return list(self._texts)

    def claim(self, job: int) -> bool:
        """As for one process; asks the store once."""
        return self._store.add(self._key(f"claim/{job}"), 1) == 1

    def _key(self, name: str) -> str:
        return f"events/{self._begun}/{name}"
