"""How much slower are rounds with client-level privacy? With and without in turn, every figure measured in this run.

python benchmarks/private_rounds.py [--case adapter|t5|large|all] [--ranks 1 3] [--rounds N] [--repeat N] [--json OUT]
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
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from rich.table import Table
from torch import nn

from benchmarks.command import console_of, parser_of, write_figures
from benchmarks.measured import NOT_TIMED, Timing
from benchmarks.processes import Ended, run_ranks
from benchmarks.workloads import WORKLOADS, RandomTokens, Workload, shrunk
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.local import LocalCommunicator
from fedtorch.config.schema import ClientConfig, ClientsConfig, Config, PrivacyConfig
from fedtorch.models.adapters.lora import add_adapter
from fedtorch.models.adapters.settings import Adapter
from fedtorch.rounds.runner import Runner
from fedtorch.setup.build import build


@dataclass(frozen=True)
class WithAdapter(RandomTokens):
    """The same model, frozen, with a LoRA adapter on all its matrices."""

    rank: int = 10

    def build_model(self, seed: int) -> nn.Module:
        """The base of random weights and its adapter."""
        model = super().build_model(seed)
        add_adapter(model, Adapter(r=self.rank, targets=("c_attn", "c_proj", "c_fc")), seed)
        return model


ADAPTER = Workload(
    title="8 clients, adapter of 0.29 M numbers on a GPT-2 of 10 M, AdamW",
    task=WithAdapter("gpt2", (8,) * 8, length=32, vocabulary=8000, width=320, layers=6, heads=5),
    client=ClientConfig(batch_size=8),
    per_round="all",
    rounds=5,
)
CASES = {"adapter": ADAPTER, "t5": WORKLOADS["a"], "large": WORKLOADS["c"]}
KINDS = ("without", "with")
"""privacy"""


def config_of(workload: Workload, folder: Path, rounds: int, kind: str, noise: str) -> Config:
    """Every client takes part in every round of both, with equal weights; the exchange is what privacy needs."""
    config = replace(workload.config(folder, rounds=rounds, exchange="send"), algorithm=FedAvg(weights="equal"))
    if kind == "without":
        return config
    promise = PrivacyConfig("client", clip=0.5, noise_multiplier=1.0, delta=1e-3, noise=noise)  # type: ignore[arg-type]
    return replace(config, clients=ClientsConfig(sampling="poisson", rate=1.0), privacy=promise)


def time_rounds(workload: Workload, kind: str, noise: str = "normal") -> Timing:
    """Run the workload with as many ranks as there are, as a user's run is; this rank's timing."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder = Path(tempfile.gettempdir()) / f"fedtorch-private-{os.environ['MASTER_PORT']}"
    built = build(config_of(workload, folder, workload.rounds + NOT_TIMED, kind, noise), num_ranks=size, rank=rank)
    comm: Communicator = (
        LocalCommunicator(built.names) if size == 1 else DistributedCommunicator.join(built.names, timeout_s=120)
    )
    ends = [(time.perf_counter(), time.process_time())]
    try:
        with comm:
            comm.preflight(built.facts())
            checkpoints = Checkpoints(folder / "checkpoints", keep=1)
            runner = Runner(built.components(comm, checkpoints, stop=lambda: False))
            one_round = runner._one_round

            def timed() -> None:  # not a tracker, which the server alone may have: it is told of releases
                one_round()
                ends.append((time.perf_counter(), time.process_time()))

            runner._one_round = timed  # type: ignore[method-assign]
            runner.run()
    finally:
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
    took = [(end[0] - start[0], end[1] - start[1]) for start, end in pairwise(ends)][1 : 1 + workload.rounds]
    return Timing([wall for wall, _ in took], [cpu for _, cpu in took])


def alternate(workload: Workload, rounds: int, noise: str) -> dict[str, list[tuple[float, float]]]:
    """A run of each kind in this one process, a round of one after a round of the other: (seconds, CPU seconds) each.

    The first round of both is not timed.
    """
    runners: dict[str, Runner] = {}
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as scratch:
        for kind in KINDS:
            folder = Path(scratch) / kind
            built = build(config_of(workload, folder, rounds + NOT_TIMED, kind, noise), num_ranks=1, rank=0)
            checkpoints = Checkpoints(folder / "checkpoints", keep=1)
            components = built.components(LocalCommunicator(built.names), checkpoints, stop=lambda: False)
            runners[kind] = Runner(components)
            runners[kind]._share_initial_weights()  # what `run` does before its first round
        for number in range(rounds + 1):
            for kind in KINDS if number % 2 else KINDS[::-1]:
                begun = time.perf_counter(), time.process_time()
                runners[kind]._one_round()
                if number:
                    found[kind].append((time.perf_counter() - begun[0], time.process_time() - begun[1]))
    return found


def in_processes(workload: Workload, ranks: int, repeat: int, noise: str) -> dict[str, list[tuple[float, float]]]:
    """Runs in fresh processes, without, with, without, ...: the mean round of each, CPU seconds of all ranks."""
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for _ in range(repeat):
        for kind in KINDS:
            ended: list[Ended] = run_ranks(partial(time_rounds, workload, kind, noise), ranks)
            rounds = len(ended[0].result.round_s)
            wall, cpu = sum(ended[0].result.round_s), sum(sum(end.result.cpu_s) for end in ended)
            found[kind].append((wall / rounds, cpu / rounds))
    return found


def measure(workload: Workload, ranks: int, repeat: int, noise: str) -> dict[str, Any]:
    """Ratios of each pair, of seconds and of processor seconds; with one rank by turns in one process."""
    torch.set_num_threads(1)
    found = in_processes(workload, ranks, repeat, noise) if ranks > 1 else alternate(workload, repeat, noise)
    record: dict[str, Any] = {"case": workload.title, "ranks": ranks, "noise": noise, "pairs": len(found["with"])}
    for place, name in enumerate(("s", "cpu_s")):
        figures = {kind: [pair[place] for pair in found[kind]] for kind in KINDS}
        ratios = sorted(b / a for a, b in zip(figures["without"], figures["with"], strict=True))
        record |= {f"{kind}_{name}": median(figures[kind]) for kind in KINDS}
        record |= {f"{name}_ratio": median(ratios), f"{name}_range": [ratios[0], ratios[-1]]}
        record[f"{name}_ratio_of_fastest"] = min(figures["with"]) / min(figures["without"])
    return record


def table_of(records: Sequence[dict[str, Any]]) -> Table:
    """A row for each case and number of ranks."""
    table = Table(title="a round with privacy against one without", title_justify="left")
    heads = ("case", "ranks", "noise", "s without", "s with", "ratio (range)", "of fastest", "CPU s without",
             "CPU s with", "CPU ratio (range)", "of fastest")  # fmt: skip
    for head in heads:
        table.add_column(head, justify="left" if head in ("case", "noise") else "right")
    for record in records:
        cells = [record["case"], str(record["ranks"]), record["noise"]]
        for name in ("s", "cpu_s"):
            low, high = record[f"{name}_range"]
            cells += [f"{record[f'{kind}_{name}']:.3f}" for kind in KINDS]
            cells.append(f"{record[f'{name}_ratio']:.3f} ({low:.2f}-{high:.2f})")
            cells.append(f"{record[f'{name}_ratio_of_fastest']:.3f}")
        table.add_row(*cells)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; see the top of the file."""
    parser = parser_of(__doc__)
    parser.add_argument("--case", choices=(*CASES, "all"), default="all")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 3], help="of each run (default 1 and 3)")
    parser.add_argument("--rounds", type=int, help="timed rounds in each run of several ranks; by default 3 to 5")
    parser.add_argument("--repeat", type=int, default=5, help="pairs: of rounds with one rank, else of runs")
    parser.add_argument("--noise", choices=("normal", "discrete"), default="normal")
    parser.add_argument("--tiny", action="store_true", help="shrink models and data: does it run? not for timing")
    args = parser.parse_args(arguments)
    console, records = console_of(170), []
    for name, workload in CASES.items():
        if args.case in (name, "all"):
            workload = shrunk(workload) if args.tiny else workload
            workload = replace(workload, rounds=args.rounds or workload.rounds)
            for ranks in args.ranks:
                console.log(f"{name}, {ranks} rank{'s' * (ranks > 1)}")
                records.append(measure(workload, ranks, args.repeat, args.noise))
    console.print(table_of(records))
    write_figures(args.json, records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
