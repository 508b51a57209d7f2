"""Bytes that the busiest rank receives and sends in one round: star, replicated and allreduce beside formula and bound.

python benchmarks/exchanges.py [--numbers N] [--one-in 12 50] [--ranks 2 4 8] [--json OUT] [--tiny]

Every rank has one client, whose message is the top-k of a vector of normal noise. The exchanges are those of a round,
and the bytes those of the communicator's own meter, second selection included.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.command import console_of, parser_of, write_figures
from benchmarks.processes import run_ranks

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
    from fedtorch.comm.allreduce import LeftOut, SparseSum, all_reduce
    from fedtorch.compression.payload import decode
    from fedtorch.core.update import Report

    gathered = comm.gather_reports(own, round=0)
    told = comm.broadcast_messages([_numbers(place, report) for place, report in enumerate(gathered)], round=0)
    reports = [Report(NAMES[m.client], norm=m.numbers["norm"], max_abs=m.numbers["max"]) for m in told]
    before = comm.meter.totals()
    if exchange == "star":
        comm.aggregate(local, reports, _all_of_them, round=0)
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
    from fedtorch.comm.wire import Message

    return Message(place, "numbers", "ok", {"norm": report.norm, "max": report.max_abs}, {})


def _all_of_them(updates: Any) -> Tensor:
    for _ in updates:
        pass
    return torch.empty(0)


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
    parser.add_argument("--tiny", action="store_true", help="one small vector: does it run?")
    args = parser.parse_args(arguments)
    if args.tiny:
        vars(args).update(TINY)
    console = console_of(160)
    records = [measure(args.numbers, one_in, ranks) for one_in in args.one_in for ranks in args.ranks]
    show(records, console)
    write_figures(args.json, records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
