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
from fedtorch.comm.job.rendezvous import _compare
from fedtorch.config.load import shown_keys
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
    "key": (lambda config: replace(config, client=replace(SGD, lr=0.2)), {}, "key `client.lr`"),
    "two keys": (lambda config: replace(config, rounds=7, client=replace(SGD, lr=0.2)), {}, "key `rounds`"),
    "version": (lambda config: config, {"fedtorch": "0.0.9"}, "fedtorch"),
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


@pytest.mark.processes
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_rank_with_another_model_config_or_version_is_named_with_both_values(
    name: str, errors: list[dict[str, tuple[str, float]]]
) -> None:
    _, facts, field = MUTATIONS[name]
    for text, seconds in (found[name] for found in errors):
        assert f"{field}: rank 1 has {facts.get(field, '')}" in text and ", the server has " in text
        assert seconds < 10


@pytest.mark.processes
def test_a_digest_is_not_shown_beside_the_keys_that_explain_it(errors: list[dict[str, tuple[str, float]]]) -> None:
    for found in errors:
        assert "key `client.lr`: rank 1 has 0.2, the server has 0.1" in found["two keys"][0]
        assert " config: " not in found["two keys"][0] and "(in a key whose" not in found["two keys"][0]


def test_values_of_secrets_are_masked_and_long_ones_cut_off_in_what_ranks_compare() -> None:
    base = make_config(Path("run"), TASK)
    names = {f"client{number}": 1 for number in range(300)}
    system = replace(base.system, placement="pinned", pinned=names)
    trackers = ({"name": "mlflow", "token": "not to be seen"},)
    shown = shown_keys(replace(base, system=system, run=replace(base.run, name="n" * 200, trackers=trackers)))
    assert "not to be seen" not in str(shown)
    assert len(shown["system.pinned"]) < 300 and "sha256" in shown["system.pinned"]
    assert shown["rounds"] == str(base.rounds) and len(str(shown)) < 20_000


def test_where_only_a_masked_value_differs_the_message_says_so() -> None:
    facts = {0: {"config": "a", "key `run.name`": "x"}, 1: {"config": "b", "key `run.name`": "x"}}
    error = _compare(facts, {1: " (south, host `b`)"})["error"]
    assert "config: rank 1 (south, host `b`) has b, the server has a" in error and "whose value is masked" in error
