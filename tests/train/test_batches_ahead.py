"""Batches are collated while a device computes: after its last forward pass a step waits for nothing.

A GPU is given its work and computes it by itself. So the host collates the next batches while the GPU goes back
through the last micro-batch and takes the step, in one thread and in the order of the seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pretended_device import install, used
from ranks import run_ranks
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

from fedtorch.config.schema import ClientConfig
from fedtorch.core.weights import Partition
from fedtorch.train.engine import Engine
from fedtorch.train.loop import Step, train

CPU = torch.device("cpu")
ENDS = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "decoder_start_token_id": 0, "vocab_size": 40}
ENCODER = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "bert": (AutoModelForSequenceClassification, ENCODER),
    "gpt2": (AutoModelForCausalLM, {"n_embd": 16, "n_layer": 1, "n_head": 2}),
    "llama": (AutoModelForCausalLM, ENCODER),
    "t5": (AutoModelForSeq2SeqLM, {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}),
}
WAITS = ("waited", "copied out", "event awaited")


def batch(kind: str, seed: int) -> dict[str, Tensor]:
    ids = torch.randint(3, 40, (3, 8), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    mask[0, 5:] = 0
    labels = ids[:, 0] % 2 if kind == "bert" else torch.where(mask > 0, ids, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def waits(kind: str, device: torch.device) -> list[tuple[str, int]]:
    """(what the host did, how often it had waited for the device until then) of four steps of two micro-batches."""
    torch.manual_seed(0)
    made, sizes = KINDS[kind]
    module: nn.Module = made.from_config(AutoConfig.for_model(kind, num_labels=2, **ENDS, **sizes)).float()
    engine = Engine(module, Partition(), device)
    hp = ClientConfig(optimizer="adamw", lr=1e-2, max_grad_norm=0.5, accumulation=2)
    told: list[tuple[str, int]] = []

    def tell(what: str) -> None:
        told.append((what, sum(used[name] for name in WAITS)))

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
        cached = {} if kind == "bert" else {"use_cache": False}
        found = model(**batch, **cached).loss * 3
        tell("a forward pass is given to the device")
        return found, 3

    def steps() -> Iterator[Step]:
        for number in range(4):
            tell(f"collate {number}")
            yield Step([batch(kind, 2 * number), batch(kind, 2 * number + 1)], 2, 0)

    engine.start(engine.initial_shared, None, hp, steps=4, seed=0)
    used.clear()
    train(engine, steps(), loss, after_step=lambda n: tell(f"step {n - 1}"))
    tell("the losses are read")
    return told


def on_a_device() -> Any:
    device = install()
    with sdpa_kernel(SDPBackend.MATH):
        return {kind: waits(kind, device) for kind in KINDS}


@pytest.mark.processes
def test_nothing_waits_between_a_steps_last_forward_pass_and_the_next_batches() -> None:
    """So the next batches are collated while the device goes back and steps; it is asked for the losses at the end.

    The forward passes of some models wait: transformers looks whether a mask hides anything (not on the CPU alone).
    """
    words = ["collate", *["a forward pass is given to the device"] * 2, "step"]
    asked = {}
    for kind, told in run_ranks(on_a_device, 1, timeout=200)[0].items():
        assert [word for word, _ in told] == [
            f"{word} {number}" if word in ("collate", "step") else word for number in range(4) for word in words
        ] + ["the losses are read"], kind
        counts = [count for _, count in told]
        for place in range(0, 16, 4):  # after the last forward pass, after the step, and when the next collating begins
            assert counts[place + 2] == counts[place + 3], (kind, told)
            assert place == 12 or counts[place + 3] == counts[place + 4], (kind, told)
        assert counts[-1] == counts[-2] + 2, kind  # losses and penalties
        asked[kind] = counts[2] / 2
    assert asked == {"bert": 1, "gpt2": 2, "llama": 2, "t5": 2}
