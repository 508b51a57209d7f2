"""Memory of a model's states under plain torch, FSDP and DeepSpeed, per rank, without activations and libraries."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from fedtorch.core import devices
from fedtorch.train.blocks import blocks_of
from fedtorch.train.precision import DTYPES
from fedtorch.train.settings import ClientConfig, EngineConfig
from fedtorch.train.zero import import_deepspeed, is_installed

# Optimiser state per trained number, in numbers: AdamW keeps two moments; Adafactor's rows and columns are small.
# Muon keeps one for a matrix, of which most of a model is made.
_STATE = {"adam": 2.0, "adamw": 2.0, "adafactor": 0.02, "sgd": 0.0, "muon": 1.0}
# DeepSpeed's estimators allow this for buffers on the host.
HOST_BUFFERS = 1.5


@dataclass(frozen=True)
class Size:
    """How large a model is."""

    numbers: int
    """Parameters, tied ones once."""
    largest: int
    """Those of the largest layer, which ZeRO-3 gathers at once."""
    block: int = 0
    """Those of the largest block, which FSDP gathers at once."""
    rest: int = 0
    """Those outside of blocks, which FSDP gathers for a whole pass."""
    trained: int = 0
    """Those that are trained; others (an adapter's base) have no gradient, master or optimiser state."""

    @classmethod
    def of(cls, module: nn.Module) -> Size:
        """As DeepSpeed counts: a layer is a module's own parameters."""
        largest = max(sum(p.numel() for p in part.parameters(recurse=False)) for part in module.modules())
        numbers = sum(p.numel() for p in module.parameters())
        blocks = [sum(p.numel() for p in block.parameters()) for block in blocks_of(module)]
        trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
        return cls(numbers, largest, max(blocks, default=0), numbers - sum(blocks), trained)


def base_bytes(module: nn.Module, fixed: Collection[str]) -> int:
    """Bytes of the parameters that came with `requires_grad` False, each in its own number format."""
    return sum(module.get_parameter(name).nbytes for name in fixed)


def packed_bytes(module: nn.Module) -> int:
    """Bytes of weights in few bits (`task.model.quantize`), without their scales: the only ones of whole numbers."""
    return sum(parameter.nbytes for parameter in module.parameters() if not parameter.is_floating_point())


@dataclass(frozen=True)
class States:
    """Bytes of parameters, gradients, masters and optimiser state, per rank."""

    device: int
    """In the device's memory."""
    host: int = 0
    """In the host's, with offload."""


def optimizer_numbers(hp: ClientConfig) -> float:
    """Numbers that the optimiser of these settings keeps per trained number."""
    return _STATE.get(hp.optimizer, 2.0) + bool(hp.momentum)


@cache
def known_sizes() -> Mapping[str, Size]:
    """Models that people ask about, from their published shapes; nothing is downloaded or allocated."""
    from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration  # takes 4 s

    with torch.device("meta"):
        models = {
            "T5-base": T5ForConditionalGeneration(T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12)),
            "T5-3B": T5ForConditionalGeneration(
                T5Config(d_model=1024, d_kv=128, d_ff=16384, num_layers=24, num_heads=32)
            ),
            "GPT-2 XL": GPT2LMHeadModel(GPT2Config(n_embd=1600, n_layer=48, n_head=25)),
        }
    return {name: Size.of(model) for name, model in models.items()}


def states(size: Size, settings: EngineConfig, *, ranks: int, moments: float = 2.0) -> States:
    """Bytes that a rank of a worker of `ranks` keeps. moments: the optimiser's numbers per trained one, 2 for Adam.

    FSDP on several ranks has its rows of parameters, gradients and moments, all fp32, and at the highest point of a
    pass what `_gathered` says; with offload its rows are on the host. On one rank it is plain torch.

    Stage 0 of DeepSpeed has parameters, gradients and moments in fp32. From stage 1 on there are also fp32 masters and
    an fp32 sum of the gradients; what a stage splits is divided by `ranks`. With offload the masters, sums and moments
    are on the host. For Adam in 16 bits this is what DeepSpeed's own estimators say.
    """
    width = 2 if settings.precision in DTYPES else 4
    n, trained, largest = size.numbers, size.trained, size.largest
    if settings.kind == "fsdp" and (ranks > 1 or settings.offload_parameters):
        rows = 4 * -(-n // ranks) + int(-(-trained // ranks) * (4 + 4 * moments))
        gathered = _gathered(size, width)
        return States(gathered, rows) if settings.offload_parameters else States(gathered + rows)
    if settings.stage == 0:
        return States(4 * n + int(trained * (4 + 4 * moments)))
    parameters = 4 * largest + width * n / ranks if settings.stage == 3 else width * n
    gradients = {1: width * trained, 2: width * trained / ranks, 3: 0.0}[settings.stage]
    stepping = (4 + 4 + 4 * moments) * trained / ranks  # sums of gradients, masters, moments
    if not settings.offload_optimizer:
        return States(int(parameters + gradients + stepping))
    if settings.offload_parameters:
        return States(4 * largest, int((stepping + width * n / ranks) * HOST_BUFFERS))
    return States(int(parameters), int(stepping * HOST_BUFFERS))


def _gathered(size: Size, width: int) -> int:
    """Bytes of whole parameters and gradients that FSDP has at once, at most, where a number has `width` bytes.

    All through the backward pass the parameters outside of blocks, and their gradients. Beside them at first the fp32
    sums of these gradients' parts; or a block's parameters, the next one's, its gradients and their sums.
    """
    return 2 * width * size.rest + max(4 * size.rest, (3 * width + 4) * size.block)


def deepspeeds_own(size: Size, settings: EngineConfig, *, ranks: int) -> States | None:
    """Answer of DeepSpeed's estimators for one machine with `ranks` devices; None where it has none.

    They know stages 2 and 3, 16 bits and Adam.
    """
    if settings.kind != "deepspeed" or settings.stage < 2 or settings.precision not in DTYPES or not is_installed():
        return None
    import_deepspeed(devices.kind())
    if settings.stage == 2:
        from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

        host, device = estimate_zero2_model_states_mem_needs(
            size.numbers, num_gpus_per_node=ranks, cpu_offload=settings.offload_optimizer
        )
    else:
        from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs

        host, device, _ = estimate_zero3_model_states_mem_needs(
            size.numbers,
            size.largest,
            num_gpus_per_node=ranks,
            cpu_offload=settings.offload_optimizer,
            cpu_offload_params=settings.offload_parameters,
            zero_init=False,  # every rank builds the whole model first
        )
    return States(device, host // ranks)
