"""How long clients take beside what their training was expected to cost, so that all workers are busy equally long."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median

from fedtorch.core.update import Report
from fedtorch.rounds.topology import Topology

WORTH_IT = 0.9
"""Of the longest worker's seconds: clients are moved for less only, as a worker has to read a new client's rows."""


class Pace:
    """Seconds for a unit of expected cost, of every client whose update was accepted; equal on all ranks.

    What it says moves clients from one worker to another, never a bit of the result, so nothing of it is saved.
    """

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}

    def see(self, reports: Iterable[Report], costs: Mapping[str, float]) -> None:
        """The seconds in the reports of a round whose clients were expected to cost so much; half of a rate is new.

        A rank's clock may say anything: seconds that are not a positive number tell nothing.
        """
        for report in reports:
            cost = costs[report.client]
            if cost > 0 and 0 < report.seconds < math.inf:
                rate = report.seconds / cost
                self._rates[report.client] = (self._rates.get(report.client, rate) + rate) / 2

    def assign(self, topology: Topology, costs: Mapping[str, float]) -> dict[str, int]:
        """Client -> worker: as by `costs` alone, unless by what was measured the longest worker ends much earlier."""
        usual, times = topology.assign(costs, None), self.expected(costs)
        other = topology.assign(times, None)
        return other if _longest(times, other) < WORTH_IT * _longest(times, usual) else usual

    def expected(self, costs: Mapping[str, float]) -> dict[str, float]:
        """Costs in seconds, those of clients that are new at the median rate of the others; as they are if all are."""
        known = [self._rates[name] for name in costs if name in self._rates]
        usual = median(known) if known else 1.0
        found = {name: cost * self._rates.get(name, usual) for name, cost in costs.items()}
        return found if all(map(math.isfinite, found.values())) else dict(costs)


def longest_of(reports: Iterable[Report], placed: Mapping[str, int]) -> str:
    """Say in one line which worker's clients took longest, and by how much; empty with less than two workers."""
    taken: dict[int, float] = {}
    of_worker: dict[int, list[str]] = {}
    for report in reports:
        worker = placed[report.client]
        taken[worker] = taken.get(worker, 0.0) + report.seconds
        of_worker.setdefault(worker, []).append(report.client)
    if len(taken) < 2:
        return ""
    (longest, slowest), (second, _) = sorted(((s, worker) for worker, s in taken.items()), reverse=True)[:2]
    return (
        f"waited longest for worker {slowest} ({', '.join(of_worker[slowest][:5])}): {longest:.1f} s, "
        f"{longest - second:.1f} s longer than for any other"
    )


def _longest(times: Mapping[str, float], placed: Mapping[str, int]) -> float:
    loads: dict[int, float] = {}
    for name, worker in placed.items():
        loads[worker] = loads.get(worker, 0.0) + times[name]
    return max(loads.values(), default=0.0)
