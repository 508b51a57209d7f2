"""Clients of the WikiSQL task that are not sampled cost nothing: their data are not read, and none has a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness import make_config, make_runner

from fedtorch.algorithms.fedparsing import FedParsing
from fedtorch.algorithms.mean_teacher import Student
from fedtorch.config.schema import ClientConfig, ClientsConfig, EvalConfig
from fedtorch.core.sampling import Uniform, cohort
from fedtorch.models.encoder import EncoderModel
from fedtorch.rounds.runner import Runner
from fedtorch.setup.remarks import CHECKED_CLIENTS
from fedtorch.tasks.base import SERVER
from fedtorch.tasks.wikisql import WikiSQL

loaded: list[str] = []


@dataclass(frozen=True)
class Watched(WikiSQL):
    def load(self, client: str, split: str) -> Any:
        loaded.append(client)
        return super().load(client, split)


def finished(tiny_wikisql: Path, folder: Path, algorithm: FedParsing) -> Runner:
    """A run of two rounds with two of 150 clients each."""
    loaded.clear()
    task = Watched(
        data=str(tiny_wikisql),
        encoder=EncoderModel(width=16, layers=1, heads=2, feed_forward=32),
        max_length=40,
        server_labelled=10,
        num_clients=CHECKED_CLIENTS + 50,
        client_size=(2, 3),
        parts=1,
        max_dev=4,
    )
    runner = make_runner(
        make_config(
            folder,
            task,
            algorithm,
            client=ClientConfig(optimizer="sgd", lr=0.05, batch_size=4),
            clients=ClientsConfig(per_round=2),
            eval=EvalConfig(every=1, final_split="dev"),
        )
    )
    runner.run()
    return runner


def sampled(runner: Runner) -> set[str]:
    drawn = [cohort(runner.components.clients, 2, Uniform(), seed=0, round=round) for round in range(2)]
    return {client.name for clients in drawn for client, _ in clients}


@pytest.mark.parametrize(("init", "is_kept"), [("global", False), ("persistent", True)])
def test_only_sampled_clients_are_read_and_only_a_stateful_algorithm_keeps_anything(
    init: Any, is_kept: bool, tiny_wikisql: Path, tmp_path: Path
) -> None:
    runner = finished(tiny_wikisql, tmp_path, FedParsing(student=Student(init=init)))
    names = sampled(runner)
    assert 2 < len(names) <= 4
    assert set(loaded) - {SERVER, "part0"} == names
    assert runner.context.store.clients() == (sorted(names) if is_kept else [])
    files = [path.name for path in tmp_path.rglob("*") if "client" in path.name and path.is_file()]
    assert bool(files) == is_kept and len(files) <= len(names)
