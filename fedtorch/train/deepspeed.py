"""The DeepSpeed engine: ZeRO stages 0 to 3, offload, mixed precision; built once per worker, for all its clients.

The ranks of a worker are the default group of torch.distributed; all of them call every method in lock step.
Checked with deepspeed 0.19.8.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from math import ceil
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel

from fedtorch.errors import FedtorchError
from fedtorch.seeds import seed_for
from fedtorch.train.engine import Engine, GradientHook, LossFunction, to_device
from fedtorch.train.optim import LocalTraining, forget, load_state, make_optimizer, make_schedule, state_of
from fedtorch.weights import Layout, Partition

log = logging.getLogger(__name__)

OptimizerState = tuple[Mapping[str, Tensor], Mapping[str, "int | float"]]

# Numbers that ZeRO-3 gathers at a time when weights are loaded; one parameter at a time is slow.
GATHERED = 50_000_000


class ZeroSettings(Protocol):
    """The part of `config.EngineConfig` that this engine reads."""

    @property
    def stage(self) -> int: ...
    @property
    def precision(self) -> str: ...
    @property
    def offload_optimizer(self) -> bool: ...
    @property
    def offload_parameters(self) -> bool: ...
    @property
    def activation_checkpointing(self) -> bool: ...
    @property
    def initial_scale_power(self) -> int: ...


def is_installed() -> bool:
    """Can DeepSpeed be imported?"""
    return find_spec("deepspeed") is not None


def import_deepspeed(device: torch.device) -> Any:
    """The deepspeed module, kept from compiling anything.

    At its first start it would compile a communication op for inference (47 s, needs g++), and a process killed
    meanwhile leaves a lock on which every later start hangs without a word (0.19.8).
    """
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("LOCAL_RANK", "0")  # its device index
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    return deepspeed


def checkpointable(module: nn.Module) -> list[PreTrainedModel]:
    """The outermost models inside `module` that can forget activations and compute them again."""
    if isinstance(module, PreTrainedModel):
        return [module] if module.supports_gradient_checkpointing else []
    return [found for child in module.children() for found in checkpointable(child)]


class _Objective(nn.Module):
    """What DeepSpeed takes for the model: its forward pass is the whole mean loss, however a task computes it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, loss_fn: LossFunction, batch: Any) -> Tensor:
        loss_sum, count = loss_fn(self.module, batch)
        return loss_sum.float() / count


class DeepSpeedEngine(Engine):
    """An `Engine` whose gradients, optimiser state, fp32 masters and parameters may be split over a worker's ranks.

    Weights are loaded into the parameters *and* the fp32 masters: a plain copy is undone by the next step. They are
    read from the masters. A step's micro-batches are dealt over the ranks in turn; the step is that of their mean.
    With stage 0 the parameters are the masters.

    `deepspeed.initialize` runs at the first `load`, when the worker's group exists; on one rank without a group the
    engine makes one. After an error inside a step the next `load` builds all anew: half-reduced gradients of the
    failed client would go into the next one's step.

    hp: of any client; all have the same optimiser. make_module: builds the same module again.
    """

    def __init__(
        self,
        module: nn.Module,
        partition: Partition,
        device: torch.device,
        *,
        settings: ZeroSettings,
        hp: LocalTraining,
        num_ranks: int,
        make_module: Callable[[], nn.Module],
    ) -> None:
        super().__init__(module, partition, device)
        self.settings, self.num_ranks = settings, num_ranks
        self._hp, self._partition, self._make_module = hp, partition, make_module
        self._zero: Any = None  # the deepspeed engine
        self._failed = False
        self._scaler: dict[str, Any] = {}
        self._gradients: list[Tensor] | None = None
        self._unborn_state: tuple[OptimizerState, Tensor, Tensor | None, int] | None = None

    # Weights

    def load(self, shared: Tensor, private: Tensor | None = None) -> None:
        """See Engine.load."""
        if self._failed:
            self._rebuild()
        if self._zero is None:
            self._initialize()
        private = self.initial_private if private is None else private
        if self.settings.stage == 0:
            super().load(shared, private)
            return
        self._put({**self.shared.view(shared), **self.private.view(private)})
        with torch.no_grad():
            for part, name, initial in self._buffer_places:
                getattr(part, name).copy_(initial)

    def adopt_initial(self) -> None:
        """See Engine.adopt_initial."""
        if self._zero is None or self.settings.stage == 0:
            super().adopt_initial()
            return
        self._put(self.frozen.view(self.initial_frozen))
        self.load(self.initial_shared)

    @property
    def flat(self) -> Tensor:
        """A copy of the present shared weights, from the fp32 masters; flat, on the CPU but for stage 0."""
        return self._flat if self._zero is None or self.settings.stage == 0 else self._taken(self.shared)

    @property
    def flat_private(self) -> Tensor:
        """The same of the private weights."""
        return self._flat_private if self._zero is None or self.settings.stage == 0 else self._taken(self.private)

    @contextmanager
    def exported(self) -> Iterator[nn.Module]:
        """See Engine.exported."""
        if self._zero is None or self.settings.stage == 0:
            yield self.module
            return
        whole = {
            **self.shared.view(self.flat),
            **self.private.view(self.flat_private),
            **self.frozen.view(self.initial_frozen),
        }
        parameters = dict(self.module.named_parameters())
        held = {name: parameters[name].data for name in whole}
        for name, value in whole.items():
            parameters[name].data = value
        try:
            yield self.module
        finally:
            for name, value in held.items():
                parameters[name].data = value

    @torch.no_grad()
    def _put(self, values: Mapping[str, Tensor]) -> None:
        """Set parameters, and the masters of those that are trained, by full fp32 values."""
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_local_fp32_param

        parameters = dict(self.module.named_parameters())
        for names in self._chunks(values):
            with self._gathered([parameters[name] for name in names]):
                if self.settings.stage < 3 or dist.get_rank() == 0:
                    for name in names:
                        parameters[name].data.copy_(values[name])
            for name in names:
                if not parameters[name].requires_grad:
                    continue
                if self.settings.stage == 3:
                    safe_set_local_fp32_param(parameters[name], self._slice(parameters[name], values[name]))
                else:
                    safe_set_full_fp32_param(parameters[name], values[name].float())

    def _taken(self, layout: Layout) -> Tensor:
        from deepspeed.utils import safe_get_full_fp32_param

        parameters, flat = dict(self.module.named_parameters()), layout.empty()
        for name, view in layout.view(flat).items():
            if parameters[name].requires_grad:
                view.copy_(safe_get_full_fp32_param(parameters[name]))
            else:
                with self._gathered([parameters[name]], changes=False):
                    view.copy_(parameters[name].detach())
        return flat

    def _gathered(self, parameters: list[nn.Parameter], *, changes: bool = True) -> Any:
        import deepspeed

        return deepspeed.zero.GatheredParameters(
            parameters, modifier_rank=0 if changes else None, enabled=self.settings.stage == 3
        )

    def _chunks(self, values: Mapping[str, Tensor]) -> Iterator[list[str]]:
        names: list[str] = []
        size = 0
        for name, value in values.items():
            names.append(name)
            size += value.numel()
            if size >= GATHERED:
                yield names
                names, size = [], 0
        if names:
            yield names

    @staticmethod
    def _slice(parameter: Any, value: Tensor) -> Tensor:
        """This rank's part of a full value as ZeRO-3 cuts it; DeepSpeed's own cut fails where the sizes do not divide."""
        size = parameter.ds_tensor.numel()
        part = value.flatten()[size * dist.get_rank() : size * (dist.get_rank() + 1)].float()
        return nn.functional.pad(part, (0, size - part.numel()))

    # Training

    def start(
        self,
        shared: Tensor,
        private: Tensor | None,
        hp: LocalTraining,
        *,
        steps: int,
        taken: int = 0,
        seed: int,
        optimizer_state: OptimizerState | None = None,
    ) -> None:
        """See Engine.start. Dropout differs between the ranks of a worker."""
        self.load(shared, private)
        optimizer = self._zero.basic_optimizer
        reference = make_optimizer(self.trained_names, self.trained, hp)
        for group, wanted in zip(optimizer.param_groups, reference.param_groups, strict=True):
            group.update({key: value for key, value in wanted.items() if key != "params"})
        forget(optimizer)
        self._unborn_state = None
        if optimizer_state is not None and (optimizer_state[0] or optimizer_state[1]):
            if self.settings.stage == 0:
                load_state(optimizer, self.trained_names, self.trained, *optimizer_state)
            elif optimizer.state:
                self._put_state(optimizer_state)
            else:
                self._unborn_state = (optimizer_state, shared, private, seed)
        self._schedule = make_schedule(optimizer, hp, steps, taken)
        self._zero._config.gradient_clipping = self._zero.optimizer.clip_grad = hp.max_grad_norm or 0.0
        if self._scaler:
            vars(self._zero.optimizer.loss_scaler).update(self._scaler)
        self.module.train()
        self.clear_gradients()
        self._seed(seed)

    def step(
        self, loss_fn: LossFunction, batches: Sequence[Any], divisor: int, before_step: GradientHook | None = None
    ) -> tuple[Tensor, Tensor]:
        """See Engine.step. All ranks of the worker get all micro-batches and return the same loss."""
        assert self._schedule is not None, "start() comes first"
        self._failed = True
        if self._unborn_state is not None:
            self._bear_state(loss_fn, batches[0])
        total = torch.zeros((), device=self.device)
        turns = ceil(len(batches) / self.num_ranks)
        for turn in range(turns):
            self._zero.set_gradient_accumulation_boundary(turn == turns - 1)
            mine = turn * self.num_ranks + dist.get_rank()
            is_real = mine < len(batches)  # else without weight: every rank has to take part in every exchange
            loss = self._zero(loss_fn, to_device(batches[mine if is_real else 0], self.device)) / divisor
            total = total + loss.detach() * is_real
            self._zero.backward(loss * (self.num_ranks * is_real))  # DeepSpeed takes the mean over the ranks
        penalty = self._hooked(before_step) if before_step is not None else None
        self._zero.step()
        if not self._zero.was_step_applied():
            log.debug("a step was left out: gradients overflowed in %s", self.settings.precision)
        self._schedule.step()
        if self.num_ranks > 1:
            dist.all_reduce(total)
        self._failed = False
        return total, torch.zeros_like(total) if penalty is None else penalty

    def backward(self, loss_fn: LossFunction, batch: Any, divisor: int = 1) -> Tensor:
        """Not here: DeepSpeed ties a gradient to its step."""
        raise FedtorchError("engine.kind deepspeed has no gradients outside a step; set engine.kind to torch")

    def clear_gradients(self) -> None:
        """Forget all gradients."""
        self._gradients = None
        self._zero.zero_grad()

    def trained_shared(self) -> list[nn.Parameter]:
        """The full fp32 values of the trained shared parameters, in the order of `shared_views`; copies."""
        if self.settings.stage == 0:
            return super().trained_shared()
        views = self.shared.view(self.flat.to(self.device))
        return [nn.Parameter(views[name]) for name in self.trained_names if name in views]

    def shared_gradients(self) -> list[Tensor]:
        """See Engine.shared_gradients; inside a step's hook only."""
        if self.settings.stage == 0:
            return super().shared_gradients()
        if self._gradients is None:
            raise FedtorchError("engine.kind deepspeed has no gradients outside a step; set engine.kind to torch")
        return self._gradients

    def optimizer_state(self) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        """See Engine.optimizer_state; whole tensors on every rank of the worker."""
        optimizer = self._zero.basic_optimizer
        if self.settings.stage == 0:
            return state_of(optimizer, self.trained_names, self.trained)
        from deepspeed.utils import safe_get_full_optimizer_state

        moments, counts = _keys(optimizer)
        tensors = {}
        for name, parameter in zip(self.trained_names, self.trained, strict=True):
            found = {key: safe_get_full_optimizer_state(parameter, key).cpu() for key in moments}
            if any(value.any() for value in found.values()):
                tensors.update({f"{name}/{key}": value for key, value in found.items()})
                tensors.update({f"{name}/{key}": value.cpu().clone() for key, value in counts.items()})
        return tensors, {}

    def _put_state(self, state: OptimizerState) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        optimizer = self._zero.basic_optimizer
        places = dict(zip(self.trained_names, self.trained, strict=True))
        moments, counts = _keys(optimizer)
        for path, value in state[0].items():
            name, key = path.rsplit("/", 1)
            if key in counts:  # the same for all parameters
                for entry in optimizer.state.values():
                    entry[key].fill_(value)
            elif self.settings.stage == 3:
                safe_set_local_optimizer_state(places[name], self._slice(places[name], value), key)
            else:
                safe_set_full_optimizer_state(places[name], value, key)

    def _bear_state(self, loss_fn: LossFunction, batch: Any) -> None:
        """Put back an optimiser state before the engine's first step, which is taken once without effect.

        Only a step makes the optimiser's tensors, and only its tensors can be filled.
        """
        assert self._unborn_state is not None
        state, shared, private, seed = self._unborn_state
        self._zero.set_gradient_accumulation_boundary(True)
        self._zero.backward(self._zero(loss_fn, to_device(batch, self.device)))
        self._zero.step()
        self._failed, self._unborn_state = False, None
        self.load(shared, private)
        forget(self._zero.basic_optimizer)
        self._put_state(state)
        if self._scaler:
            vars(self._zero.optimizer.loss_scaler).update(self._scaler)
        self._failed = True
        self._seed(seed)

    def _hooked(self, hook: GradientHook) -> Tensor | None:
        """Let a hook change the reduced gradients, which are whole while it runs."""
        if self.settings.stage == 0:
            return hook(self)
        from deepspeed.utils import safe_get_full_grad, safe_set_full_grad, safe_set_local_grad

        names = set(self.shared.names)
        parameters = [p for name, p in zip(self.trained_names, self.trained, strict=True) if name in names]
        scale = self._zero.optimizer.loss_scaler.cur_scale if self._scaler else 1.0
        self._gradients = [safe_get_full_grad(p).float() / scale for p in parameters]
        penalty = hook(self)
        for parameter, gradient in zip(parameters, self._gradients, strict=True):
            if self.settings.stage == 3:
                safe_set_local_grad(parameter, self._slice(parameter, gradient * scale))
            else:
                safe_set_full_grad(parameter, gradient * scale)
        self._gradients = None
        return penalty

    def _seed(self, seed: int) -> None:
        rank = dist.get_rank()
        torch.manual_seed(seed_for(seed, "rank of a worker", rank) if rank else seed)

    # Construction

    def _initialize(self) -> None:
        deepspeed = import_deepspeed(self.device)
        if not dist.is_initialized() and self.num_ranks == 1:
            backend = "gloo" if self.device.type == "cpu" else "cpu:gloo,cuda:nccl"
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        world = dist.get_world_size() if dist.is_initialized() else 0
        if world != self.num_ranks:  # a larger one would train all its clients as one
            raise FedtorchError(f"a worker of {self.num_ranks} ranks found a default group of {world}; this is a bug")
        if self.settings.activation_checkpointing:
            for model in checkpointable(self.module):
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        optimizer = make_optimizer(self.trained_names, self.trained, self._hp)
        size = sum(parameter.numel() for parameter in self.trained)
        self._zero, *_ = deepspeed.initialize(
            model=_Objective(self.module),
            optimizer=optimizer,
            config=zero_config(self.settings, size, pin=self.device.type == "cuda"),
            dist_init_required=False,
        )
        if self.settings.stage > 0:  # the parameters have moved into DeepSpeed's own buffers
            self._flat = self._flat_private = self.flat_frozen = torch.empty(0)
        if self.settings.precision == "fp16":
            self._scaler = dict(vars(self._zero.optimizer.loss_scaler))

    def _rebuild(self) -> None:
        """Start again with a new module; DeepSpeed cannot drop a step that failed half-way."""
        log.warning("a client failed inside a step; the DeepSpeed engine is built anew")
        initial = [tensor.clone() for tensor in self.initial()]
        self._zero.destroy()
        self._zero, self._failed = None, False
        super().__init__(self._make_module(), self._partition, self.device)
        for own, old in zip(self.initial(), initial, strict=True):
            own.copy_(old)
        super().adopt_initial()


def zero_config(settings: ZeroSettings, size: int, *, pin: bool) -> dict[str, Any]:
    """DeepSpeed's own configuration, for `size` trained numbers."""
    bucket = min(size, 500_000_000)  # its default, which it allocates whole
    zero: dict[str, Any] = {"stage": settings.stage, "reduce_bucket_size": bucket, "allgather_bucket_size": bucket}
    if settings.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": pin}
    if settings.offload_parameters:
        zero["offload_param"] = {"device": "cpu", "pin_memory": pin}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,  # not used: we deal the batches and mark the step's last one
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


def _keys(optimizer: torch.optim.Optimizer) -> tuple[list[str], dict[str, Tensor]]:
    """The optimiser's state: names of what each weight has, and counts that all weights share."""
    entry = next(iter(optimizer.state.values()), {})
    counts = {key: value for key, value in entry.items() if isinstance(value, Tensor) and value.ndim == 0}
    return [key for key, value in entry.items() if isinstance(value, Tensor) and value.ndim], counts
