"""`fedtorch data partition CONFIG --out DIR`: who owns which row, one JSON file per client, to be used elsewhere."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fedtorch.config import load as yaml_config
from fedtorch.core.errors import FedtorchError, print_error
from fedtorch.core.terminal import log_to_terminal
from fedtorch.setup.data_check import add_config, own_task
from fedtorch.tasks.own import OwnTask
from fedtorch.tasks.own_overview import write_partition_of


def main(arguments: Sequence[str] | None = None, *, prog: str = "fedtorch.setup.data_partition") -> int:
    """Write the folder; returns the exit code (0, 2 the config is wrong, 3 the data are or DIR is taken)."""
    return write_folder(_parser(prog).parse_args(arguments), write_partition_of)


def write_folder(args: argparse.Namespace, write: Callable[[OwnTask, Path], Sequence[int]]) -> int:
    """Write what a config's own data are made into, and say how many rows clients have; returns the exit code.

    args: `config`, `set` and `out`. write: into a new folder; returns each client's rows.
    """
    log_to_terminal(logging.WARNING)
    try:
        config = yaml_config.load(args.config, args.set)
        sizes = write(own_task(config.task, config.task_name), args.out)
        print(f"{args.out}: {len(sizes)} clients with {min(sizes)} to {max(sizes)} of {sum(sizes)} rows")
        return 0
    except FedtorchError as error:
        return print_error(error)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Write which rows each client of a config's own data has: a JSON file per client with the rows' "
        "ids (task.data.id, or digests of their contents). Splits are not part of it.",
    )
    add_config(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
