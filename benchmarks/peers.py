"""The same small experiment through fedtorch, Flower and pfl-research: do they end with the same weights?

python benchmarks/peers.py --dir FOLDER [--only flower pfl] [--torch-from SITE_PACKAGES]

Makes an environment for each peer in FOLDER, with pip as it is set up here, and keeps it for the next time. The same
rows, batches, first weights and cohorts in the same order; fp32, one thread.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import peer_experiment as experiment
from benchmarks.command import console_of, parser_of, write_figures

HERE = Path(__file__).resolve().parent
PEERS = {"flower": ("flwr[simulation]==1.42.0",), "pfl": ("pfl==0.6.0",)}
"""peer -> what pip is asked for, beside torch and transformers"""
AGREE = 1e-5
"""Largest difference of a weight: fp32 sums in another order differ by some 1e-7 per round."""


class Comparison(NamedTuple):
    """One line of the table."""

    peer: str
    theirs: str
    """the peer's method"""
    ours: str
    """fedtorch's, a key of `peer_fedtorch.METHODS`"""
    why: str = ""
    """what is known to differ"""


COMPARISONS = (
    Comparison("flower", "fedavg", "fedavg"),
    Comparison("flower", "fedprox", "fedprox"),
    Comparison("flower", "fedprox_documented", "fedprox", "its docstring's penalty is a sum of norms, not squared"),
    Comparison("flower", "fedadam", "fedadam", "v from 0, corrected as step k + 1; the paper: v from tau squared"),
    Comparison("flower", "fedadam", "fedadam_late"),
    Comparison("pfl", "fedavg", "fedavg"),
    Comparison("pfl", "fedprox", "fedprox"),
    Comparison("pfl", "scaffold", "scaffold", "c and c_i change sign between measuring and correcting"),
    Comparison("pfl", "scaffold", "scaffold_reversed"),
    Comparison("pfl", "scaffold_one", "scaffold_one", "the same, and all users' c_i are one tensor"),
    Comparison("pfl", "scaffold_one", "scaffold_one_reversed", "all users' c_i are one tensor"),
    Comparison("pfl", "scaffold_one_copied", "scaffold_one_reversed"),
)


class Row(NamedTuple):
    """What a comparison came to."""

    comparison: Comparison
    difference: float
    """largest of a weight"""
    way: float
    """largest distance of a weight from its start, in the peer's run"""

    @property
    def agrees(self) -> bool:
        """To 1e-5."""
        return self.difference <= AGREE


def packages(peer: str, torch_from: Path | None) -> list[str]:
    """What pip installs: torch and transformers as the tests have them, unless they are taken from elsewhere."""
    constraints = (HERE.parent / "constraints.txt").read_text()
    pins = re.findall(r"^(?:torch|transformers)==\S+", constraints, flags=re.MULTILINE)
    return [*PEERS[peer], *([] if torch_from else pins)]


def environment(peer: str, folder: Path, torch_from: Path | None) -> Path:
    """The python of the peer's environment; it is made where it is not there yet.

    Raises:
        CalledProcessError: pip failed; what it says is in its output.
    """
    place = folder / f"env-{peer}"
    python, done = place / "bin" / "python", place / "done"
    wanted = " ".join(packages(peer, torch_from))
    if done.is_file() and done.read_text() == wanted:
        return python
    venv.create(place, with_pip=True, clear=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages(peer, torch_from)], check=True)
    if torch_from is not None:
        (site,) = place.glob("lib/python*/site-packages")
        (site / "torch_from.pth").write_text(f"{torch_from.resolve()}\n")  # after the environment's own
    done.write_text(wanted)
    return python


def run_peer(peer: str, python: Path, file: Path, folder: Path) -> None:
    """Write the peer's final weights into the folder, in a process of its own environment."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, HERE / f"peer_{peer}.py", file, folder]
    subprocess.run(command, check=True, env=variables | {"OMP_NUM_THREADS": "1"})


def run_ours(methods: Sequence[str], file: Path, folder: Path) -> None:
    """The same for fedtorch."""
    from benchmarks.peer_fedtorch import run

    for method in methods:
        (folder / f"fedtorch_{method}.npz").write_bytes(run(file, folder / "runs", method).read_bytes())


def compared(folder: Path, file: Path, comparisons: Sequence[Comparison]) -> list[Row]:
    """How far the final weights are apart."""
    start = np.concatenate([value.numpy().ravel() for value in experiment.read(file).start.values()])
    rows = []
    for one in comparisons:
        theirs = experiment.read_weights(folder / f"{one.peer}_{one.theirs}.npz")
        ours = experiment.read_weights(folder / f"fedtorch_{one.ours}.npz")
        rows.append(Row(one, float(np.abs(theirs - ours).max()), float(np.abs(theirs - start).max())))
    return rows


def table_of(rows: Sequence[Row]) -> Table:
    """For people."""
    table = Table("peer", "its method", "fedtorch", "largest difference", "of a way of", "agrees", "why not")
    for row in rows:
        one = row.comparison
        figures = (f"{row.difference:.1e}", f"{row.way:.2f}", "yes" if row.agrees else "no")
        table.add_row(one.peer, one.theirs, one.ours, *figures, one.why)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """0: every comparison came out as it is listed; 1: one that should agree does not, or the other way round."""
    parser = parser_of(str(__doc__))
    parser.add_argument("--dir", type=Path, required=True, metavar="FOLDER", help="for environments and weights")
    parser.add_argument("--only", nargs="+", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--torch-from", type=Path, metavar="SITE_PACKAGES", help="of torch and transformers")
    args = parser.parse_args(arguments)
    from benchmarks.peer_fedtorch import cohorts

    args.dir.mkdir(parents=True, exist_ok=True)
    file = args.dir / "experiment.npz"
    experiment.write(file, cohorts())
    comparisons = [one for one in COMPARISONS if one.peer in args.only]
    for peer in args.only:
        run_peer(peer, environment(peer, args.dir, args.torch_from), file, args.dir)
    run_ours(list(dict.fromkeys(one.ours for one in comparisons)), file, args.dir)
    rows = compared(args.dir, file, comparisons)
    console_of(140).print(table_of(rows))
    figures: list[dict[str, Any]] = [
        {**row.comparison._asdict(), "difference": row.difference, "way": row.way, "agrees": row.agrees} for row in rows
    ]
    write_figures(args.json, figures)
    return int(any(row.agrees == bool(row.comparison.why) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
