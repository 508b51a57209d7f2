"""Parameters that the model brings along untrained: in no vector, no client's state and no checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from harness import make_config, make_runner
from torch import nn
from toy import Point, Quadratic

from fedtorch.config.schema import CheckpointConfig, PartitionConfig
from fedtorch.core.errors import ConfigError
from fedtorch.setup.build import build

TWO = {"a": (1.0, 2.0, 3), "b": (1.0, 4.0, 3)}


@dataclass(frozen=True)
class WithBase(Quadratic):
    """The same beside a base that is not trained; with `all` nothing is."""

    all: bool = False
    base: float = 7.0

    def build_model(self, seed: int) -> nn.Module:
        model = Point(self.start, self.head, torch.float64)
        model.base = nn.Parameter(torch.full((100,), self.base, dtype=torch.bfloat16), requires_grad=False)
        if self.all:
            model.requires_grad_(False)
        return model


def files_of(folder: Path) -> Mapping[str, int]:
    return {path.name: path.stat().st_size for path in folder.rglob("*.safetensors")}


def test_a_base_that_is_not_trained_does_not_travel_and_is_in_no_state(tmp_path: Path) -> None:
    saved, partition = CheckpointConfig(every=1), PartitionConfig(private=("head",))
    found = []
    for task in (Quadratic(TWO, head=(1.0,)), WithBase(TWO, head=(1.0,))):
        folder = tmp_path / type(task).__name__
        runner = make_runner(make_config(folder, task, partition=partition, checkpoint=saved))
        digest = runner.run().digest
        states = {name: runner.context.store.get(name).num_bytes for name in TWO}
        totals = runner.context.comm.meter.totals()
        sent = {key: value for key, value in totals.items() if key.startswith(("broadcast/", "aggregate/"))}
        found.append((digest, sent, states, files_of(folder)))
    assert found[0] == found[1]  # the base changes nothing


def test_a_base_that_is_not_trained_keeps_its_memory_and_its_dtype(tmp_path: Path) -> None:
    task = WithBase(TWO)
    built = build(make_config(tmp_path, task), num_ranks=1, rank=0)
    engine = built.engine
    assert engine.fixed == ("base",)
    assert engine.shared.names == ("w", "head") and engine.frozen.names == ()
    assert engine.module.get_parameter("base").dtype == torch.bfloat16


def test_another_base_is_another_job_and_no_run_to_resume(tmp_path: Path) -> None:
    one, same, other = (build(make_config(tmp_path, WithBase(TWO, base=b)), num_ranks=1, rank=0) for b in (7, 7, 8))
    name = "parameters that are not trained"
    assert one.facts()[name] == same.facts()[name] != other.facts()[name]
    assert name not in build(make_config(tmp_path, Quadratic(TWO)), num_ranks=1, rank=0).facts()


@pytest.mark.parametrize(
    ("task", "partition", "shown"),
    [
        (WithBase(TWO, all=True), PartitionConfig(), "3 have requires_grad False"),
        (WithBase(TWO), PartitionConfig(frozen=("w", "head")), "2 are frozen by the partition, 1 have requires_grad"),
    ],
)
def test_a_run_in_which_nothing_is_trained_is_refused(
    tmp_path: Path, task: WithBase, partition: PartitionConfig, shown: str
) -> None:
    config = make_config(tmp_path, task, partition=partition)
    with pytest.raises(ConfigError, match=f"nothing would be trained: .*{shown}"):
        build(config, num_ranks=1, rank=0)
