"""One module and one optimiser on a worker, into which any client's weights are loaded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedtorch.comm.worker import WorkerGroup
from fedtorch.core import devices
from fedtorch.core.seeds import seed_torch
from fedtorch.core.shapes import META, has_values
from fedtorch.core.state_keys import part_of
from fedtorch.core.weights import Layout, Partition, bind, keep_bound
from fedtorch.train.batches import SplitBatch
from fedtorch.train.buffers import InitialBuffers
from fedtorch.train.initial import EngineWeights
from fedtorch.train.model_parallel import ParameterOwners, clip_gradients, collect_shared
from fedtorch.train.moment import (
    BUFFER,
    DEVICE_GENERATOR,
    GENERATOR,
    OPTIMIZER,
    PRIVATE,
    SCALE,
    SHARED,
    Moment,
)
from fedtorch.train.optim import Optimizers, forget, load_state, make_schedule, state_of
from fedtorch.train.pinned_copy import PinnedCopier, check_ids, to_device
from fedtorch.train.precision import Precision
from fedtorch.train.settings import ClientConfig
from fedtorch.train.whole_passes import Connect, LossFunction

GradientHook = Callable[["Engine"], "Tensor | None"]


class Engine(EngineWeights):
    """Trains and evaluates one module for any client of this worker.

    Parameters that are not `fixed` are views of three flat vectors on `device`. Nothing is built or copied per client.
    """

    module: nn.Module
    device: torch.device
    precision: str
    """Of forward passes."""
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
    worker: WorkerGroup | None
    """The ranks that train the same clients together, after `join`; None: this one is alone."""
    owners: ParameterOwners | None
    """Which of them computes which parameters; None: every rank computes all."""
    unit_ways: dict[tuple[str, str], tuple[str, str | None]]
    """(`privacy.per_unit`, client) -> how gradients of its units are taken, once `UnitGradients` has tried it."""
    can_pause = True
    """May it have others' weights between two steps of a training, which goes on by `load` and `go_on`?"""

    def __init__(
        self,
        module: nn.Module,
        partition: Partition,
        device: torch.device,
        *,
        precision: str = "fp32",
        scale_power: int = 12,
        moves: bool = False,
        built_on: torch.device | None = None,
    ) -> None:
        """Moves the module to `device`, where its parameters lie in the flat vectors, each of them once.

        precision: of forward passes, as in `engine.precision`; parameters, gradients and optimiser state stay fp32.
        scale_power: of fp16, see `LossScale`. moves: away at the first load: initial vectors on the CPU are no copies.
        built_on: another device, where the module stays until a library moves it. One `without_values` stays where it
        is, with vectors that have none either.
        """
        self.module, self.device, self.precision = module, device, precision
        self._precision = Precision(precision, device, scale_power)
        self._lay_out(partition, (built_on or device) if has_values(module) else META)
        flats = [flat.detach() for flat in (self._flat, self._flat_private, self.flat_frozen)]
        flats = [flat if flat.is_meta else flat.cpu() for flat in flats]
        self.initial_shared, *others = flats
        self.initial_private, self.initial_frozen = others if moves else [f.clone() for f in others]
        self._buffers = InitialBuffers(module)
        tables = [each.num_embeddings for each in module.modules() if isinstance(each, nn.Embedding)]
        self._most_ids = max(tables, default=0)
        self._optimizers = Optimizers(self.trained_names, self.trained)
        self._optimizer: torch.optim.Optimizer | None = None
        self._schedule: torch.optim.lr_scheduler.LRScheduler | None = None
        self._max_grad_norm: float | None = None
        self.worker, self.owners, self.unit_ways = None, None, {}
        self._copier = PinnedCopier(device)

    def _lay_out(self, partition: Partition, place: torch.device) -> None:
        """Move the parameters that are not fixed into flat vectors at `place`, and everything else there as it is."""
        parameters = dict(self.module.named_parameters())
        self.fixed = tuple(name for name, parameter in parameters.items() if not parameter.requires_grad)
        shared, private, frozen = partition.split(parameters, self.fixed)
        self.shared = Layout.of({name: parameters[name] for name in shared})
        self.private = Layout.of({name: parameters[name] for name in private})
        self._flat, self._flat_private = bind(self.shared, parameters, place), bind(self.private, parameters, place)
        self.frozen = Layout.of({name: parameters[name] for name in frozen})
        self.flat_frozen = bind(self.frozen, parameters, place)
        for name in frozen:
            parameters[name].requires_grad_(False)
        if place != META:
            self.module.to(place)  # what is left: buffers, parameters that came fixed
        keep_bound(self.shared, parameters, self._flat)
        keep_bound(self.private, parameters, self._flat_private)
        keep_bound(self.frozen, parameters, self.flat_frozen)
        self.trained_names = [*shared, *private]
        self.trained = [parameters[name] for name in self.trained_names]

    def join(self, worker: WorkerGroup | None, connect: Connect | None = None) -> None:
        """Take part in a worker whose engines do the same steps. connect: of a task that `passes_together`."""
        self.worker = worker

    @contextmanager
    def exported(self) -> Iterator[nn.Module]:
        """The module with every parameter whole and in fp32, to be written to disk."""
        yield self.module

    def autocast(self) -> AbstractContextManager[Any]:
        """Whoever runs the module, to train or to predict, does so in here: in the engine's precision.

        Weights must not be loaded inside the block. Nothing happens with fp32.
        """
        return self._precision.autocast()

    def adopt_initial(self, spill: Path | None = None) -> None:
        """Take what was received into `initial()` as this engine's start. spill: a folder for what is seldom read."""
        self._copier.upload(self.initial_frozen, self.flat_frozen)
        self.load(self.initial()[0])

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
        """Load weights and an optimiser state, fresh or given; a schedule of `steps`, `taken` before; seed dropout."""
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
        penalty = self._take_step(before_step)
        return total, torch.zeros_like(total) if penalty is None else penalty

    def step_along(self, gradient: Tensor, before_step: GradientHook | None = None) -> Tensor:
        """One optimiser step along a gradient that was computed elsewhere; returns the penalty, as `step` does.

        gradient: flat over `trained`, one after the other, fp32 on the CPU. Nothing is unscaled, so not with fp16.
        """
        assert self._optimizer is not None and self._schedule is not None, "start() comes first"
        there = gradient.to(self.device)
        for parameter, part in zip(self.trained, there.split([p.numel() for p in self.trained]), strict=True):
            parameter.grad = part.view_as(parameter).clone()
        penalty = self._take_step(before_step)
        return torch.zeros((), device=self.device) if penalty is None else penalty

    def _take_step(self, before_step: GradientHook | None) -> Tensor | None:
        """The rest of a step whose gradients are there: the hook, the limit on their norm, optimiser and schedule."""
        assert self._optimizer is not None and self._schedule is not None
        penalty = before_step(self) if before_step is not None else None
        if self._max_grad_norm is not None:
            clip_gradients(self.worker, self.owners, self.trained_by_name(), self._max_grad_norm)
        self._precision.take_step(self._optimizer)
        self._schedule.step()
        self.clear_gradients()
        return penalty

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
        """Go back in parts; a first pass counts, as every part is divided by what all of them count."""
        with torch.no_grad(), devices.same_numbers_again(self.device):
            count = sum(self._objective(loss_fn, part)[1] for part in batch.parts)
        total = torch.zeros((), device=self.device)
        for part in batch.parts:
            total = total + self._backward(self._objective(loss_fn, part)[0] / count / divisor)
        return total

    def _objective(self, loss_fn: LossFunction, batch: Any) -> tuple[Tensor, Tensor | int]:
        """(sum, count) of a batch's losses; the sum in fp32 at least."""
        with self.autocast():
            loss_sum, count = loss_fn(self.module, self.upload(batch))
        return loss_sum.float() if loss_sum.dtype.itemsize < 4 else loss_sum, count

    def upload(self, batch: Any) -> Any:
        """The batch on the device.

        Raises:
            IndexError: an id is in no table of the model. A GPU that were given it would fail for good, so it is looked
                for before; the CPU raises the same by itself.
        """
        if devices.is_gpu(self.device) and self._most_ids:
            check_ids(batch, self._most_ids)
        return to_device(batch, self.device)

    def _backward(self, loss: Tensor) -> Tensor:
        if loss.requires_grad or self.owners is None:  # a rank whose part is frozen has nothing to learn
            self._precision.scaled(loss).backward()
        return loss.detach()

    def free(self) -> None:
        """Give back what a client that failed has left in memory; all ranks of the worker call it."""
        self.clear_gradients()
        devices.give_back(self.device)

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

    def forget_gradients(self, names: Collection[str]) -> None:
        """Inside a step's hook: the step is not to change these trained parameters."""
        for name in names:
            self.trained[self.trained_names.index(name)].grad = None

    @property
    def counts(self) -> bool:
        """Does the loss that is being computed take part in a step? To be asked by a loss that counts something."""
        return torch.is_grad_enabled()

    def summed(self, values: Sequence[float]) -> list[float]:
        """Sums over the ranks that share a step's micro-batches, of what each counted; all of them call it."""
        return list(values)

    def optimizer_state(self) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        """Copies of the optimiser's state, tensors and numbers under `<parameter>/<key>`."""
        assert self._optimizer is not None
        return state_of(self._optimizer, self.trained_names, self.trained)

    def moment(self, *, with_optimizer: bool = True) -> Moment:
        """All that the next step depends on, between two of them; all ranks of the worker call it.

        with_optimizer: no step comes before another `start` otherwise. The weights may be the module's own memory.
        """
        tensors = {SHARED: self.on_cpu(None)} if self.shared.size else {}
        if self.private.size:
            tensors[PRIVATE] = self.snapshot_private()
        tensors |= {BUFFER + name: value for name, value in self._buffers.present().items()}
        numbers = {SCALE + name: value for name, value in self._scale_numbers().items()}
        if with_optimizer:
            kept, counts = self.optimizer_state()
            tensors |= {OPTIMIZER + name: value for name, value in kept.items()}
            numbers |= {OPTIMIZER + name: value for name, value in counts.items()}
        tensors[GENERATOR] = torch.default_generator.get_state()
        if (state := devices.generator_state(self.device)) is not None:
            tensors[DEVICE_GENERATOR] = state
        return Moment(tensors, numbers)

    def go_on(self, moment: Moment) -> None:
        """Be where `moment` was taken; after a `start` with its weights, its optimiser state and its steps `taken`."""
        self._buffers.put(part_of(moment.tensors, BUFFER))
        self._put_scale(part_of(moment.numbers, SCALE))
        torch.default_generator.set_state(moment.tensors[GENERATOR])
        if DEVICE_GENERATOR in moment.tensors:
            devices.set_generator_state(moment.tensors[DEVICE_GENERATOR], self.device)

    def moment_form(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of every tensor of a `moment` but the optimiser's; waits for no other rank."""
        flats = {SHARED: self.shared, PRIVATE: self.private}
        form = {name: ((layout.size,), layout.dtype) for name, layout in flats.items() if layout.size}
        own = {BUFFER + name: value for name, value in self._buffers.values.items()}
        own[GENERATOR] = torch.default_generator.get_state()
        if (state := devices.generator_state(self.device)) is not None:
            own[DEVICE_GENERATOR] = state
        return form | {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in own.items()}

    def _scale_numbers(self) -> dict[str, int | float]:
        return self._precision.numbers()

    def _put_scale(self, numbers: Mapping[str, int | float]) -> None:
        self._precision.put(numbers)

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
