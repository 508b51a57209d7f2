"""Run a config on the toy task, in this process or as one of several ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.base import Communicator
from fedtorch.comm.local import LocalCommunicator
from fedtorch.config.schema import CheckpointConfig, ClientConfig, ClientsConfig, Config, EvalConfig, RunConfig
from fedtorch.core.errors import Interrupted
from fedtorch.rounds.result import Result
from fedtorch.rounds.runner import Runner
from fedtorch.setup.build import build
from fedtorch.tasks.base import Task

SGD = ClientConfig(optimizer="sgd", lr=0.1, batch_size=1000)


def make_config(folder: Path, task: Task, algorithm: Algorithm | None = None, **changes: Any) -> Config:
    """A config whose defaults suit the toy task: full-batch SGD, no evaluation, no files but checkpoints."""
    settings: dict[str, Any] = {
        "run": RunConfig(name="toy", dir=str(folder)),
        "rounds": 2,
        "client": SGD,
        "eval": EvalConfig(every=0),
        "checkpoint": CheckpointConfig(every=1000),
        "clients": ClientsConfig(),
        **changes,
    }
    return Config(task=task, algorithm=algorithm or FedAvg(), **settings)


def make_runner(config: Config, comm: Communicator | None = None, **changes: Any) -> Runner:
    """A runner for `config`; alone in this process unless a communicator is given."""
    num_ranks, rank = (comm.size, comm.rank) if comm is not None else (1, 0)
    built = build(config, num_ranks=num_ranks, rank=rank)
    checkpoints = Checkpoints(config.folder / "checkpoints", keep=config.checkpoint.keep)
    components = built.components(comm or LocalCommunicator(built.names), checkpoints, stop=lambda: False)
    return Runner(replace(components, **changes))


def pinned(runner: Runner) -> Runner:
    """The runner, whose clients stay with their workers however long they take."""
    runner.trainer.learn = lambda accepted: None  # type: ignore[method-assign]
    return runner


def interrupt(config: Config, calls: int) -> None:
    """Begin a run that is asked to stop when it has looked for that so often."""
    left = [calls]

    def stop() -> bool:
        left[0] -= 1
        return left[0] < 0

    with pytest.raises(Interrupted):
        make_runner(config, stop=stop).run()


def interrupted_and_resumed(config: Config, calls: int) -> Result:
    """The result of a run that is interrupted so, and then goes on."""
    interrupt(config, calls)
    runner = make_runner(config)
    found = runner.components.checkpoints.latest()
    return runner.run(None if found is None else found.round)
