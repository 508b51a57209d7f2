"""Small models of transformers in plain and DeepSpeed engines of one process, and steps to take on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

from fedtorch.config.schema import ClientConfig
from fedtorch.core.weights import Partition
from fedtorch.train.engine import Engine
from fedtorch.train.loop import Step

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


def some(cases: list[Zero], *fast: Zero) -> list[Any]:
    """All of them in `make slow`, the given ones always."""
    return [pytest.param(case, marks=() if case in fast else pytest.mark.slow, id=label(case)) for case in cases]


def label(zero: Zero) -> str:
    flags = [name for name in ("offload_optimizer", "offload_parameters") if getattr(zero, name)]
    return "-".join([f"stage{zero.stage}", *([zero.precision] if zero.precision != "fp32" else []), *flags])


def t5(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=41, d_model=16, d_ff=24, d_kv=8, num_heads=2, num_layers=1, dropout_rate=dropout,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


def gpt2(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    rates = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), dropout)
    return GPT2LMHeadModel(GPT2Config(vocab_size=41, n_embd=16, n_layer=1, n_head=2, n_positions=16, **rates))


def batch(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 41, (4, 9), generator=generator)
    return {"input_ids": ids, "labels": ids.clone()}


def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    # Without the cache of keys and values, as the tasks train. Activation checkpointing turns it off, and it changes
    # the strides of the keys: some processors' matrix products then end in other last digits (measured: 4e-7).
    return model(**batch, use_cache=False).loss * 36, 36


def zero_engine(zero: Zero, model: Callable[[], nn.Module] = t5, hp: ClientConfig = ADAMW, **changes: Any) -> Engine:
    from fedtorch.train.deepspeed import DeepSpeedEngine

    partition = changes.pop("partition", Partition())
    return DeepSpeedEngine(model(), partition, CPU, settings=zero, hp=hp, make_module=model)


def plain_engine(model: Callable[[], nn.Module] = t5) -> Engine:
    return Engine(model(), Partition(), CPU)


def steps(first: int, count: int = 3, micro: int = 2) -> list[Step]:
    return [Step([batch(first + 10 * i + j) for j in range(micro)], micro, 0) for i in range(count)]
