"""Measures the constants of the exchange on this machine: light ranks that meet, send and add, and nothing else.

python -m fedtorch.planning.probe RANKS [--small]       one JSON object on standard output

Every rank's own processor seconds are taken, so that ranks that share cores do not lengthen them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.job.forked_ranks import fork_ranks
from fedtorch.comm.options import Network
from fedtorch.comm.sums.reproducible import Accumulator, SumScale
from fedtorch.comm.transport.digests import WindowDigest, window_digest
from fedtorch.comm.transport.group import Group
from fedtorch.core.norms import difference

REPEAT = 7
"""Of which the middle one counts: a round is the sum of many parts, of which hardly ever all are at their fastest."""
_SMALL = 50  # meetings and headers that are timed together
_NUMBERS = 1 << 23  # of a vector, 32 MB of fp32: far more than a cache holds
_WINDOW = 1 << 20
SOCKETS = Network(shares_memory=False)
"""As between machines: what is measured stands for them too."""


def probe(*, small: bool) -> dict[str, Any]:
    """One rank's seconds; all ranks of a job call it alike. small: meetings and headers alone."""
    with DistributedCommunicator.join(("probe",), timeout_s=120, network=SOCKETS) as comm:
        comm.preflight({})
        number = iter(range(1 << 30))
        found: dict[str, Any] = {"rank": comm.rank}
        found["meeting"] = timed(lambda: comm.barrier("probe", round=next(number)), _SMALL)
        found["header"] = timed(lambda: comm.broadcast_packets((), round=1), _SMALL)
        if not small:
            vector = torch.rand(_NUMBERS)
            comm.broadcast(vector)  # connects, and touches the memory
            found |= {"broadcast": timed(lambda: comm.broadcast(vector)), "broadcast_bytes": vector.nbytes}
            comm.barrier("kernels", round=next(number))
            found |= kernels(vector)
            comm.barrier("ring", round=next(number))
            found["hop"] = _hops(comm._group, comm.size)
    return found


def timed(call: Callable[[], object], times: int = 1) -> tuple[float, float]:
    """(seconds on the clock, processor seconds of this process) of one call, each the median of `REPEAT` tries."""
    call()
    tries = []
    for _ in range(REPEAT):
        wall, busy = time.perf_counter(), time.process_time()
        for _ in range(times):
            call()
        tries.append(((time.perf_counter() - wall) / times, (time.process_time() - busy) / times))
    return median(wall for wall, _ in tries), median(busy for _, busy in tries)


def kernels(vector: torch.Tensor) -> dict[str, float]:
    """Seconds per number of each loop over a vector of fp32; per byte for `digest`. Window by window, as in a round."""
    size, scale = len(vector), SumScale(20)
    accumulator, out, other = Accumulator(_WINDOW), torch.empty_like(vector), torch.rand_like(vector)
    sums = torch.zeros(size, dtype=torch.float64)

    def whole(updates: Sequence[torch.Tensor] = (), sums: torch.Tensor | None = None) -> None:
        for start in range(0, size, _WINDOW):
            part, came = slice(start, start + _WINDOW), WindowDigest(_WINDOW, torch.float64)
            accumulator.reset(scale)
            for update in updates:
                accumulator.add(update[part], 0.5)
            accumulator.result(out[part], *(() if sums is None else (sums[part], came)))

    def digest() -> None:
        for start in range(0, size, _WINDOW):
            window_digest(vector[start : start + _WINDOW])

    calls = {"client": lambda: difference(vector, other, out), "step": lambda: out.sub_(other)}
    found = {name: timed(call)[1] / size for name, call in calls.items()} | {"digest": timed(digest)[1] / vector.nbytes}
    sums_of = [partial(whole), partial(whole, [vector, other]), partial(whole, (), sums)]
    result, two, more = (timed(call)[1] / size for call in sums_of)
    return found | {"result": result, "add": max(0.0, two - result) / 2, "add_sum": max(0.0, more - result)}


def _hops(group: Group, ranks: int) -> float:
    """Seconds of a hop of gloo's ring, from the reduction of a few numbers; the broadcast makes all begin together."""
    numbers = torch.ones(ranks * 64, dtype=torch.float64)

    def ring() -> None:
        group.wait(group.begin(lambda transport: transport.reduce(numbers)))
        group.wait(group.begin(lambda transport: transport.broadcast(numbers)))

    return timed(ring, _SMALL)[0] / ranks


def own_bytes() -> int:
    """Memory of this process that is no file's; its peak where the system does not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon")), 0)


def run(ranks: int, *, small: bool) -> list[dict[str, Any]]:
    """Return what `probe` says on each rank; raises as `fork_ranks` does."""
    return fork_ranks(ranks, partial(probe, small=small))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the measured constants; the top of the file has the usage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ranks", type=int)
    parser.add_argument("--small", action="store_true", help="meetings and headers alone")
    args = parser.parse_args(arguments)
    print(json.dumps(run(args.ranks, small=args.small)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
