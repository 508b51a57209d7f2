"""Rounds between two machines of several ranks: one rank of each talking beside all of them, over a limited wire.

python benchmarks/machines.py [--numbers N] [--first 2] [--second 3] [--gbit 1] [--rounds 5] [--repeat 3] [--json OUT]

The machines are namespaces of this one, with a wire of so many Gbit/s in each direction between them (Linux, root). A
round is a broadcast of N numbers in fp32 and the weighted sum of two updates of each rank but the server's; nothing is
trained. Jobs with and without (`system.shared_memory: never`) take turns; of each the fastest round after the first
counts, and the bytes that the kernel counts on the server's wire, both ways, per round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from benchmarks.command import console_of, parser_of, write_figures
from benchmarks.wires import Machine, why_not

TINY = {"numbers": 20_000, "first": 1, "second": 2, "rounds": 2, "repeat": 1}
WAYS = ("auto", "never")


def rank_rounds(numbers: int, rounds: int, shares: bool, out: Path) -> None:
    """One rank; the server writes the seconds of each round, and what its wire carried in all but the first."""
    import torch

    from fedtorch.comm.distributed import DistributedCommunicator
    from fedtorch.comm.options import Network
    from fedtorch.core.norms import norm_and_max
    from fedtorch.core.update import Report, UpdateBuffer

    torch.set_num_threads(1)
    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    names = tuple(f"c{place}" for place in range(2 * size))
    with DistributedCommunicator.join(names, timeout_s=300, network=Network(shares_memory=shares)) as comm:
        local = UpdateBuffer(numbers, torch.float32, out.parent / f"updates{rank}", 1 << 40)
        reports = []
        for name in names[2 * rank : 2 * rank + 2] if rank else ():
            update = torch.randn(numbers)
            local.put(name, update)
            norm, largest = norm_and_max(update)
            reports.append(Report(name, examples=1, norm=norm, max_abs=largest))
        weights, seconds, before = torch.zeros(numbers), list[float](), 0
        for round in range(rounds + 1):
            comm.barrier("benchmark", round=round)
            before = before if round > 1 else carried()
            begun = time.perf_counter()
            comm.broadcast(weights)
            gathered = comm.gather_reports(reports, round=round)
            shares_of = [1 / max(1, len(gathered))] * len(gathered)
            with comm.open_updates(local, gathered, round=round) as updates:
                if updates is not None:
                    updates.weighted_sum(shares_of)
            seconds.append(time.perf_counter() - begun)
        if rank == 0:
            out.write_text(json.dumps({"seconds": seconds[1:], "bytes": (carried() - before) / rounds}))


def carried() -> int:
    """Bytes on this machine's wire, both ways, by the kernel's count."""
    line = Path("/proc/net/dev").read_text().partition("wire:")[2].split()
    return int(line[0]) + int(line[8])


def job(machines: Sequence[Machine], counts: Sequence[int], words: Sequence[str], folder: Path) -> dict[str, Any]:
    """Start a rank for each place and wait for all; what the server wrote.

    Raises:
        SystemExit: a rank failed.
    """
    out = folder / "figures.json"
    started = []
    for number, (machine, count) in enumerate(zip(machines, counts, strict=True)):
        for local in range(count):
            place = {"RANK": sum(counts[:number]) + local, "WORLD_SIZE": sum(counts), "LOCAL_RANK": local}
            there = {"LOCAL_WORLD_SIZE": count, "MASTER_ADDR": machines[0].address, "MASTER_PORT": 29500}
            environ = {**os.environ, **{name: str(value) for name, value in {**place, **there}.items()}}
            environ |= {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
            command = machine.command([sys.executable, __file__, *words, "--inside", str(out)])
            started.append(subprocess.Popen(command, env=environ))
    if any(process.wait() for process in started):
        raise SystemExit("a rank failed")
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def measure(args: Any, console: Console) -> list[dict[str, Any]]:
    """A record per job, in alternating order."""
    records, counts = [], [args.first, args.second]
    for turn in range(args.repeat):
        for way in WAYS[:: 1 if turn % 2 == 0 else -1]:
            console.log(f"turn {turn + 1} of {args.repeat}: system.shared_memory {way}")
            with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
                machines = [opened.enter_context(Machine(f"10.84.0.{place}")) for place in (1, 2)]
                machines[0].connect(machines[1], args.gbit)
                words = ["--numbers", str(args.numbers), "--rounds", str(args.rounds), "--way", way]
                found = job(machines, counts, words, Path(folder))
            records.append({"way": way, "turn": turn, **found})
    return records


def show(records: Sequence[dict[str, Any]], args: Any, console: Console) -> None:
    """Seconds of each turn and their ratio."""
    title = f"{args.numbers:,} numbers, {args.first} + {args.second} ranks, {args.gbit:g} Gbit/s"
    table = Table(title=title, title_justify="left")
    for name in ("turn", "one talks: s", "MB", "all talk: s", "MB", "s, ratio", "MB, ratio"):
        table.add_column(name, justify="right")
    for turn in range(args.repeat):
        one, every = (next(r for r in records if (r["turn"], r["way"]) == (turn, way)) for way in WAYS)
        fast, slow = min(one["seconds"]), min(every["seconds"])
        cells = [f"{fast:.3f}", f"{one['bytes'] / 1e6:.1f}", f"{slow:.3f}", f"{every['bytes'] / 1e6:.1f}"]
        table.add_row(str(turn + 1), *cells, f"{slow / fast:.2f}", f"{every['bytes'] / one['bytes']:.2f}")
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; see the top of the file."""
    parser = parser_of(__doc__)
    parser.add_argument("--numbers", type=int, default=8_000_000, help="numbers of the model")
    parser.add_argument("--first", type=int, default=2, help="ranks of the server's machine")
    parser.add_argument("--second", type=int, default=3, help="ranks of the other one")
    parser.add_argument("--gbit", type=float, default=1.0, help="of the wire, in each direction")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count in each job")
    parser.add_argument("--repeat", type=int, default=3, help="jobs of each kind, in turns")
    parser.add_argument("--way", choices=WAYS, default="auto", help="of the rank that this process is")
    parser.add_argument("--inside", type=Path, help="this process is a rank; where the server writes")
    parser.add_argument("--tiny", action="store_true", help="one small vector: does it run?")
    args = parser.parse_args(arguments)
    if args.inside:
        rank_rounds(args.numbers, args.rounds, args.way == "auto", args.inside)
        return 0
    if args.tiny:
        vars(args).update(TINY)
    if reason := why_not():
        parser.error(f"namespaces: {reason}")
    console = console_of(160)
    records = measure(args, console)
    show(records, args, console)
    write_figures(args.json, records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
