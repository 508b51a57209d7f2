"""Which ranks form which worker, and which worker trains which client: computed on every rank, never sent."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

FEW = 16
"""Clients of which the best of all splits is looked for."""
_LOOKS = 20_000  # at parts of splits; some 20 ms, once for the same costs


@dataclass(frozen=True)
class WorkerRow:
    """One worker's row of the placement table that `--dry-run` prints."""

    worker: int
    """Its index."""
    ranks: tuple[int, ...]
    """Those of the worker, its leader first."""
    clients: tuple[str, ...]
    """Those that it trains, in manifest order."""
    cost: float
    """Of all of them together."""


@dataclass(frozen=True)
class Topology:
    """The workers of a job."""

    num_ranks: int
    """All ranks, the server's rank 0 included."""
    server_works: bool = False
    """Whether rank 0 also trains clients; always so when it is the only rank."""
    ranks_per_worker: int | tuple[int, ...] = 1
    """Ranks that train one client together; they follow one another. Several numbers: of each worker."""

    def __post_init__(self) -> None:
        free, width = self.num_ranks - self._first, self.ranks_per_worker
        if isinstance(width, tuple):
            if self.num_ranks < 1 or not width or min(width) < 1 or sum(width) != free:
                raise ValueError(
                    f"{free} of {self.num_ranks} ranks train, which are not {' + '.join(map(str, width)) or 0}; start "
                    f"{self._first + sum(width)} ranks"
                )
        elif self.num_ranks < 1 or width < 1 or free % width:
            raise ValueError(
                f"{free} of {self.num_ranks} ranks train, which cannot be shared out by {width} "
                f"per worker; start {self._first} + a multiple of {width} ranks"
            )

    @property
    def _first(self) -> int:
        return 1 if self.num_ranks >= 2 and not self.server_works else 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many ranks each worker has."""
        width = self.ranks_per_worker
        return width if isinstance(width, tuple) else (width,) * ((self.num_ranks - self._first) // width)

    @cached_property
    def workers(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each worker, in order; the first rank of a worker leads it."""
        ends = accumulate(self.sizes, initial=self._first)
        return tuple(tuple(range(start, end)) for start, end in pairwise(ends))

    def worker_of(self, rank: int) -> int | None:
        """The index of the worker that `rank` belongs to; None for a server that does not train."""
        return next((worker for worker, ranks in enumerate(self.workers) if rank in ranks), None)

    def homes(self, costs: Mapping[str, float], allowed: Mapping[str, Sequence[int]] | None = None) -> dict[str, int]:
        """The worker that keeps each client: the costliest client first, each to the least loaded worker.

        Few clients (`FEW`) are split better than that where a search of bounded length finds a smaller largest load.
        Ties go by name, then to the worker with fewer clients, then to the lower index, so the result depends on names
        and costs only, not on the order of `costs`. Workers beyond the number of clients stay idle.
        The result has the order of `costs`. allowed: client -> the workers that it may live on; None: on any.

        Raises:
            ValueError: a cost is negative or not finite.
        """
        for name, cost in costs.items():
            if not math.isfinite(cost) or cost < 0:
                raise ValueError(f"the cost of client `{name}` is {cost}; expected a finite number, at least 0")
        if len(self.workers) == 1:
            return dict.fromkeys(costs, 0)
        names = sorted(costs, key=lambda name: (-costs[name], name))
        ordered = [costs[name] for name in names]
        placed = dict(
            zip(
                names, self.spread(ordered, None if allowed is None else [allowed[name] for name in names]), strict=True
            )
        )
        return {name: placed[name] for name in costs}

    def spread(self, costs: Sequence[float], allowed: Sequence[Sequence[int]] | None = None) -> Iterable[int]:
        """The rule of `homes` for costs that are in its order: a worker for each, in the same order.

        Of very many costs one after the other, so that nothing is kept for any.
        """
        if allowed is None and len(costs) <= FEW:
            usual = [*self._least_loaded(costs, None)]
            loads = [0.0] * len(self.workers)
            for cost, worker in zip(costs, usual, strict=True):
                loads[worker] += cost
            return _better_split(tuple(costs), len(loads), max(loads)) or usual
        return self._least_loaded(costs, allowed)

    def _least_loaded(self, costs: Iterable[float], allowed: Sequence[Sequence[int]] | None) -> Iterator[int]:
        heap = [(0.0, 0, worker) for worker in range(len(self.workers))]
        for number, cost in enumerate(costs):
            if allowed is not None:
                load, count, worker = min(heap[worker] for worker in allowed[number])
                heap[worker] = (load + cost, count + 1, worker)
            else:
                load, count, worker = heap[0]
                heapq.heapreplace(heap, (load + cost, count + 1, worker))
            yield worker

    def assign(self, costs: Mapping[str, float], homes: Mapping[str, int] | None) -> dict[str, int]:
        """The worker that trains each client of a cohort this round.

        costs: of the cohort's clients. homes: of all clients, if clients keep state (each then goes home);
        None if they do not (the cohort is balanced afresh, as by `homes`).

        Raises:
            ValueError: a client of the cohort has no home.
        """
        if homes is None:
            return self.homes(costs)
        if missing := [name for name in costs if name not in homes]:
            raise ValueError(f"client `{missing[0]}` has no home worker; homes are known for {len(homes)} clients")
        return {name: homes[name] for name in costs}

    def describe(self, costs: Mapping[str, float], assigned: Mapping[str, int]) -> list[WorkerRow]:
        """One row per worker, idle ones included: its ranks, its clients in the order of `costs`, their total cost."""
        clients: list[list[str]] = [[] for _ in self.workers]
        for name in costs:
            clients[assigned[name]].append(name)
        return [
            WorkerRow(worker, ranks, tuple(clients[worker]), math.fsum(costs[name] for name in clients[worker]))
            for worker, ranks in enumerate(self.workers)
        ]


@lru_cache(maxsize=64)
def _better_split(costs: tuple[float, ...], num_workers: int, longest: float) -> tuple[int, ...] | None:
    """A worker for each cost such that the largest load is the least that was found below `longest`; None: none is.

    costs: the largest first. Depth first, workers of equal load being one; given up after `_LOOKS`.
    """
    least = max(sum(costs) / num_workers, max(costs, default=0.0)) * (1 + 1e-9)
    loads, chosen, looks = [0.0] * num_workers, list[int](), 0
    found: tuple[int, ...] | None = None

    def place(number: int) -> None:
        nonlocal looks, longest, found
        if number == len(costs):
            longest, found = max(loads), tuple(chosen)
            return
        looks += 1
        for load, worker in sorted({load: worker for worker, load in reversed([*enumerate(loads)])}.items()):
            if longest <= least or looks > _LOOKS or load + costs[number] >= longest:
                return
            loads[worker] = load + costs[number]
            chosen.append(worker)
            place(number + 1)
            chosen.pop()
            loads[worker] = load

    place(0)
    return found
