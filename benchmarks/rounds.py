"""How much slower than a plain PyTorch loop are the runner's rounds? Every figure printed is measured in this run.

python benchmarks/rounds.py [--workload a|b|c|memory|startup|all] [--rounds N] [--repeat N] [--json OUT]
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks.command import console_of, parser_of, write_figures
from benchmarks.measured import Timing, time_plain, time_runner
from benchmarks.processes import Ended, run_ranks
from benchmarks.workloads import WORKLOADS, Workload, hosting, shrunk
from fedtorch.config.schema import CheckpointConfig

HOSTED = (4, 16, 64)
START_ONE = "import torch; from transformers import T5ForConditionalGeneration"


@dataclass(frozen=True)
class Case:
    """One way to run a workload."""

    name: str
    ranks: int
    against: str | None = None
    """the case it is measured against; None for a limit"""
    aim: float | None = None
    """most time in units of `against`"""
    options: dict[str, Any] | None = None
    """of the runner; None: without our code"""
    workload: Workload | None = None
    """in place of the others'"""

    def run(self, workload: Workload) -> list[Ended]:
        """One repetition, in fresh processes; by rank."""
        workload = self.workload or workload
        if self.options is None:
            return run_ranks(partial(time_plain, workload), self.ranks)
        return run_ranks(partial(time_runner, workload, **self.options), self.ranks)


def cases(letter: str) -> list[Case]:
    """What is compared for a workload, in the order in which it is run."""
    exchange_bound = letter == "c"
    found = [
        Case("plain, 1 process", 1),
        Case("runner, 1 process", 1, "plain, 1 process", options={}),
        Case("plain, 2 processes", 2),
        Case("runner, server + 2 workers", 3, "plain, 2 processes", aim=1.3 if exchange_bound else 1.02, options={}),
    ]
    if exchange_bound:
        working = {"server_works": True}
        sockets = {"shared_memory": "never"}
        found.append(Case("the same, over sockets", 3, "runner, server + 2 workers", options=sockets))
        found.append(Case("runner, working server + 1", 2, "plain, 2 processes", aim=1.15, options=working))
    each = {"all kept": CheckpointConfig(every=1), "all kept, overlapping": CheckpointConfig(every=1, overlap=True)}
    for name, kept in (each | {"as a user's run": CheckpointConfig()}).items():
        options = {"kept": kept}
        found.append(Case(f"server + 2 workers, {name}", 3, "runner, server + 2 workers", aim=1.03, options=options))
    return found


@dataclass
class Figures:
    """What was measured of one case."""

    case: Case
    wall_s: list[float] = field(default_factory=list)
    """per repetition the mean of its rounds"""
    cpu_s: list[float] = field(default_factory=list)
    """the same of all ranks together"""
    fastest_s: list[float] = field(default_factory=list)
    """per round the shortest of the repetitions"""
    last: list[Ended] = field(default_factory=list)
    """the last repetition, by rank"""

    def add(self, ended: list[Ended]) -> None:
        """One more repetition."""
        timings: list[Timing] = [end.result for end in ended]
        rounds = timings[0].round_s
        self.wall_s.append(sum(rounds) / len(rounds))
        self.cpu_s.append(sum(sum(timing.cpu_s) for timing in timings) / len(rounds))
        self.fastest_s = [min(pair) for pair in zip(rounds, self.fastest_s or rounds, strict=True)]
        self.last = ended

    def summary(self, reference: Figures | None) -> dict[str, Any]:
        """All figures by name, for the tables and the JSON file."""
        phases = [{k: round(v, 4) for k, v in end.result.phases_s.items()} for end in self.last]
        record: dict[str, Any] = {
            "case": self.case.name,
            "round_s": median(self.wall_s),
            "fastest_round_s": sum(self.fastest_s) / len(self.fastest_s),
            "cpu_s": median(self.cpu_s),
            "phases_s": phases,
            "moved_bytes": [end.result.moved for end in self.last],
            "peak_mb": [round(end.peak_mb) for end in self.last],
            "grown_mb": [round(end.grown_mb) for end in self.last],
        }
        if reference is not None:
            ratios = sorted(one / other for one, other in zip(self.wall_s, reference.wall_s, strict=True))
            record |= {
                "against": reference.case.name,
                "aim": self.case.aim,
                "ratio": median(ratios),
                "ratio_range": [ratios[0], ratios[-1]],
                "ratio_of_fastest": sum(self.fastest_s) / sum(reference.fastest_s),
                "cpu_ratio": median(self.cpu_s) / median(reference.cpu_s),
            }
        return record


def measure_rounds(
    letter: str, workload: Workload, compared: Sequence[Case], repeat: int, console: Console
) -> list[dict[str, Any]]:
    """Run every case `repeat` times in turn (A B C A B C ...), so that slow minutes hit all of them."""
    figures = {case.name: Figures(case) for case in compared}
    for number in range(repeat):
        for name, figure in figures.items():
            console.log(f"({letter}) repetition {number + 1} of {repeat}: {name}")
            figure.add(figure.case.run(workload))
    records = [f.summary(figures.get(f.case.against or "")) for f in figures.values()]
    _show_rounds(f"({letter}) {workload.title}", records, console)
    return records


def _show_rounds(title: str, records: Sequence[dict[str, Any]], console: Console) -> None:
    table = Table(title=title, title_justify="left")
    for name in ("case", "s/round", "CPU s/round", "against", "ratio (range)", "of fastest", "CPU ratio", "aim"):
        table.add_column(name, justify="left" if name in ("case", "against") else "right")
    for record in records:
        cells = [record["case"], f"{record['round_s']:.3f}", f"{record['cpu_s']:.3f}"]
        if "ratio" in record:
            low, high = record["ratio_range"]
            aim = "" if record["aim"] is None else f"{record['aim']:.2f}"
            cells += [record["against"], f"{record['ratio']:.3f} ({low:.2f}-{high:.2f})"]
            cells += [f"{record['ratio_of_fastest']:.3f}", f"{record['cpu_ratio']:.3f}", aim]
        table.add_row(*cells)
    console.print(table)
    detail = Table(title="of the last repetition, mean per round and rank")
    for name in ("case", "rank", "seconds per phase", "MB up", "MB down", "peak MB", "above start"):
        detail.add_column(name, justify="left" if name in ("case", "seconds per phase") else "right")
    for record in records:
        for rank, phases in enumerate(record["phases_s"]):
            moved = record["moved_bytes"][rank]
            detail.add_row(
                record["case"] if rank == 0 else "",
                str(rank),
                " ".join(f"{name} {seconds:.3f}" for name, seconds in phases.items() if seconds >= 0.0005),
                *(f"{moved.get(f'physical_{way}', 0.0) / 1e6:.1f}" for way in ("up", "down")),
                str(record["peak_mb"][rank]),
                str(record["grown_mb"][rank]),
            )
    console.print(detail)


def measure_memory(console: Console) -> list[dict[str, Any]]:
    """Peak memory of a server and the one worker that hosts 4, 16 and 64 clients."""
    table = Table(title="memory above the start by hosted clients, BERT of 1.1 M parameters (4.3 MB)")
    for name in ("clients", "update_memory_mb", "server peak MB", "worker peak MB", "worker MB held"):
        table.add_column(name, justify="right")
    records = []
    for limit in (1024, 16):
        for clients in HOSTED:
            ended = run_ranks(partial(time_runner, hosting(clients), update_memory_mb=limit), 2)
            record = {
                "clients": clients,
                "update_memory_mb": limit,
                "grown_mb": [round(end.grown_mb) for end in ended],
                "held_mb": [round(end.result.held_mb) for end in ended],
            }
            records.append(record)
            table.add_row(str(clients), str(limit), *map(str, record["grown_mb"]), str(record["held_mb"][1]))
    console.print(table)
    return records


def measure_startup(repeat: int, console: Console) -> list[dict[str, Any]]:
    """Seconds from the launch of three ranks until they have met, against importing torch and transformers."""
    program = str(Path(__file__).with_name("rank_start.py"))
    cases = {
        "torchrun": ([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=3", program], 2.0),
        "launchers.local": ([sys.executable, program, "3"], 1.3),
    }
    one, found = list[float](), {name: list[float]() for name in cases}
    for _ in range(repeat):
        one.append(_seconds([sys.executable, "-c", START_ONE]))
        for name, (command, _aim) in cases.items():
            found[name].append(_seconds(command))
    records = [_startup(name, one, found[name], aim) for name, (_, aim) in cases.items()]
    table = Table(title="start-up")
    for head in ("3 ranks under", "import once, s", "until they have met, s", "ratio (range)", "of fastest", "aim"):
        table.add_column(head, justify="left" if head == "3 ranks under" else "right")
    for record in records:
        low, high = record["ratio_range"]
        spread, fastest = f"{record['ratio']:.2f} ({low:.2f}-{high:.2f})", f"{record['ratio_of_fastest']:.2f}"
        seconds = [f"{record[key]:.2f}" for key in ("import_s", "met_s")]
        table.add_row(record["launcher"], *seconds, spread, fastest, f"{record['aim']:.2f}")
    console.print(table)
    return records


def _startup(name: str, one: list[float], met: list[float], aim: float) -> dict[str, Any]:
    ratios = sorted(b / a for a, b in zip(one, met, strict=True))
    return {
        "launcher": name,
        "import_s": median(one),
        "met_s": median(met),
        "ratio": median(ratios),
        "ratio_range": [ratios[0], ratios[-1]],
        "ratio_of_fastest": min(met) / min(one),
        "aim": aim,
    }


def _seconds(command: Sequence[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; see the top of the file."""
    parser = parser_of(__doc__)
    chosen = (*WORKLOADS, "memory", "startup", "all")
    parser.add_argument("--workload", choices=chosen, default="all", help="what to measure; see benchmarks/speed.md")
    parser.add_argument("--rounds", type=int, help="timed rounds in each run; by default 3 to 5")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each case, interleaved (default 3)")
    parser.add_argument("--tiny", action="store_true", help="shrink models and data: does it run? not for timing")
    args = parser.parse_args(arguments)
    console = console_of(150)
    results: dict[str, list[dict[str, Any]]] = {}
    for letter, workload in WORKLOADS.items():
        if args.workload in (letter, "all"):
            workload = shrunk(workload) if args.tiny else workload
            workload = replace(workload, rounds=args.rounds or workload.rounds)
            results[letter] = measure_rounds(letter, workload, cases(letter), args.repeat, console)
    if args.workload in ("memory", "all"):
        results["memory"] = measure_memory(console)
    if args.workload in ("startup", "all"):
        results["startup"] = measure_startup(args.repeat, console)
    write_figures(args.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
