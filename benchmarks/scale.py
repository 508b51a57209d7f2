"""Rounds as `--dry-run --nodes` predicts them beside rounds as measured; meetings and headers of many light ranks.

python benchmarks/scale.py [--millions 1 8 30] [--ranks 2 3 5 9] [--gbit 1 10 none] [--light 2 8 16 32] [--repeat N]
                           [--json OUT] [--paper 8 64 512]

Constants are measured first, on this machine. All ranks are on it and share its cores and one wire: loopback in a
network namespace of its own (Linux, root); `none`: as it is. Rank 0 serves, every other rank trains two clients of one
row. Measured seconds are the median of the rounds of all repetitions, as constants are medians.
With --paper nothing but constants is measured: the exchange of a model of 124 M numbers on so many ranks, 8 on each
node of 8 cores and a wire of 25 Gbit/s, as it is and with one sum and one copy per node.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks.command import console_of, parser_of, write_figures
from benchmarks.measured import time_runner
from benchmarks.processes import run_ranks
from benchmarks.sparse import _wire
from benchmarks.wires import limited, why_not
from benchmarks.workloads import WORKLOADS, Workload, shrunk
from fedtorch.planning.bench import Measured, measure, read, step_key, write
from fedtorch.planning.cost_model import Constants, Seconds, Site, memory, seconds, small
from fedtorch.planning.probe import run as run_light
from fedtorch.planning.round_work import RoundWork
from fedtorch.planning.scale import model_size, round_work
from fedtorch.planning.step_time import training_seconds
from fedtorch.setup.build import BuiltRun, build

SHAPES = {0.0: (16, 1), 1.0: (64, 2), 8.0: (192, 4), 30.0: (448, 6)}
"""Millions of numbers, about -> width and layers; 0: of a test."""
WITHIN = 0.25
PAPER_NUMBERS, PAPER_GBIT, PER_NODE = 124_439_808, 25.0, 8
TINY = {"millions": [0.0], "ranks": [2], "gbit": ["none"], "light": [2, 3], "repeat": 1}


def federation(millions: float, ranks: int) -> Workload:
    """Two clients of one row on every rank but the server's, and a GPT-2 of so many numbers."""
    width, layers = SHAPES[millions]
    usual = WORKLOADS["c"] if millions else shrunk(WORKLOADS["c"])
    task = replace(usual.task, sizes=(1,) * 2 * (ranks - 1), width=width, layers=layers, heads=2)
    if 0 < millions < 30:
        task = replace(task, vocabulary=12_000 if millions == 1 else 32_000)
    return replace(usual, task=task, per_round="all")


def built_of(workload: Workload, ranks: int) -> BuiltRun:
    """The run as each rank builds it."""
    return build(workload.config(Path("unused"), rounds=3), num_ranks=ranks, rank=0)


def measured_of(millions: float, constants: Constants | None = None) -> Measured:
    """Constants of this machine, unless they are given, and of a step; where this process is a rank like others."""
    built = built_of(federation(millions, 2), 2)
    if constants is None:
        return measure(built, lambda text: print(f"constants: {text}", flush=True))
    return Measured(constants, {step_key(built): training_seconds(built)})


def measure_constants(millions: Sequence[float], path: Path) -> None:
    """Of this machine, and of a step of each model, into the file.

    Each in a process like a rank's: a step takes longer or less long by how memory comes and what was freed before.
    """
    constants = None
    for size in millions:
        found: Measured = run_ranks(measured_of, 1, size, constants)[0].result
        constants = found.constants
        write(path, found)


def compare(millions: float, ranks: int, gbit: str, constants: Path, repeat: int) -> dict[str, Any]:
    """One record: predicted and measured."""
    workload, measured = federation(millions, ranks), read(constants)
    built = built_of(workload, ranks)
    work = round_work(built, ranks, measured.steps[step_key(built)])
    limit = math.inf if gbit == "none" else float(gbit) * 1e9 / 8
    site = Site(ranks, ranks, limit, measured.constants.cores, is_hub=True)
    spent = seconds(work, site, measured.constants)
    ended = [run_ranks(partial(time_runner, workload, shared_memory="never"), ranks) for _ in range(repeat)]
    rounds = [second for ends in ended for second in ends[0].result.round_s]
    moved = [end.result.moved for end in ended[0]]
    counted = [[int(m.get("aggregate/physical_up", 0)), int(m.get("broadcast/physical_down", 0))] for m in moved]
    held = [memory(work, model_size(built), measured.constants, rank) for rank in range(ranks)]
    return {
        "gbit": gbit,
        "numbers": work.numbers,
        "ranks": ranks,
        "way": work.way,
        "predicted_s": spent.total,
        "parts_s": asdict(spent),
        "measured_s": median(rounds),
        "rounds_s": rounds,
        "phases_s": ended[0][0].result.phases_s,
        "bytes_equal": counted == [list(work.counted(rank)) for rank in range(ranks)],
        "predicted_mb": [held[rank] / 2**20 for rank in (0, -1)],
        "measured_mb": [ended[0][rank].result.built_mb + ended[0][rank].result.held_mb for rank in (0, -1)],
    }


def measure_over(gbit: str, words: Sequence[str]) -> list[dict[str, Any]]:
    """The records of this program with these options where a wire carries so many Gbit/s.

    Raises:
        SystemExit: it failed there; with its exit code.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, __file__, *words, "--inside", gbit, "--json", str(out)]
        command = command if gbit == "none" else limited(float(gbit), command)
        quiet = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}  # a network of its own has no names for its addresses
        done = subprocess.run(command, stdout=subprocess.DEVNULL, env=quiet)
        if done.returncode:
            raise SystemExit(done.returncode)
        records: list[dict[str, Any]] = json.loads(out.read_text())
    return records


def meetings(counts: Sequence[int], constants: Constants) -> list[dict[str, Any]]:
    """Seconds of a meeting and of a header on so many light ranks, beside what the line through two and 16 says."""
    records = []
    for ranks in counts:
        found = run_light(ranks, small=True)
        record: dict[str, Any] = {"ranks": ranks}
        for name in ("meeting", "header"):
            predicted = small(ranks, getattr(constants, f"{name}_s"), getattr(constants, f"{name}_rank_s"))
            record[name] = {"predicted_s": predicted, "measured_s": median(rank[name][0] for rank in found)}
        records.append(record)
    return records


def on_paper(ranks: int, constants: Constants) -> dict[str, Any]:
    """Seconds of an exchange on nodes of 8 ranks, and what the busiest wire carries, in MB.

    per_node: the leaders of nodes exchange among themselves, and each with its own node's ranks, one after the other.
    """
    nodes = ranks // PER_NODE

    def of(count: int, per_node: int) -> tuple[RoundWork, Site, Seconds]:
        # two clients to a rank, so that sums travel and not updates
        work = RoundWork(PAPER_NUMBERS, (0, *[2] * (count - 1)), (0.0,) * count)
        site = Site(count, per_node, PAPER_GBIT * 1e9 / 8, PER_NODE)
        return work, site, seconds(work, site, constants)

    def exchange(spent: Seconds) -> float:
        return spent.down + spent.up + spent.meetings + spent.headers

    work, site, spent = of(ranks, PER_NODE)
    inside = of(PER_NODE, PER_NODE)[2]
    leaders, their_site, outside = of(nodes, 1)
    return {
        "nodes": nodes,
        "parts_s": asdict(spent),
        "exchange_s": exchange(spent),
        "down_mb": site.carried(work.down) / 1e6,
        "up_mb": site.carried(work.up) / 1e6,
        "per_node_s": exchange(inside) + (exchange(outside) if nodes > 1 else 0.0),
        "per_node_down_mb": their_site.carried(leaders.down) / 1e6,
        "per_node_up_mb": their_site.carried(leaders.up) / 1e6,
    }


def show_paper(records: Sequence[dict[str, Any]], console: Console) -> None:
    """The table of --paper."""
    table = Table(title="an exchange of 124 M numbers, 8 ranks and cores a node, 25 Gbit/s", title_justify="left")
    for name in ("nodes", "broadcast s", "sum s", "meetings s", "headers s", "exchange s", "wire MB down", "up"):
        table.add_column(name, justify="right")
    for name in ("one per node: s", "wire MB down", "up"):
        table.add_column(name, justify="right")
    for record in records:
        parts = [record["parts_s"][name] for name in ("down", "up", "meetings", "headers")]
        cells = [str(record["nodes"]), *(f"{part:.2f}" for part in parts), f"{record['exchange_s']:.2f}"]
        cells += [f"{record[name]:,.0f}" for name in ("down_mb", "up_mb")] + [f"{record['per_node_s']:.2f}"]
        table.add_row(*cells, *(f"{record[f'per_node_{name}_mb']:,.0f}" for name in ("down", "up")))
    console.print(table)


def show(records: Sequence[dict[str, Any]], light: Sequence[dict[str, Any]], console: Console) -> None:
    """Both tables."""
    table = Table(title="a round, predicted and measured", title_justify="left")
    for name in ("numbers", "Gbit/s", "ranks", "sums by", "predicted s", "measured s", "error", "bytes"):
        table.add_column(name, justify="right")
    for name in ("server MB", "worker MB"):
        table.add_column(f"{name}, predicted / measured", justify="right")
    for record in records:
        error = record["predicted_s"] / record["measured_s"] - 1
        cells = [f"{record['numbers']:,}", record["gbit"], str(record["ranks"]), record["way"]]
        cells += [f"{record['predicted_s']:.4f}", f"{record['measured_s']:.4f}", f"{error:+.0%}"]
        cells.append("equal" if record["bytes_equal"] else "DIFFER")
        pairs = zip(record["predicted_mb"], record["measured_mb"], strict=True)
        table.add_row(*cells, *(f"{ours:.0f} / {theirs:.0f}" for ours, theirs in pairs))
    console.print(table)
    errors = [abs(record["predicted_s"] / record["measured_s"] - 1) for record in records]
    if errors:
        inside = sum(error <= WITHIN for error in errors)
        console.print(f"{inside} of {len(errors)} within {WITHIN:.0%}, the worst {max(errors):.0%}")
    table = Table(title="light ranks, ms", title_justify="left")
    for name in ("ranks", "meeting predicted", "measured", "header predicted", "measured"):
        table.add_column(name, justify="right")
    for record in light:
        both = [record[name][kind] for name in ("meeting", "header") for kind in ("predicted_s", "measured_s")]
        table.add_row(str(record["ranks"]), *(f"{1e3 * each:.2f}" for each in both))
    console.print(table)


def options() -> argparse.ArgumentParser:
    """Those of the command line."""
    parser = parser_of(__doc__)
    known = [size for size in SHAPES if size]
    parser.add_argument("--millions", type=float, nargs="+", choices=known, default=known, help="numbers of the models")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 5, 9], help="numbers of ranks")
    parser.add_argument("--gbit", nargs="+", type=_wire, default=["1", "10", "none"], metavar="N|none", help="wires")
    parser.add_argument("--light", type=int, nargs="*", default=[2, 8, 16, 32], help="numbers of light ranks")
    parser.add_argument("--repeat", type=int, default=2, help="runs of each case (default 2)")
    parser.add_argument("--constants", type=Path, help="take them from this file in place of measuring them")
    parser.add_argument("--paper", type=int, nargs="+", metavar="RANKS", help="an exchange on so many ranks, computed")
    parser.add_argument("--inside", type=_wire, help="the wire that this process has already")
    parser.add_argument("--tiny", action="store_true", help="one small model: does it run? not for timing")
    return parser


def measure_all(args: argparse.Namespace, constants: Path, console: Console) -> dict[str, Any]:
    """Rounds over every wire, and light ranks; all figures, with the constants that were taken."""
    words = ["--constants", str(constants), "--repeat", str(args.repeat), *(["--tiny"] if args.tiny else [])]
    for name in () if args.tiny else ("millions", "ranks"):
        words += [f"--{name}", *map(str, getattr(args, name))]
    records = []
    for gbit in args.gbit:
        console.log("no limit" if gbit == "none" else f"a wire of {gbit} Gbit/s")
        records += measure_over(gbit, words)
    light = meetings(args.light, read(constants).constants)
    return {"constants": json.loads(constants.read_text()), "rounds": records, "light": light}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; see the top of the file."""
    parser = options()
    args = parser.parse_args(arguments)
    if args.tiny:
        vars(args).update(TINY)
    console = console_of(180)
    if args.inside:
        cases = [(size, ranks) for size in args.millions for ranks in args.ranks]
        write_figures(args.json, [compare(*case, args.inside, args.constants, args.repeat) for case in cases])
        return 0
    if set(args.gbit) != {"none"} and (reason := why_not()):
        parser.error(f"--gbit {reason}")
    with tempfile.TemporaryDirectory() as folder:
        constants = args.constants or Path(folder) / "constants.json"
        if args.constants is None:
            measure_constants(args.millions, constants)
        if args.paper:
            records = [on_paper(ranks, read(constants).constants) for ranks in args.paper]
            show_paper(records, console)
            write_figures(args.json, records)
            return 0
        figures = measure_all(args, constants, console)
    show(figures["rounds"], figures["light"], console)
    write_figures(args.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
