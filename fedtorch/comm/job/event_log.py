"""Events in one order that all ranks share, by no clock of any of them: who is done first, and who does which job."""

from __future__ import annotations

from fedtorch.comm.job.store import Store


class EventLog:
    """The events of one process, one after the other; `begin` empties it. All ranks begin alike."""

    def __init__(self) -> None:
        self._begun = 0
        self._taken = 0
        self._texts: list[str] = []
        self._claimed: set[int] = set()

    def begin(self) -> None:
        """Begin anew: nothing has happened, and no job is anybody's."""
        self._begun += 1
        self._taken, self._texts, self._claimed = 0, [], set()

    def take(self) -> int:
        """Take the next place in the order; how many are taken, with it."""
        self._taken += 1
        return self._taken

    def count(self) -> int:
        """How many places are taken."""
        return self._taken

    def add(self, text: str) -> None:
        """Add an event after all others."""
        self.take()
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

    def take(self) -> int:
        """Take a place, by one question to the store; no two ranks get the same."""
        return self._store.add(self._key("count"), 1)

    def count(self) -> int:
        """Ask the store once."""
        return self._store.add(self._key("count"), 0)

    def add(self, text: str) -> None:
        """Add an event; where two do so at once, the store says which came first."""
        self._store.set(self._key(f"event/{self.take() - 1}"), text)

    def read(self) -> list[str]:
        """All events so far; waits for those whose rank has a place and is about to write them.

        Raises:
            DeadlineError: one of them was not written in the time that a call may take.
            ForgedNoteError: one is by somebody outside the job.
        """
        for place in range(len(self._texts), self.count()):
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
