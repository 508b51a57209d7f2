"""The words of a command line that name a config: `CONFIG ...`, `--config CONFIG ...` and `--set KEY=VALUE ...`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

_SCRIPT = Path("script/first")  # a shipped config without a task
SHIPPED = "YAML file or name of a shipped config (lorar/fedopt), or several of which the later ones change the first"


def add_config_options(parser: argparse.ArgumentParser, about: str = SHIPPED, *, metavar: str = "CONFIG") -> None:
    """The config with and without `--config`, and `--set`; read them with `parse`."""
    parser.add_argument("configs", type=Path, nargs="*", metavar=metavar, help=about)
    parser.add_argument("--config", type=Path, nargs="+", default=[], metavar=metavar, help="the same, anywhere")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="override one key")


def add_script_option(parser: argparse.ArgumentParser) -> None:
    """`--script FILE`, short for the keys that run a training script of one's own; `parse` writes them out."""
    parser.add_argument(
        "--script", type=Path, metavar="FILE", help="a training script with the calls of fedtorch.client, as the client"
    )


def parse(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, *, needs_config: bool = False
) -> argparse.Namespace:
    """Parse the arguments, all configs into `config`; those before `--config` come first.

    needs_config: without one the command ends, as for other things that are missing.
    """
    args = parser.parse_intermixed_args(arguments)  # CONFIG may stand behind options
    join_configs(args)
    if needs_config and not args.config:
        parser.error("name a config: a YAML file, or a shipped one such as smoke/fedavg")
    return args


def join_configs(args: argparse.Namespace) -> None:
    """Put configs without `--config` before the others."""
    args.config = [*args.configs, *args.config]
    if (script := getattr(args, "script", None)) is not None:
        own = ["task.name=script", f"task.script={json.dumps(str(script))}", "client.trainer=script", "eval.every=0"]
        args.set = [*own, f"run.name={json.dumps(script.stem)}", *args.set]
        args.config = args.config or [_SCRIPT]
