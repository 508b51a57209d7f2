"""Adds up runs on the same clients: ε belongs to the data, not to a run."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtorch.core.errors import ConfigError
from fedtorch.core.extras import require
from fedtorch.core.shown import for_markdown, markdown_row
from fedtorch.privacy.accounting import Accountant, parts_of, shared, total_epsilon
from fedtorch.privacy.data_ledger import DataLedger, epsilon_of
from fedtorch.privacy.ledger import FOLDER, LEDGER, read_releases
from fedtorch.report.compared import out_folder, say_written, show_page
from fedtorch.report.find_runs import find_runs
from fedtorch.report.privacy_of_records import is_silos, of_records, records_markdown, silos_markdown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `privacy`."""
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="folder of a run with privacy, or with such runs in it; or the ledger of data (DATA.privacy.jsonl, or the "
        "file that privacy.ledger names), or of a silo (DATA.privacy/SILO/ledger.jsonl)",
    )
    parser.add_argument("--out", type=Path, help="folder for privacy.md; default: RUN/report")


def make(args: argparse.Namespace) -> None:
    """Print and write the table.

    Raises:
        ConfigError: there is no run with privacy.
    """
    require("report privacy", "dp_accounting", extra="privacy")
    files = [path for path in args.runs if path.is_file()]
    silos = [path for path in files if is_silos(path)]
    ledgers = [path for path in files if path not in silos]
    for path in ledgers:
        _check_ledger(path)
    folders = [path for path in args.runs if path not in files]
    found = dict.fromkeys(run.folder for _, run in find_runs(folders).runs) if folders else {}
    records = [folder for folder in found if of_records(folder)]
    others = [folder for folder in found if folder not in records]
    texts = [records_markdown(records), silos_markdown(silos)]
    if others or ledgers or not any(texts):
        texts.insert(0, privacy_markdown(others, ledgers))
    text = "\n".join(filter(None, texts))
    say_written([show_page(text, out_folder(args.out, folders or [Path()]) / "privacy.md")])


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
    that of all runs it knows of, whether they are still there or not; where it is gone, or there never was one, a line
    says so. ledgers: such files, beside those of `folders`.

    Raises:
        ConfigError: there is no run with privacy.
        CheckpointError: a ledger cannot be read.
    """
    known = {str(path.resolve()): DataLedger(path) for path in ledgers}
    found: dict[str, list[_Run]] = {name: [] for name in known}
    for folder in folders:
        if (folder / FOLDER / LEDGER).is_file():
            run = _Run.read(folder)
            if has_ledger := bool(run.data_ledger) and Path(run.data_ledger).is_file():
                known.setdefault(run.data_ledger, DataLedger(Path(run.data_ledger)))
            found.setdefault(run.data_ledger if has_ledger else _data(folder), []).append(run)
    if not found:
        raise ConfigError("none of these runs has promised anything; name runs with privacy.kind client or record")
    lines = ["| run | releases | q | N | z | delta | epsilon |", "|---|---:|---:|---:|---:|---:|---:|"]
    for data, rows in found.items():
        for run in rows:
            account = Accountant(run.rate, run.z, run.delta)
            epsilon = account.epsilon_of(run.spent)
            lines.append(_row(run.name, run.count, run.rate, run.clients, run.z, run.delta, epsilon))
        lines += _total(rows, known[data] if data in known else None)
    return "\n".join([*lines, *_uncounted(found, known)]) + "\n"


def _uncounted(found: Mapping[str, Sequence[_Run]], known: Mapping[str, DataLedger]) -> list[str]:
    """Below the table: of which runs nobody knows what others on the same data have released."""
    lines = []
    for run in [run for data, rows in found.items() if data not in known for run in rows]:
        lost = f"the ledger of its data, {run.data_ledger}, is gone" if run.data_ledger else "its data have no ledger"
        lines.append(
            f"{for_markdown(run.name)}: {for_markdown(lost)}, so what other runs released of them is not counted here."
        )
    return ["", *lines] if lines else []


@dataclass(frozen=True)
class _Run:
    """A run as its own ledger tells it."""

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
    spent: Counter[int]
    """its releases, with those of the run that it goes on from, as the account counts them"""
    own: Counter[int]
    """without them"""
    data_ledger: str
    """the file where its data's releases are added up, there or not any more; empty: there never was one"""

    @classmethod
    def read(cls, folder: Path) -> _Run:
        terms, releases = read_releases(folder / FOLDER)
        draws = [(release.round, release.draw) for release in releases]
        own = [draw for draw in draws if draw[0] >= terms.get("since", 0)]
        numbers = terms["rate"], terms["clients"], terms["noise_multiplier"], terms["delta"]
        return cls(str(folder), *numbers, shared(draws), shared(own), str(terms.get("data_ledger") or ""))

    @property
    def count(self) -> int:
        """How many releases."""
        return _releases(self.spent)


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
    delta, parts = min(run.delta for run in rows), [part for run in rows for part in parts_of(run.rate, run.z, run.own)]
    name, count = f"**all {len(rows)} on the same data**", sum(_releases(run.own) for run in rows)
    return [_row(name, count, "", "", "", delta, total_epsilon(parts, delta))]


def _releases(spent: Mapping[int, int]) -> int:
    return sum(shared_by * draws for shared_by, draws in spent.items())


def _row(*cells: Any) -> str:
    *start, epsilon = cells
    shown = [f"{cell:g}" if isinstance(cell, float) else str(cell) for cell in start]
    return markdown_row([*shown, f"{epsilon:.4f}"])


def _data(folder: Path) -> str:
    """Identity of a run's data: their digest, or the run alone where it has none."""
    try:
        return str(json.loads((folder / "env.json").read_text())["data"])
    except (OSError, ValueError, KeyError, TypeError):
        return str(folder)
