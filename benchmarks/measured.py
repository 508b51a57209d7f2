"""What one rank does while it is measured: the runner as a user starts it, or the plain loop."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.plain import Share, plain_rounds
from benchmarks.workloads import Workload
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.local import LocalCommunicator
from fedtorch.comm.options import Network
from fedtorch.config import load as yaml_config
from fedtorch.config.schema import CheckpointConfig
from fedtorch.core.freed_memory import keep_freed
from fedtorch.core.mechanism import RoundFacts
from fedtorch.rounds.components import RunComponents
from fedtorch.rounds.runner import Runner
from fedtorch.setup.build import build
from fedtorch.tracking.settings import TrackConfig
from fedtorch.tracking.tracker import Tracker

# The first two rounds pay for memory that is touched for the first time: what is kept takes pages that the first one
# has used, so that the second gets new ones (dear where the host of a virtual machine must give them). The last one of
# the runner pays for a checkpoint.
NOT_TIMED, BEFORE = 3, 2


@dataclass
class Timing:
    """One rank's figures."""

    round_s: list[float]
    """wall time of each timed round"""
    cpu_s: list[float]
    """processor time of each timed round, all threads of the rank"""
    phases_s: dict[str, float] = field(default_factory=dict)
    """mean per timed round, by the runner's names"""
    moved: dict[str, float] = field(default_factory=dict)
    """traffic: mean per timed round, by the runner's names"""
    held_mb: float = 0.0
    """most memory at the end of a round, above what it was before the runner; without pages of mapped files, which
    the system takes back when it needs them"""
    built_mb: float = 0.0
    """the same when the runner began: libraries, and the model"""
    weights: np.ndarray | None = None
    """after the last round, flat, fp32"""


class Watch:
    """Takes the place of the tracker: notes when each round ended."""

    def __init__(self) -> None:
        self.ends = [(time.perf_counter(), time.process_time())]
        self.held_mb = [anonymous_mb()]
        self.phases: list[Mapping[str, float]] = []
        self.moved: list[Mapping[str, float]] = []

    def round(self, round: int, facts: RoundFacts) -> None:
        """A round has ended."""
        self.ends.append((time.perf_counter(), time.process_time()))
        self.held_mb.append(anonymous_mb())
        self.phases.append(dict(facts.seconds))
        self.moved.append(dict(facts.traffic))

    def end(self, round: int, traffic: Mapping[str, float]) -> None:
        """What follows the last round is not timed."""

    def working(self, text: str) -> None:
        """Called in every step."""

    def timing(self, rounds: int) -> Timing:
        """Of the rounds that count."""
        timed = slice(BEFORE, BEFORE + rounds)
        wall, cpu = (
            [end[clock] - start[clock] for start, end in zip(self.ends, self.ends[1:], strict=False)][timed]
            for clock in (0, 1)
        )
        held = max(self.held_mb) - self.held_mb[0]
        return Timing(wall, cpu, _mean(self.phases[timed]), _mean(self.moved[timed]), held, self.held_mb[0])


class WatchedTracker(Tracker):
    """The real tracker with a watch beside it."""

    def __init__(self, folder: Path, clients: Sequence[str], rounds: int, watch: Watch) -> None:
        super().__init__(folder, clients=clients, rounds=rounds, settings=TrackConfig(progress="off"))
        self.watch = watch

    def round(self, round: int, facts: RoundFacts) -> None:
        """Track, then note the time."""
        super().round(round, facts)
        self.watch.round(round, facts)


def time_runner(
    workload: Workload,
    kept: CheckpointConfig | None = None,
    keep: bool = False,
    watch_of: Callable[[], Watch] = Watch,
    crosses: str = "",
    **system: Any,
) -> Timing:
    """Run the workload with as many ranks as there are; this rank's timing. keep: also the final weights.

    kept: with records, TensorBoard and these checkpoints; None: with none of them. crosses: as `preflight` takes it.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rounds = workload.rounds + NOT_TIMED
    folder = Path(tempfile.gettempdir()) / f"fedtorch-benchmark-{os.environ['MASTER_PORT']}"
    config = workload.config(folder, rounds=rounds, **system)
    if kept is not None:
        config = replace(config, checkpoint=kept)
    keep_freed(config.system.keep_freed_mb)
    built = build(config, num_ranks=size, rank=rank)
    network = Network(shares_memory=config.system.shared_memory == "auto")
    comm: Communicator = (
        LocalCommunicator(built.names)
        if size == 1
        else DistributedCommunicator.join(built.names, timeout_s=120, network=network, device=built.engine.device)
    )
    tracker: Any = watch_of()
    if kept is not None and rank == 0:
        tracker = WatchedTracker(folder, built.names, rounds, tracker)
    watch = tracker.watch if isinstance(tracker, WatchedTracker) else tracker
    try:
        with comm:
            comm.preflight(built.facts(), crosses=crosses)
            setting = RunComponents(
                config=config,
                task=built.task,
                training=built.training,
                algorithm=built.algorithm,
                clients=built.clients,
                sampler=built.sampler,
                engine=built.engine,
                comm=comm,
                topology=built.topology,
                placement=built.placement,
                checkpoints=Checkpoints(folder / "checkpoints", keep=config.checkpoint.keep),
                config_record=yaml_config.to_dict(config),
                facts=built.facts(),
                stop=lambda: False,
                tracker=tracker,
            )
            runner = Runner(setting)
            runner.run()
            if isinstance(tracker, Tracker):
                tracker.close()
    finally:
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
    timing = watch.timing(workload.rounds)
    timing.weights = runner.context.vectors.weights.numpy().copy() if keep else None
    return timing


def time_plain(workload: Workload, keep: bool = False, watch_of: type[Watch] = Watch, keep_freed_mb: int = 0) -> Timing:
    """Run the plain loop on one rank or two; this rank's timing."""
    keep_freed(keep_freed_mb)
    share = Share(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    if share.size > 1:
        dist.init_process_group("gloo")
        dist.all_reduce(torch.zeros(1))  # connects the two, so that both start at the same time
    watch = watch_of()
    weights = plain_rounds(workload, workload.rounds + NOT_TIMED, share, lambda: watch.round(0, RoundFacts(None)))
    if share.size > 1:
        dist.destroy_process_group()
    timing = watch.timing(workload.rounds)
    timing.weights = weights.numpy() if keep else None
    return timing


def anonymous_mb() -> float:
    """Memory of the process that is no file's; 0 where the system does not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon")), 0.0)


def _mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: sum(row.get(name, 0.0) for row in rows) / len(rows) for name in names}
