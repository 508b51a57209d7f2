"""How much slower than a plain loop is a round of fedtorch, of Flower and of pfl-research, with the same batches?

python benchmarks/speed.py --dir FOLDER [--workload a b c] [--only WAY ...] [--rounds N] [--repeat N]

The denominator is two plain processes that share memory. Each peer has an environment of its own in FOLDER, made with
pip as it is set up here and kept. All systems take turns in fresh processes; all are timed from outside, by what they
print when a round is over. The plain loop in one process adds the clients up in another order than in two: it shows how
far apart final weights are for that reason alone. As a user's run: with checkpoints, records and TensorBoard as by
default; the last column has it against the same without them, turn by turn.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.command import console_of, parser_of, write_figures
from benchmarks.measured import BEFORE, NOT_TIMED
from benchmarks.peers import HERE, PEERS, environment
from benchmarks.speed_ours import WAYS, WITHOUT, plan_of, workload_of
from benchmarks.speed_plan import ROUND_ENDED
from benchmarks.workloads import WORKLOADS

TICKS = os.sysconf("SC_CLK_TCK")
SAMPLE_S = 0.1
LIMIT = "plain"
KEPT = "with / without, CPU"
TITLES = {
    LIMIT: "plain loop, 2 processes that share memory",
    "plain-alone": "plain loop, 1 process",
    "plain-keeping": "plain loop, freed memory kept",
    "fedtorch": "fedtorch, server + 2",
    "fedtorch-keeping": "fedtorch, server + 2, freed memory kept",
    "fedtorch-working": "fedtorch, working server + 1",
    "fedtorch-working-keeping": "fedtorch, working server + 1, freed memory kept",
    "fedtorch-user": "fedtorch, server + 2, as a user's run",
    "fedtorch-working-user": "fedtorch, working server + 1, as a user's run",
    "pfl": "pfl-research, 2 processes",
    "flower": "Flower, Ray, 2 clients at a time",
}
THREE = ("fedtorch", "fedtorch-keeping", "fedtorch-user")
RANKS = {way: 3 if way in THREE else 2 for way in TITLES} | {"flower": 1, "plain-alone": 1}
"""Processes that are started."""
assert set(TITLES) == {*WAYS, *PEERS}


@dataclass
class Run:
    """One run of one system."""

    wall_s: list[float]
    """of each timed round"""
    cpu_s: list[float]
    """the same, processor time of all its processes"""
    memory_mb: float
    """most at a time of all its processes from the second round on, each page once; 0 where it was not asked for"""


@dataclass
class Figures:
    """What was measured of one system."""

    runs: list[Run] = field(default_factory=list)
    memory_mb: float = 0.0
    weights: np.ndarray | None = None
    """after the last round"""

    def wall(self) -> list[float]:
        """Seconds per round of each run."""
        return [sum(run.wall_s) / len(run.wall_s) for run in self.runs]

    def cpu(self) -> list[float]:
        """The same of processor time."""
        return [sum(run.cpu_s) / len(run.cpu_s) for run in self.runs]

    def beside(self, without: Figures) -> dict[str, Any]:
        """Ratios to the same that keeps nothing, each run's against that of the same turn."""
        kept = sorted(a / b for a, b in zip(self.wall(), without.wall(), strict=True))
        cpu = median(a / b for a, b in zip(self.cpu(), without.cpu(), strict=True))
        return {"kept_ratio": median(kept), "kept_range": [kept[0], kept[-1]], "kept_cpu_ratio": cpu}

    def summary(self, limit: Figures, without: Figures | None = None) -> dict[str, Any]:
        """Ratios to the limit, each run's against that of the same turn; and to the same that keeps nothing."""
        ratios = sorted(a / b for a, b in zip(self.wall(), limit.wall(), strict=True))
        ends = [np.asarray(each.weights, dtype=np.float64) for each in (self, limit)]
        beside = {} if without is None else self.beside(without)
        return {
            **beside,
            "round_s": median(self.wall()),
            "ratio": median(ratios),
            "ratio_range": [ratios[0], ratios[-1]],
            "cpu_ratio": median(a / b for a, b in zip(self.cpu(), limit.cpu(), strict=True)),
            "memory_mb": self.memory_mb,
            "difference": float(np.abs(ends[0] - ends[1]).max()),
        }


def descendants(process: int) -> list[int]:
    """The process and all below it that are alive."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):  # it has ended meanwhile
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = [process]
    for each in found:
        found += children.get(each, [])
    return found


def processor_s(processes: Sequence[int]) -> float:
    """Seconds of processor time of all threads, and of children that have ended."""
    total = 0
    for process in processes:
        try:
            words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, words[11:15]))
    return total / TICKS


def shared_mb(processes: Sequence[int]) -> float:
    """Memory with each page once (proportional set sizes)."""
    total = 0
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def command_of(way: str, folder: Path, letter: str, rounds: int, tiny: bool, torch_from: Path | None) -> list[str]:
    """What starts a system."""
    plan, final = str(folder / f"plan-{letter}.npz"), str(folder / f"{way}-{letter}.npy")
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={RANKS[way]}"]
    if way in WAYS:
        words = [str(HERE / "speed_ours.py"), way, letter, str(rounds), final]
        return [sys.executable, *launch, *words, *(["tiny"] if tiny else [])]
    python = str(environment(way, folder, torch_from))
    return [python, *(launch if RANKS[way] > 1 else []), str(HERE / f"speed_{way}.py"), plan, final]


def measure(command: Sequence[str], log: Path, with_memory: bool) -> Run:
    """Start a system and note the time whenever it says that a round is over.

    Raises:
        RuntimeError: it failed; where its words are.
    """
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    variables["THP_MEM_ALLOC_ENABLE"] = "1"  # large pages, which fedtorch asks torch for; so that all have them
    variables |= {"RAY_DEDUP_LOGS": "0", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    ends, most = [], 0.0
    with log.open("w") as words, subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=words, text=True, env=variables
    ) as process:  # fmt: skip
        ended = threading.Event()

        def sample() -> None:
            nonlocal most
            while not ended.wait(SAMPLE_S):
                if ends:
                    most = max(most, shared_mb(descendants(process.pid)))

        sampler = threading.Thread(target=sample, daemon=True)
        if with_memory:
            sampler.start()
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == ROUND_ENDED:
                ends.append((time.perf_counter(), processor_s(descendants(process.pid))))
        ended.set()
    if process.returncode or len(ends) <= NOT_TIMED:
        raise RuntimeError(f"{command[0]} ended with {process.returncode} after {len(ends)} rounds; see {log}")
    steps = list(zip(ends, ends[1:], strict=False))[BEFORE - 1 : -1]
    return Run([b[0] - a[0] for a, b in steps], [b[1] - a[1] for a, b in steps], most)


def compare(letter: str, ways: Sequence[str], args: Any, log: Any) -> dict[str, dict[str, Any]]:
    """All systems on a workload in turn, `args.repeat` times, then once more each for its memory."""
    rounds = args.rounds or WORKLOADS[letter].rounds
    plan_of(workload_of(letter, rounds, args.tiny)).write(args.dir / f"plan-{letter}.npz")
    commands = {way: command_of(way, args.dir, letter, rounds, args.tiny, args.torch_from) for way in ways}
    figures = {way: Figures() for way in ways}
    for turn in range(args.repeat + (not args.no_memory)):
        for way, command in commands.items():
            log(f"({letter}) {'memory' if turn == args.repeat else f'{turn + 1} of {args.repeat}'}: {way}")
            run = measure(command, args.dir / f"{way}-{letter}.log", with_memory=turn == args.repeat)
            if turn == args.repeat:
                figures[way].memory_mb = run.memory_mb
            else:
                figures[way].runs.append(run)
    for way, figure in figures.items():
        figure.weights = np.load(args.dir / f"{way}-{letter}.npy")
    return {way: figure.summary(figures[LIMIT], figures.get(WITHOUT.get(way, ""))) for way, figure in figures.items()}


def table_of(letter: str, summaries: dict[str, dict[str, Any]]) -> Table:
    """For people."""
    table = Table(title=f"({letter}) {WORKLOADS[letter].title}", title_justify="left")
    for name in (
        "system",
        "s/round",
        "ratio (range)",
        "CPU ratio",
        "memory MB",
        "largest difference",
        KEPT,
    ):
        table.add_column(name, justify="left" if name == "system" else "right")
    for way, each in summaries.items():
        low, high = each["ratio_range"]
        kept = ""
        if "kept_ratio" in each:
            least, most = each["kept_range"]
            kept = f"{each['kept_ratio']:.3f} ({least:.3f}-{most:.3f}), {each['kept_cpu_ratio']:.3f}"
        table.add_row(
            TITLES[way], f"{each['round_s']:.3f}", f"{each['ratio']:.2f} ({low:.2f}-{high:.2f})",
            f"{each['cpu_ratio']:.2f}", f"{each['memory_mb']:.0f}", f"{each['difference']:.1e}", kept,
        )  # fmt: skip
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; see the top of the file."""
    parser = parser_of(str(__doc__))
    parser.add_argument("--dir", type=Path, required=True, metavar="FOLDER", help="for environments, plans and weights")
    parser.add_argument("--workload", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--only", nargs="+", choices=list(TITLES), default=list(TITLES), help="beside the plain loop")
    parser.add_argument("--rounds", type=int, help="timed rounds in each run; by default 3 to 5")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each system, interleaved (default 3)")
    parser.add_argument("--no-memory", action="store_true", help="leave out the last turn, in which it is measured")
    parser.add_argument("--tiny", action="store_true", help="shrink models and data: does it run? not for timing")
    parser.add_argument("--torch-from", type=Path, metavar="SITE_PACKAGES", help="of torch and transformers")
    args = parser.parse_args(arguments)
    args.dir = args.dir.resolve()
    args.dir.mkdir(parents=True, exist_ok=True)
    console = console_of(140)
    ways = [way for way in TITLES if way == LIMIT or way in args.only]
    found = {}
    for letter in args.workload:
        found[letter] = compare(letter, ways, args, console.log)
        console.print(table_of(letter, found[letter]))
    write_figures(args.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
