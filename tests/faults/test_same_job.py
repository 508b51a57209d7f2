"""Ranks that do not run the same job are told so, with both values, before anything is sent."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import SGD, make_config
from ranks import run_ranks
from toy import Quadratic

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import Config, PartitionConfig
from fedtorch.core.errors import PreflightError
from fedtorch.setup.build import build

TASK = Quadratic(clients={"a": (1.0, 1.0, 6), "b": (2.0, -1.0, 9)}, start=(0.3, -0.7), head=(0.5,), double=False)


def with_task(**changes: Any) -> Callable[[Config], Config]:
    return lambda config: replace(config, task=replace(config.task, **changes))


# what rank 1 has otherwise: (change of the config, change of the facts, the field that must be named)
MUTATIONS: dict[str, tuple[Callable[[Config], Config], dict[str, str], str]] = {
    "shape": (with_task(start=(0.3, -0.7, 0.1)), {}, "shared parameters"),
    "dtype": (with_task(double=True), {}, "shared parameters"),
    "missing name": (
        lambda config: replace(config, partition=PartitionConfig(frozen=("head",))),
        {},
        "shared parameters",
    ),
    "private name": (
        lambda config: replace(config, partition=PartitionConfig(private=("head",))),
        {},
        "private parameters",
    ),
    "config": (lambda config: replace(config, client=replace(SGD, lr=0.2)), {}, "config"),
    "seed": (lambda config: replace(config, run=replace(config.run, seed=1)), {}, "seed"),
    "package version": (lambda config: config, {"torch": "2.0.0"}, "torch"),
    "code": (lambda config: config, {"code": "0123456789abcdef"}, "code"),
}


def meet_with_mutations(folder: str) -> list[tuple[str, float]]:
    """The error of every mutation, each in an attempt of its own."""
    config = make_config(Path(folder), TASK)
    found = []
    for attempt, (change, facts, _) in enumerate(MUTATIONS.values()):
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
        is_odd = os.environ["RANK"] == "1"
        mine = build(change(config) if is_odd else config, num_ranks=2, rank=int(os.environ["RANK"])).facts()
        started = time.monotonic()
        try:
            with DistributedCommunicator.join(("a", "b"), timeout_s=20) as comm:
                comm.preflight({**mine, **(facts if is_odd else {})})
                comm.broadcast(torch.zeros(3))  # never reached
            text = "no error"
        except PreflightError as error:
            text = str(error)
        found.append((text, time.monotonic() - started))
    return found


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, tuple[str, float]]]:
    agent = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environ = {"MASTER_PORT": str(agent.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    folder = str(tmp_path_factory.mktemp("mutations"))
    return [dict(zip(MUTATIONS, found)) for found in run_ranks(meet_with_mutations, 2, folder, environ=environ)]


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_rank_with_another_model_config_or_version_is_named_with_both_values(
    name: str, errors: list[dict[str, tuple[str, float]]]
) -> None:
    _, facts, field = MUTATIONS[name]
    for text, seconds in (found[name] for found in errors):
        assert f"{field}: rank 1 has {facts.get(field, '')}" in text and ", the server has " in text
        assert seconds < 10
