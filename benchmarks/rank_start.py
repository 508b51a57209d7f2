"""What a rank does before its first round, as a program for torchrun; ends as soon as all ranks have met.

python benchmarks/rank_start.py RANKS    the same under our own launcher, which imports once and forks its ranks
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fedtorch.main  # noqa: F401  all that a run imports
from benchmarks.workloads import WORKLOADS, shrunk
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.setup.build import build


def start(arguments: Sequence[str] = ()) -> int:
    """Build a small run, join, compare, exchange the first weights."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    config = shrunk(WORKLOADS["a"]).config(Path(tempfile.gettempdir()) / "fedtorch-start", rounds=1)
    built = build(config, num_ranks=size, rank=rank)
    with DistributedCommunicator.join(built.names, timeout_s=120) as comm:
        comm.preflight(built.facts())
        comm.barrier("init", round=0)
        comm.broadcast(built.engine.initial_shared)
    return 0


def launch(ranks: int) -> int:
    """As `launchers.local` does once it has read its config; the exit code."""
    from launchers.fork_server import ForkServer
    from launchers.job import Job

    with tempfile.TemporaryDirectory() as folder:
        server = ForkServer.begin([], start)
        return Job([sys.executable, __file__], Path(folder), ranks, fork_server=server).run(0)


if __name__ == "__main__":
    sys.exit(launch(int(sys.argv[1])) if sys.argv[1:] else start())
