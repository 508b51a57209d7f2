"""A sparse step against the dense all-reduce of the same tensor in the same run; bytes against formula and bound.

python benchmarks/sparse.py [--millions 10 124.44] [--one-in 12 25 50 100] [--ranks 2 3 4 5] [--repeat N] [--json OUT]
                            [--gbit 1 10 none]

With --gbit the same over wires of so many Gbit/s, which all ranks share: loopback in a network namespace of its own
(Linux, root).

A step is what `exchange: replicated` does on every rank: select (sampled), encode, all-gather, decode and sum, apply;
the dense step is all-reduce and apply. Both are timed in every repetition, on the slowest rank, and the ratio is of the
same repetition; seconds are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.command import console_of, parser_of, write_figures
from benchmarks.processes import run_ranks
from benchmarks.wires import limited, why_not

PARTS = ("select", "encode", "exchange", "sum", "apply")
TINY = {"millions": [0.01], "one_in": [12, 50], "ranks": [2], "repeat": 1}


def time_sparse(size: int, one_in: Sequence[int], repeat: int) -> dict[str, Any]:
    """One rank's seconds of every repetition (of the dense step, and per ratio of every part), and bytes."""
    import torch.distributed as dist

    from fedtorch.comm.messages import sum_of_messages
    from fedtorch.compression.compressors import TopK
    from fedtorch.compression.payload import decode, encode
    from fedtorch.core.seeds import generator_for
    from fedtorch.core.weights import Layout

    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    grad = torch.randn(size, generator=generator_for(0, "sparse benchmark", dist.get_rank()))
    weights, total, layout = torch.zeros(size), torch.empty(size), Layout(("w",), ((size,),))
    dense: list[float] = []
    found: dict[str, Any] = {str(one): {"seconds": []} for one in one_in}

    def dense_step() -> None:
        total.copy_(grad)  # all_reduce works in place
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(total)
        weights.sub_(total, alpha=1e-3 / ranks)
        dense.append(time.perf_counter() - started)

    def sparse_step(one: int) -> None:
        rule = TopK(ratio=1 / one, scope="global")
        dist.barrier()
        marks = [time.perf_counter()]
        sparse = rule.select(grad, layout)
        marks.append(time.perf_counter())
        message = encode(sparse)
        marks.append(time.perf_counter())
        messages = [torch.empty_like(message) for _ in range(ranks)]
        dist.all_gather(messages, message)
        marks.append(time.perf_counter())
        mean = sum_of_messages(messages, [1 / ranks] * ranks, lambda m: decode(m, size), total)
        marks.append(time.perf_counter())
        weights.sub_(mean, alpha=1e-3)
        marks.append(time.perf_counter())
        own = found[str(one)]
        own["seconds"].append([after - before for before, after in zip(marks, marks[1:], strict=False)])
        own |= {"bytes": message.numel(), "formula": rule.message_bytes(layout), "k": sparse.indices.numel()}

    for _ in range(repeat + 1):  # the first one touches the memory and is not counted
        dense_step()
        for one in one_in:
            sparse_step(one)
    dist.destroy_process_group()
    return {"dense_s": dense[1:], "sparse": {one: {**own, "seconds": own["seconds"][1:]} for one, own in found.items()}}


def measure(size: int, one_in: Sequence[int], ranks: int, repeat: int) -> list[dict[str, Any]]:
    """One record per ratio. Volumes are of one rank, sent and received: dense by the ring's 2n(P-1)/P numbers."""
    from fedtorch.compression.payload import HEADER_BYTES

    ended = [end.result for end in run_ranks(partial(time_sparse, size, one_in, repeat), ranks)]
    dense, records = _slowest([result["dense_s"] for result in ended]), []
    for one in map(str, one_in):
        own = ended[0]["sparse"][one]
        each = [result["sparse"][one]["seconds"] for result in ended]
        steps = _slowest([[sum(parts) for parts in rank] for rank in each])
        seconds = {
            part: median(_slowest([[parts[place] for parts in rank] for rank in each]))
            for place, part in enumerate(PARTS)
        }
        moved = own["bytes"] * 2 * (ranks - 1)
        records.append(
            {
                "numbers": size,
                "one_in": int(one),
                "ranks": ranks,
                "dense_s": median(dense),
                "seconds": seconds,
                "ratios": sorted(step / whole for step, whole in zip(steps, dense, strict=True)),
                "message_bytes": own["bytes"],
                "formula_bytes": own["formula"] + HEADER_BYTES,
                "share_of_dense": own["bytes"] / (4 * size),
                "moved_bytes": moved,
                "dense_moved_bytes": 8 * size * (ranks - 1) // ranks,
                # 2k(P-1)/P numbers, an index counting as one: the lower bound in the Ok-Topk paper
                "bound_bytes": 8 * own["k"] * (ranks - 1) // ranks,
            }
        )
    return records


def _slowest(ranks: Sequence[Sequence[float]]) -> list[float]:
    """Per repetition the slowest rank's seconds."""
    return [max(each) for each in zip(*ranks, strict=True)]


def measure_over(gbit: str, words: Sequence[str]) -> list[dict[str, Any]]:
    """The records of this program with these options where a wire carries so many Gbit/s; `none`: as it is here.

    Raises:
        SystemExit: it failed there; with its exit code.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, __file__, *words, "--json", str(out)]
        command = command if gbit == "none" else limited(float(gbit), command)
        quiet = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}  # a network of its own has no names for its addresses
        done = subprocess.run(command, stdout=subprocess.DEVNULL, env=quiet)
        if done.returncode:
            raise SystemExit(done.returncode)
        records: list[dict[str, Any]] = json.loads(out.read_text())
    return [{"gbit": gbit, **record} for record in records]


def show_wires(records: Sequence[dict[str, Any]], console: Console) -> None:
    """Ratios over the wires, side by side: below 1 compression pays."""
    wires = list(dict.fromkeys(record["gbit"] for record in records))
    table = Table(title="sparse step over dense step, by the wire that all ranks share", title_justify="left")
    for name in ("numbers", "ranks", "1 in", *(w if w == "none" else f"{w} Gbit/s" for w in wires)):
        table.add_column(name, justify="right")
    rows: dict[tuple[int, int, int], dict[str, str]] = {}
    for record in records:
        shown = "{1:.2f} ({0:.2f}-{2:.2f})".format(*(pick(record["ratios"]) for pick in (min, median, max)))
        rows.setdefault((record["numbers"], record["ranks"], record["one_in"]), {})[record["gbit"]] = shown
    for key, cells in sorted(rows.items()):
        table.add_row(*map(str, key), *(cells.get(wire, "") for wire in wires))
    console.print(table)


def show(records: Sequence[dict[str, Any]], console: Console) -> None:
    """The table."""
    table = Table(title="sparse step (sampled selection included) against dense all-reduce", title_justify="left")
    heads = (
        "numbers",
        "1 in",
        "ranks",
        "dense s",
        *(f"{part} s" for part in PARTS),
        "ratio (range)",
        "message MB",
        "of dense %",
    )
    for name in (*heads, "formula", "moved MB", "bound MB"):
        table.add_column(name, justify="right")
    for record in records:
        table.add_row(
            *(str(record[key]) for key in ("numbers", "one_in", "ranks")),
            f"{record['dense_s']:.3f}",
            *(f"{record['seconds'][part]:.3f}" for part in PARTS),
            "{1:.2f} ({0:.2f}-{2:.2f})".format(*(pick(record["ratios"]) for pick in (min, median, max))),
            f"{record['message_bytes'] / 1e6:.3f}",
            f"{100 * record['share_of_dense']:.2f}",
            "equal" if record["message_bytes"] == record["formula_bytes"] else "DIFFERS",
            f"{record['moved_bytes'] / 1e6:.2f}",
            f"{record['bound_bytes'] / 1e6:.2f}",
        )
    console.print(table)


def _wire(text: str) -> str:
    """`none`, or a number of Gbit/s."""
    try:
        if text == "none" or 1e-3 <= float(text) <= 1e3:
            return text
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not `none` or a number of Gbit/s from 0.001 to 1000")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; see the top of the file."""
    parser = parser_of(__doc__)
    parser.add_argument("--millions", type=float, nargs="+", default=[10, 124.439808], help="numbers in the tensor")
    parser.add_argument("--one-in", type=int, nargs="+", default=[12, 25, 50, 100], help="ratios are 1 in so many")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4, 5], help="numbers of ranks")
    parser.add_argument("--repeat", type=int, default=3, help="timed repetitions in each run (default 3)")
    parser.add_argument("--gbit", nargs="+", type=_wire, metavar="N|none", help="wires of so many Gbit/s")
    parser.add_argument("--tiny", action="store_true", help="one small tensor: does it run? not for timing")
    args = parser.parse_args(arguments)
    if args.tiny:
        vars(args).update(TINY)
    console, records = console_of(200), list[dict[str, Any]]()
    if args.gbit:
        if set(args.gbit) != {"none"} and (reason := why_not()):
            parser.error(f"--gbit {reason}")
        words = ["--repeat", str(args.repeat)]
        for name in ("millions", "one_in", "ranks"):
            words += [f"--{name.replace('_', '-')}", *map(str, getattr(args, name))]
        for gbit in args.gbit:
            console.log("no limit" if gbit == "none" else f"a wire of {gbit} Gbit/s")
            records += measure_over(gbit, words)
        show_wires(records, console)
        write_figures(args.json, records)
        return 0
    for millions in args.millions:
        for ranks in args.ranks:
            console.log(f"{millions:g} million numbers on {ranks} ranks")
            records += measure(round(millions * 1e6), args.one_in, ranks, args.repeat)
    show(records, console)
    write_figures(args.json, records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
