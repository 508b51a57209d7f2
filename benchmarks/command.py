"""What the commands of all benchmarks have in common: the option for a file of figures, and a console that is wide."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console


def parser_of(doc: str) -> argparse.ArgumentParser:
    """Options of a benchmark whose file begins with `doc`; --json is there."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures to this file too")
    return parser


def console_of(width: int) -> Console:
    """As wide as the terminal, or `width` where there is none."""
    return Console(width=None if sys.stdout.isatty() else width)


def write_figures(path: Path | None, figures: Any) -> None:
    """Into the file of --json, if one was named."""
    if path is not None:
        path.write_text(json.dumps(figures, indent=1) + "\n")
