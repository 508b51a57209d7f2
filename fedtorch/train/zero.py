"""DeepSpeed as a library: its start, its configuration, and the models it takes.

Checked with deepspeed 0.19.8.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Self

from fedtorch.comm.transport.environment import environment
from fedtorch.core.devices import is_gpu
from fedtorch.train.activations import compute_activations_again
from fedtorch.train.extensions import warn_of_stale_locks
from fedtorch.train.settings import EngineConfig
from fedtorch.train.whole_passes import LossFunction, WholePass

log = logging.getLogger(__name__)

# Numbers that DeepSpeed reduces, gathers or steps at a time; an odd number is refused. Its own defaults are 5·10⁸ for
# buckets, which it allocates whole, and 10⁹ for stage 3's gathered parameters: up to there nothing is given back.
BUCKET = 20_000_000


def is_installed() -> bool:
    """Can DeepSpeed be imported?"""
    return find_spec("deepspeed") is not None


def import_deepspeed(device: torch.device) -> Any:
    """The deepspeed module, kept from compiling anything; warns of locks on which it could hang.

    At its first start it would compile a communication op for inference (47 s, needs g++), and a process killed
    meanwhile leaves a lock on which every later start hangs without a word.
    """
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if device.index is not None:  # what it takes for the device, also where more ranks than GPUs count on
        os.environ["LOCAL_RANK"] = str(device.index)
    os.environ.setdefault("LOCAL_RANK", "0")
    warn_of_stale_locks()
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    its = logging.getLogger("DeepSpeed")
    its.setLevel(logging.WARNING)
    if not any(isinstance(each, Harmless) for each in its.filters):
        its.addFilter(Harmless())
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+_tensor` is deprecated", FutureWarning)  # its calls
    return deepspeed


class Harmless(logging.Filter):
    """Keeps two of DeepSpeed's warnings off the terminal; the log file has in their place why they need no care."""

    REASONS: ClassVar[Mapping[str, str]] = {
        "untested optimizer": "DeepSpeed knows no test of ZeRO with this optimiser; ours compare its steps with those "
        "of plain torch (tests/train/test_zero_adafactor.py, test_deepspeed.py)",
        "unknown inputs or outputs": "stage 3 does not look into an object that a model takes or returns, such as a "
        "cache of keys and values; losses and weights are those of plain torch (tests/train/test_deepspeed_own.py)",
    }
    """what such a warning says -> why it needs no care here"""

    def filter(self, record: logging.LogRecord) -> bool:
        """False for such a warning."""
        said = record.getMessage()
        reason = next((reason for words, reason in self.REASONS.items() if words in said), None)
        if reason is not None:
            log.debug("DeepSpeed: %s: %s", said.strip(" *"), reason)
        return reason is None


def zero_config(settings: EngineConfig, size: int, *, pin: bool) -> dict[str, Any]:
    """DeepSpeed's own configuration, for `size` trained numbers. pin: the host's memory, for a GPU."""
    bucket = min(size + -size % 256, BUCKET)
    zero: dict[str, Any] = {"stage": settings.stage, "reduce_bucket_size": bucket, "allgather_bucket_size": bucket}
    if settings.stage == 3:
        zero |= {
            "stage3_max_live_parameters": BUCKET,
            "stage3_max_reuse_distance": BUCKET,
            "stage3_prefetch_bucket_size": BUCKET,
            "sub_group_size": BUCKET,
        }
    if settings.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": pin}
    if settings.offload_parameters:
        zero["offload_param"] = {"device": "cpu", "pin_memory": pin}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,  # not used: the engine hands the batches out and marks the last one
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,  # 1.0 where the key is absent
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # its own Adam compiles for a minute
        "steps_per_print": None,
    }
    if settings.precision == "bf16":
        config |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    if settings.precision == "fp16":
        scale = {"initial_scale_power": settings.initial_scale_power, "hysteresis": 1}
        config |= {"fp16": {"enabled": True, **scale}, "data_types": {"grad_accum_dtype": "fp32"}}
    return config


class Objective(nn.Module):
    """Module that DeepSpeed takes for the model: its forward pass is the whole mean loss, whatever the task.

    splits: stage 3 brings each parameter to the GPU when it splits it, so that the whole model never lies there.
    """

    def __init__(self, module: nn.Module, *, splits: bool = False) -> None:
        super().__init__()
        self.module, self._splits = module, splits

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move the module; what will be split stays where it is, and only buffers move."""
        if not self._splits:
            return super().to(*args, **kwargs)
        for module in self.modules():
            for name, buffer in module.named_buffers(recurse=False):
                module._buffers[name] = buffer.to(*args, **kwargs)
        return self

    def forward(self, loss_fn: LossFunction | WholePass, batch: Any) -> Tensor:
        if isinstance(loss_fn, WholePass):
            return loss_fn(self.module, batch)
        loss_sum, count = loss_fn(self.module, batch)
        return loss_sum.float() / count


def initialize(
    deepspeed: Any,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    settings: EngineConfig,
    device: torch.device,
    *,
    ranks: int,
) -> Any:
    """DeepSpeed's engine around the module, whose trained parameters the optimiser has; see `zero_config`.

    ranks: of the worker.
    """
    if settings.activation_checkpointing:
        compute_activations_again(module)
    size = sum(parameter.numel() for group in optimizer.param_groups for parameter in group["params"])
    # with the job's number, stage 3 takes a group of one rank for a mistake
    with environment("WORLD_SIZE", str(ranks)), linear(functional.linear), _sending_nothing():
        engine, *_ = deepspeed.initialize(
            model=Objective(module, splits=settings.stage == 3),
            optimizer=optimizer,
            config=zero_config(settings, size, pin=is_gpu(device)),
            dist_init_required=False,
        )
    return engine


@contextmanager
def _sending_nothing() -> Iterator[None]:
    """DeepSpeed sends no weights around in here. It would send all of the first rank's, which others then hold whole.

    The weights of the run's start are the same on all ranks, or come with the next `load`.
    """
    from deepspeed.runtime.engine import DeepSpeedEngine as Theirs

    send = Theirs._broadcast_model
    Theirs._broadcast_model = lambda self: None
    try:
        yield
    finally:
        Theirs._broadcast_model = send


@contextmanager
def linear(product: Callable[..., Tensor]) -> Iterator[None]:
    """`torch.nn.functional.linear` is `product` in here, and afterwards what it was before.

    Stage 3 puts a product in its place that keeps no reference to a gathered matrix until the backward pass. It leaves
    it there for the whole process, for models it does not know too, and it has no forward derivative.
    """
    held = functional.linear
    functional.linear = product
    try:
        yield
    finally:
        functional.linear = held


def sparing_linear() -> AbstractContextManager[None]:
    """Stage 3's product takes the place of torch's in here: in passes over parameters that come and go."""
    from deepspeed.runtime.zero.linear import zero3_linear_wrap

    return linear(zero3_linear_wrap)


class ZeroScale:
    """fp16's loss scale inside DeepSpeed; None: there is none."""

    def __init__(self, scaler: Any = None) -> None:
        self._scaler = scaler
        # all that DeepSpeed's scaler keeps is in plain attributes (0.19.8); it cannot be reset otherwise
        self._start: dict[str, Any] = {} if scaler is None else dict(vars(scaler))

    @property
    def value(self) -> float:
        """Factor that gradients are multiplied by now."""
        return 1.0 if self._scaler is None else float(self._scaler.cur_scale)

    def numbers(self) -> dict[str, int | float]:
        """Where it stands, to go on with `put`."""
        kept = {} if self._scaler is None else vars(self._scaler)
        return {name: value for name, value in kept.items() if type(value) in (int, float)}

    def put(self, numbers: Mapping[str, int | float]) -> None:
        """Go on where `numbers` stood."""
        for name, value in self.numbers().items():
            setattr(self._scaler, name, type(value)(numbers.get(name, value)))

    def renew(self) -> None:
        """As it was before any step."""
        for name, value in self._start.items():
            setattr(self._scaler, name, value)
