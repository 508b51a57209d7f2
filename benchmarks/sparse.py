"""A sparse step against the dense all-reduce of the same tensor in the same run; bytes against formula and bound.

python benchmarks/sparse.py [--millions 10 124.44] [--one-in 12 25 50 100] [--ranks 2 3 4 5] [--values fp32 int8]
                            [--repeat N] [--json OUT] [--gbit 1 10 none]

With --gbit the same over wires of so many Gbit/s, which all ranks share: loopback in a network namespace of its own
(Linux, root).

A step is what `exchange: replicated` does on every rank: select (sampled), encode, all-gather, decode and sum, apply;
the dense step is all-reduce and apply. Both are timed in every repetition, on the slowest rank, and the ratio is of the
same repetition; seconds are medians. The CPU ratio is of the processor time of all ranks together, which depends less
on what else the machine does: with as many busy ranks as cores and no limit of a wire, time cannot be better.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.command import console_of, parser_of, write_figures
from benchmarks.processes import run_ranks
from benchmarks.wires import figures_over, why_not

Case = tuple[int, str]
"""The ratio is one in so many; what values travel as."""
VALUES = ("fp32", "fp16", "bf16", "int8")
PARTS = ("select", "encode", "exchange", "sum", "apply")
TINY = {"millions": [0.01], "one_in": [12, 50], "ranks": [2], "repeat": 1}


def time_sparse(size: int, cases: Sequence[Case], repeat: int) -> dict[str, Any]:
    """One rank's seconds of every repetition (of the dense step, and per case of every part), and bytes."""
    import torch.distributed as dist

    from fedtorch.comm.sparse.messages import sum_of_messages
    from fedtorch.compression.compressors import TopK
    from fedtorch.compression.payload import decode, encode
    from fedtorch.core.seeds import generator_for
    from fedtorch.core.weights import Layout

    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    grad = torch.randn(size, generator=generator_for(0, "sparse benchmark", dist.get_rank()))
    weights, total, layout = torch.zeros(size), torch.empty(size), Layout(("w",), ((size,),))
    dense: list[tuple[float, float]] = []
    found: dict[Case, Any] = {case: {"seconds": [], "cpu": []} for case in cases}

    def dense_step() -> None:
        total.copy_(grad)  # all_reduce works in place
        dist.barrier()
        started, worked = time.perf_counter(), time.process_time()
        dist.all_reduce(total)
        weights.sub_(total, alpha=1e-3 / ranks)
        dense.append((time.perf_counter() - started, time.process_time() - worked))

    def sparse_step(case: Case) -> None:
        rule = TopK(ratio=1 / case[0], scope="global", values=case[1])  # type: ignore[arg-type]
        dist.barrier()
        marks, worked = [time.perf_counter()], time.process_time()
        sparse = rule.select(grad, layout)
        marks.append(time.perf_counter())
        message = encode(sparse, values=rule.values, seed=dist.get_rank())
        marks.append(time.perf_counter())
        messages = [torch.empty_like(message) for _ in range(ranks)]
        dist.all_gather(messages, message)
        marks.append(time.perf_counter())
        mean = sum_of_messages(messages, [1 / ranks] * ranks, lambda m: decode(m, size), total)
        marks.append(time.perf_counter())
        weights.sub_(mean, alpha=1e-3)
        marks.append(time.perf_counter())
        own = found[case]
        own["cpu"].append(time.process_time() - worked)
        own["seconds"].append([after - before for before, after in zip(marks, marks[1:], strict=False)])
        own |= {"bytes": message.numel(), "formula": rule.message_bytes(layout), "k": sparse.indices.numel()}

    for _ in range(repeat + 1):  # the first one touches the memory and is not counted
        dense_step()
        for case in cases:
            sparse_step(case)
    dist.destroy_process_group()
    sparse = [{**own, "seconds": own["seconds"][1:], "cpu": own["cpu"][1:]} for own in found.values()]
    return {"dense": dense[1:], "sparse": sparse}


def measure(size: int, cases: Sequence[Case], ranks: int, repeat: int) -> list[dict[str, Any]]:
    """One record per case. Volumes are of one rank, sent and received: dense by the ring's 2n(P-1)/P numbers."""
    from fedtorch.compression.payload import HEADER_BYTES

    ended = [end.result for end in run_ranks(partial(time_sparse, size, cases, repeat), ranks)]
    dense, records = _slowest([[time for time, _ in result["dense"]] for result in ended]), []
    dense_cpu = [sum(cpu for _, cpu in step) for step in zip(*(result["dense"] for result in ended), strict=True)]
    for number, (one, values) in enumerate(cases):
        own = ended[0]["sparse"][number]
        each = [result["sparse"][number]["seconds"] for result in ended]
        steps = _slowest([[sum(parts) for parts in rank] for rank in each])
        seconds = {
            part: median(_slowest([[parts[place] for parts in rank] for rank in each]))
            for place, part in enumerate(PARTS)
        }
        cpu = [sum(step) for step in zip(*(result["sparse"][number]["cpu"] for result in ended), strict=True)]
        moved = own["bytes"] * 2 * (ranks - 1)
        records.append(
            {
                "numbers": size,
                "one_in": one,
                "values": values,
                "ranks": ranks,
                "dense_s": median(dense),
                "seconds": seconds,
                "ratios": sorted(step / whole for step, whole in zip(steps, dense, strict=True)),
                "cpu_ratios": sorted(step / whole for step, whole in zip(cpu, dense_cpu, strict=True)),
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


def show_wires(records: Sequence[dict[str, Any]], console: Console) -> None:
    """Ratios over the wires, side by side: below 1 compression pays."""
    wires = list(dict.fromkeys(record["gbit"] for record in records))
    table = Table(title="sparse step over dense step, by the wire that all ranks share", title_justify="left")
    for name in ("numbers", "ranks", "1 in", "values", *(w if w == "none" else f"{w} Gbit/s" for w in wires)):
        table.add_column(name, justify="right")
    rows: dict[tuple[int, int, int, str], dict[str, str]] = {}
    for record in records:
        shown = "{1:.2f} ({0:.2f}-{2:.2f})".format(*(pick(record["ratios"]) for pick in (min, median, max)))
        key = record["numbers"], record["ranks"], record["one_in"], record["values"]
        rows.setdefault(key, {})[record["gbit"]] = shown
    for key, cells in sorted(rows.items()):
        table.add_row(*map(str, key), *(cells.get(wire, "") for wire in wires))
    console.print(table)


def show(records: Sequence[dict[str, Any]], console: Console) -> None:
    """The table."""
    table = Table(title="sparse step (sampled selection included) against dense all-reduce", title_justify="left")
    heads = (
        "numbers",
        "1 in",
        "values",
        "ranks",
        "dense s",
        *(f"{part} s" for part in PARTS),
        "ratio (range)",
        "CPU ratio",
        "message MB",
        "of dense %",
    )
    for name in (*heads, "formula", "moved MB", "bound MB"):
        table.add_column(name, justify="right")
    for record in records:
        table.add_row(
            *(str(record[key]) for key in ("numbers", "one_in", "values", "ranks")),
            f"{record['dense_s']:.3f}",
            *(f"{record['seconds'][part]:.3f}" for part in PARTS),
            "{1:.2f} ({0:.2f}-{2:.2f})".format(*(pick(record["ratios"]) for pick in (min, median, max))),
            f"{median(record['cpu_ratios']):.2f}",
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
    parser.add_argument("--values", nargs="+", choices=VALUES, default=["fp32", "int8"], help="of the messages")
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
        for name in ("millions", "one_in", "values", "ranks"):
            words += [f"--{name.replace('_', '-')}", *map(str, getattr(args, name))]
        for gbit in args.gbit:
            console.log("no limit" if gbit == "none" else f"a wire of {gbit} Gbit/s")
            records += [{"gbit": gbit, **record} for record in figures_over(gbit, __file__, words)]
        show_wires(records, console)
        write_figures(args.json, records)
        return 0
    cases = list(product(args.one_in, args.values))
    for millions in args.millions:
        for ranks in args.ranks:
            console.log(f"{millions:g} million numbers on {ranks} ranks")
            records += measure(round(millions * 1e6), cases, ranks, args.repeat)
    show(records, console)
    write_figures(args.json, records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
