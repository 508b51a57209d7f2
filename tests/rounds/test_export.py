"""What is written at the end of a run: the model that each client was evaluated with, and nothing else."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from ranks import run_ranks
from safetensors.torch import load_file
from torch import nn
from toy import Quadratic, Saved

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.local import Local
from fedtorch.algorithms.pfedme import PFedMe
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import CheckpointConfig, ClientConfig, ClientsConfig, Config, EvalConfig, PartitionConfig
from fedtorch.core.client import file_stem, folder_name
from fedtorch.core.errors import Interrupted
from fedtorch.rounds.export import ModelWriter
from fedtorch.rounds.result import Result
from fedtorch.rounds.runner import Runner

CLIENTS = {"a": (1.0, 3.0, 4), "b": (0.5, -2.0, 6), "ein Ort": (1.5, 1.0, 5)}
TASK = Saved(clients=CLIENTS, start=(0.1, 0.2), head=(0.5,), noise=0.3)
HEAD = PartitionConfig(private=("head",))
FAR = ClientConfig(optimizer="sgd", lr=2.6, batch_size=2)  # diverges, so that the best round is not the last

OWN: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "ditto": (Ditto(lam=0.5), {}),
    "some never drawn": (Ditto(lam=0.5), {"clients": ClientsConfig(per_round=1), "rounds": 1}),
    "pfedme": (PFedMe(lam=1.0, eta=0.1), {}),
    "local": (Local(), {"paradigm": "local", "eval": EvalConfig()}),
    "private": (FedAvg(), {"partition": HEAD}),
    "private, the best round": (FedAvg(), {"partition": HEAD, "eval": EvalConfig(), "client": FAR}),
    "trained": (FedAvg(), {"eval": EvalConfig(point="trained"), "clients": ClientsConfig(per_round=2)}),
    "own best": (FedAvg(), {"eval": EvalConfig(best="per_client"), "client": FAR}),
    "all": (Ditto(), {"partition": HEAD, "eval": EvalConfig(best="per_client", on_start=True), "client": FAR}),
}
SHARED: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "fedavg": (FedAvg(), {"eval": EvalConfig(), "client": FAR}),
    "kept optimiser": (FedAvg(), {"client": ClientConfig(lr=0.1, optimizer_state="keep")}),
    "centralized": (FedAvg(), {"paradigm": "centralized"}),
    "centralized ditto": (Ditto(), {"paradigm": "centralized"}),
}


def config_of(name: str, folder: Path, task: Saved = TASK) -> Config:
    algorithm, changes = {**OWN, **SHARED}[name]
    client = ClientConfig(optimizer="sgd", lr=0.1, batch_size=2)
    return make_config(folder, task, algorithm, **{"rounds": 3, "client": client, **changes})


def exported(config: Config, **changes: Any) -> tuple[Result, Runner]:
    runner = make_runner(config, **changes)
    result = runner.run()
    runner.export(config.folder / "model")
    return result, runner


def nearness(folder: Path, client: str) -> float:
    """The score of what is in `folder`, by hand."""
    weights = load_file(folder / "w.safetensors")
    point = torch.cat([weights["w"], weights["head"]])
    return sum(-float((point - b).abs().mean()) for _, b in TASK.load(client, "test"))


@pytest.mark.parametrize("name", OWN)
def test_every_client_gets_the_model_it_was_evaluated_with(name: str, tmp_path: Path) -> None:
    result, runner = exported(config_of(name, tmp_path))
    assert {path.name for path in (tmp_path / "model").iterdir()} == set(map(folder_name, CLIENTS))
    own = {client: nearness(tmp_path / "model" / folder_name(client), client) for client in CLIENTS}
    assert own == {client: scores["nearness"][0] for client, scores in result.scores.items()}
    runner.components.engine.load(runner.context.vectors.weights)
    runner.components.task.save_model(runner.components.engine.module, tmp_path / "global")
    assert own != {client: nearness(tmp_path / "global", client) for client in CLIENTS}
    assert {path.name for path in tmp_path.glob("model*")} == {"model"}


@pytest.mark.parametrize("name", SHARED)
def test_where_all_are_evaluated_with_one_model_that_is_all_there_is(name: str, tmp_path: Path) -> None:
    (tmp_path / "model" / "a").mkdir(parents=True)  # of an earlier run
    result, _ = exported(config_of(name, tmp_path))
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["w.safetensors"]
    assert {client: nearness(tmp_path / "model", client) for client in CLIENTS} == {
        client: scores["nearness"][0] for client, scores in result.scores.items()
    }


def test_a_client_whose_name_is_no_folders_gets_a_safe_one() -> None:
    assert folder_name("PrivacyQA") == "PrivacyQA" and folder_name("ein Ort") == file_stem("ein Ort")
    for name in ("..", "a/b", ".x", "a.old", "", "x" * 61, "é"):
        assert "/" not in folder_name(name) and "." not in folder_name(name) and folder_name(name) != name


def test_what_is_left_of_other_runs_is_removed(tmp_path: Path) -> None:
    for old in ("model/config.json", "model/gone/w", "model/a.old/w", "model/a/x", "model.partial/a/w"):
        (tmp_path / old).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / old).touch()
    exported(config_of("ditto", tmp_path))
    assert {path.name for path in (tmp_path / "model").iterdir()} == set(map(folder_name, CLIENTS))
    assert [path.name for path in (tmp_path / "model" / "a").iterdir()] == ["w.safetensors"]
    assert not (tmp_path / "model.partial").exists()


def test_one_that_cannot_be_written_costs_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Those of `a` and `ein Ort` have a positive first weight."""
    exported(config_of("local", tmp_path, replace(TASK, full=True)))
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["b"]
    (message,) = [record.message for record in caplog.records if "could not be saved" in record.message]
    assert message.startswith("the model of a could not be saved in ") and "No space left on device" in message
    assert message.endswith(", nor those of 1 other clients")
    assert not (tmp_path / "model.partial").exists()


def test_a_signal_leaves_whole_models_only_and_says_so(tmp_path: Path) -> None:
    written: list[Path] = []

    class Counting(Saved):
        def save_model(self, model: nn.Module, folder: Path) -> None:
            super().save_model(model, folder)
            written.append(folder)

    config = config_of("ditto", tmp_path, Counting(clients=CLIENTS, start=TASK.start, head=TASK.head))
    runner = make_runner(config, stop=lambda: len(written) == 1)
    runner.run()
    with pytest.raises(Interrupted, match="all 3 rounds are saved, not all models are written"):
        runner.export(tmp_path / "model")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["a"]


def test_a_model_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies before the rename leaves the model that was there."""
    config = config_of("fedavg", tmp_path)
    _, runner = exported(config)
    before = (tmp_path / "model" / "w.safetensors").read_bytes()
    runner.context.vectors.flat.zero_()

    def die(*names: object) -> None:
        raise SystemExit(9)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", die)
        with pytest.raises(SystemExit):
            runner.export(tmp_path / "model")
    assert (tmp_path / "model" / "w.safetensors").read_bytes() == before
    runner.export(tmp_path / "model")
    assert (tmp_path / "model" / "w.safetensors").read_bytes() != before
    assert {path.name for path in tmp_path.glob("model*")} == {"model"}


def test_a_task_that_writes_nothing_leaves_nothing(tmp_path: Path) -> None:
    for name in ("fedavg", "local"):
        task = Quadratic(clients=CLIENTS, start=TASK.start, head=TASK.head)
        exported(replace(config_of(name, tmp_path), task=task))
    assert not list(tmp_path.glob("model*"))


def export_on_ranks(folder: str, names: list[str]) -> dict[str, list[str]]:
    """The models that this rank has written, by case."""
    written: dict[str, list[str]] = {}
    write = ModelWriter.write

    def watched(self: ModelWriter, weights: Any, private: Any, target: Path, partial: Path) -> bool:
        written[name].append(target.name)
        return write(self, weights, private, target, partial)

    ModelWriter.write = watched  # type: ignore[method-assign]
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=30) as comm:
        for name in names:
            written[name] = []
            config = config_of(name, Path(folder) / name)
            runner = make_runner(replace(config, checkpoint=CheckpointConfig(every=1)), comm)
            runner.run()
            runner.export(config.folder / "model")
    return written


@pytest.mark.processes
def test_each_worker_writes_its_own_clients_and_the_server_what_all_share(tmp_path: Path) -> None:
    names = ["private", "own best", "ditto", "fedavg"]
    server, *workers = run_ranks(export_on_ranks, 3, str(tmp_path / "many"), names)
    assert server["fedavg"] == ["model"] and not any(worker["fedavg"] for worker in workers)
    for name in names[:3]:
        assert not server[name] and all(worker[name] for worker in workers)
        assert sorted(workers[0][name] + workers[1][name]) == sorted(map(folder_name, CLIENTS))
    for name in names:
        exported(config_of(name, tmp_path / "one" / name))
        files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one" / name).rglob("w.safetensors"))
        assert files
        for file in files:
            assert (tmp_path / "many" / file).read_bytes() == (tmp_path / "one" / file).read_bytes()
