"""A model whose parameters the ranks of a worker share out with torch's FSDP2, and the parts that a rank holds.

Every rank holds some rows of each parameter. Blocks of layers are gathered when they compute and let go of after it;
what is outside of them (embeddings, heads) is gathered for a whole pass. Checked with torch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from fedtorch.comm.worker import WorkerGroup
from fedtorch.core import devices
from fedtorch.core.weights import Layout
from fedtorch.train.blocks import blocks_of
from fedtorch.train.optim import load_state
from fedtorch.train.precision import DTYPES
from fedtorch.train.settings import EngineConfig
from fedtorch.train.whole_passes import LossFunction
from fedtorch.train.zero_adafactor import Piece, SlicedAdafactor
from fedtorch.train.zero_tensors import OptimizerState

WAKE = None
"""In place of a loss: a pass that computes nothing and makes FSDP ready."""


def is_split(parameter: nn.Parameter) -> bool:
    """Is it shared out? One without rows, or whose numbers are no floating-point ones, is whole on every rank."""
    return parameter.ndim > 0 and parameter.is_floating_point() and type(parameter) is nn.Parameter


class Pass(nn.Module):
    """Module that FSDP takes for the whole: its forward pass is the mean loss, whatever the task."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, loss_fn: LossFunction | None, batch: Any) -> Tensor:
        if loss_fn is WAKE:
            return torch.zeros(())
        loss_sum, count = loss_fn(self.module, batch)
        return loss_sum.float() / count


def shard_out(module: nn.Module, settings: EngineConfig, device: torch.device) -> Pass:
    """The module inside FSDP, its parameters shared out over torch's default group, of which all ranks call this.

    Block by block they move to the device, so a whole model never lies there. Gradients are added up in fp32, each rank
    giving its part of one step. 16 bits are those of gathered parameters; a rank's rows stay as they are.
    """
    assert dist.group.WORLD is not None
    mesh = DeviceMesh.from_group(dist.group.WORLD, device.type)
    low = DTYPES.get(settings.precision)
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32, cast_forward_inputs=False)
    offload = CPUOffloadPolicy(pin_memory=devices.is_gpu(device)) if settings.offload_parameters else OffloadPolicy()
    whole = {parameter for parameter in module.parameters() if not is_split(parameter)}
    for parameter in whole:
        parameter.data = parameter.data.to(device)
    share = partial(fully_shard, mesh=mesh, mp_policy=policy, offload_policy=offload, ignored_params=whole)
    for block in blocks_of(module):
        share(block)
    root = Pass(module)
    share(root)
    for part in sharded_in(root):
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
        part.set_reduce_scatter_unused_params(True)  # a rank may have no gradient where another one has
    with torch.no_grad():
        root(WAKE, None)
        for part in sharded_in(root):  # outside of `inference_mode`, whose tensors could not be trained
            part.unshard()
            part.reshard()
    return root


def sharded_in(root: nn.Module) -> list[Any]:
    """The parts of a model that FSDP gathers one at a time, the root too."""
    return [part for part in root.modules() if isinstance(part, FSDPModule)]


class Shards:
    """A rank's rows of every parameter, and whole tensors out of those of all ranks.

    All ranks of the worker call every method but `put`, with the same values.
    """

    def __init__(self, root: Pass, worker: WorkerGroup | None, device: torch.device) -> None:
        """worker: None: this rank is alone. device: on which the model computes."""
        self._root, self._device = root, device
        self._worker = worker
        self._ranks, self._rank = (1, 0) if worker is None else (worker.size, worker.rank)
        self.parameters = dict(root.module.named_parameters())
        """By name; as FSDP has them, with this rank's rows."""
        self.parts = {name: _own(parameter) for name, parameter in self.parameters.items()}
        """The same, flat: what an optimiser steps; they share memory with the rows."""
        self._bucket = max((_numbers(part) for part in sharded_in(root)), default=1)

    def put(self, values: Mapping[str, Tensor]) -> None:
        """Set whole parameters: each rank takes its rows."""
        for part in sharded_in(self._root):
            part.reshard()
        with torch.no_grad():
            for name, value in values.items():
                self.parts[name].copy_(self._cut(name, value))

    def take(self, layout: Layout, out: Tensor | None = None) -> Tensor:
        """The values of a layout's parameters; flat, on the CPU; in `out` if it is given."""
        flat = layout.empty() if out is None else out
        views = layout.view(flat)
        for name, rows in self._gathered({name: self.parts[name].detach() for name in views}):
            _laid(rows, views[name].view(-1))
        return flat

    def values_of(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Parameters whole, on the CPU, as they were before they were split."""
        return {name: value.cpu().clone() for name, value in self._wholes({n: self.parts[n].detach() for n in names})}

    @contextmanager
    def replaced(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """These tensors in place of the module's parameters."""
        new = {
            id(self.parameters[name]): nn.Parameter(value, requires_grad=self.parameters[name].requires_grad)
            for name, value in values.items()
        }
        held = [(part, key, own) for part in self._root.modules() for key, own in part._parameters.items()]
        held = [(part, key, own) for part, key, own in held if id(own) in new]
        for part, key, own in held:
            part._parameters[key] = new[id(own)]
        try:
            yield
        finally:
            for part, key, own in held:
                part._parameters[key] = own

    @contextmanager
    def whole(self) -> Iterator[None]:
        """The module has whole parameters in here, in the precision of passes."""
        for part in sharded_in(self._root):
            part.unshard()
        try:
            yield
        finally:
            for part in sharded_in(self._root):
                part.reshard()

    @contextmanager
    def rest_whole(self) -> Iterator[None]:
        """Parameters outside of blocks are whole in here; blocks are gathered when they compute."""
        assert isinstance(self._root, FSDPModule)
        self._root.unshard()
        try:
            yield
        finally:
            self._root.reshard()

    # Gradients

    def take_over_gradients(self) -> None:
        """Make FSDP's gradients of this rank's rows those of `parts`."""
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                gradient: Any = parameter.grad
                local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
                self._add_gradient(name, local.reshape(-1))
                parameter.grad = None

    def reduce_whole(self) -> None:
        """Inside `whole`: add up the gradients of the whole parameters; each rank's rows go to its `parts`."""
        for name, parameter in self._root.module.named_parameters():
            if not parameter.requires_grad:
                continue
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = None
            gradient = gradient.float()
            if self._worker is not None:
                self._worker.all_reduce(gradient)
            self._add_gradient(name, self._cut(name, gradient).clone())

    def _add_gradient(self, name: str, gradient: Tensor) -> None:
        part = self.parts[name]
        gradient = gradient.to(part)
        part.grad = gradient if part.grad is None else part.grad + gradient

    def clear_gradients(self) -> None:
        """Forget all gradients."""
        for name, parameter in self.parameters.items():
            self.parts[name].grad = parameter.grad = None

    def clip(self, names: Iterable[str], max_norm: float) -> None:
        """Scale the gradients down where their norm, over all ranks, is larger than `max_norm`."""
        own = [self.parts[name] for name in names if self.parts[name].grad is not None]
        squares = [torch.linalg.vector_norm(part.grad).double().square() for part in own if part.grad is not None]
        square = torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64, device=self._device)
        if self._worker is not None:
            self._worker.all_reduce(square)
        torch.nn.utils.clip_grads_with_norm_(own, max_norm, square.sqrt().float())

    @contextmanager
    def changing_gradients(self, names: Sequence[str], scale: float) -> Iterator[list[Tensor]]:
        """The gradients, whole, on the device, divided by `scale`; what they are at the end takes their place."""
        own: dict[str, Tensor] = {}
        for name in names:
            part = self.parts[name]
            part.grad = own[name] = torch.zeros_like(part) if part.grad is None else part.grad
        found = {name: value.to(self._device) / scale for name, value in self._wholes(own)}
        changed = [found[name] for name in names]
        yield changed
        for name, value in zip(names, changed, strict=True):
            if (gradient := self.parts[name].grad) is not None:  # else the hook made the engine forget it
                gradient.copy_(self._cut(name, value) * scale)

    # The optimiser

    def state(
        self, optimizer: torch.optim.Optimizer, names: Sequence[str]
    ) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        """The optimiser's state as `optim.state_of` gives it, with whole tensors."""
        if isinstance(optimizer, SlicedAdafactor):
            return optimizer.whole_state(names)
        tensors: dict[str, Tensor] = {}
        for name in names:
            entry = optimizer.state.get(self.parts[name], {})
            moments = {key: value for key, value in entry.items() if value.ndim}
            whole = {key: next(self._wholes({name: value}))[1].cpu() for key, value in moments.items()}
            if any(value.any() for value in whole.values()):
                found = {key: whole.get(key, value) for key, value in entry.items()}
                tensors.update({f"{name}/{key}": value.cpu().clone() for key, value in found.items()})
        return tensors, {}

    def put_state(self, optimizer: torch.optim.Optimizer, names: Sequence[str], state: OptimizerState) -> None:
        """Put back what `state` gave into an optimiser that was made to forget everything."""
        if isinstance(optimizer, SlicedAdafactor):
            optimizer.put_whole_state(state, next(iter(self.parts.values())).device)
            return
        own = {
            path: self._cut(path.rsplit("/", 1)[0], value) if value.ndim else value for path, value in state[0].items()
        }
        load_state(optimizer, names, [self.parts[name] for name in names], own, state[1])

    def sliced(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """An optimiser of `parts`: itself, unless it looks at whole matrices."""
        from fedtorch.train.zero_adafactor import sliced

        own = sliced(optimizer, self._worker)
        if isinstance(own, SlicedAdafactor):
            own.pieces = {id(part): [self._piece(name)] for name, part in self.parts.items()}
        return own

    # Where rows lie

    def _piece(self, name: str) -> Piece:
        return Piece(name, self.parameters[name].shape, self._range(name)[0], 0, self.parts[name].numel())

    def _range(self, name: str) -> tuple[int, int]:
        """First and last number, one behind it, of this rank's rows in the parameter laid end to end."""
        parameter = self.parameters[name]
        if not hasattr(parameter, "to_local"):
            return 0, parameter.numel()
        per_rank, size = self._per_rank(name), parameter.numel()
        return min(per_rank * self._rank, size), min(per_rank * (self._rank + 1), size)

    def _per_rank(self, name: str) -> int:
        shape = self.parameters[name].shape
        return -(-shape[0] // self._ranks) * (shape.numel() // max(1, shape[0]))

    def _cut(self, name: str, value: Tensor) -> Tensor:
        first, last = self._range(name)
        return value.reshape(-1)[first:last]

    def _wholes(self, parts: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors out of all ranks' rows, in the parameters' shapes, on the device."""
        for name, rows in self._gathered(parts):
            whole = torch.empty(self.parameters[name].shape, dtype=rows.dtype, device=rows.device)
            _laid(rows, whole.view(-1))
            yield name, whole

    def _gathered(self, parts: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """All ranks' rows of each of these: (ranks, numbers), filled up behind the last; to be copied at once.

        A block at a time, in the same memory: gloo lets go of tensors when it likes.
        """
        split = [name for name in parts if self._ranks > 1 and hasattr(self.parameters[name], "to_local")]
        yield from ((name, part.view(1, -1)) for name, part in parts.items() if name not in split)
        for dtype in dict.fromkeys(parts[name].dtype for name in split):
            buckets = self._buckets([name for name in split if parts[name].dtype == dtype])
            most = max(sum(map(self._per_rank, names)) for names in buckets)
            room = torch.zeros(most, dtype=dtype, device=self._device)
            everyones = room.new_empty(self._ranks * most)
            for names in buckets:
                sizes = [self._per_rank(name) for name in names]
                mine = room[: sum(sizes)]
                for name, place in zip(names, mine.split(sizes), strict=True):
                    place[: parts[name].numel()].copy_(parts[name])
                everyone = everyones[: self._ranks * len(mine)].view(self._ranks, -1)
                assert self._worker is not None
                self._worker.all_gather(mine, everyone)
                yield from zip(names, everyone.split(sizes, dim=1), strict=True)

    def _buckets(self, names: Sequence[str]) -> list[list[str]]:
        """The names, in lists of parameters that together are no larger than a block, or one alone."""
        buckets, size = list[list[str]](), self._bucket
        for name in names:
            size += self.parameters[name].numel()
            if not buckets or size > self._bucket:
                buckets.append([])
                size = self.parameters[name].numel()
            buckets[-1].append(name)
        return buckets


def _laid(rows: Tensor, flat: Tensor) -> None:
    """Ranks' rows one after the other, in `flat`, without what fills up the last of them."""
    for place, part in zip(flat.split(max(1, rows.shape[1])), rows, strict=False):
        place.copy_(part[: len(place)])


def _own(parameter: Any) -> nn.Parameter:
    """A parameter's rows on this rank, flat."""
    local = parameter.detach()
    local = local.to_local() if hasattr(local, "to_local") else local
    return nn.Parameter(local.view(-1), requires_grad=parameter.requires_grad)


def _numbers(part: Any) -> int:
    """Numbers that FSDP gathers at once for a part; nested ones not counted."""
    nested = {id(p) for each in sharded_in(part) if each is not part for p in each.parameters()}
    return sum(p.numel() for p in part.parameters() if id(p) not in nested)
