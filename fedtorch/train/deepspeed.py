"""The DeepSpeed engine: ZeRO stages 0 to 3, offload, mixed precision; built once per worker, for all its clients.

The ranks of a worker are the default group of torch.distributed; all of them call every method in lock step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fedtorch.core import devices
from fedtorch.core.weights import Partition
from fedtorch.train.engine import GradientHook, LossFunction
from fedtorch.train.micro_batches import parts_of
from fedtorch.train.moment import Moment
from fedtorch.train.optim import forget, load_state, make_optimizer, make_schedule, renew, state_of
from fedtorch.train.settings import ClientConfig, EngineConfig
from fedtorch.train.split_engine import SplitEngine, exchanging
from fedtorch.train.whole_passes import WholePass, needs_whole_passes
from fedtorch.train.zero import ZeroScale, import_deepspeed, initialize, sparing_linear
from fedtorch.train.zero_tensors import OptimizerState, ZeroTensors

log = logging.getLogger(__name__)


class DeepSpeedEngine(SplitEngine):
    """An `Engine` whose gradients, optimiser state, fp32 masters and parameters may be split over a worker's ranks.

    Weights are loaded into the parameters *and* the fp32 masters, and read from the masters; with stage 0 the
    parameters are the masters.

    `deepspeed.initialize` runs at the first `load`, when the worker's group exists; a rank alone without a group makes
    one. After an error inside a step the next `load` builds all anew: half-reduced gradients of the failed client
    would go into the next one's step. With several ranks, an error in one rank's forward pass is the client's failure
    on all of them (stages 0 to 2); one inside DeepSpeed's exchanges ends the run, for the others may be waiting there.
    """

    _tensors: ZeroTensors | None = None  # None: stage 0, or not yet initialised
    _forgotten: frozenset[str] = frozenset()

    def __init__(
        self,
        module: nn.Module,
        partition: Partition,
        device: torch.device,
        *,
        settings: EngineConfig,
        hp: ClientConfig,
        make_module: Callable[[], nn.Module],
    ) -> None:
        """hp: of any client; all have the same optimiser. make_module: builds the same module again."""
        self.settings = settings
        self._build(module, partition, device)
        self._hp, self._partition, self._make_module = hp, partition, make_module
        self._deepspeed = import_deepspeed(device)  # takes seconds; now, when nobody waits for this rank yet
        self._zero: Any = None  # the deepspeed engine
        self._failed = False
        self._scale = ZeroScale()
        self._left_out = 0
        self._fixed: Mapping[str, Tensor] = {}
        self._pending_state: tuple[OptimizerState, Tensor, Tensor | None, Callable[[], None]] | None = None

    def load(self, shared: Tensor, private: Tensor | None = None, *, version: object | None = None) -> None:
        """Load shared and private weights; all ranks of the worker together."""
        if self._failed:
            self._rebuild()
        if self._zero is None:
            self._initialize()
        super().load(shared, private)

    # Training

    def start(
        self,
        shared: Tensor,
        private: Tensor | None,
        hp: ClientConfig,
        *,
        steps: int,
        taken: int = 0,
        seed: int,
        optimizer_state: OptimizerState | None = None,
    ) -> None:
        """Start a client. Dropout differs between ranks that share a step's micro-batches."""
        self.load(shared, private)
        optimizer = self._zero.basic_optimizer
        renew(optimizer, make_optimizer(self.trained_names, self.trained, hp))
        self._pending_state = None
        if optimizer_state is not None and (optimizer_state[0] or optimizer_state[1]):
            if self._tensors is None:
                load_state(optimizer, self.trained_names, self.trained, *optimizer_state)
            elif self._tensors.has_state:
                self._tensors.put_state(optimizer_state)
            else:
                self._pending_state = (optimizer_state, shared, private, partial(self._seed, seed))
        self._schedule = make_schedule(optimizer, hp, steps, taken)
        self._zero._config.gradient_clipping = self._zero.optimizer.clip_grad = hp.max_grad_norm or 0.0
        self._left_out = 0
        self._scale.renew()
        self.module.train()
        self.clear_gradients()
        self._seed(seed)

    def _begin_step(self, loss_fn: LossFunction, batches: Sequence[Any]) -> None:
        self._failed = self._counts = True
        if self._pending_state is not None:
            self._materialize_state(loss_fn, parts_of(batches[0])[0])

    def _pass_back(self, loss_fn: LossFunction, part: Any, share: float, divisor: int, *, is_last: bool) -> Tensor:
        self._zero.set_gradient_accumulation_boundary(is_last)
        with self._whole(loss_fn):
            loss = self._forward(loss_fn, part) / divisor * share
            with exchanging(self.worker):
                self._zero.backward(loss * self._size)  # DeepSpeed takes the mean over the ranks
        return loss.detach()

    def _end_step(self, before_step: GradientHook | None, total: Tensor) -> Tensor | None:
        assert self._schedule is not None
        with exchanging(self.worker):
            penalty = self._hooked(before_step, self._scale.value) if before_step is not None else None
            with self._left_alone(any(group["weight_decay"] for group in self._zero.basic_optimizer.param_groups)):
                self._zero.step()
            if self._sharing > 1:
                dist.all_reduce(total)
        self._left_out += not self._zero.was_step_applied()
        self._schedule.step()
        self._failed = False
        return penalty

    def free(self) -> None:
        """Free the engine's memory. The next `load` builds all anew, on every rank of the worker or on none."""
        if self.worker is not None:
            self._failed = self.worker.any(self._failed)
        devices.give_back(self.device)

    def left_out(self) -> int:
        """Return the part of the gradients that the last step left out."""
        return self._left_out

    def clear_gradients(self) -> None:
        """Forget all gradients."""
        self._gradients = None
        self._zero.zero_grad()

    def optimizer_state(self) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        """Return the optimiser's state: whole tensors on every rank of the worker."""
        if self._tensors is None:
            return state_of(self._zero.basic_optimizer, self.trained_names, self.trained)
        if self._pending_state is not None:  # no step was taken
            tensors, numbers = self._pending_state[0]
            return dict(tensors), dict(numbers)
        return self._tensors.state(self.trained_names)

    def go_on(self, moment: Moment) -> None:
        """Go on; where the optimiser state is still to be put back, after that once more."""
        super().go_on(moment)
        if self._pending_state is not None:
            self._pending_state = (*self._pending_state[:3], partial(super().go_on, moment))

    def _scale_numbers(self) -> dict[str, int | float]:
        return {**self._scale.numbers(), "left_out": self._left_out}

    def _put_scale(self, numbers: Mapping[str, int | float]) -> None:
        self._scale.put(numbers)
        self._left_out = int(numbers["left_out"])

    def _forward(self, loss_fn: LossFunction, batch: Any) -> Tensor:
        objective: Any = loss_fn
        if needs_whole_passes(loss_fn):
            connect = None if self._connect is None else partial(self._connect, self.module)
            objective = WholePass(
                loss_fn, scale=self._scale.value, is_empty=not self._counts, connect=connect, worker=self.worker
            )
        if self.settings.stage == 3:  # parameters are gathered on the way
            with exchanging(self.worker):
                return self._zero(objective, self.upload(batch))
        loss: Tensor = self._zero(objective, self.upload(batch))
        if self.worker is not None:
            self.worker.any(False)  # a rank whose forward pass failed is not there, which raises PeerError
        return loss

    def _counted(self, loss_fn: LossFunction, batch: Any) -> Tensor:
        with self._whole(loss_fn):
            return self._forward(loss_fn, batch)

    def _whole(self, loss_fn: LossFunction) -> AbstractContextManager[None]:
        """All parameters are whole in here, if the loss asks for that; all ranks of the worker enter and leave it."""
        if self._tensors is not None and needs_whole_passes(loss_fn):
            return self._tensors.whole()
        return sparing_linear() if self.settings.stage == 3 else nullcontext()

    def _materialize_state(self, loss_fn: LossFunction, batch: Any) -> None:
        """Put back an optimiser state before the engine's first step, which is taken once without effect.

        Only a step makes the optimiser's tensors, and only its tensors can be filled.
        """
        assert self._pending_state is not None and self._tensors is not None
        state, shared, private, begin = self._pending_state
        self._zero.set_gradient_accumulation_boundary(True)
        self._counts = False
        with self._whole(loss_fn), exchanging(self.worker):
            self._zero.backward(self._forward(loss_fn, batch))
        with exchanging(self.worker):
            self._zero.step()
        self._failed, self._counts, self._pending_state = False, True, None
        self.load(shared, private)
        forget(self._zero.basic_optimizer)
        self._tensors.put_state(state)
        self._scale.renew()
        self._failed = True
        begin()

    def forget_gradients(self, names: Collection[str]) -> None:
        """Forget all gradients; inside a step's hook only.

        From stage 1 on gradients cannot be missing: they are zero, and what weight decay changes is put back. Moments
        stay zero where the same gradients are forgotten in every step.
        """
        if self._tensors is None:
            super().forget_gradients(names)
        elif self._gradients is None:
            raise self._no_gradients()
        else:
            self._forgotten = frozenset(names)

    @contextmanager
    def _left_alone(self, has_decay: bool) -> Iterator[None]:
        """The step in here leaves what was forgotten as it is."""
        names, self._forgotten = sorted(self._forgotten), frozenset()
        if self._tensors is None or not names:
            yield
            return
        self._tensors.clear_gradients(names)
        held = self._tensors.masters(names) if has_decay else {}
        yield
        self._tensors.put(held)

    def _fixed_values(self) -> Mapping[str, Tensor]:
        return self._fixed

    # Construction

    def _build(self, module: nn.Module, partition: Partition, device: torch.device) -> None:
        """Bind the module as the plain engine does; with ZeRO on the CPU, from where it comes to the GPU in parts."""
        is_split = self.settings.stage > 0
        super().__init__(module, partition, device, moves=is_split, built_on=devices.CPU if is_split else None)

    def _initialize(self) -> None:
        # not at every start: it needs transformers' optimisers, see `schedules`
        from fedtorch.train.zero_adafactor import sliced, tensors_of

        self._make_group()
        self._make_room()
        optimizer = make_optimizer(self.trained_names, self.trained, self._hp)
        own = optimizer if self.settings.stage == 0 else sliced(optimizer, self.worker)
        self._fixed = {name: self.module.get_parameter(name).data for name in self.fixed}  # not yet rounded
        self._zero = initialize(self._deepspeed, self.module, own, self.settings, self.device, ranks=self._size)
        if self.settings.stage > 0:  # the parameters have moved into DeepSpeed's own buffers
            self._let_go()
            self._keep_initial()
            self._tensors = tensors_of(self.module, self._zero, stage=self.settings.stage, rank=dist.get_rank())
        self._scale = ZeroScale(self._zero.optimizer.loss_scaler if self.settings.precision == "fp16" else None)

    def forget_initial(self) -> None:
        """Keep the initial weights all the same: the engine may have to be built anew."""

    def _rebuild(self) -> None:
        """Start again with a new module; DeepSpeed cannot drop a step that failed half-way."""
        log.warning("a client failed inside a step; the DeepSpeed engine is built anew")
        initial, worker = self.initial(), self.worker
        self._zero.destroy()
        self._zero, self._tensors, self._failed = None, None, False
        self._build(self._make_module(), self._partition, self.device)
        self.worker = worker
        self.take_initial(initial)
        super().adopt_initial()
