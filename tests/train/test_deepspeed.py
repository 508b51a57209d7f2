"""DeepSpeed in one process: every stage trains as the plain engine does, and nothing of one client reaches the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

pytest.importorskip("deepspeed")

from fedtorch.algorithms.fedprox import proximal
from fedtorch.config import ClientConfig
from fedtorch.train.deepspeed import DeepSpeedEngine
from fedtorch.train.engine import Engine
from fedtorch.train.loop import LossCurve, Step, train
from fedtorch.weights import Partition

CPU = torch.device("cpu")
ADAMW = ClientConfig(optimizer="adamw", lr=1e-3, weight_decay=0.1, no_decay=("*layer_norm*",), max_grad_norm=0.5)


@dataclass(frozen=True)
class Zero:
    stage: int = 0
    precision: str = "fp32"
    offload_optimizer: bool = False
    offload_parameters: bool = False
    activation_checkpointing: bool = False
    initial_scale_power: int = 12


STAGES = [Zero(stage) for stage in range(4)]
OFFLOADED = [
    Zero(1, offload_optimizer=True),
    Zero(2, offload_optimizer=True),
    Zero(3, offload_optimizer=True),
    Zero(3, offload_optimizer=True, offload_parameters=True),
]


def label(zero: Zero) -> str:
    flags = [name for name in ("offload_optimizer", "offload_parameters") if getattr(zero, name)]
    return "-".join([f"stage{zero.stage}", *([zero.precision] if zero.precision != "fp32" else []), *flags])


def t5(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=41, d_model=16, d_ff=24, d_kv=8, num_heads=2, num_layers=2, dropout_rate=dropout,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


def gpt2(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    rates = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), dropout)
    return GPT2LMHeadModel(GPT2Config(vocab_size=41, n_embd=16, n_layer=2, n_head=2, n_positions=16, **rates))


def batch(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 41, (4, 9), generator=generator)
    return {"input_ids": ids, "labels": ids.clone()}


def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    return model(**batch).loss * 36, 36


def zero_engine(zero: Zero, model: Callable[[], nn.Module] = t5, hp: ClientConfig = ADAMW, **changes: Any) -> Engine:
    partition = changes.pop("partition", Partition())
    return DeepSpeedEngine(model(), partition, CPU, settings=zero, hp=hp, num_ranks=1, make_module=model)


def plain_engine(model: Callable[[], nn.Module] = t5) -> Engine:
    return Engine(model(), Partition(), CPU)


def steps(first: int, count: int = 3, micro: int = 2) -> list[Step]:
    return [Step([batch(first + 10 * i + j) for j in range(micro)], micro, 0) for i in range(count)]


def two_clients(engine: Engine, hp: ClientConfig = ADAMW, rounds: int = 2) -> tuple[Tensor, list[float]]:
    """FedAvg by hand over two clients that take turns in one engine; the last weights and all losses."""
    weights, losses = engine.initial_shared.clone(), []
    for _ in range(rounds):
        trained = []
        for client in (1, 2):
            engine.start(weights, None, hp, steps=3, seed=client)
            curve = train(engine, steps(100 * client), loss)
            losses += curve.losses
            trained.append(engine.flat.detach().cpu().clone())
        weights = (trained[0] + trained[1]) / 2
    return weights, losses


def moved(engine: Engine, weights: Tensor) -> float:
    return float((weights - engine.initial_shared).norm())


def apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm())


@pytest.mark.parametrize("zero", [*STAGES, *OFFLOADED], ids=label)
@pytest.mark.parametrize("model", [t5, gpt2], ids=lambda model: model.__name__)
def test_two_rounds_of_two_clients_equal_the_plain_engine(zero: Zero, model: Callable[[], nn.Module]) -> None:
    plain = plain_engine(model)
    expected, losses = two_clients(plain)
    found, found_losses = two_clients(zero_engine(zero, model))
    # fp32 throughout; norms are summed in another order, and Adam divides small numbers by small ones
    assert apart(found, expected) < 1e-4 * moved(plain, expected)
    assert found_losses == pytest.approx(losses, rel=1e-5)
