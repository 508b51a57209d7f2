"""Trainers of others: one digest however many ranks there are, interrupted or not."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from harness import interrupted_and_resumed, make_runner
from ranks import run_ranks
from trained_otherwise import ARGS, config_of, task_of

from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import CheckpointConfig, ClientsConfig, Config
from fedtorch.train.settings import TrainerConfig

CASES: Mapping[str, tuple[TrainerConfig, dict[str, Any]]] = {
    "transformers": (TrainerConfig("transformers", ARGS), {}),
    "goes_on": (
        TrainerConfig("transformers", {**ARGS, "lr_scheduler_type": "cosine"}),
        {"client": {"optimizer_state": "keep", "schedule_span": "run"}, "clients": ClientsConfig(per_round=2)},
    ),
    "function": (TrainerConfig("trainers_of_tests:sgd"), {}),
}
if find_spec("trl"):
    CASES = {**CASES, "sft": (TrainerConfig("trl.SFT", ARGS), {"client": {"optimizer_state": "keep"}})}


def configs(folder: str) -> dict[str, Config]:
    sys.path.append(str(Path(__file__).parents[1] / "trainers"))
    Path(folder).mkdir(exist_ok=True)
    task = task_of(Path(folder))
    os.chdir(folder)  # prepared rows are below the present folder
    settings: dict[str, Any] = {"task": task, "rounds": 3, "checkpoint": CheckpointConfig(every=1)}
    return {
        name: config_of(Path(folder) / name, trainer, **{**settings, **changes})
        for name, (trainer, changes) in CASES.items()
    }


def run_all(folder: str, comm: Communicator | None = None) -> dict[str, str]:
    return {name: make_runner(config, comm).run().digest for name, config in configs(folder).items()}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def on_ranks(folder: str) -> dict[str, str]:
    with DistributedCommunicator.join(("north", "south", "west"), timeout_s=60) as comm:
        return run_all(folder, comm)


@pytest.mark.processes
def test_any_number_of_ranks_gives_the_bits_of_one_process(here: Path) -> None:
    alone = run_all(str(here / "alone"))
    server, *_ = run_ranks(on_ranks, 3, str(here / "ranks"), timeout=150)
    assert server == alone


@pytest.mark.long
@pytest.mark.parametrize("calls", [11, pytest.param(17, marks=pytest.mark.slow)])
def test_interrupted_and_resumed_gives_the_same_bits(calls: int, here: Path) -> None:
    for name, config in configs(str(here)).items():
        whole = make_runner(replace(config, run=replace(config.run, dir=f"{name}-whole"))).run().digest
        parts = replace(config, run=replace(config.run, dir=f"{name}-parts"))
        assert interrupted_and_resumed(parts, calls).digest == whole, name
