"""`fedtorch data prepare own --config CONFIG --out DIR`: rows of your own as a prepared folder, before any run."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from fedtorch.config import load as yaml_config
from fedtorch.core.errors import DataError, FedtorchError
from fedtorch.setup.data_check import own_task


def main(arguments: Sequence[str] | None = None, *, prog: str = "fedtorch.setup.data_prepare") -> int:
    """Write the folder; returns the exit code (0, 2 the config is wrong, 3 the data are or DIR is taken)."""
    args = _parser(prog).parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        config = yaml_config.load(args.config, args.set)
        if args.out.exists():
            raise DataError(f"{args.out} is there already; name a new folder, or remove it")
        own_task(config.task, config.task_name).prepare_into(args.out)
        clients = json.loads((args.out / "manifest.json").read_text())["clients"].values()
        sizes = [sum(split["examples"] for split in client["splits"].values()) for client in clients]
        print(f"{args.out}: {len(sizes)} clients with {min(sizes)} to {max(sizes)} of {sum(sizes)} rows")
        names = " ".join(map(str, args.config))
        print(f"fedtorch run --config {names} --set task.data.prepared={args.out}")
        return 0
    except FedtorchError as error:
        print(f"fedtorch: {error}", file=sys.stderr)
        return error.exit_code


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Write the rows of a config's own data as a prepared folder, which can be looked at, copied to "
        "other machines and be named in task.data.prepared; a run does the same by itself, below data/.",
    )
    parser.add_argument(
        "--config", type=Path, nargs="+", required=True, metavar="CONFIG", help="YAML file; later ones change the first"
    )
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="override one key")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
