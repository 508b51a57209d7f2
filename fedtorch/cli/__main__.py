"""`fedtorch COMMAND ...`, or `python -m fedtorch.cli COMMAND ...`.

A command is the `main` of a module, which is imported only once its name is known: help and version need no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from fedtorch.core.errors import ConfigError
from fedtorch.core.version import ABOUT, PACKAGE, VERSION


@dataclass(frozen=True)
class Command:
    """A sub-command of `fedtorch`."""

    module: str
    """has `main(arguments, prog=...)`, which returns the exit code"""
    about: str
    """for the help, one line"""


COMMANDS = {
    "run": Command("fedtorch.main", "train a config, by default the small built-in one; with --ranks N like `local`"),
    "local": Command("launchers.local", "the same on several ranks of this machine, restarted when one dies"),
    "sweep": Command("launchers.sweep", "many runs: configs x grid x seeds, here or on SLURM; their status"),
    "slurm": Command("launchers.slurm", "hand a run to SLURM"),
    "serve": Command("launchers.serve", "be the server of silos on machines of their own"),
    "join": Command("launchers.join", "be a silo of such a server, with the data of this machine"),
    "init": Command("fedtorch.data.own.init", "look at a data file and write a config for it"),
    "data": Command("fedtorch.data.prepare", "prepare data sets"),
    "data prepare own": Command("fedtorch.setup.data_prepare", "prepare data of your own before any run"),
    "data check": Command("fedtorch.setup.data_check", "sizes, labels, lengths and leaks of data of your own"),
    "data partition": Command("fedtorch.setup.data_partition", "write which client has which rows of them"),
    "report": Command("fedtorch.report.__main__", "tables and plots of finished runs"),
    "export": Command("fedtorch.lifecycle.export", "write the model of a run, or of one of its clients, to a folder"),
    "predict": Command("fedtorch.setup.predict", "what a run's model says of new rows of your own"),
    "bench": Command("fedtorch.planning.bench", "measure this machine, for `run --dry-run --nodes`"),
    "audit": Command("fedtorch.audit.__main__", "attack a run of your own: what could be read of its text"),
    "chat": Command("fedtorch.chat.__main__", "talk to a trained dialog assistant"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code, 2 for one that does not exist."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return 0
    name, rest = words[0], words[1:]
    for size in (2, 3):
        if " ".join(words[:size]) in COMMANDS:
            name, rest = " ".join(words[:size]), words[size:]
    if name == "--version":
        print(f"fedtorch {VERSION}")
        return 0
    if name == "run" and "--dry-run" not in rest and any(word.split("=")[0] == "--ranks" for word in rest):
        name = "local"  # what has ranks is started by a launcher
    if name not in COMMANDS:
        print(f"fedtorch: {_unknown(name)}", file=sys.stderr)
        return ConfigError.exit_code
    code: int = import_module(module_of(COMMANDS[name])).main(rest, prog=f"fedtorch {name}")
    return code


def module_of(command: Command) -> str:
    """The name of the command's module, as this installation has it."""
    inside = command.module.startswith("launchers.") and _has_launchers()
    return f"fedtorch.{command.module}" if inside else command.module


def _has_launchers() -> bool:
    """Is `launchers` a part of this very package? Not in a clone that was put on the path without installing it.

    Another clone may be installed all the same, whose `fedtorch.launchers` would then be found.
    """
    spec = find_spec("fedtorch.launchers")
    return spec is not None and spec.origin is not None and Path(spec.origin).parents[1] in (PACKAGE, PACKAGE.parent)


def _help() -> str:
    lines = [f"  {name:18}{command.about}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: fedtorch [--help] [--version] COMMAND ...",
            "",
            ABOUT,
            "",
            *lines,
            "",
            "`fedtorch COMMAND --help` has a command's own options.",
        ]
    )


def _unknown(name: str) -> str:
    near = get_close_matches(name, COMMANDS, 1)
    advice = f"did you mean `{near[0]}`?" if near else f"choose one of {', '.join(COMMANDS)}"
    return f"unknown command `{name}`; {advice}"


if __name__ == "__main__":
    sys.exit(main())
