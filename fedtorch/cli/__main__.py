"""`fedtorch COMMAND ...`, or `python -m fedtorch COMMAND ...`.

A command is the `main` of a module, which is imported only once its name is known: help and version need no torch.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from fedtorch.core.errors import ConfigError
from fedtorch.core.imports import importing
from fedtorch.core.streams import flush_streams, has_lost_its_reader
from fedtorch.core.version import ABOUT, PACKAGE, VERSION


@dataclass(frozen=True)
class Command:
    """A sub-command of `fedtorch`."""

    module: str
    """has `main(arguments, prog=...)`, which returns the exit code"""
    about: str
    """for the help, one line"""
    words: tuple[str, ...] = ()
    """last words of its name that `main` reads itself"""


COMMANDS = {
    "run": Command("fedtorch.main", "train a config, by default the small built-in one; with --ranks N like `local`"),
    "local": Command("launchers.local", "the same on several ranks of this machine, restarted when one dies"),
    "sweep": Command("launchers.sweep", "many runs: configs x grid x seeds, here or on SLURM; their status"),
    "slurm": Command("launchers.slurm", "hand a run to SLURM"),
    "serve": Command("launchers.serve", "be the server of silos on machines of their own"),
    "join": Command("launchers.join", "be a silo of such a server, with the data of this machine"),
    "stats": Command("launchers.stats", "count what silos have together, before anybody trains; or show the counts"),
    "init": Command("fedtorch.setup.init", "look at a data file and write a config for it"),
    "data prepare": Command("fedtorch.data.prepare", "prepare a published data set", ("prepare",)),
    "data prepare own": Command("fedtorch.setup.data_prepare", "prepare data of your own before any run"),
    "data check": Command("fedtorch.setup.data_check", "sizes, labels, lengths and leaks of data of your own"),
    "data partition": Command("fedtorch.setup.data_partition", "write which client has which rows of them"),
    "keys new": Command("fedtorch.trust.new_key", "make the pair of keys by which a party of a federation is known"),
    "digest": Command("fedtorch.setup.digest", "sha256 of the code that a run executes, as a policy names it"),
    "gate": Command("fedtorch.lifecycle.gate", "hold a silo's key and sign what its policy lets out; `join` starts it"),
    "verify": Command("launchers.verify", "look again at what a party has of a run: signatures, chain, sums"),
    "report": Command("fedtorch.report.__main__", "tables and plots of finished runs"),
    "export": Command("fedtorch.lifecycle.export", "write the model of a run, or of one of its clients, to a folder"),
    "rebuild": Command("fedtorch.lifecycle.rebuild", "write the model of any round, from base and recorded sums alone"),
    "predict": Command("fedtorch.setup.predict", "what a run's model says of new rows of your own"),
    "bench": Command("fedtorch.planning.bench", "measure this machine, for `run --dry-run --nodes`"),
    "audit": Command("fedtorch.audit.__main__", "attack a run of your own: what could be read of its text"),
    "chat": Command("fedtorch.chat.__main__", "talk to a trained decoder or dialog assistant"),
}


GROUPS = {"data": "prepare, check and deal data, before any run", "keys": "by which parties know each other"}
"""Commands that are the first word of others -> what these have in common."""


_NO_READER = 128 + signal.SIGPIPE
"""Exit code of a command that could not go on printing, as shells have it of others."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code, 2 for one that does not exist, 141 if nobody reads what it prints."""
    try:
        return _main(arguments)
    except BrokenPipeError:
        if not has_lost_its_reader():
            raise
        return _NO_READER
    finally:
        flush_streams()


def _main(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return 0
    name, rest = words[0], words[1:]
    for size in (2, 3):
        if " ".join(words[:size]) in COMMANDS:
            name, rest = " ".join(words[:size]), words[size:]
    if name in GROUPS and rest and not rest[0].startswith("-"):
        name = f"{name} {rest[0]}"  # which there is not
    if name in GROUPS and (not rest or rest[0] in ("-h", "--help")):
        print(_help(f"{name} "))
        return 0
    if name == "--version":
        print(f"fedtorch {VERSION}")
        return 0
    is_dry = any(word.split("=")[0] == "--dry-run" for word in rest)
    if name == "run" and not is_dry and any(word.split("=")[0] == "--ranks" for word in rest):
        name = "local"  # what has ranks is started by a launcher
    if name not in COMMANDS:
        print(f"fedtorch: {_unknown(name)}", file=sys.stderr)
        return ConfigError.exit_code
    command = COMMANDS[name]
    prog = " ".join(["fedtorch", *name.split()[: len(name.split()) - len(command.words)]])
    with importing():
        module = import_module(module_of(command))
    code: int = module.main([*command.words, *rest], prog=prog)
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


def _help(group: str = "") -> str:
    """All commands; of a group, its first word and a blank, those that begin so."""
    shown = {name: command for name, command in COMMANDS.items() if f"{name} ".startswith(group)}
    lines = [f"  {name:18}{command.about}" for name, command in shown.items()]
    usage = f"usage: fedtorch {group}COMMAND ..." if group else "usage: fedtorch [--help] [--version] COMMAND ..."
    about = GROUPS[group.rstrip()] if group else ABOUT
    return "\n".join([usage, "", about, "", *lines, "", "`fedtorch COMMAND --help` has a command's own options."])


def _unknown(name: str) -> str:
    near = get_close_matches(name, COMMANDS, 1)
    advice = f"did you mean `{near[0]}`?" if near else f"choose one of {', '.join(COMMANDS)}"
    return f"unknown command `{name}`; {advice}"


if __name__ == "__main__":
    sys.exit(main())
