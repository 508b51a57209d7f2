"""An engine whose ranks share out one model: its steps, weights and gradients, whatever library splits them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fedtorch.comm.worker import WorkerGroup
from fedtorch.core import devices
from fedtorch.core.errors import FedtorchError, PreflightError
from fedtorch.core.seeds import seed_for, seed_torch
from fedtorch.core.shapes import make_room
from fedtorch.core.weights import Layout, mapped
from fedtorch.train.engine import Engine, GradientHook
from fedtorch.train.micro_batches import passes_of
from fedtorch.train.settings import EngineConfig
from fedtorch.train.whole_passes import Connect, LossFunction

_INITIAL = ("initial_shared", "initial_private", "initial_frozen")


class SplitTensors(Protocol):
    """Parameters and gradients that ranks hold in parts, as whole fp32 tensors by name; all ranks call every method."""

    def put(self, values: Mapping[str, Tensor]) -> None:
        """Set whole parameters."""

    def take(self, layout: Layout, out: Tensor | None = None) -> Tensor:
        """The values of a layout's parameters, flat, on the CPU; in `out` if it is given."""

    def replaced(self, values: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        """These whole tensors in place of the module's parts of them."""

    def changing_gradients(self, names: Sequence[str], scale: float) -> AbstractContextManager[list[Tensor]]:
        """Copies of the gradients between the last backward pass and the step, which go back at the end."""


class SplitEngine(Engine):
    """An `Engine` that may hold parts of a model: a step's micro-batches go to the ranks of a worker in turn.

    The step is that of their mean. Of what it inherits a library's engine keeps `module`, layouts and initial weights;
    it says how one pass goes back (`_pass_back`), how a step ends (`_end_step`) and where tensors lie (`_tensors`).
    """

    can_pause = False  # a library's engine has weights and states beside the module's
    settings: EngineConfig
    _tensors: SplitTensors | None = None  # None: nothing is split, or not yet
    _gradients: list[Tensor] | None = None
    _counts = True
    _connect: Connect | None = None

    def join(self, worker: WorkerGroup | None, connect: Connect | None = None) -> None:
        """Join the worker's ranks.

        Raises:
            PreflightError: they share a GPU.
        """
        check_worker(worker, self.device, self.settings.kind)
        super().join(worker)
        self._connect = connect

    def step(
        self, loss_fn: LossFunction, batches: Sequence[Any], divisor: int, before_step: GradientHook | None = None
    ) -> tuple[Tensor, Tensor]:
        """Take a step. All ranks of the worker get all micro-batches and return the same loss."""
        assert self._schedule is not None, "start() comes first"
        self._begin_step(loss_fn, batches)
        total, sharing = torch.zeros((), device=self.device), self._sharing
        for first in range(0, len(batches), sharing):
            own = dist.get_rank() if sharing > 1 else 0
            passes = passes_of(batches[first : first + sharing], own, loss_fn, self._counted, self.device)
            for number, (part, share) in enumerate(passes, start=1):
                is_last = first + sharing >= len(batches) and number == len(passes)
                self._counts = share > 0
                total = total + self._pass_back(loss_fn, part, share, divisor, is_last=is_last)
        self._counts = True
        penalty = self._end_step(before_step, total)
        return total, torch.zeros_like(total) if penalty is None else penalty

    def _begin_step(self, loss_fn: LossFunction, batches: Sequence[Any]) -> None:
        """Whatever has to be done before a step's first pass."""

    def _pass_back(self, loss_fn: LossFunction, part: Any, share: float, divisor: int, *, is_last: bool) -> Tensor:
        """Add the gradient of one micro-batch, or a part that counts `share` of it; returns its part of the loss."""
        raise NotImplementedError

    def _end_step(self, before_step: GradientHook | None, total: Tensor) -> Tensor | None:
        """Take the step; adds up `total` over the ranks, in place, and returns the hook's penalty."""
        raise NotImplementedError

    def _counted(self, loss_fn: LossFunction, batch: Any) -> Tensor:
        """The mean loss of a pass without gradient; all ranks take it together."""
        raise NotImplementedError

    @property
    def counts(self) -> bool:
        """Count what a rank computes. One without a micro-batch computes along with the others."""
        return self._counts and super().counts

    def summed(self, values: Sequence[float]) -> list[float]:
        """Add a number over the ranks of the worker."""
        if self.worker is None or self._sharing == 1:
            return super().summed(values)
        return [sum(each) for each in zip(*self.worker.all_gather_floats(values), strict=True)]

    def backward(self, loss_fn: LossFunction, batch: Any, divisor: int = 1) -> Tensor:
        """Not here: a library that splits a model ties a gradient to its step."""
        raise self._no_gradients()

    @property
    def _size(self) -> int:
        return 1 if self.worker is None else self.worker.size

    @property
    def _sharing(self) -> int:
        """The ranks that share a step's micro-batches; 1: all compute each of them together."""
        return 1 if self._connect is not None else self._size

    def _seed(self, seed: int) -> None:
        """Dropout differs between ranks that share a step's micro-batches."""
        rank = dist.get_rank() if self._sharing > 1 else 0
        seed_torch(seed_for(seed, "rank of a worker", rank) if rank else seed, self.device)

    def _make_group(self) -> None:
        """Make torch's default group for a rank that is alone; of a worker it has to be there.

        Raises:
            FedtorchError: it is of other ranks.
        """
        if not dist.is_initialized() and self._size == 1:
            backend = devices.BACKENDS if devices.is_gpu(self.device) else "gloo"
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        world = dist.get_world_size() if dist.is_initialized() else 0
        if world != self._size:  # a larger one would train all its clients as one
            raise FedtorchError(f"a worker of {self._size} ranks found a default group of {world}; this is a bug")

    def _make_room(self) -> None:
        """Give parameters that are without values memory, for a library to split; the next `load` brings values."""
        make_room(self.module)
        self.trained = [self.module.get_parameter(name) for name in self.trained_names]

    def _let_go(self) -> None:
        """The parameters have moved into a library's own tensors; the flat vectors are of no use."""
        self._flat = self._flat_private = self.flat_frozen = torch.empty(0)

    def _no_gradients(self) -> FedtorchError:
        kind = self.settings.kind
        return FedtorchError(f"engine.kind {kind} has no gradients outside a step; set engine.kind to torch")

    # Weights

    def load(self, shared: Tensor, private: Tensor | None = None, *, version: object | None = None) -> None:
        """Load shared and private weights."""
        if self._tensors is None:
            super().load(shared, private)
            return
        private = self.initial_private if private is None else private
        self._tensors.put({**self.shared.view(shared), **self.private.view(private)})
        self._buffers.put_back()

    def adopt_initial(self, spill: Path | None = None) -> None:
        """Take initial weights over. They are then in a file, as few look at them again."""
        if self._tensors is None:
            super().adopt_initial()
        else:
            self.load(self.initial_shared)
        if self._tensors is not None:
            self._tensors.put(self.frozen.view(self.initial_frozen))
        if self._tensors is not None and spill is not None:
            for name in _INITIAL:
                setattr(self, name, mapped(getattr(self, name), spill))

    def _keep_initial(self) -> None:
        """Copy the initial vectors where parameters have stayed in them, as one that is alone in its group does."""
        places = {p.data.untyped_storage().data_ptr() for p in self.module.parameters() if p.numel()}
        for name in _INITIAL:
            if (vector := getattr(self, name)).untyped_storage().data_ptr() in places:
                setattr(self, name, vector.clone())

    def snapshot(self, out: Tensor | None = None) -> Tensor:
        """Copy the shared weights."""
        return super().snapshot(out) if self._tensors is None else self._tensors.take(self.shared, out)

    def snapshot_private(self) -> Tensor:
        """Copy the private weights."""
        return super().snapshot_private() if self._tensors is None else self._tensors.take(self.private)

    def on_cpu(self, out: Tensor | None = None) -> Tensor:
        """Copy the weights to the CPU."""
        return super().on_cpu(out) if self._tensors is None else self._tensors.take(self.shared, out)

    def difference(self, start: Tensor, out: Tensor | None = None) -> Tensor:
        """Write the difference between weights and start."""
        if self._tensors is None:
            return super().difference(start, out)
        if out is not None and out.data_ptr() == start.data_ptr():
            return torch.sub(start, self.flat, out=out)
        taken = self._tensors.take(self.shared, out)
        return torch.sub(start, taken, out=taken)

    @property
    def flat(self) -> Tensor:
        """A copy of the present shared weights in fp32; flat, on the CPU where they are split."""
        return self._flat if self._tensors is None else self._tensors.take(self.shared)

    @property
    def flat_private(self) -> Tensor:
        """Flat vector of the private weights."""
        return self._flat_private if self._tensors is None else self._tensors.take(self.private)

    @contextmanager
    def exported(self) -> Iterator[nn.Module]:
        """Return the weights as they are exported."""
        if self._tensors is None:
            yield self.module
            return
        trained = {**self.shared.view(self.flat), **self.private.view(self.flat_private)}
        with self._tensors.replaced({**trained, **self.frozen.view(self.initial_frozen), **self._fixed_values()}):
            yield self.module

    def _fixed_values(self) -> Mapping[str, Tensor]:
        """The parameters that came fixed, whole, in the module's own precision."""
        raise NotImplementedError

    def trained_shared(self) -> list[nn.Parameter]:
        """The trained shared parameters, in the order of `shared_views`; copies where they are split."""
        if self._tensors is None:
            return super().trained_shared()
        views = self.shared.view(self.flat.to(self.device))
        return [nn.Parameter(views[name]) for name in self.trained_names if name in views]

    def shared_gradients(self) -> list[Tensor]:
        """Return the gradients of the shared weights; inside a step's hook only."""
        if self._tensors is None:
            return super().shared_gradients()
        if self._gradients is None:
            raise self._no_gradients()
        return self._gradients

    def _hooked(self, hook: GradientHook, scale: float) -> Tensor | None:
        """Let a hook change the reduced gradients, which are whole while it runs.

        scale: fp16's, by which they are still multiplied.
        """
        if self._tensors is None:
            return hook(self)
        own = set(self.shared.names)
        names = [name for name in self.trained_names if name in own]
        with self._tensors.changing_gradients(names, scale) as self._gradients:
            penalty = hook(self)
        self._gradients = None
        return penalty


def check_worker(worker: WorkerGroup | None, device: torch.device, kind: str) -> None:
    """Can the ranks of a worker exchange what is on this device? kind: of the engine.

    Raises:
        PreflightError: ranks share a GPU, which NCCL refuses.
    """
    if worker is not None and devices.is_gpu(device) and "nccl" not in worker.backend:
        raise PreflightError(
            f"engine.kind is {kind} and system.ranks_per_worker is {worker.size}, but the ranks {worker.ranks} of a "
            "worker have no GPU each, or torch has no NCCL; start at most as many ranks on a node as it has GPUs, or "
            "set system.ranks_per_worker to 1"
        )


@contextmanager
def exchanging(worker: WorkerGroup | None) -> Iterator[None]:
    """A library's exchanges go in here: an error leaves the other ranks of the worker where they cannot be told.

    Raises:
        FedtorchError: in place of any error, if there are other ranks.
    """
    try:
        yield
    except Exception as error:
        if worker is None or worker.size == 1:
            raise
        worker.close()
        kind = type(error).__name__
        advice = "; lower client.batch_size or split more (engine.stage)" if "OutOfMemory" in kind else ""
        raise FedtorchError(f"a rank failed inside an exchange of its worker ({kind}){advice}") from error
