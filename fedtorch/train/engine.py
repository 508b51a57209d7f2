"""One module and one optimiser on a worker, into which any client's weights are loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedtorch.comm.worker import WorkerGroup
from fedtorch.core.seeds import seed_torch
from fedtorch.core.weights import Layout, Partition
from fedtorch.train.batches import SplitBatch
from fedtorch.train.model_parallel import ParameterOwners, clip_gradients, collect_shared
from fedtorch.train.optim import Optimizers, forget, load_state, make_schedule, state_of
from fedtorch.train.pinned_copy import PinnedCopier, to_device
from fedtorch.train.precision import Precision
from fedtorch.train.settings import ClientConfig

LossFunction = Callable[[nn.Module, Any], tuple[Tensor, Tensor | int]]
GradientHook = Callable[["Engine"], "Tensor | None"]


class Engine:
    """Trains and evaluates one module for any client of this worker.

    Parameters that are not `fixed` are views of three flat vectors on `device`: shared, private, frozen. Loading a
    client is two copies, taking its update a subtraction. `load` sets all that can change, buffers too.
    """

    module: nn.Module
    device: torch.device
    shared: Layout
    """Of the parameters that travel."""
    private: Layout
    """Of those that every client keeps for itself."""
    frozen: Layout
    """Of those that are never trained."""
    flat_frozen: Tensor
    """The frozen weights, flat."""
    fixed: tuple[str, ...]
    """Parameters that came with `requires_grad` False (an adapter's base): neither loaded nor sent nor kept."""
    trained_names: list[str]
    """The trained parameters, shared before private ones."""
    trained: list[nn.Parameter]
    """The same, as the optimiser has them."""
    initial_shared: Tensor
    """Of w^0, flat, on the CPU; `initial_private` and `initial_frozen` likewise."""
    worker: WorkerGroup | None
    """The ranks that train the same clients together, after `join`; None: this one is alone."""
    owners: ParameterOwners | None
    """Which of them computes which parameters; None: every rank computes all."""

    def __init__(
        self,
        module: nn.Module,
        partition: Partition,
        device: torch.device,
        *,
        precision: str = "fp32",
        scale_power: int = 12,
    ) -> None:
        """Moves the module to `device` and its parameters into the flat vectors.

        precision: of forward passes, fp32, bf16 or fp16; parameters, gradients and optimiser state stay fp32.
        scale_power: of fp16's loss scale, see `LossScale`.
        """
        self.module, self.device = module.to(device), device
        self._precision = Precision(precision, device, scale_power)
        parameters = dict(module.named_parameters())
        self.fixed = tuple(name for name, parameter in parameters.items() if not parameter.requires_grad)
        shared, private, frozen = partition.split(parameters, self.fixed)
        self.shared = Layout.of({name: parameters[name] for name in shared})
        self.private = Layout.of({name: parameters[name] for name in private})
        self._flat, self._flat_private = self._bind(self.shared, parameters), self._bind(self.private, parameters)
        self.frozen = Layout.of({name: parameters[name] for name in frozen})
        self.flat_frozen = self._bind(self.frozen, parameters)
        for name in frozen:
            parameters[name].requires_grad_(False)
        self.trained_names = [*shared, *private]
        self.trained = [parameters[name] for name in self.trained_names]
        self.initial_shared = self._flat.detach().cpu().clone()
        self.initial_private = self._flat_private.detach().cpu().clone()
        self.initial_frozen = self.flat_frozen.detach().cpu().clone()
        self._buffers = {n: b.detach().cpu().clone() for n, b in module.named_buffers() if b.is_floating_point()}
        # where each of them is: walking through the module for every client takes longer than copying them
        paths = [(*path.rpartition(".")[::2], initial) for path, initial in self._buffers.items()]
        self._buffer_places = [(module.get_submodule(part), name, initial) for part, name, initial in paths]
        self._optimizers = Optimizers(self.trained_names, self.trained)
        self._optimizer: torch.optim.Optimizer | None = None
        self._schedule: torch.optim.lr_scheduler.LRScheduler | None = None
        self._max_grad_norm: float | None = None
        self.worker, self.owners = None, None
        self._copier = PinnedCopier(device)

    def join(self, worker: WorkerGroup | None) -> None:
        """Take part in a worker of several ranks, whose engines do the same steps; before any training."""
        self.worker = worker

    @property
    def flat(self) -> Tensor:
        """The present shared weights, flat; may share memory with the module."""
        return self._flat

    @property
    def flat_private(self) -> Tensor:
        """The present private weights, flat; may share memory with the module."""
        return self._flat_private

    def snapshot(self, out: Tensor | None = None) -> Tensor:
        """A copy of the present shared weights, flat, on the CPU; in `out` if it is given."""
        return self._copier.download(self.flat, out)

    def snapshot_private(self) -> Tensor:
        """The same of the private weights."""
        return self._copier.download(self.flat_private)

    @torch.no_grad()
    def difference(self, start: Tensor, out: Tensor | None = None) -> Tensor:
        """`start` − the present shared weights, flat, on the CPU as `start` is; in `out` if it is given."""
        flat = self.flat.detach()
        trained = flat if flat.device == start.device else self._copier.download(flat, out)
        return torch.sub(start, trained, out=out)

    def placed(self, flat: Tensor) -> Tensor:
        """The flat CPU vector on this engine's device; itself if that is the CPU."""
        if self.device.type == "cpu":
            return flat
        self._copier.upload(flat, there := torch.empty_like(flat, device=self.device))
        return there

    @torch.no_grad()
    def load(self, shared: Tensor, private: Tensor | None = None) -> None:
        """Set all weights: `shared` flat over the shared layout, `private` or else the initial private ones."""
        self._copier.upload(shared, self.flat)
        self._copier.upload(self.initial_private if private is None else private, self.flat_private)
        for part, name, initial in self._buffer_places:
            getattr(part, name).copy_(initial)

    @contextmanager
    def exported(self) -> Iterator[nn.Module]:
        """The module with every parameter whole and in fp32, to be written to disk."""
        yield self.module

    def autocast(self) -> AbstractContextManager[Any]:
        """Whoever runs the module, to train or to predict, does so in here: in the engine's precision.

        Weights must not be loaded inside the block. Nothing happens with fp32.
        """
        return self._precision.autocast()

    def initial(self) -> list[Tensor]:
        """All of w^0, as CPU tensors to be broadcast: shared, private, frozen, and the floating-point buffers."""
        return [self.initial_shared, self.initial_private, self.initial_frozen, *self._buffers.values()]

    def adopt_initial(self) -> None:
        """Take what was received into `initial()` as this engine's start."""
        self._copier.upload(self.initial_frozen, self.flat_frozen)
        self.load(self.initial_shared)

    def start(
        self,
        shared: Tensor,
        private: Tensor | None,
        hp: ClientConfig,
        *,
        steps: int,
        taken: int = 0,
        seed: int,
        optimizer_state: tuple[Mapping[str, Tensor], Mapping[str, int | float]] | None = None,
    ) -> None:
        """Load weights, take a fresh (or the given) optimiser state, a schedule over `steps`; seed dropout.

        taken: steps of the schedule that earlier rounds took.
        """
        self.load(shared, private)
        self._optimizer = self._optimizers.of(hp)
        if optimizer_state is None:
            forget(self._optimizer)
        else:
            load_state(self._optimizer, self.trained_names, self.trained, *optimizer_state)
        self._schedule = make_schedule(self._optimizer, hp, steps, taken)
        self._max_grad_norm = hp.max_grad_norm
        self.module.train()
        self._precision.begin()
        self.clear_gradients()
        seed_torch(seed, self.device)  # dropout

    def step(
        self, loss_fn: LossFunction, batches: Sequence[Any], divisor: int, before_step: GradientHook | None = None
    ) -> tuple[Tensor, Tensor]:
        """One optimiser step over micro-batches; returns (loss, penalty), detached scalars on the device.

        loss: sum over micro-batches of (loss sum / count), divided by `divisor`. `before_step` may change the
        gradients (FedProx, SCAFFOLD) and returns a penalty that was added to the objective, or None. A step whose
        gradients overflow in fp16 changes no weights, see `LossScale`; `left_out` counts them.
        """
        assert self._optimizer is not None and self._schedule is not None, "start() comes first"
        total = torch.zeros((), device=self.device)
        for batch in batches:
            total = total + self.backward(loss_fn, batch, divisor)
        self.collect_gradients()
        # where every rank computes everything, all ranks find the same overflows
        self._precision.unscale_gradients(self._optimizer, None if self.owners is None else self.worker)
        penalty = before_step(self) if before_step is not None else None
        if self._max_grad_norm is not None:
            clip_gradients(self.worker, self.owners, self.trained_by_name(), self._max_grad_norm)
        self._precision.take_step(self._optimizer)
        self._schedule.step()
        self.clear_gradients()
        return total, torch.zeros_like(total) if penalty is None else penalty

    def backward(self, loss_fn: LossFunction, batch: Any, divisor: int = 1) -> Tensor:
        """Add one micro-batch's gradient / `divisor`; returns its mean loss / `divisor`, detached.

        With fp16 gradients are times the loss scale, by which `step` divides them.
        """
        if isinstance(batch, SplitBatch):
            return self._backward_in_parts(loss_fn, batch, divisor)
        loss_sum, count = self._objective(loss_fn, batch)
        return self._backward(loss_sum / count / divisor)

    def left_out(self) -> int:
        """How many steps since `start` changed nothing because gradients overflowed; waits for the device."""
        return self._precision.left_out()

    def collect_gradients(self) -> None:
        """Complete the shared gradients on a worker's leader, as `step` does; all ranks of the worker call it."""
        if self.worker is not None and self.owners is not None:
            collect_shared(self.worker, self.owners, self.trained_by_name(), set(self.shared.names))

    def _backward_in_parts(self, loss_fn: LossFunction, batch: SplitBatch, divisor: int) -> Tensor:
        """The same in parts; a first pass counts, as every part is divided by what all of them count."""
        device = [self.device] if self.device.type == "cuda" else []
        with torch.no_grad(), torch.random.fork_rng(device):
            count = sum(self._objective(loss_fn, part)[1] for part in batch.parts)
        total = torch.zeros((), device=self.device)
        for part in batch.parts:
            total = total + self._backward(self._objective(loss_fn, part)[0] / count / divisor)
        return total

    def _objective(self, loss_fn: LossFunction, batch: Any) -> tuple[Tensor, Tensor | int]:
        """(sum, count) of a batch's losses; the sum in fp32 at least."""
        with self.autocast():
            loss_sum, count = loss_fn(self.module, to_device(batch, self.device))
        return loss_sum.float() if loss_sum.dtype.itemsize < 4 else loss_sum, count

    def _backward(self, loss: Tensor) -> Tensor:
        if loss.requires_grad or self.owners is None:  # a rank whose part is frozen has nothing to learn
            self._precision.scaled(loss).backward()
        return loss.detach()

    def free(self) -> None:
        """Give back what a client that failed has left in memory; all ranks of the worker call it."""
        self.clear_gradients()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def clear_gradients(self) -> None:
        """Forget all gradients."""
        for parameter in self.trained:
            parameter.grad = None

    def shared_gradients(self) -> list[Tensor]:
        """The gradients of the trained shared parameters, to be changed in place; zeros where one took no part."""
        gradients = []
        for parameter in self.trained_shared():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        return gradients

    def optimizer_state(self) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        """Copies of the optimiser's state, tensors and numbers under `<parameter>/<key>`."""
        assert self._optimizer is not None
        return state_of(self._optimizer, self.trained_names, self.trained)

    def shared_views(self, flat: Tensor) -> list[Tensor]:
        """Views of `flat` (over the shared layout, on the engine's device) for the trained shared parameters."""
        views = self.shared.view(flat)
        return [views[name] for name in self.trained_names if name in views]

    def trained_by_name(self) -> dict[str, nn.Parameter]:
        """The trained parameters, shared before private ones."""
        return dict(zip(self.trained_names, self.trained, strict=True))

    def trained_shared(self) -> list[nn.Parameter]:
        """The trained shared parameters, in the order of `shared_views`."""
        names = set(self.shared.names)
        return [p for name, p in self.trained_by_name().items() if name in names]

    def _bind(self, layout: Layout, parameters: Mapping[str, nn.Parameter]) -> Tensor:
        """A flat vector holding the parameters' values, whose views become their storage."""
        flat = torch.zeros(layout.size, dtype=layout.dtype, device=self.device)
        for name, view in layout.view(flat).items():
            view.copy_(parameters[name].detach())
            parameters[name].data = view
        return flat
