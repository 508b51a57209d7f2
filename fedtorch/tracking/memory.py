"""Keeps in memory what the end of a run is made of: a disk may refuse records, or lose them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from fedtorch.tracking.records import Record, counted

_KEPT = ("status", "loss_mean", "weight")


class Memory:
    """Each client's last record, its steps and weights so far, and the traffic of all rounds so far."""

    def __init__(self, past: Iterable[Record] = ()) -> None:
        """past: the records of a run that is resumed."""
        self.last: dict[str, dict[str, Any]] = {}
        """client -> `status`, `loss_mean` and `weight` of its last round"""
        self.steps: Counter[str] = Counter()
        """client -> steps of which losses are recorded"""
        self.traffic: Counter[str] = Counter()
        """bytes and messages; see `comm.transport.meter.Meter`"""
        self.rounds = 0
        """that are over"""
        self._weights: dict[str, float] = {}
        for record in past:
            self.see(record)
            if record["kind"] == "round":
                self.traffic.update(counted(record))

    def see(self, record: Record) -> None:
        """A record, as a reader sees it."""
        if record["kind"] == "client":
            self.last[record["client"]] = {key: record.get(key) for key in _KEPT}
            if record.get("weight") is not None:
                self._weights[record["client"]] = self._weights.get(record["client"], 0.0) + record["weight"]
        elif record["kind"] == "steps":
            self.steps[record["client"]] = record["first_step"] + len(record["loss"])
        elif record["kind"] == "round":
            self.rounds += 1

    def mean_weight(self, client: str) -> float | None:
        """A client's weight in the combined update, the mean over all rounds, 0 in one in which it did not count.

        None where nothing was combined in any of them, as with `local`.
        """
        return self._weights.get(client, 0.0) / self.rounds if self._weights and self.rounds else None
