"""Where do the seconds of a checkpoint go? Its parts by themselves, and the whole, in turns, in this run.

python benchmarks/saves.py [--mb 100] [--repeat 9] [--dir FOLDER] [--json OUT]

The state is one vector of fp32 on the server, as of FedAvg. A first turn is not timed. `--dir`: on which disk.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from rich.table import Table
from safetensors.torch import save_file

from benchmarks.command import console_of, parser_of, write_figures
from fedtorch.checkpoint.files import digest_file, digest_written, sync
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.core.norms import is_finite
from fedtorch.core.server import ServerState

WHOLE = "the whole, with manifest and the deleting of the one before"


class Parts:
    """One after the other they make a checkpoint; each is called once in a turn."""

    def __init__(self, folder: Path, megabytes: float) -> None:
        self.folder, self.turn = folder, 0
        self.weights = torch.randn(int(megabytes * 250_000))
        self.tensors = {"weights": self.weights}
        self.checkpoints = Checkpoints(folder / "checkpoints", keep=1)

    @property
    def path(self) -> Path:
        """The turn's file."""
        return self.folder / f"{self.turn}.safetensors"

    def all(self) -> dict[str, Callable[[], Any]]:
        """The parts by name, each with the function that does it."""
        return {
            "are the weights finite?": lambda: is_finite(self.weights),
            "copy into the system's cache": lambda: save_file(self.tensors, self.path),
            "wait for the disk (fsync)": lambda: sync(self.path),
            "digest of the tensors": lambda: digest_written(self.path, self.tensors),
            "in place of it: digest by reading the file": lambda: digest_file(self.path),
            "delete the one before": lambda: self.path.unlink(),
            WHOLE: self.whole,
        }

    def whole(self) -> None:
        """As `rounds/checkpointing.py` has it written."""
        is_finite(self.weights)
        server = ServerState(self.tensors, {}, num_clients=1)
        self.checkpoints.write(self.turn, server, {}, config={}, facts={})


def measure(folder: Path, megabytes: float, repeat: int) -> dict[str, dict[str, Any]]:
    """Part -> median and range of its seconds, and the median of its processor seconds."""
    parts = Parts(folder, megabytes)
    wall: dict[str, list[float]] = {name: [] for name in parts.all()}
    cpu: dict[str, list[float]] = {name: [] for name in wall}
    for parts.turn in range(repeat + 1):
        for name, do in parts.all().items():
            began = time.perf_counter(), time.process_time()
            do()
            wall[name].append(time.perf_counter() - began[0])
            cpu[name].append(time.process_time() - began[1])
    return {
        name: {"s": median(each[1:]), "range": [min(each[1:]), max(each[1:])], "cpu_s": median(cpu[name][1:])}
        for name, each in wall.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; see the top of the file."""
    parser = parser_of(str(__doc__))
    parser.add_argument("--mb", type=float, default=100.0, help="of the server's state (default 100)")
    parser.add_argument("--repeat", type=int, default=9, help="turns that are timed (default 9)")
    parser.add_argument("--dir", type=Path, metavar="FOLDER", help="where to write (default: the system's for files)")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        found = measure(Path(folder), args.mb, args.repeat)
    table = Table(title=f"a checkpoint of {args.mb:g} MB", title_justify="left")
    for column in ("part", "ms (range)", "processor ms"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for name, each in found.items():
        low, high = (1000 * value for value in each["range"])
        table.add_row(name, f"{1000 * each['s']:.0f} ({low:.0f}-{high:.0f})", f"{1000 * each['cpu_s']:.0f}")
    console_of(100).print(table)
    write_figures(args.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
