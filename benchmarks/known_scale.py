"""Rounds whose scale is known before them, and asynchronous ones that wait for all, beside rounds by default.

python benchmarks/known_scale.py [--ranks 2 3] [--rounds N] [--repeat N] [--json OUT]
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.table import Table

from benchmarks.command import console_of, parser_of, write_figures
from benchmarks.measured import NOT_TIMED
from benchmarks.processes import run_ranks
from benchmarks.workloads import RandomTokens, Workload, shrunk
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.asynchrony import AsyncConfig, ClockConfig, DurationConfig
from fedtorch.config.schema import ClientConfig, Config
from fedtorch.rounds.runner import Runner
from fedtorch.setup.build import build

CLIENTS = 4
KINDS = ("reports", "previous", "asynchronous")
"""`system.sum_scale`, and a buffer of all clients, who take equally long."""
WORKLOAD = Workload(
    title=f"{CLIENTS} clients, GPT-2 of 59 M parameters, a step each",
    task=RandomTokens("gpt2", (4,) * CLIENTS, length=16, vocabulary=8000, width=768, layers=7, heads=12),
    client=ClientConfig(batch_size=1, optimizer="sgd", lr=0.01, steps=1),
    per_round="all",
    rounds=10,
)


def config_of(workload: Workload, folder: Path, kind: str) -> Config:
    """The run of a kind."""
    scale = "reports" if kind == "reports" else "previous"
    config = workload.config(folder / kind, rounds=workload.rounds + NOT_TIMED, sum_scale=scale, server_works=True)
    if kind != "asynchronous":
        return config
    names = list(workload.task.manifest())
    clock = ClockConfig(duration=DurationConfig("table", seconds=dict.fromkeys(names, 1.0)))
    return replace(config, asynchrony=AsyncConfig(len(names), len(names), clock=clock))


def time_rounds(workload: Workload, folder: Path, kind: str) -> list[tuple[float, float]]:
    """Run the workload on this rank; seconds of its rounds, and of the processor, all threads."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    built = build(config_of(workload, folder, kind), num_ranks=size, rank=rank)
    ends = [(time.perf_counter(), time.process_time())]
    with DistributedCommunicator.join(built.names, 120) as comm:
        comm.preflight(built.facts())
        checkpoints = Checkpoints(built.config.folder / "checkpoints", keep=1)
        runner = Runner(built.components(comm, checkpoints, stop=lambda: False))
        one_round = runner._one_round

        def timed() -> None:
            one_round()
            ends.append((time.perf_counter(), time.process_time()))

        runner._one_round = timed  # type: ignore[method-assign]
        runner.run()
    rounds = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(ends)]
    return rounds[2 : 2 + workload.rounds]


def measure(workload: Workload, ranks: int, repeat: int) -> list[dict[str, Any]]:
    """Runs of all kinds in turn; of each the seconds of a round, and over those of the first kind beside it.

    Of the processor: the least that a round of any run took, all ranks together, as others' work can only add to it.
    """
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    processor: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(repeat):
        for kind in KINDS:
            folder = Path(tempfile.mkdtemp(prefix="fedtorch-scale-"))
            try:
                ended = [rank.result for rank in run_ranks(partial(time_rounds, workload, folder, kind), ranks)]
                found[kind].append(median(seconds for seconds, _ in ended[0]))
                processor[kind] += [sum(own for _, own in each) for each in zip(*ended, strict=True)]
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    records = []
    for kind, each in found.items():
        ratios = sorted(one / base for one, base in zip(each, found["reports"], strict=True))
        least = min(processor[kind]), min(processor[kind]) / min(processor["reports"])
        about = {"kind": kind, "ranks": ranks, "runs": repeat, "s": median(each), "processor": least}
        records.append({**about, "ratio": median(ratios), "range": [ratios[0], ratios[-1]]})
    return records


def table_of(title: str, records: Sequence[dict[str, Any]]) -> Table:
    """A row for each kind and number of ranks."""
    table = Table(title=f"{title}: a round beside one with sum_scale: reports", title_justify="left")
    for head in ("ranks", "rounds", "s", "ratio (range)", "processor s", "ratio"):
        table.add_column(head, justify="left" if head == "rounds" else "right")
    for record in records:
        low, high = record["range"]
        ratio = f"{record['ratio']:.3f} ({low:.2f}-{high:.2f})"
        processor = (f"{number:.3f}" for number in record["processor"])
        table.add_row(str(record["ranks"]), record["kind"], f"{record['s']:.3f}", ratio, *processor)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; see the top of the file."""
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3], help="of one machine; the server works")
    parser.add_argument("--rounds", type=int, default=WORKLOAD.rounds, help="timed rounds in each run")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each kind")
    parser.add_argument("--tiny", action="store_true", help="shrink models and data: does it run? not for timing")
    args = parser.parse_args(arguments)
    workload = replace(shrunk(WORKLOAD) if args.tiny else WORKLOAD, rounds=args.rounds)
    records = [record for ranks in args.ranks for record in measure(workload, ranks, args.repeat)]
    console_of(120).print(table_of(workload.title, records))
    write_figures(args.json, records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
