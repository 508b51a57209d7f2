"""Rounds over a long wire: how many seconds one takes where every packet to one worker takes its time.

python benchmarks/latency.py [--kinds plain full] [--before COMMIT] [--trips 1 50 300] [--rounds 6] [--json OUT]

The machines are namespaces of this one, and the wire between them is a process that holds every packet back (Linux,
root, /dev/net/tun). The server and all workers but the last are on the first machine, the last worker is on the second.
The job is `demo/first` with a smaller model, so that bytes cost nothing: `plain` rounds train and combine, `full` ones
are evaluated and saved too. Two further kinds are `diloco/streamed` with two replicas, whose fragment is due 90 steps
before a round's end: a `delayed` one is sent at the end, an `overlapped` one travels meanwhile. The median of all
rounds but the first two counts. COMMIT is run beside this tree.
"""

from __future__ import annotations

import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks.command import console_of, parser_of, write_figures
from benchmarks.wires import Machine, why_not

ROOT = Path(__file__).resolve().parents[1]
TINY = {"rounds": 3, "ranks": 2}
SMALL = ["task.model={d_model: 8, d_ff: 8, d_kv: 4, num_heads: 2}", "task.max_train=16", "eval.on_start=false"]
PLAIN = ["eval.every=0", "checkpoint.every=1000"]
ROWS = ["docs/examples/openfedllm_rows.py", "made"]
DELAYED = [*PLAIN, "client.steps=100", "algorithm.delay=90", "task.data.clients={iid: 2}"]
KINDS = {
    "plain": ("demo/first", [*SMALL, *PLAIN]),
    "full": ("demo/first", [*SMALL, "eval.every=1", "checkpoint.every=1"]),
    "delayed": ("diloco/small/streamed", DELAYED),
    "overlapped": ("diloco/small/streamed", [*DELAYED, "system.sum_scale=previous"]),
}
"""Name of a job -> its config and what is changed in that."""


def job(tree: Path, milliseconds: float, kind: str, args: Any) -> list[float]:
    """Seconds of each round but the first two of a job of the package in `tree`.

    Raises:
        SystemExit: a rank failed.
    """
    with tempfile.TemporaryDirectory() as folder, Machine("10.84.0.1") as near, Machine("10.84.0.2") as far:
        near.connect_far(far, milliseconds / 2)
        config, changes = KINDS[kind]
        sets = [f"run.dir={folder}/run", f"rounds={args.rounds}", *changes]
        if config.startswith("diloco"):
            subprocess.run([sys.executable, *ROWS, folder], cwd=tree, check=True, stdout=subprocess.DEVNULL)
            sets.append(f"task.data.source={folder}/small_sft.jsonl")
        words = [word for each in sets for word in ("--set", each)]
        command = [sys.executable, "-m", "fedtorch.main", "--config", f"configs/{config}.yaml", *words]
        last, started = args.ranks - 1, []
        for rank in range(args.ranks):
            there = last if rank < last else 1
            environ = {"RANK": rank, "WORLD_SIZE": args.ranks, "LOCAL_RANK": rank % last, "LOCAL_WORLD_SIZE": there}
            environ |= {"MASTER_ADDR": near.address, "MASTER_PORT": 29500, "OMP_NUM_THREADS": 1, "PYTHONPATH": tree}
            quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR", "FEDTORCH_JOB_SECRET": "known to all ranks of the job"}
            words = (near if rank < last else far).command(command)
            everything = {**os.environ, **quiet, **{name: str(value) for name, value in environ.items()}}
            started.append(subprocess.Popen(words, env=everything, cwd=tree, stdout=subprocess.DEVNULL))
        if any(process.wait() for process in started):
            raise SystemExit("a rank failed")
        records = map(json.loads, Path(folder, "run", "metrics.jsonl").read_text().splitlines())
        ends = [record["time"] for record in records if record["kind"] == "round"]
    return [after - before for before, after in zip(ends[1:], ends[2:], strict=False)]


def measure(trees: dict[str, Path], args: Any, console: Console) -> list[dict[str, Any]]:
    """A record per job; the trees take turns."""
    records = []
    for milliseconds in args.trips:
        for kind in args.kinds:
            for name, tree in trees.items():
                console.log(f"{kind} rounds, {milliseconds:g} ms there and back, {name}")
                seconds = job(tree, milliseconds, kind, args)
                records.append({"kind": kind, "trip_ms": milliseconds, "tree": name, "seconds": seconds})
    return records


def show(records: Sequence[dict[str, Any]], names: Sequence[str], args: Any, console: Console) -> None:
    """Seconds of a round, and how many trips they are more than with the shortest wire."""
    table = Table(title=f"{args.ranks} ranks, one of them far away: s a round", title_justify="left")
    for heading in ("round", "there and back, ms", *(text for name in names for text in (f"{name}: s", "trips"))):
        table.add_column(heading, justify="right")
    found = {(r["kind"], r["trip_ms"], r["tree"]): statistics.median(r["seconds"]) for r in records}
    shortest = min(args.trips)
    for kind in args.kinds:
        for trip in args.trips:
            cells = []
            for name in names:
                seconds, least = found[kind, trip, name], found[kind, shortest, name]
                trips = f"{(seconds - least) / (trip - shortest) * 1e3:.1f}" if trip > shortest else ""
                cells += [f"{seconds:.3f}", trips]
            table.add_row(kind, f"{trip:g}", *cells)
    console.print(table)


def tree_of(commit: str, folder: Path) -> Path:
    """The files of that commit."""
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; see the top of the file."""
    parser = parser_of(__doc__)
    parser.add_argument("--before", metavar="COMMIT", help="run this one too")
    parser.add_argument("--kinds", nargs="+", default=["plain", "full"], choices=KINDS, help="of rounds")
    parser.add_argument("--trips", type=float, nargs="+", default=[1.0, 50.0, 300.0], help="milliseconds")
    parser.add_argument("--rounds", type=int, default=6, help="of each job")
    parser.add_argument("--ranks", type=int, default=3, help="the server and its workers")
    parser.add_argument("--tiny", action="store_true", help="few rounds of two ranks: does it run?")
    args = parser.parse_args(arguments)
    if args.tiny:
        vars(args).update(TINY)
    if reason := why_not():
        parser.error(f"namespaces: {reason}")
    console = console_of(160)
    with tempfile.TemporaryDirectory() as folder:
        trees = {"before": tree_of(args.before, Path(folder))} if args.before else {}
        trees["now"] = ROOT
        records = measure(trees, args, console)
    show(records, list(trees), args, console)
    write_figures(args.json, records)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
