"""Personal models and pseudo labels: the same bits on any number of ranks, and when resumed in the middle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import in_one_process, on_this_rank
from harness import make_config, make_runner
from ranks import run_ranks
from torch import Tensor, nn
from toy import Point, Quadratic

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.fewfedweight import FewFedWeight, SiloAugmented
from fedtorch.algorithms.metaweighting import MetaWeighting
from fedtorch.comm.base import Communicator
from fedtorch.config.schema import CheckpointConfig, ClientConfig, ClientsConfig, EvalConfig
from fedtorch.core.errors import Interrupted
from fedtorch.models.generation import Generated

pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Labelled(Quadratic):
    """A model's answer to an example is its first weight, as the optimum b of a further example (a, b, 1)."""

    def collate(self, examples: Sequence[Any], train: bool) -> dict[str, Tensor]:
        rows = torch.tensor([(*example, 0.0)[:3] for example in examples])
        return {"rows": rows, "is_pseudo": rows[:, 2] > 0}

    def row_losses(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        assert isinstance(model, Point)
        rows = batch["rows"]
        point = nn.functional.dropout(model.w, self.dropout, model.training)
        return (0.5 * rows[:, :1] * (point - rows[:, 1:2]) ** 2).sum(1)

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        return self.row_losses(model, batch).sum(), len(batch["rows"])

    def label(self, model: nn.Module, examples: Sequence[Any], *, on_batch: Callable[[], None], **_: Any) -> list[Any]:
        assert isinstance(model, Point) and not model.training
        on_batch()
        return [Generated([int(1e6 * float(model.w[0]))], [-1.0 - a]) for a, _ in examples]

    def evaluate_labels(self, model: nn.Module, examples: Any, labels: list[Any], **_: Any) -> list[Any]:
        return labels

    def relabelled(self, example: Any, tokens: list[int], weights: Any) -> Any:
        return (example[0], tokens[0] / 1e6, 1.0)


CLIENTS = {f"c{i}": (0.3 + 0.4 * i, (-1.0) ** i * (1 + i), 5 + 7 * i) for i in range(5)}
TASK = Labelled(clients=CLIENTS, start=(0.4, -0.1, 0.2), noise=0.7, dropout=0.2, double=False)
CLIENT = ClientConfig(optimizer="adamw", lr=0.05, batch_size=4, optimizer_state="keep")
CASES: dict[str, FedAvg] = {
    "fewfedweight": FewFedWeight(size_rounds=1),
    "silo_augmented": SiloAugmented(),
    "metaweighting": MetaWeighting(),
}


def config_of(name: str, folder: str) -> Any:
    settings = {"client": CLIENT, "rounds": 3, "eval": EvalConfig(every=2), "checkpoint": CheckpointConfig(every=1)}
    return make_config(Path(folder) / name, TASK, CASES[name], **settings)


def run_case(name: str, folder: str, comm: Communicator | None = None) -> tuple[str, Any]:
    result = make_runner(config_of(name, folder), comm).run()
    return result.digest, result.scores


def run_all(folder: str) -> dict[str, tuple[str, Any]]:
    return on_this_rank(run_case, CASES, CLIENTS, folder)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Any]]:
    return in_one_process(run_case, CASES, tmp_path_factory)


@pytest.mark.processes
@pytest.mark.parametrize("size", [2, 4, 7])
def test_any_number_of_ranks_gives_the_bits_of_one_process(size: int, alone: Any, tmp_path: Path) -> None:
    server, *_ = run_ranks(run_all, size, str(tmp_path))
    assert server == alone


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("moment", [20, 45, 65])
def test_stopped_in_the_middle_and_resumed_gives_the_same_bits(
    name: str, moment: int, alone: Any, tmp_path: Path
) -> None:
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls > moment

    with pytest.raises(Interrupted):
        make_runner(config_of(name, str(tmp_path)), stop=stop).run()
    runner = make_runner(config_of(name, str(tmp_path)))
    found = runner.components.checkpoints.latest()
    assert runner.run(None if found is None else found.round).digest == alone[name][0]


@dataclass(frozen=True)
class Spoilt(Labelled):
    """The labels of client c3 have no finite loss."""

    def relabelled(self, example: Any, tokens: list[int], weights: Any) -> Any:
        return (example[0], math.nan if example[0] == pytest.approx(CLIENTS["c3"][0]) else tokens[0] / 1e6, 1.0)


@pytest.mark.parametrize("least", [1, 5])
def test_a_client_whose_loss_is_not_finite_has_no_share_or_voids_the_round(least: int, tmp_path: Path) -> None:
    task = Spoilt(clients=CLIENTS, start=TASK.start, double=False)
    config = make_config(tmp_path, task, FewFedWeight(), client=CLIENT, rounds=1, clients=ClientsConfig(min=least))
    runner = make_runner(config)
    runner.run()
    is_start = torch.equal(runner.context.vectors.weights, torch.tensor(TASK.start))
    assert "personal" not in runner.context.store.get("c3").tensors
    if least == 1:
        assert sorted(runner.weights) == ["c0", "c1", "c2", "c4"] and sum(runner.weights.values()) == pytest.approx(1)
        assert runner.context.vectors.weights.isfinite().all() and not is_start
    else:
        assert is_start


def test_the_three_methods_differ(alone: Any) -> None:
    assert len({digest for digest, _ in alone.values()}) == 3
