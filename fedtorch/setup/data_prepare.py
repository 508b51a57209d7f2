"""`fedtorch data prepare own --config CONFIG --out DIR`: rows of your own as a prepared folder, before any run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedtorch.core.errors import DataError
from fedtorch.setup.data_check import add_config
from fedtorch.setup.data_partition import write_folder
from fedtorch.tasks.own import OwnTask


def main(arguments: Sequence[str] | None = None, *, prog: str = "fedtorch.setup.data_prepare") -> int:
    """Write the folder; returns the exit code (0, 2 the config is wrong, 3 the data are or DIR is taken)."""
    args = _parser(prog).parse_args(arguments)
    if code := write_folder(args, _prepare):
        return code
    print(f"fedtorch run --config {' '.join(map(str, args.config))} --set task.data.prepared={args.out}")
    return 0


def _prepare(task: OwnTask, out: Path) -> list[int]:
    if out.exists():
        raise DataError(f"{out} is there already; name a new folder, or remove it")
    return task.prepare_into(out)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Write the rows of a config's own data as a prepared folder, which can be looked at, copied to "
        "other machines and be named in task.data.prepared; a run does the same by itself, below data/.",
    )
    add_config(parser, "--config", required=True)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
