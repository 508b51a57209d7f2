"""What a job asks a cluster for: command-line options, their checks, and submitit's executor for them."""

from __future__ import annotations

import argparse
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtorch.errors import ConfigError

EXECUTORS = ("slurm", "local", "debug")
SRUN = ("--kill-on-bad-exit=0", "--wait=300")
"""Interrupted ranks end with 75 one after the other, and the server may save its model for minutes after the others
have left: the first to end must not end the rest. A rank that is alone for 300 s is ended."""
_OWN = {"nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "partition", "time", "signal", "requeue", "array"}


@dataclass(frozen=True)
class Resources:
    """One job's share of a cluster. time_min: limit of one attempt in minutes. grace_s: for saving, before the limit.

    tasks_per_node: ranks per node; None: one per GPU, or one on a node without. sbatch: further `key=value` for sbatch.

    Raises:
        ConfigError: a number that no cluster can fulfil.
    """

    nodes: int = 1
    gpus_per_node: int = 0
    tasks_per_node: int | None = None
    cpus_per_task: int = 1
    partition: str | None = None
    time_min: int = 60
    grace_s: int = 120
    max_timeouts: int = 20
    sbatch: tuple[str, ...] = ()
    executor: str = "slurm"

    def __post_init__(self) -> None:
        least = {"nodes": 1, "gpus_per_node": 0, "tasks_per_node": 1, "cpus_per_task": 1, "time_min": 1, "grace_s": 1}
        for name, minimum in {**least, "max_timeouts": 0}.items():
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
            if key in _OWN:
                raise ConfigError(f"--sbatch {entry}: {key} has an option of its own, or is set by the launcher")
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


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `Resources`."""
    group = parser.add_argument_group("what to ask the cluster for")
    group.add_argument("--nodes", type=int, default=1, metavar="N")
    group.add_argument("--gpus-per-node", type=int, default=0, metavar="G")
    group.add_argument("--tasks-per-node", type=int, metavar="T", help="ranks per node; default: one per GPU, or 1")
    group.add_argument("--cpus-per-task", type=int, default=1, metavar="C")
    group.add_argument("--partition", metavar="P", help="default: the cluster's own default")
    group.add_argument("--time", type=int, default=60, metavar="MIN", help="limit of one attempt; then it is requeued")
    group.add_argument(
        "--grace", type=int, default=120, metavar="S", help="seconds before the limit at which the run is told to save"
    )
    group.add_argument(
        "--max-timeouts", type=int, default=20, metavar="N", help="how often a job may run into its limit"
    )
    group.add_argument("--sbatch", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="more for sbatch")


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
        time_min=args.time,
        grace_s=args.grace,
        max_timeouts=args.max_timeouts,
        sbatch=tuple(args.sbatch),
        executor=args.executor,
    )


def make_executor(resources: Resources, folder: Path, *, name: str, at_once: int | None = None) -> Any:
    """submitit's executor, with logs and job files in `folder`. at_once: limit of a job array's running jobs.

    Raises:
        ConfigError: submitit or SLURM's commands are missing.
    """
    try:
        import submitit
    except ImportError as error:
        raise ConfigError("submitit is not installed; run: pip install 'fedtorch-nlp[slurm]'") from error
    if resources.executor == "slurm" and (missing := [c for c in ("sbatch", "srun") if shutil.which(c) is None]):
        raise ConfigError(
            f"{' and '.join(missing)} not found on this machine, so no job can be submitted from here; log in to a "
            f"machine of the cluster, or take --executor local"
        )
    if resources.executor == "debug":
        return submitit.DebugExecutor(folder)
    if resources.executor == "local":
        local = submitit.LocalExecutor(folder, max_num_timeout=resources.max_timeouts)
        local.update_parameters(
            timeout_min=resources.time_min,
            tasks_per_node=resources.tasks,
            gpus_per_node=resources.gpus_per_node,
            signal_delay_s=resources.grace_s,
        )
        return local
    slurm = submitit.SlurmExecutor(folder, max_num_timeout=resources.max_timeouts)
    settings = {
        "job_name": name,
        "nodes": resources.nodes,
        "ntasks_per_node": resources.tasks,
        "cpus_per_task": resources.cpus_per_task,
        "gpus_per_node": resources.gpus_per_node or None,
        "partition": resources.partition,
        "time": resources.time_min,
        "signal_delay_s": resources.grace_s,
        "array_parallelism": at_once,
        # srun takes the CPUs over from sbatch only up to SLURM 22.05
        "srun_args": [*SRUN, f"--cpus-per-task={resources.cpus_per_task}"],
        "additional_parameters": {"requeue": True, **resources.extra()},
    }
    slurm.update_parameters(**{key: value for key, value in settings.items() if value is not None})
    return slurm


def _option(name: str) -> str:
    return "--" + {"time_min": "time", "grace_s": "grace"}.get(name, name).replace("_", "-")
