"""Count what silos have together, before anybody trains; or show what was counted.

fedtorch stats notes.yaml                     # labels, lengths, words of all clients, as docs/stats.md says
fedtorch stats notes.yaml --ranks 4
fedtorch stats runs/notes-stats --html        # a run folder: its tables again, and as one page

Between institutions: `fedtorch serve` and `fedtorch join` with `--set paradigm=stats`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedtorch.config import load as yaml_config
from fedtorch.config.options import add_config_options, parse
from fedtorch.core.errors import CheckpointError, ConfigError, FedtorchError, print_error
from fedtorch.core.files import replace_file
from fedtorch.lifecycle.counted import tell
from fedtorch.main import main as run
from fedtorch.report.stats_page import NAME, page
from fedtorch.stats.proposals import as_yaml
from fedtorch.stats.table import FILE, Stats

from . import local

PARADIGM = "paradigm=stats"


def main(arguments: Sequence[str] | None = None, *, prog: str = "launchers.stats") -> int:
    """Count, or show; returns the exit code (0 done, 2 the config is wrong, 3 the data are, 10 no budget is left)."""
    args = parse(_parser(prog), arguments, needs_config=True)
    try:
        folder = args.config[0] if _is_counted(args.config) else None
        if folder is None:
            if code := _count(args, prog):
                return code
            folder = yaml_config.load(args.config, [*args.set, PARADIGM]).folder
        elif args.set or args.ranks is not None or args.dry_run:
            raise ConfigError(f"{folder} has been counted; --set, --ranks and --dry-run are for a config")
        else:
            tell(folder)
        if args.html and not args.dry_run:
            print(f"page: {_write_page(folder, args.html)}")
        return 0
    except FedtorchError as error:
        return print_error(error, prog)


def _is_counted(named: Sequence[Path]) -> bool:
    """Is it the folder of a run that has counted?"""
    return len(named) == 1 and (named[0] / FILE).is_file()


def _count(args: argparse.Namespace, prog: str) -> int:
    words = ["--config", *map(str, args.config), "--set", *args.set, PARADIGM]
    if args.dry_run:
        return run([*words, "--dry-run", *([] if args.ranks is None else ["--ranks", str(args.ranks)])], prog=prog)
    if args.ranks is None:
        return run([*words, "--resume", args.resume], prog=prog)
    return local.main([*words, "--ranks", str(args.ranks)], prog=prog)


def _write_page(folder: Path, wanted: str) -> Path:
    """Write the page into the run folder, or where it is wanted; its place.

    Raises:
        CheckpointError: the disk refuses.
    """
    stats, place = Stats.read(folder), folder / NAME if wanted == NAME else Path(wanted)
    try:
        replace_file(place, page(stats, as_yaml(stats, folder)))
    except OSError as error:
        raise CheckpointError(f"{place} cannot be written ({error}); name another file by --html") from error
    return place


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_config_options(parser, "config of rows of your own, or several; or the folder of a run that has counted")
    parser.add_argument("--ranks", type=int, metavar="N", help="count on so many ranks of this machine (1)")
    parser.add_argument("--resume", choices=("auto", "never"), default="auto", help="see fedtorch.main (auto)")
    parser.add_argument(
        "--html", nargs="?", const=NAME, metavar="FILE", help=f"write one page too (RUN/{NAME}); behind the config"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be counted, and what it costs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
