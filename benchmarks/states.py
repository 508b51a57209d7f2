"""What does a checkpoint cost in which few of many stateful clients changed? Ratios to 100 clients, all in this run.

python benchmarks/states.py [--clients 100 100000] [--changed 10] [--rounds 8] [--numbers 1000] [--json OUT] [--tiny]

A checkpoint is the files of the clients that changed, the server's state and the manifest, each synced. The numbers of
clients take turns, a checkpoint of each after one of the other. The first two of each are not timed: one names every
client's file, the other is the first of its process that may look at changes only. The last column is what a resume
reads and checks: every file.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from rich.table import Table

from benchmarks.command import console_of, parser_of, write_figures
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.core.client import ClientState
from fedtorch.core.server import ServerState

NOT_TIMED = 2


class Run:
    """The checkpoints of so many clients."""

    def __init__(self, folder: Path, clients: int, numbers: int) -> None:
        """Every client has a state of so many numbers; the first round's files are not synced, which takes long."""
        self.clients, self.round = clients, 1
        self._checkpoints = Checkpoints(folder, keep=2)
        self._server = ServerState({"weights": torch.zeros(numbers)}, {}, num_clients=clients)
        self._state = ClientState({"control": torch.zeros(numbers)}, {"cursor": 1})
        with mock.patch("os.fsync"):
            self._save(range(clients))

    def save(self, changed: int) -> float:
        """Seconds of the next round's checkpoint, in which so many clients changed."""
        self.round += 1
        started = time.perf_counter()
        self._save([(self.round * changed + place) * 7919 % self.clients for place in range(changed)])
        return time.perf_counter() - started

    def resume(self) -> float:
        """Seconds in which another process finds the last checkpoint, all files checked."""
        started = time.perf_counter()
        found = Checkpoints(self._checkpoints.folder, keep=2).latest()
        assert found is not None and found.round == self.round and len(found.clients) == self.clients
        return time.perf_counter() - started

    def _save(self, places: Sequence[int]) -> None:
        names = [f"client{place}" for place in places]
        entries = {name: [self._checkpoints.write_client(self.round, name, self._state)] for name in names}
        self._checkpoints.write(self.round, self._server, entries, config={}, facts={})


def measure(counts: Sequence[int], changed: int, rounds: int, numbers: int, folder: Path) -> list[dict[str, Any]]:
    """A record for each number of clients."""
    runs = [Run(folder / str(count), count, numbers) for count in counts]
    seconds = [[run.save(changed) for run in runs] for _ in range(rounds + NOT_TIMED)][NOT_TIMED:]
    return [
        {
            "clients": run.clients,
            "changed": changed,
            "checkpoint_s": [each[place] for each in seconds],
            "ratio": median(each[place] / each[0] for each in seconds),
            "resume_s": run.resume(),
        }
        for place, run in enumerate(runs)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; see the top of the file."""
    parser = parser_of(str(__doc__))
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 100_000], help="the first is 1.0")
    for name, default in (("changed", 10), ("rounds", 8), ("numbers", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tiny", action="store_true", help="few clients: does it run? not for timing")
    args = parser.parse_args(arguments)
    counts = [20, 1500] if args.tiny else args.clients
    with tempfile.TemporaryDirectory() as folder:
        records = measure(counts, args.changed, args.rounds, args.numbers, Path(folder))
    table = Table(title=f"checkpoints in which {args.changed} clients changed")
    for name in ("clients", "s, median", "least", "most", "ratio", "resume, s"):
        table.add_column(name, justify="right")
    for each in records:
        took = each["checkpoint_s"]
        figures = (median(took), min(took), max(took))
        table.add_row(
            f"{each['clients']}", *(f"{s:.3f}" for s in figures), f"{each['ratio']:.2f}", f"{each['resume_s']:.2f}"
        )
    console_of(100).print(table)
    write_figures(args.json, records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
