"""What a round's combination costs: each robust rule and the secure sum against plain averaging, in one run.

python benchmarks/robust.py [--numbers 300000 10000000] [--clients 8 32] [--repeat 3] [--json OUT]

One process and thread, all cases in turn, then again in the other order; the least processor time of each, in seconds,
and its ratio to plain averaging. Of the secure sum with as many workers as clients: `worker` is what one of them does
(its keys, shares and masks), all at the same time in a real round; `server` adds the parts and removes the masks.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from rich.table import Table

from benchmarks.command import console_of, parser_of, write_figures
from fedtorch.algorithms.robust import RULES
from fedtorch.algorithms.robust.base import rule_of
from fedtorch.comm.local import LocalUpdates
from fedtorch.comm.transport.windows import windows
from fedtorch.core.norms import norm_and_max
from fedtorch.core.update import Report, UpdateBuffer
from fedtorch.privacy.secure_sum.collector import Collector
from fedtorch.privacy.secure_sum.party import Party
from fedtorch.privacy.secure_sum.terms import SumTerms, threshold_of

PLAIN, WORKER, SERVER = "plain", "secure sum, worker", "secure sum, server"
NAMES = (PLAIN, *RULES, WORKER, SERVER)


class Round:
    """Updates of so many clients, and what can be done with them."""

    def __init__(self, numbers: int, clients: int, folder: Path) -> None:
        draw = torch.Generator().manual_seed(0)
        self.numbers, self.clients = numbers, clients
        buffer = UpdateBuffer(numbers, torch.float32, folder, 1 << 62)
        reports = []
        common = torch.randn(numbers, generator=draw) * 1e-3
        for number in range(clients):
            update = common + torch.randn(numbers, generator=draw) * 1e-3
            norm, largest = norm_and_max(update)
            buffer.put(f"c{number}", update)
            reports.append(Report(f"c{number}", norm=norm, max_abs=largest))
        self.updates = LocalUpdates(reports, buffer)
        self.weights = [1 / clients] * clients

    def combine(self, name: str) -> None:
        """By the plain sum, or a rule with its defaults."""
        if name == PLAIN:
            self.updates.weighted_sum(self.weights)
        else:
            rule_of(name).combine(self.updates, self.weights)

    def exchange(self, name: str) -> Callable[[], None]:
        """The part of a secure sum that is to be timed, up to which everything else is done."""
        parties = tuple(range(1, self.clients + 1))
        terms = SumTerms("benchmark", 0, "0", parties, threshold_of(0.7, len(parties)))
        everybody = {number: Party(number, terms) for number in parties}
        server = Collector(terms)
        server.keys = {number: party.keys() for number, party in everybody.items()}
        server.boxes = {n: party.share(server.keys) for n, party in everybody.items() if n != 1 or name != WORKER}

        def work() -> None:
            first = everybody[1]
            server.boxes[1] = first.share(server.keys)
            first.open_shares(server.boxes_for(1))
            for start, stop in windows(self.numbers):
                first.mask(np.zeros(stop - start, np.uint64))

        def serve() -> None:
            server.prepare()
            total, part = np.zeros(self.numbers, np.uint64), np.ones(1 << 20, np.uint64)
            for start, stop in windows(self.numbers):
                for _ in parties:
                    total[start:stop] += part[: stop - start]
                server.unmask(total[start:stop])

        if name == WORKER:
            return work
        for number, party in everybody.items():
            party.open_shares(server.boxes_for(number))
        server.close(parties)
        for number, party in everybody.items():
            server.take(number, party.reveal(parties))
        return serve

    def seconds(self, name: str) -> float:
        """Processor time."""
        doing = self.exchange(name) if name in (WORKER, SERVER) else lambda: self.combine(name)
        began = time.process_time()
        doing()
        return time.process_time() - began


def measure(numbers: int, clients: int, repeat: int) -> list[dict[str, float | str | int]]:
    """A row for each of `NAMES`."""
    best = dict.fromkeys(NAMES, float("inf"))
    with TemporaryDirectory() as folder:
        measured = Round(numbers, clients, Path(folder))
        for turn in range(repeat):
            for name in NAMES if turn % 2 == 0 else NAMES[::-1]:
                best[name] = min(best[name], measured.seconds(name))
    return [
        {"case": name, "numbers": numbers, "clients": clients, "seconds": took, "ratio": took / max(best[PLAIN], 1e-9)}
        for name, took in best.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = parser_of(__doc__ or "")
    parser.add_argument("--numbers", type=int, nargs="+", default=[300_000, 10_000_000], help="length of an update")
    parser.add_argument("--clients", type=int, nargs="+", default=[8, 32], help="in a round; at least 5")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = [row for size in args.numbers for count in args.clients for row in measure(size, count, args.repeat)]
    table = Table("case", "numbers", "clients", "seconds", "ratio")
    for row in rows:
        table.add_row(
            str(row["case"]),
            f"{row['numbers']:,}",
            str(row["clients"]),
            f"{row['seconds']:.4f}",
            f"{row['ratio']:.2f}",
        )
    console_of(90).print(table)
    write_figures(args.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
