"""What runs on the same clients add up to: ε belongs to the data, not to a run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedtorch.core.errors import ConfigError
from fedtorch.core.extras import require
from fedtorch.privacy.accounting import Accountant, total_epsilon
from fedtorch.privacy.ledger import FOLDER, LEDGER, read_releases
from fedtorch.report.compared import say_written, show_page
from fedtorch.report.find_runs import find_runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `privacy`."""
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="folder of a run with privacy, or with such runs in it"
    )
    parser.add_argument("--out", type=Path, help="folder for privacy.md; default: RUN/report")


def make(args: argparse.Namespace) -> None:
    """Print and write the table.

    Raises:
        ConfigError: there is no run with privacy.
    """
    require("report privacy", "dp_accounting", extra="privacy")
    text = privacy_markdown(dict.fromkeys(run.folder for _, run in find_runs(args.runs).runs))
    say_written([show_page(text, (args.out or args.runs[0] / "report") / "privacy.md")])


def privacy_markdown(folders: Iterable[Path]) -> str:
    """A row for each run, and one for all runs on the same data together, at the least of their deltas.

    Of a run that is under way, was interrupted or has failed what it has released counts too. Runs that simulate
    privacy, or have none, are left out: what they tell has no bound.

    Raises:
        ConfigError: there is no run with privacy.
    """
    found: dict[str, list[tuple[str, dict[str, Any], int, int]]] = {}
    for folder in folders:
        if (folder / FOLDER / LEDGER).is_file():
            terms, releases = read_releases(folder / FOLDER)
            own = sum(release.round >= terms.get("since", 0) for release in releases)  # others are another run's too
            found.setdefault(_data(folder), []).append((str(folder), terms, len(releases), own))
    if not found:
        raise ConfigError("none of these runs has a ledger of releases; name runs with privacy.kind: client")
    lines = ["| run | releases | q | N | z | delta | epsilon |", "|---|---:|---:|---:|---:|---:|---:|"]
    for rows in found.values():
        for name, terms, count, _ in rows:
            rate, z, delta = terms["rate"], terms["noise_multiplier"], terms["delta"]
            lines.append(_row(name, count, rate, terms["clients"], z, delta, Accountant(rate, z, delta).epsilon(count)))
        if len(rows) > 1:
            delta = min(terms["delta"] for _, terms, _, _ in rows)
            parts = [(terms["rate"], terms["noise_multiplier"], own) for _, terms, _, own in rows]
            count, name = sum(own for _, _, _, own in rows), f"**all {len(rows)} on the same data**"
            lines.append(_row(name, count, "", "", "", delta, total_epsilon(parts, delta)))
    return "\n".join(lines) + "\n"


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
