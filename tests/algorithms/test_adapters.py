"""Averaging factors: what is lost, by hand and against dense matrices, and by which rules nothing is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from torch import Tensor, nn
from toy import Quadratic

from fedtorch.algorithms.adapters.error import ERROR, figures
from fedtorch.algorithms.adapters.factors import norm_of_product, pairs_of
from fedtorch.algorithms.adapters.rolora import RoLoRA
from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.config.schema import ClientConfig, PartitionConfig
from fedtorch.core.errors import ConfigError
from fedtorch.core.weights import Layout
from fedtorch.tasks.base import Scores
from fedtorch.tracking.tracker import Tracker

A, B = "q.lora_A.default.weight", "q.lora_B.default.weight"
SHARED = {"frozen": (), "private": ()}


def layout(r: int, d_in: int, d_out: int, names: tuple[str, ...] = (A, B)) -> Layout:
    shapes = {A: (r, d_in), B: (d_out, r)}
    return Layout(names, tuple(shapes[name] for name in names), torch.float64)


def test_the_error_by_hand() -> None:
    """r = 1: A = 1, 3 and B = 2, 4 at one half each; mean of products 7, product of means 6, from a product of 0."""
    flat = [torch.tensor(pair, dtype=torch.float64) for pair in ([1.0, 2.0], [3.0, 4.0])]
    received = torch.tensor([1.0, 0.0], dtype=torch.float64)
    found = figures(layout(1, 1, 1), None, received, [received - each for each in flat], [0.5, 0.5])
    assert found == {ERROR: pytest.approx(1 / 7, abs=1e-15)}


@pytest.mark.parametrize(("d_in", "d_out"), [(5, 5), (4, 9), (9, 4), (1, 7)])
def test_the_covariance_identity(d_in: int, d_out: int) -> None:
    """Against dense matrices: Σ p_i B_i A_i − B̄ Ā, relative to the product's change."""
    draw = torch.Generator().manual_seed(d_in)
    where, weights = layout(3, d_in, d_out), [0.5, 0.2, 0.3]
    received, *ends = (torch.randn(where.size, generator=draw, dtype=torch.float64) for _ in range(4))
    mean = sum(p * end for p, end in zip(weights, ends, strict=True))

    def product(flat: Any) -> Tensor:
        views = where.view(flat)
        return views[B] @ views[A]

    of_products = sum(p * product(end) for p, end in zip(weights, ends, strict=True))
    expected = (of_products - product(mean)).norm() / (of_products - product(received)).norm()
    found = figures(where, None, received, [received - end for end in ends], weights)[ERROR]
    assert abs(found / float(expected) - 1) < 1e-12
    # weights that do not add up to 1 mean the same shares
    assert figures(where, None, received, [received - end for end in ends], [5.0, 2.0, 3.0])[ERROR] == pytest.approx(
        found
    )


def test_the_norm_of_a_product_is_that_of_the_matrix() -> None:
    draw = torch.Generator().manual_seed(0)
    for left, right in (((9, 2), (2, 8)), ((2, 9), (9, 3)), ((5, 0), (0, 5))):
        one, other = torch.randn(*left, generator=draw), torch.randn(*right, generator=draw)
        assert norm_of_product(one, other) == pytest.approx(float((one.double() @ other.double()).norm()), rel=1e-14)


def test_what_is_said_of_one_factor_alone() -> None:
    both, only_a, only_b = layout(2, 3, 4), layout(2, 3, 4, (A,)), layout(2, 3, 4, (B,))
    assert [tuple(pair) for pair in pairs_of(both)] == [(A, B)]
    assert [tuple(pair) for pair in pairs_of(only_b)] == [("", B)]
    nothing = torch.zeros(only_b.size, dtype=torch.float64)
    assert figures(only_b, None, nothing, [nothing], [1.0]) == {ERROR: 0.0}  # the other one is fixed
    assert figures(only_a, only_b, nothing, [nothing], [1.0]) == {}  # every client has a product of its own
    assert figures(Layout(("w",), ((3,),)), None, nothing, [nothing], [1.0]) == {}


class Factors(nn.Module):
    """x → B A x + head, with names as peft's."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(3)
        self.q, self.head = nn.Module(), nn.Parameter(torch.zeros(4, dtype=torch.float64))
        for name, start in ((A, torch.randn(2, 3, generator=draw)), (B, torch.zeros(4, 2))):
            part = nn.Module()
            part.weight = nn.Parameter(start.double())
            setattr(self.q, name.split(".")[1], nn.ModuleDict({"default": part}))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.get_parameter(A).T @ self.get_parameter(B).T + self.head


@dataclass(frozen=True)
class Regression(Quadratic):
    """Every client has a matrix of its own to be learned."""

    def build_model(self, seed: int) -> nn.Module:
        return Factors()

    def load(self, client: str, split: str) -> list[tuple[Tensor, Tensor]]:
        a, b, count = self.clients[client]
        draw = torch.Generator().manual_seed(int(10 * a + b))
        target, xs = torch.randn(4, 3, generator=draw).double(), torch.randn(count, 3, generator=draw).double()
        return [(x, target @ x) for x in xs]

    def collate(self, examples: Any, train: bool) -> Any:
        return torch.stack([x for x, _ in examples]), torch.stack([y for _, y in examples])

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        return ((model(batch[0]) - batch[1]) ** 2).sum(), len(batch[0])

    def score(self, examples: Any, predictions: Any) -> Scores:
        return {}


TASK = Regression({"a": (1.0, 2.0, 8), "b": (2.0, -1.0, 24), "c": (3.0, 5.0, 16)})


def rounds_of(
    folder: Path, algorithm: Algorithm, count: int = 4, client: Mapping[str, Any] | None = None, **partition: Any
) -> tuple[list[Mapping[str, Tensor]], list[float | None]]:
    """The shared parameters after every round, and the recorded errors."""
    settings = {"optimizer": "adam", "lr": 0.05, "batch_size": 4, "epochs": 2, **(client or {})}
    config = make_config(folder, TASK, algorithm, rounds=count, client=ClientConfig(**settings),
                         partition=PartitionConfig(**partition))  # fmt: skip
    seen: list[Mapping[str, Tensor]] = []
    runner = make_runner(config, tracker=Tracker(config.folder, clients=list(TASK.clients), rounds=count))
    where = runner.components.engine.shared
    runner.context.components.tracker.working = lambda text: None  # type: ignore[union-attr, method-assign]
    take = runner._step

    def step(decision: Any) -> None:
        take(decision)
        seen.append({name: view.clone() for name, view in where.view(runner.context.server.weights).items()})

    runner._step = step  # type: ignore[method-assign]
    runner.run()
    lines = [json.loads(line) for line in (config.folder / "metrics.jsonl").read_text().splitlines()]
    return seen, [line["extra"].get(ERROR) for line in lines if line["kind"] == "round"]


def test_fedit_loses_tens_of_per_cent_of_unlike_clients_and_says_so_every_round(tmp_path: Path) -> None:
    _, errors = rounds_of(tmp_path, FedAvg())
    assert len(errors) == 4 and all(error is not None and 0.1 < error < 10 for error in errors)


def test_with_one_factor_fixed_nothing_is_lost(tmp_path: Path) -> None:
    seen, errors = rounds_of(tmp_path, FedAvg(), frozen=("*lora_A*",))
    assert errors == [0.0] * 4 and A not in seen[0] and seen[0][B].any()


def test_private_factors_are_not_averaged_so_nothing_is_said(tmp_path: Path) -> None:
    seen, errors = rounds_of(tmp_path, FedAvg(), private=("*lora_B*",))
    assert errors == [None] * 4 and list(seen[0]) == ["head", A]


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "adafactor"])
def test_rolora_moves_b_and_a_in_turn_and_nothing_is_lost(optimizer: str, tmp_path: Path) -> None:
    lr = {"sgd": 0.02}.get(optimizer, 0.05)
    seen, errors = rounds_of(tmp_path, RoLoRA(), client={"optimizer": optimizer, "lr": lr, "max_grad_norm": 1.0})
    assert errors == [0.0] * 4
    begun: Mapping[str, Tensor] = {A: Factors().get_parameter(A).detach(), B: torch.zeros(4, 2), "head": torch.zeros(4)}
    for before, after, moving in zip([begun, *seen], seen, (B, A, B, A), strict=False):
        assert [name for name in (A, B) if not torch.equal(before[name].double(), after[name])] == [moving]
        assert not torch.equal(before["head"].double(), after["head"])


@pytest.mark.parametrize(
    ("client", "shown"),
    [
        ({"optimizer": "adamw", "weight_decay": 0.1}, "client.weight_decay is 0.1, which would shrink the factor"),
        ({"optimizer_state": "keep"}, "client.optimizer_state is keep, whose moments would move the factor"),
    ],
)
def test_rolora_refuses_what_moves_a_factor_that_rests(client: dict[str, Any], shown: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=shown):
        rounds_of(tmp_path, RoLoRA(), client=client)
