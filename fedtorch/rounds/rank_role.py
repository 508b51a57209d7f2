"""Role of this rank within its worker, and which clients are its own."""

from __future__ import annotations

from fedtorch.rounds.components import RunComponents


class RankRole:
    """One rank's place: its worker, whether it speaks for it, and what it alone keeps of a client."""

    def __init__(self, components: RunComponents) -> None:
        self.components = components

    def hosts(self, worker: int) -> bool:
        """Does this rank belong to that worker?"""
        return self.components.comm.rank in self.components.topology.workers[worker]

    @property
    def leads(self) -> bool:
        """Does this rank speak for its worker to the federation?"""
        return self.components.worker is None or self.components.worker.leads

    def keeps(self, entry: str) -> bool:
        """Is this rank the one that saves this entry of a client's state?"""
        worker, keeper = self.components.worker, self._keeper(entry)
        return worker is None or worker.rank == (keeper or 0)

    def may_have(self, entry: str) -> bool:
        """Is this entry of a client's state no other rank's alone?"""
        worker, keeper = self.components.worker, self._keeper(entry)
        return worker is None or keeper in (None, worker.rank)

    def is_stopped(self) -> bool:
        """Was any rank of this worker asked to stop? Called by all of them alike."""
        stop = self.components.stop()
        return stop if self.components.worker is None else self.components.worker.any(stop)

    def _keeper(self, entry: str) -> int | None:
        owners = self.components.engine.owners
        return None if owners is None else owners.keeper(entry)
