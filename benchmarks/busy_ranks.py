"""Share of their time in which ranks train in asynchronous rounds, by runs of clients that sleep for a second each.

python benchmarks/busy_ranks.py [--ranks 4 8] [--buffers 10 5 2 1] [--jobs 200] [--seconds 1] [--json OUT]
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.table import Table

from benchmarks.command import console_of, parser_of, write_figures
from benchmarks.processes import run_ranks
from benchmarks.workloads import RandomTokens, Workload
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.asynchrony import AsyncConfig
from fedtorch.config.schema import ClientConfig, Config
from fedtorch.core.update import Report, Update
from fedtorch.rounds.asynchrony.schedule import busy_share, with_equal_costs
from fedtorch.rounds.runner import Runner
from fedtorch.setup.build import build
from fedtorch.tracking import records
from fedtorch.tracking.tracker import Tracker
from fedtorch.train.job import ClientJob

CLIENTS, CONCURRENT = 100, 10
WORKLOAD = Workload(
    title=f"{CLIENTS} clients that sleep, {CONCURRENT} at a time",
    task=RandomTokens("gpt2", (1,) * CLIENTS, length=4, vocabulary=16, width=8, layers=1, heads=1),
    client=ClientConfig(batch_size=1, optimizer="sgd", lr=0.01, epochs=1),  # clients that keep nothing have no homes
    per_round="all",
    rounds=0,
)


@dataclass(frozen=True)
class Sleeping(FedAvg):
    """FedAvg whose clients sleep before they take their step, as if a device of their own worked."""

    seconds: float = 1.0

    def client_update(self, job: ClientJob) -> Report | Update:
        """Sleep, with signs of life."""
        until_s = time.monotonic() + self.seconds
        while (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(left_s, 0.5))
            job.on_step(0)
        return super().client_update(job)


def config_of(folder: Path, buffer: int, jobs: int, seconds: float) -> Config:
    """The run of a buffer; the server trains too."""
    config = WORKLOAD.config(folder, rounds=jobs // buffer, sum_scale="previous", server_works=True)
    return replace(config, algorithm=Sleeping(seconds=seconds), asynchrony=AsyncConfig(buffer, CONCURRENT))


def run(folder: Path, buffer: int, jobs: int, seconds: float) -> float:
    """Run on this rank; seconds from where the first clients begin to train to the last version's end."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    built = build(config_of(folder, buffer, jobs, seconds), num_ranks=size, rank=rank)
    tracker = Tracker(folder, clients=list(built.names), rounds=built.config.rounds) if rank == 0 else None
    with DistributedCommunicator.join(built.names, 120) as comm:
        comm.preflight(built.facts())
        checkpoints = Checkpoints(folder / "checkpoints", keep=1)
        runner = Runner(built.components(comm, checkpoints, stop=lambda: False, tracker=tracker))
        rows = built.task.load(built.names[0], "train")
        built.task.loss(built.engine.module, built.task.collate(rows, True))[0].backward()  # whatever a first one loads
        train, settle, times = runner.trainer.train_cohort, runner.trainer.settle, list[float]()

        def training() -> list[Report]:
            times.append(time.perf_counter())
            return train()

        def settling(accepted: Sequence[Report]) -> None:
            settle(accepted)
            times.append(time.perf_counter())

        runner.trainer.train_cohort, runner.trainer.settle = training, settling  # type: ignore[method-assign]
        runner.run()
    return times[-1] - times[0]


def measure(ranks: int, buffer: int, jobs: int, seconds: float) -> dict[str, Any]:
    """Share of the ranks' time in which clients trained, by the run's records, and by the plan."""
    folder = Path(tempfile.mkdtemp(prefix="fedtorch-busy-"))
    try:
        span_s = run_ranks(partial(run, folder, buffer, jobs, seconds), ranks)[0].result
        of_clients = [r["seconds"] for r in records.read(folder / records.NAME) if r["kind"] == "client"]
        built = build(config_of(folder, buffer, jobs, seconds), num_ranks=ranks, rank=0)
        assert built.jobs is not None
        planned = busy_share(built.jobs.plan, with_equal_costs(ranks, list(built.names)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    about = {"ranks": ranks, "buffer": buffer, "jobs": len(of_clients), "seconds": seconds}
    return {**about, "busy": sum(of_clients) / (ranks * span_s), "planned": planned}


def table_of(found: Sequence[dict[str, Any]]) -> Table:
    """A row for each number of ranks and buffer."""
    table = Table(title=f"{WORKLOAD.title}: share of time busy", title_justify="left")
    for head in ("ranks", "buffer", "jobs", "measured", "planned"):
        table.add_column(head, justify="right")
    for each in found:
        shares = (f"{each[key]:.3f}" for key in ("busy", "planned"))
        table.add_row(str(each["ranks"]), str(each["buffer"]), str(each["jobs"]), *shares)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; see the top of the file."""
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8], help="of one machine; the server works")
    parser.add_argument("--buffers", type=int, nargs="+", default=[10, 5, 2, 1], help="arrivals that make a version")
    parser.add_argument("--jobs", type=int, default=200, help="trainings of a run")
    parser.add_argument("--seconds", type=float, default=1.0, help="that each of them takes")
    args = parser.parse_args(arguments)
    found = [measure(ranks, buffer, args.jobs, args.seconds) for ranks in args.ranks for buffer in args.buffers]
    console_of(120).print(table_of(found))
    write_figures(args.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
