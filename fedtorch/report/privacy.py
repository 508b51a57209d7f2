"""What runs on the same clients add up to: ε belongs to the data, not to a run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtorch.core.errors import ConfigError
from fedtorch.core.extras import require
from fedtorch.privacy.accounting import Accountant, total_epsilon
from fedtorch.privacy.data_ledger import DataLedger, epsilon_of
from fedtorch.privacy.ledger import FOLDER, LEDGER, read_releases
from fedtorch.report.compared import say_written, show_page
from fedtorch.report.find_runs import find_runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `privacy`."""
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="folder of a run with privacy, or with such runs in it; or the ledger of data (DATA.privacy.jsonl, or the "
        "file that privacy.ledger names)",
    )
    parser.add_argument("--out", type=Path, help="folder for privacy.md; default: RUN/report")


def make(args: argparse.Namespace) -> None:
    """Print and write the table.

    Raises:
        ConfigError: there is no run with privacy.
    """
    require("report privacy", "dp_accounting", extra="privacy")
    ledgers = [path for path in args.runs if path.is_file()]
    for path in ledgers:
        _check_ledger(path)
    folders = [path for path in args.runs if path not in ledgers]
    found = dict.fromkeys(run.folder for _, run in find_runs(folders).runs) if folders else {}
    text = privacy_markdown(found, ledgers)
    say_written([show_page(text, (args.out or [*folders, Path()][0] / "report") / "privacy.md")])


def _check_ledger(path: Path) -> None:
    """A file that was named is the ledger of data, whatever it is called, and has runs in it.

    Raises:
        ConfigError: it is something else, or empty.
        CheckpointError: it cannot be read.
    """
    try:
        first = json.loads(path.read_bytes().partition(b"\n")[0] or b"{}")
    except (OSError, ValueError):
        first = None
    if isinstance(first, dict) and "form" in first and "rate" in first and "run" not in first:
        raise ConfigError(f"{path} is the ledger of one run; name the run's folder")
    if not isinstance(first, dict):
        raise ConfigError(
            f"{path} is no ledger of data, whose lines begin with a run; name the file that privacy.ledger names, or "
            "the folder of a run"
        )
    if not DataLedger(path).runs():
        raise ConfigError(f"{path} has no run in it; nothing was released, or another file is the ledger of these data")


def privacy_markdown(folders: Iterable[Path], ledgers: Iterable[Path] = ()) -> str:
    """A row for each run, and one for all runs on the same data together, at the least of their deltas.

    Of a run that is under way, was interrupted or has failed what it has released counts too. Runs that simulate
    privacy, or have none, are left out: what they tell has no bound. Where there is a ledger of the data the total is
    that of all runs it knows of, whether they are still there or not. ledgers: such files, beside those of `folders`.

    Raises:
        ConfigError: there is no run with privacy.
        CheckpointError: a ledger cannot be read.
    """
    known = {str(path.resolve()): DataLedger(path) for path in ledgers}
    found: dict[str, list[_Run]] = {name: [] for name in known}
    for folder in folders:
        if (folder / FOLDER / LEDGER).is_file():
            run = _Run.read(folder)
            if run.data_ledger:
                known.setdefault(run.data_ledger, DataLedger(Path(run.data_ledger)))
            found.setdefault(run.data_ledger or _data(folder), []).append(run)
    if not found:
        raise ConfigError("none of these runs has a ledger of releases; name runs with privacy.kind: client")
    lines = ["| run | releases | q | N | z | delta | epsilon |", "|---|---:|---:|---:|---:|---:|---:|"]
    for data, rows in found.items():
        for run in rows:
            account = Accountant(run.rate, run.z, run.delta)
            lines.append(_row(run.name, run.count, run.rate, run.clients, run.z, run.delta, account.epsilon(run.count)))
        lines += _total(rows, known[data] if data in known else None)
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class _Run:
    """What a run's own ledger says."""

    name: str
    """its folder"""
    rate: float
    """q, of the sampling of clients"""
    clients: int
    """N, all that may be sampled"""
    z: float
    """noise multiplier"""
    delta: float
    """δ that its ε is computed for"""
    count: int
    """its releases, with those of the run that it goes on from"""
    own: int
    """without them"""
    data_ledger: str
    """the file where its data's releases are added up; empty: there is none any more, or never was"""

    @classmethod
    def read(cls, folder: Path) -> _Run:
        terms, releases = read_releases(folder / FOLDER)
        own = sum(release.round >= terms.get("since", 0) for release in releases)
        data = str(terms.get("data_ledger") or "")
        numbers = terms["rate"], terms["clients"], terms["noise_multiplier"], terms["delta"]
        return cls(str(folder), *numbers, len(releases), own, data if data and Path(data).is_file() else "")


def _total(rows: Sequence[_Run], ledger: DataLedger | None) -> list[str]:
    """The row of all runs on the same data, if there is more to it than one of them."""
    if ledger is not None:
        runs = list(ledger.runs().values())
        count = sum(len(run.releases) for run in runs)
        if not runs or (len(runs) == len(rows) == 1 and count == rows[0].count):
            return []
        name, delta = f"**all {len(runs)} in {ledger.path}**", min(run.delta for run in runs)
        return [_row(name, count, "", "", "", delta, epsilon_of(runs))]
    if len(rows) < 2:
        return []
    delta, parts = min(run.delta for run in rows), [(run.rate, run.z, run.own) for run in rows]
    name, count = f"**all {len(rows)} on the same data**", sum(run.own for run in rows)
    return [_row(name, count, "", "", "", delta, total_epsilon(parts, delta))]


def _row(*cells: Any) -> str:
    *start, epsilon = cells
    shown = [f"{cell:g}" if isinstance(cell, float) else str(cell) for cell in start]
    return f"| {' | '.join(shown)} | {epsilon:.4f} |"


def _data(folder: Path) -> str:
    """What a run's data are told by: their digest, or the run alone where it has none."""
    try:
        return str(json.loads((folder / "env.json").read_text())["data"])
    except (OSError, ValueError, KeyError, TypeError):
        return str(folder)
