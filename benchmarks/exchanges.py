"""Bytes that the busiest rank receives and sends in one round: star, replicated and allreduce beside formula and bound.

python benchmarks/exchanges.py [--numbers N] [--one-in 12 50] [--ranks 2 4 8] [--json OUT] [--tiny]
                               [--early SECONDS ... [--clients K] [--repeat N] [--gbit 1 10 none]]

Every rank has one client, whose message is the top-k of a vector of normal noise. The exchanges are those of a round,
and the bytes those of the communicator's own meter, second selection included.

With --early SECONDS ... instead the time of a round whose dense updates travel while other clients train
(system.sum_scale: previous) against one in which they begin when all are done (reports). Every worker has --clients
clients, which take so many seconds each without the processor, as on a GPU; the two kinds of rounds take turns on the
same ranks, and ratios are of rounds that follow each other. --gbit: over wires of so many Gbit/s, which all ranks share
(loopback in a network namespace of its own; Linux, root).
"""

from __future__ import annotations

import argparse
import sys
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
from benchmarks.wires import figures_over, why_not

EXCHANGES = ("star", "replicated", "allreduce")
NAMES = tuple(f"c{place}" for place in range(64))
TINY = {"numbers": 20_000, "one_in": [50], "ranks": [2]}


def move(size: int, one_in: int) -> dict[str, dict[str, int]]:
    """One rank's physical bytes of a round by exchange: received, sent, and counts of the second selection."""
    from fedtorch.comm.distributed import DistributedCommunicator
    from fedtorch.compression.compressors import TopK
    from fedtorch.compression.payload import decode
    from fedtorch.core.norms import norm_and_max
    from fedtorch.core.seeds import generator_for
    from fedtorch.core.update import Report, UpdateBuffer
    from fedtorch.core.weights import Layout

    rule, layout, names = TopK(ratio=1 / one_in, scope="global"), Layout(("w",), ((size,),)), NAMES
    with DistributedCommunicator.join(names, timeout_s=300) as comm:
        vector = torch.randn(size, generator=generator_for(0, "exchanges benchmark", comm.rank))
        message = rule.compress(vector, layout)
        norm, largest = norm_and_max(decode(message, size).values)
        local = UpdateBuffer(len(message), torch.uint8, Path("unused"), 1 << 40)
        local.put(names[comm.rank], message)
        own = [Report(names[comm.rank], norm=norm, max_abs=largest)]
        return {name: _moved(name, comm, local, own, size, rule.kept(layout)) for name in EXCHANGES}


def _moved(exchange: str, comm: Any, local: Any, own: Sequence[Any], size: int, selection: Any) -> dict[str, int]:
    from fedtorch.comm.sparse.allreduce import LeftOut, SparseSum, all_reduce
    from fedtorch.compression.payload import decode
    from fedtorch.core.update import Report

    gathered = comm.gather_reports(own, round=0)
    told = comm.broadcast_packets([_numbers(place, report) for place, report in enumerate(gathered)], round=0)
    reports = [Report(NAMES[m.client], norm=m.numbers["norm"], max_abs=m.numbers["max"]) for m in told]
    before = comm.meter.totals()
    if exchange == "star":
        with comm.open_updates(local, reports, round=0) as updates:
            for _ in updates or ():
                pass
        comm.broadcast(local.get(own[0].client).clone())  # the server's choice is as long
    elif exchange == "replicated":
        comm.all_gather_updates(local, [report.client for report in reports], round=0)
    else:
        spec = SparseSum(size, torch.float32, lambda m: decode(m, size), selection, local.size, keeps=True)
        all_reduce(comm.peers(local, round=0), reports, [1 / comm.size] * comm.size, spec, LeftOut())
    after = comm.meter.totals()
    up, down = (after[name] - before[name] for name in ("physical_up", "physical_down"))
    if exchange == "star" and comm.is_server:
        up, down = down, up  # of the server, `up` is what it receives
    select = after.get("select/physical_down", 0) - before.get("select/physical_down", 0)
    return {"sent": up, "received": down, "select": select, "message": local.size}


def _numbers(place: int, report: Any) -> Any:
    from fedtorch.comm.wire import Packet

    return Packet(place, "numbers", "ok", {"norm": report.norm, "max": report.max_abs}, {})


def measure(size: int, one_in: int, ranks: int) -> dict[str, Any]:
    """The busiest rank's bytes by exchange, and what Ok-Topk's formula and its bound come to, 4 bytes a number."""
    each = [end.result for end in run_ranks(partial(move, size, one_in), ranks)]
    most = {name: {key: max(rank[name][key] for rank in each) for key in each[0][name]} for name in EXCHANGES}
    share = 4 * -(-size // one_in) * (ranks - 1) / ranks
    return {
        "numbers": size,
        "one_in": one_in,
        "ranks": ranks,
        "busiest": most,
        "formula": round(6 * share),
        "bound": round(2 * share),
    }


def time_early(size: int, seconds: Sequence[float], clients: int, repeat: int) -> list[dict[str, Any]]:
    """One rank's seconds of rounds of both kinds in turn, for each time that a client takes; equal sums are checked."""
    from fedtorch.comm.distributed import DistributedCommunicator
    from fedtorch.comm.options import Network

    network = Network(shares_memory=False)
    with DistributedCommunicator.join(NAMES, timeout_s=300, network=network) as comm:
        records = []
        for each_s in seconds:
            taken: dict[str, list[float]] = {"reports": [], "previous": []}
            for number in range(2 * (repeat + 1)):  # the first of each touches its memory for the first time
                kind = ("reports", "previous")[number % 2]
                taken[kind].append(_round(comm, size, each_s, clients, kind == "previous"))
            records.append({"client_s": each_s, **{kind: rounds[1:] for kind, rounds in taken.items()}})
        return records


def _round(comm: Any, size: int, each_s: float, clients: int, is_early: bool) -> float:
    """Seconds of one round, from the meeting before it to the one after."""
    from fedtorch.core.norms import norm_and_max
    from fedtorch.core.seeds import generator_for
    from fedtorch.core.update import Report, UpdateBuffer

    own = range((comm.rank - 1) * clients, comm.rank * clients) if comm.rank else ()
    local = UpdateBuffer(size, torch.float32, Path("unused"), 1 << 40)
    vectors = [torch.randn(size, generator=generator_for(0, "early benchmark", place)) for place in own]
    expected = {rank: NAMES[(rank - 1) * clients : rank * clients] for rank in range(1, comm.size)}
    comm.barrier("train", round=0)
    began = time.perf_counter()
    early = comm.begin_early(local, 40, round=0, expected=expected) if is_early else None
    reports = []
    for place, vector in zip(own, vectors, strict=True):
        time.sleep(each_s)
        local.put(NAMES[place], vector)
        norm, largest = norm_and_max(vector)
        reports.append(Report(NAMES[place], examples=1, norm=norm, max_abs=largest))
        if early is not None:
            early.put(NAMES[place], 1.0)
    if early is not None:
        early.close(lambda: None)
        comm.barrier("sums", round=0)
        early.finish()
    comm.barrier("gather", round=0)
    gathered = comm.gather_reports(reports, round=0)

    with comm.open_updates(local, gathered, round=0) as updates:
        if updates is not None:
            count = len(updates.reports)
            if is_early:
                updates.fix_scale(40, [1.0] * count)
            updates.weighted_sum([1.0 / count] * count)
    comm.barrier("end", round=0)
    return time.perf_counter() - began


def show_early(records: Sequence[dict[str, Any]], console: Console) -> None:
    """Ratios over each wire: below 1 sending early pays."""
    table = Table(title="a round with sum_scale: previous over one with reports", title_justify="left")
    for name in ("Gbit/s", "a client takes, s", "reports, s", "previous, s", "ratio (range)"):
        table.add_column(name, justify="right")
    for record in records:
        pairs = list(zip(record["previous"], record["reports"], strict=True))
        ratios = sorted(early / late for early, late in pairs)
        shown = f"{median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        middle = (f"{median(record[kind]):.2f}" for kind in ("reports", "previous"))
        table.add_row(record.get("gbit", "none"), f"{record['client_s']:g}", *middle, shown)
    console.print(table)


def measure_early(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The server's records, over each wire."""
    if not args.gbit:
        ended = run_ranks(partial(time_early, args.numbers, args.early, args.clients, args.repeat), args.ranks[0])
        found: list[dict[str, Any]] = ended[0].result
        return found
    words = ["--ranks", str(args.ranks[0]), "--numbers", str(args.numbers), "--early", *map(str, args.early)]
    words += ["--clients", str(args.clients), "--repeat", str(args.repeat)]
    return [{"gbit": gbit, **record} for gbit in args.gbit for record in figures_over(gbit, __file__, words)]


def show(records: Sequence[dict[str, Any]], console: Console) -> None:
    """The table."""
    table = Table(title="bytes received by the busiest rank in one round, MB", title_justify="left")
    heads = ("1 in", "ranks", *EXCHANGES, "of it counts", "6k(P-1)/P", "2k(P-1)/P")
    for name in heads:
        table.add_column(name, justify="right")
    for record in records:
        busiest = record["busiest"]
        table.add_row(
            str(record["one_in"]),
            str(record["ranks"]),
            *(f"{busiest[name]['received'] / 1e6:.3f}" for name in EXCHANGES),
            f"{busiest['allreduce']['select'] / 1e6:.4f}",
            f"{record['formula'] / 1e6:.3f}",
            f"{record['bound'] / 1e6:.3f}",
        )
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; see the top of the file."""
    parser = parser_of(__doc__)
    parser.add_argument("--numbers", type=int, default=10_000_000, help="numbers in the vector")
    parser.add_argument("--one-in", type=int, nargs="+", default=[12, 50], help="ratios are 1 in so many")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8], help="numbers of ranks")
    parser.add_argument("--early", type=float, nargs="+", metavar="SECONDS", help="what a client takes; see the top")
    parser.add_argument("--clients", type=int, default=4, help="clients of each worker, with --early")
    parser.add_argument("--repeat", type=int, default=3, help="rounds of each kind, with --early")
    parser.add_argument("--gbit", nargs="+", metavar="N|none", help="wires of so many Gbit/s, with --early")
    parser.add_argument("--tiny", action="store_true", help="one small vector: does it run?")
    args = parser.parse_args(arguments)
    if args.tiny:
        vars(args).update(TINY)
    console = console_of(160)
    if args.early:
        if args.gbit and set(args.gbit) != {"none"} and (reason := why_not()):
            parser.error(f"--gbit {reason}")
        records = measure_early(args)
        show_early(records, console)
        write_figures(args.json, records)
        return 0
    records = [measure(args.numbers, one_in, ranks) for one_in in args.one_in for ranks in args.ranks]
    show(records, console)
    write_figures(args.json, records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
