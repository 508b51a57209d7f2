"""A reference is a function of the start and of rows: the same bits for any number of ranks, interrupted or not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import interrupted_and_resumed, make_config, make_runner
from judged_rows import judge, pairs, verdicts
from own_rows import CLIENTS, GPT2, write_rows
from ranks import run_ranks

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.pfedme import PFedMe
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import CheckpointConfig, ClientConfig, EvalConfig, PartitionConfig, SystemConfig
from fedtorch.rounds import client_scores, local_training
from fedtorch.tasks.preference import Preference

pytestmark = pytest.mark.long

LORA = {**GPT2, "adapter": {"r": 2}}
ROUND, PRIVATE = {"reference": "round", "model": LORA}, {"partition": PartitionConfig(private=("*lora_B*",))}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dpo": ({}, {}),
    "dpo_of_the_round": (ROUND, {}),
    "dpo_of_the_round_with_own_factors": (ROUND, PRIVATE),
    "ipo_with_own_factors": ({"kind": "ipo", "model": LORA}, PRIVATE),
    "kto": ({"kind": "kto"}, {}),
    "of_a_rule_that_lets_go_of_the_start": ({}, {"algorithm": PFedMe(lam=1.0, inner_steps=2)}),
}


def config_of(name: str, folder: Path, **changes: Any) -> Any:
    keys, others = CASES[name]
    client = ClientConfig(optimizer="sgd", lr=0.02, batch_size=3)
    usual = {"client": client, "rounds": 2, "checkpoint": CheckpointConfig(every=1), "eval": EvalConfig(every=1)}
    usual |= {"system": SystemConfig(oom_retry=False), "algorithm": FedAvg(), **others, **changes}
    return make_config(folder / name, judge(**keys), usual.pop("algorithm"), **usual)


def run_all(folder: Path, comm: Communicator | None = None) -> dict[str, Any]:
    found = {}
    for name in CASES:
        result = make_runner(config_of(name, folder), comm).run()
        found[name] = result.digest, result.scores
    return found


def on_ranks(rows: str, folder: str) -> dict[str, Any]:
    os.chdir(rows)
    with DistributedCommunicator.join(CLIENTS, timeout_s=60) as comm:
        return run_all(Path(folder), comm)


@pytest.fixture(autouse=True, scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where rows of three clients are."""
    folder = tmp_path_factory.mktemp("references")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_rows(Path("pairs.jsonl"), pairs(36, 3))
        write_rows(Path("verdicts.jsonl"), verdicts(36, 3))
        yield folder


@pytest.fixture(scope="module")
def alone(here: Path) -> dict[str, Any]:
    return run_all(here / "alone")


@pytest.mark.processes
def test_three_ranks_give_the_bits_of_one_process(alone: dict[str, Any], here: Path, tmp_path: Path) -> None:
    server, *_ = run_ranks(on_ranks, 3, str(here), str(tmp_path))
    assert server == alone


@pytest.mark.parametrize("calls", [11, 20])
def test_interrupted_and_resumed_gives_the_same_bits(calls: int, alone: dict[str, Any], tmp_path: Path) -> None:
    """Also in the midst of a reference, after which a resumed run computes it again."""
    for name in CASES:
        result = interrupted_and_resumed(config_of(name, tmp_path), calls)
        assert (result.digest, result.scores) == alone[name], name


def test_clients_whose_rows_are_read_anew_have_the_same_reference(
    alone: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that keeps the rows of one client at a time."""
    monkeypatch.setattr(local_training, "CACHED_CLIENTS", 1)
    monkeypatch.setattr(client_scores, "CACHED_CLIENTS", 1)
    assert make_runner(config_of("dpo", tmp_path)).run().digest == alone["dpo"][0]


@pytest.mark.parametrize("size", [1, 5])
def test_batches_of_the_evaluation_change_nothing_of_the_training(
    size: int, alone: dict[str, Any], tmp_path: Path
) -> None:
    config = config_of("dpo", tmp_path)
    config = replace(config, eval=replace(config.eval, batch_size=size))
    assert make_runner(config).run().digest == alone["dpo"][0]


def test_a_reference_that_is_not_the_start_is_another_run(alone: dict[str, Any], tmp_path: Path) -> None:
    found = {name: digest for name, (digest, _) in alone.items()}
    assert len(set(found.values())) == len(CASES)
    task: Preference = judge(beta=0.2)
    assert make_runner(replace(config_of("dpo", tmp_path), task=task)).run().digest != found["dpo"]
