"""Resources that a job asks a cluster for: command-line options and their checks."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, fields

from fedtorch.core.errors import ConfigError

EXECUTORS = ("slurm", "local", "debug")
_OPTIONS = {"nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "partition", "time"}
# chdir: a relative path in a config would mean another file than the one that was checked
_SET_HERE = {"signal", "requeue", "no-requeue", "array", "output", "error", "open-mode", "chdir"}
_TIME = re.compile(
    r"(?P<minutes>\d+)(?::(?P<seconds>\d+))?"
    r"|(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)"
    r"|(?P<days>\d+)-(?P<hours>\d+)(?::(?P<dm>\d+)(?::(?P<ds>\d+))?)?"
)


@dataclass(frozen=True)
class Resources:
    """One job's share of a cluster.

    Raises:
        ConfigError: a number that no cluster can fulfil.
    """

    nodes: int = 1
    """at least 1"""
    gpus_per_node: int = 0
    """0: ranks compute on CPUs"""
    tasks_per_node: int | None = None
    """ranks per node; None: one per GPU, or one on a node without"""
    cpus_per_task: int = 1
    """for each rank"""
    partition: str | None = None
    """of the cluster; None: its default"""
    time_min: int = 60
    """limit of one attempt in minutes"""
    grace_s: int = 120
    """for saving, before the limit"""
    max_timeouts: int = 20
    """how often a job that met its limit is put back into the queue"""
    max_hangs: int = 3
    """how often a job in which a rank hung or was killed is put back into the queue"""
    sbatch: tuple[str, ...] = ()
    """further `key=value` for sbatch"""
    setup: tuple[str, ...] = ()
    """shell lines for the job's script, before its ranks start"""
    executor: str = "slurm"
    """slurm; local: processes of this machine; debug: one rank in this process"""

    def __post_init__(self) -> None:
        least = {"nodes": 1, "gpus_per_node": 0, "tasks_per_node": 1, "cpus_per_task": 1, "time_min": 1, "grace_s": 1}
        for name, minimum in {**least, "max_timeouts": 0, "max_hangs": 0}.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise ConfigError(f"{_option(name)} is {value} but should be at least {minimum}")
        if self.grace_s >= 60 * self.time_min:
            raise ConfigError(
                f"--grace is {self.grace_s} s but --time is only {self.time_min} min, so the job would be stopped at "
                f"its start; give more time or less grace"
            )
        if self.executor == "local" and self.nodes > 1:
            raise ConfigError(f"--nodes is {self.nodes} but --executor local has this machine only; set --nodes 1")
        if self.executor == "debug" and self.ranks > 1:
            raise ConfigError(
                f"--executor debug runs in this process, as one rank, but {self.ranks} were asked for; set --nodes 1 "
                f"--tasks-per-node 1, or take --executor local"
            )
        self.extra()

    @property
    def tasks(self) -> int:
        """Ranks per node."""
        return self.tasks_per_node or max(1, self.gpus_per_node)

    @property
    def ranks(self) -> int:
        """Ranks in all; rank 0 is the server."""
        return self.nodes * self.tasks

    def extra(self) -> dict[str, str | bool]:
        """The further settings for sbatch; a key without a value is a flag."""
        found: dict[str, str | bool] = {}
        for entry in self.sbatch:
            key, equals, value = entry.partition("=")
            if not re.fullmatch(r"[a-z][a-z-]*", key) or (equals and not value):
                raise ConfigError(f"--sbatch {entry}: expected key=value, such as account=physics, or a flag's name")
            if key in _OPTIONS:
                option = "tasks-per-node" if key == "ntasks-per-node" else key
                raise ConfigError(f"--sbatch {entry}: {key} has an option of its own, --{option}")
            if key in _SET_HERE:
                raise ConfigError(f"--sbatch {entry}: {key} is set by the launcher and must stay as it is")
            found[key] = value if equals else True
        return found

    def describe(self) -> str:
        """One line for people."""
        where = f"partition {self.partition}" if self.partition else "the default partition"
        place = where if self.executor == "slurm" else f"this machine ({self.executor})"
        return (
            f"{self.nodes} x {self.tasks} ranks, {self.gpus_per_node} GPUs and {self.tasks * self.cpus_per_task} CPUs "
            f"per node, {self.time_min} min on {place}"
        )


def minutes(text: str) -> int:
    """A time limit as sbatch reads it (`90`, `90:00`, `1:30:00`, `1-12`, `1-12:30`, `1-12:30:00`), in whole minutes.

    Seconds are rounded up, as SLURM does.

    Raises:
        ConfigError: none of these forms.
    """
    found = _TIME.fullmatch(text)
    if not found:
        raise ConfigError(
            f"--time {text}: expected minutes, minutes:seconds, hours:minutes:seconds or days-hours[:minutes[:seconds]]"
        )
    part = {key: int(value or 0) for key, value in found.groupdict().items()}
    seconds = part["seconds"] + part["s"] + part["ds"]
    hours = part["h"] + part["hours"] + 24 * part["days"]
    return part["minutes"] + part["m"] + part["dm"] + 60 * hours - (-seconds // 60)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `Resources`."""
    group = parser.add_argument_group("what to ask the cluster for")
    group.add_argument("--nodes", type=int, default=1, metavar="N")
    group.add_argument("--gpus-per-node", type=int, default=0, metavar="G")
    group.add_argument("--tasks-per-node", type=int, metavar="T", help="ranks per node; default: one per GPU, or 1")
    group.add_argument("--cpus-per-task", type=int, default=1, metavar="C")
    group.add_argument("--partition", metavar="P", help="default: the cluster's own default")
    group.add_argument(
        "--time", default="60", metavar="LIMIT", help="of one attempt, as sbatch takes it: minutes, [D-]HH:MM:SS, ..."
    )
    group.add_argument(
        "--grace", type=int, default=120, metavar="S", help="seconds before the limit at which the run is told to save"
    )
    group.add_argument(
        "--max-timeouts", type=int, default=20, metavar="N", help="how often a job may run into its limit"
    )
    group.add_argument(
        "--max-hangs",
        type=int,
        default=3,
        metavar="N",
        help="how often it is put back after a rank hung or was killed, between two saved rounds (%(default)s)",
    )
    group.add_argument(
        "--sbatch",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="more for sbatch",
    )
    group.add_argument(
        "--setup",
        nargs="+",
        action="extend",
        default=[],
        metavar="LINE",
        help="shell line, before the ranks start",
    )


def resources_of(args: argparse.Namespace) -> Resources:
    """The resources that the options describe.

    Raises:
        ConfigError: see `Resources`.
    """
    return Resources(
        nodes=args.nodes,
        gpus_per_node=args.gpus_per_node,
        tasks_per_node=args.tasks_per_node,
        cpus_per_task=args.cpus_per_task,
        partition=args.partition,
        time_min=minutes(args.time),
        grace_s=args.grace,
        max_timeouts=args.max_timeouts,
        max_hangs=args.max_hangs,
        sbatch=tuple(args.sbatch),
        setup=tuple(args.setup),
        executor=args.executor,
    )


def options_of(resources: Resources) -> list[str]:
    """The words of a command line that asks for the same; what is left at its default is not named."""
    words: list[str] = []
    for field in fields(Resources):
        value = getattr(resources, field.name)
        if value != field.default:
            words += [_option(field.name), *(value if isinstance(value, tuple) else [str(value)])]
    return words


def _option(name: str) -> str:
    return "--" + {"time_min": "time", "grace_s": "grace"}.get(name, name).replace("_", "-")
