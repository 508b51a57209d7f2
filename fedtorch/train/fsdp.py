"""The FSDP engine: parameters, gradients and optimiser state over a worker's ranks, by torch alone.

The ranks of a worker are the default group of torch.distributed; all of them call every method in lock step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedtorch.core import devices
from fedtorch.core.weights import Partition
from fedtorch.train.activations import compute_activations_again
from fedtorch.train.engine import GradientHook, LossFunction
from fedtorch.train.fsdp_shards import Pass, Shards, shard_out
from fedtorch.train.optim import Optimizers
from fedtorch.train.settings import ClientConfig, EngineConfig
from fedtorch.train.split_engine import SplitEngine, exchanging
from fedtorch.train.whole_passes import WholePass, needs_whole_passes
from fedtorch.train.zero_tensors import OptimizerState


class FsdpEngine(SplitEngine):
    """An `Engine` whose parameters, gradients and optimiser state are split over a worker's ranks with FSDP2.

    Optimisers step a rank's rows, which are fp32. In 16 bits a pass has whole parameters rounded to them, inside the
    plain engine's autocast. The first `load` splits the module, when the worker's group exists. An error inside a pass
    ends the run where there are other ranks, for these may be waiting in an exchange.
    """

    _tensors: Shards | None = None

    def __init__(
        self, module: nn.Module, partition: Partition, device: torch.device, *, settings: EngineConfig
    ) -> None:
        """Builds on the CPU, from where parts go to a GPU."""
        self.settings = settings
        super().__init__(
            module,
            partition,
            device,
            precision=settings.precision,
            scale_power=settings.initial_scale_power,
            moves=True,
            built_on=devices.CPU,
        )
        self._root: Pass | None = None

    def load(self, shared: Tensor, private: Tensor | None = None, *, version: object | None = None) -> None:
        """Load shared and private weights; all ranks of the worker together."""
        if self._tensors is None:
            self._split()
        super().load(shared, private)

    def _split(self) -> None:
        self._make_group()
        self._make_room()
        if self.settings.activation_checkpointing:
            compute_activations_again(self.module)
        self._root = shard_out(self.module, self.settings, self.device)
        self._let_go()
        self._tensors = Shards(self._root, self.worker, self.device)
        self.trained = [self._tensors.parts[name] for name in self.trained_names]
        self._optimizers = Optimizers(self.trained_names, self.trained, self._tensors.sliced)

    @property
    def _shards(self) -> Shards:
        assert self._tensors is not None, "start() comes first"
        return self._tensors

    @contextmanager
    def autocast(self) -> Iterator[Any]:
        """Context of passes over the module; all ranks of the worker enter it together and do the same in it."""
        with self._shards.rest_whole() if self._tensors is not None else nullcontext(), super().autocast():
            yield

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
        super().start(shared, private, hp, steps=steps, taken=taken, seed=seed)
        if optimizer_state is not None:
            assert self._optimizer is not None
            self._shards.put_state(self._optimizer, self.trained_names, optimizer_state)
        self._seed(seed)

    def _pass_back(self, loss_fn: LossFunction, part: Any, share: float, divisor: int, *, is_last: bool) -> Tensor:
        with self._gathered(loss_fn):
            loss = self._forward(loss_fn, part) / divisor * share
            with exchanging(self.worker):
                self._precision.scaled(loss).backward()
                if needs_whole_passes(loss_fn):
                    self._shards.reduce_whole()
        return loss.detach()

    def _counted(self, loss_fn: LossFunction, batch: Any) -> Tensor:
        with self._gathered(loss_fn):
            return self._forward(loss_fn, batch)

    def _gathered(self, loss_fn: LossFunction) -> AbstractContextManager[None]:
        """All parameters are whole in here, if the loss asks for that."""
        return self._shards.whole() if needs_whole_passes(loss_fn) else nullcontext()

    def _forward(self, loss_fn: LossFunction, batch: Any) -> Tensor:
        there = self.upload(batch)
        if self.worker is not None:
            self.worker.any(False)  # a rank whose rows were not uploaded is not there, which raises PeerError
        with exchanging(self.worker), self._precision.autocast():
            if not needs_whole_passes(loss_fn):
                assert self._root is not None
                loss: Tensor = self._root(loss_fn, there)
                return loss
            scale = 1.0 if self._precision.scale is None else self._precision.scale.get_scale()
            connect = None if self._connect is None else partial(self._connect, self.module)
            whole = WholePass(loss_fn, scale=scale, is_empty=not self._counts, connect=connect, worker=self.worker)
            return whole(self.module, there)

    def _end_step(self, before_step: GradientHook | None, total: Tensor) -> Tensor | None:
        assert self._optimizer is not None
        with exchanging(self.worker):
            self._shards.take_over_gradients()
            self._precision.unscale_gradients(self._optimizer, self.worker)
            penalty = self._take_step(before_step)
            if self.worker is not None and self._sharing > 1:
                self.worker.all_reduce(total)
        return penalty

    def _take_step(self, before_step: GradientHook | None) -> Tensor | None:
        assert self._optimizer is not None and self._schedule is not None
        penalty = self._hooked(before_step, 1.0) if before_step is not None else None
        if self._max_grad_norm is not None:
            self._shards.clip(self.trained_names, self._max_grad_norm)
        self._precision.take_step(self._optimizer)
        self._schedule.step()
        self.clear_gradients()
        return penalty

    def clear_gradients(self) -> None:
        """Forget all gradients."""
        self._gradients = None
        if self._tensors is not None:
            self._tensors.clear_gradients()

    def free(self) -> None:
        """Forget a client that failed; all ranks of the worker call it."""
        if self._root is not None:
            self._root.reset_iter_state()  # type: ignore[operator]
        super().free()

    def optimizer_state(self) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        """Return the optimiser's state: whole tensors on every rank of the worker."""
        assert self._optimizer is not None
        return self._shards.state(self._optimizer, self.trained_names)

    def _fixed_values(self) -> Mapping[str, Tensor]:
        return self._shards.values_of(self.fixed)
