"""What does it cost that there are more clients than are sampled? Ratios to 100 clients, all measured in this run.

python benchmarks/clients.py [--clients 100 1000 10000 100000] [--rounds N] [--repeat N] [--json OUT]

FedParsing (its teacher frozen) on the synthetic WikiSQL set, 5 clients per round, two ranks (server and worker),
evaluation after every round. Every client has 30 questions, so that all rounds are the same work; the pool is dealt
again and again to as many clients as are asked for.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks.command import console_of, parser_of, write_figures
from benchmarks.processes import Ended, run_ranks

COUNTS = (100, 1000, 10_000, 100_000)
PER_ROUND = 5


@dataclass
class Timing:
    """One rank's figures."""

    start_s: float
    """from the config to the first broadcast"""
    round_s: list[float] = field(default_factory=list)
    """of every timed round"""


def time_clients(num_clients: int, data: str, rounds: int) -> Timing:
    """One rank of the run with `num_clients` clients."""
    from fedtorch.checkpoint.store import Checkpoints
    from fedtorch.comm.distributed import DistributedCommunicator
    from fedtorch.rounds.runner import Runner
    from fedtorch.setup.build import build
    from fedtorch.tracking.settings import TrackConfig
    from fedtorch.tracking.tracker import Tracker

    importlib.import_module("transformers.models.roberta.modeling_roberta")  # seconds, and not what is measured
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder = f"{data}-run-{num_clients}"
    config = _config(folder, data, num_clients, rounds)
    started = time.perf_counter()
    built = build(config, num_ranks=size, rank=rank)
    with DistributedCommunicator.join(built.names, timeout_s=600) as comm:
        comm.preflight(built.facts())
        tracker = None
        if rank == 0:
            tracker = Tracker(
                Path(folder), clients=built.names, rounds=config.rounds, settings=TrackConfig(progress="off")
            )
        checkpoints = Checkpoints(Path(folder) / "checkpoints", keep=1)
        runner = Runner(built.components(comm, checkpoints, stop=lambda: False, tracker=tracker))
        runner._share_initial_weights()
        timing = Timing(time.perf_counter() - started)
        for _ in range(rounds + 1):  # the first one warms up
            begun = time.perf_counter()
            runner._one_round()
            timing.round_s.append(time.perf_counter() - begun)
        if tracker is not None:
            tracker.close()
    del timing.round_s[0]
    return timing


def _config(folder: str, data: str, num_clients: int, rounds: int) -> Any:
    """The config of a run of small rounds, of the task that can have many clients."""
    from fedtorch.algorithms.fedparsing import FedParsing
    from fedtorch.config.schema import CheckpointConfig, ClientConfig, ClientsConfig, Config, EvalConfig, RunConfig
    from fedtorch.models.encoder import EncoderModel
    from fedtorch.tasks.wikisql import WikiSQL

    task = WikiSQL(
        data=data,
        encoder=EncoderModel(width=64, layers=1, heads=2, feed_forward=128),
        max_length=40,
        server_labelled=50,
        num_clients=num_clients,
        client_size=(30, 30),
        max_dev=16,
        parts=2,
    )
    return Config(
        run=RunConfig(name="clients", dir=folder),
        rounds=rounds + 1,
        task=task,
        algorithm=FedParsing(group="fedparsing"),
        client=ClientConfig(optimizer="sgd", lr=0.01, batch_size=10, max_grad_norm=1.0),
        clients=ClientsConfig(per_round=PER_ROUND),
        eval=EvalConfig(every=1),
        checkpoint=CheckpointConfig(every=1_000_000),
    )


@dataclass
class Figures:
    """Of one number of clients, over the repetitions."""

    start_s: list[float] = field(default_factory=list)
    round_s: list[float] = field(default_factory=list)
    grown_mb: list[list[float]] = field(default_factory=list)
    peak_mb: list[list[float]] = field(default_factory=list)

    def add(self, ended: Sequence[Ended]) -> None:
        """One more repetition; the server waits for the worker, so its clock is the run's."""
        self.start_s.append(ended[0].result.start_s)
        self.round_s.append(median(ended[0].result.round_s))
        self.grown_mb.append([end.grown_mb for end in ended])
        self.peak_mb.append([end.peak_mb for end in ended])

    def summary(self, reference: Figures) -> dict[str, Any]:
        """The fastest repetition's figures, which other work disturbs least, and their ratios to `reference`."""
        peaks, others = (
            [min(row[rank] for row in figures.peak_mb) for rank in (0, 1)] for figures in (self, reference)
        )
        return {
            "start_s": min(self.start_s),
            "round_s": min(self.round_s),
            "peak_mb": [round(peak) for peak in peaks],
            "start_ratio": min(self.start_s) / min(reference.start_s),
            "round_ratio": min(self.round_s) / min(reference.round_s),
            "memory_ratio": [peak / other for peak, other in zip(peaks, others, strict=True)],
            "repetitions": len(self.start_s),
        }


def measure(counts: Sequence[int], rounds: int, repeat: int, console: Console) -> dict[int, dict[str, Any]]:
    """Every number of clients in turn, `repeat` times over, so that slow minutes hit all of them."""
    from fedtorch.data.synthetic_wikisql import prepare

    figures = {count: Figures() for count in counts}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        prepare(data)
        for number in range(repeat):
            for count, figure in figures.items():
                console.log(f"repetition {number + 1} of {repeat}: {count} clients")
                figure.add(run_ranks(partial(time_clients, count, str(data), rounds), 2))
    return {count: figure.summary(figures[counts[0]]) for count, figure in figures.items()}


def show(records: dict[int, dict[str, Any]], console: Console) -> None:
    """The table."""
    first = next(iter(records))
    table = Table(title=f"{PER_ROUND} of N clients per round; ratios to N = {first}", title_justify="left")
    for name in ("clients", "start, s", "ratio", "round, s", "ratio", "server peak MB", "ratio", "worker MB", "ratio"):
        table.add_column(name, justify="right")
    for count, record in records.items():
        memory = [
            text
            for peak, ratio in zip(record["peak_mb"], record["memory_ratio"], strict=True)
            for text in (str(peak), f"{ratio:.3f}")
        ]
        table.add_row(
            str(count),
            f"{record['start_s']:.2f}",
            f"{record['start_ratio']:.2f}",
            f"{record['round_s']:.3f}",
            f"{record['round_ratio']:.3f}",
            *memory,
        )
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; see the top of the file."""
    parser = parser_of(__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=COUNTS, help="numbers of clients, the first is 1.0")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds in each run (default 5)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each number, interleaved (default 3)")
    args = parser.parse_args(arguments)
    console = console_of(150)
    records = measure(args.clients, args.rounds, args.repeat, console)
    show(records, console)
    write_figures(args.json, records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
