"""Adafactor over ZeRO's slices: its factored moments are of whole matrices, of which every rank holds a part.

A slice is a stretch of a matrix laid end to end, so that it has some rows whole and at most two in part. What the
factors need of a matrix are the sums of its squared gradient along rows and columns, and two norms: the ranks add up
theirs, n + m + 2 numbers of an n × m matrix. All ranks hold the factors; whatever is as large as a matrix stays in
slices. Checked with deepspeed 0.19.8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.optimization import Adafactor

from fedtorch.comm.worker import WorkerGroup
from fedtorch.train.zero_tensors import OptimizerState, ZeroTensors


@dataclass(frozen=True)
class Piece:
    """This rank's part of a parameter, which may be none of it."""

    name: str
    """of the parameter"""
    shape: torch.Size
    """of the whole"""
    start: int
    """its first number, in the whole laid end to end"""
    place: int
    """the same in the flat tensor that the rank's optimiser sees"""
    size: int
    """numbers"""

    @property
    def is_factored(self) -> bool:
        """Has it rows and columns?"""
        return len(self.shape) >= 2

    def of(self, flat: Tensor) -> Tensor:
        """The part, a view."""
        return flat[self.place : self.place + self.size]

    def stretches(self, part: Tensor) -> Iterator[tuple[Tensor, int, int, int]]:
        """(numbers as rows of equal length, matrix, first row, first column) of the whole and broken rows in `part`.

        A parameter with more than two dimensions is a stack of matrices.
        """
        rows, width = self.shape[-2:]
        done = 0
        while done < self.size:
            matrix, inside = divmod(self.start + done, rows * width)
            row, column = divmod(inside, width)
            left = min(self.size - done, rows * width - inside)
            count = min(width - column, left) if column or left < width else left // width * width
            yield part[done : done + count].view(-1, min(count, width)), matrix, row, column
            done += count


class SlicedAdafactor(Adafactor):
    """transformers' Adafactor, equal to it up to the order in which sums are taken; see the module's docstring.

    `state` is by name: `exp_avg_sq_row` and `exp_avg_sq_col` whole on every rank, `exp_avg_sq` of what has one
    dimension this rank's part. All ranks call `step` together.
    """

    pieces: Mapping[int, Sequence[Piece]] = {}
    """id of a flat tensor that DeepSpeed hands in -> what it consists of, the same parameters on every rank"""
    summed: Callable[[Tensor], Tensor] = staticmethod(lambda values: values)
    """the sum over the ranks of the worker, which all call it; may be done in place"""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step of whatever tensors the groups hold now; DeepSpeed puts one in at a time."""
        for group in self.param_groups:
            for flat in group["params"]:
                self._step(group, flat, self.pieces[id(flat)])

    def _step(self, group: dict[str, Any], flat: Tensor, pieces: Sequence[Piece]) -> None:
        gradients = [piece.of(flat.grad) for piece in pieces] if flat.grad is not None else []
        if not gradients:
            return
        self._add_squares(group, flat, pieces, gradients)
        updates = [self._update(piece, gradient) for piece, gradient in zip(pieces, gradients, strict=True)]
        norms = torch.stack([torch.linalg.vector_norm(update).double() for update in updates])
        squares = self.summed(norms.square())
        for piece, update, square in zip(pieces, updates, squares.tolist(), strict=True):
            root_mean_square = math.sqrt(square / piece.shape.numel())
            rate = self._get_lr(group, self.state[cast(Any, piece.name)])
            update.mul_(rate / max(1.0, root_mean_square / group["clip_threshold"]))
            part = piece.of(flat)
            if group["weight_decay"]:
                part.add_(part, alpha=-group["weight_decay"] * rate)
            part.sub_(update)

    def _add_squares(
        self, group: dict[str, Any], flat: Tensor, pieces: Sequence[Piece], gradients: Sequence[Tensor]
    ) -> None:
        """Bring the moments and the parameters' root mean squares up to date."""
        found: list[Tensor] = []
        for piece, gradient in zip(pieces, gradients, strict=True):
            rows, columns = _sums(piece, gradient.square() + group["eps"][0])
            square = torch.linalg.vector_norm(piece.of(flat)).double().square().reshape(1)
            found += [rows.flatten(), columns.flatten(), square]
        sums = iter(self.summed(torch.cat(found)).split([len(one) for one in found]))
        for piece, gradient in zip(pieces, gradients, strict=True):
            state = self.state[cast(Any, piece.name)]
            rows, columns, square = next(sums), next(sums), next(sums)
            state["step"] = state.get("step", 0) + 1
            state["RMS"] = (square[0] / piece.shape.numel()).sqrt().float()
            kept = 1.0 - state["step"] ** group["decay_rate"]
            if piece.is_factored:
                height, width = piece.shape[-2:]
                new = {
                    "exp_avg_sq_row": (rows / width).view(piece.shape[:-1]),
                    "exp_avg_sq_col": (columns / height).view(*piece.shape[:-2], width),
                }
            else:
                new = {"exp_avg_sq": gradient.square() + group["eps"][0]}
            for key, value in new.items():
                value = value.to(gradient)
                state[key] = state[key].mul_(kept).add_(value, alpha=1 - kept) if key in state else value * (1 - kept)

    def _update(self, piece: Piece, gradient: Tensor) -> Tensor:
        """The gradient over the root of its second moment."""
        state = self.state[cast(Any, piece.name)]
        if not piece.is_factored:
            return state["exp_avg_sq"].rsqrt() * gradient
        rows = state["exp_avg_sq_row"].view(-1, piece.shape[-2])
        rows = (rows / rows.mean(dim=-1, keepdim=True)).rsqrt()
        columns = state["exp_avg_sq_col"].view(-1, piece.shape[-1]).rsqrt()
        update = gradient.clone()
        for block, matrix, row, column in piece.stretches(update):
            block.mul_(rows[matrix, row : row + len(block), None]).mul_(
                columns[matrix, column : column + block.shape[1]]
            )
        return update

    @property
    def _all(self) -> dict[str, Piece]:
        return {piece.name: piece for pieces in self.pieces.values() for piece in pieces}

    def whole_state(self, names: Iterable[str]) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        """The state of these parameters, as `optim.state_of` gives it, with whole tensors; all ranks call it."""
        tensors: dict[str, Tensor] = {}
        numbers: dict[str, int | float] = {}
        pieces, states = self._all, cast(dict[Any, dict[str, Any]], self.state)
        for name in names:
            for key, value in states.get(name, {}).items() if states.get(name, {}).get("step") else ():
                if not isinstance(value, Tensor):
                    numbers[f"{name}/{key}"] = value
                elif pieces[name].is_factored or not value.ndim:
                    tensors[f"{name}/{key}"] = value.cpu().clone()
                else:
                    whole = value.new_zeros(pieces[name].shape).flatten()
                    whole[pieces[name].start : pieces[name].start + len(value)] = value
                    tensors[f"{name}/{key}"] = self.summed(whole).view(pieces[name].shape).cpu()
        return tensors, numbers

    def put_whole_state(self, state: OptimizerState, device: torch.device) -> None:
        """Put back what `whole_state` gave. device: of the slices."""
        entries: list[tuple[str, Any]] = [*state[0].items(), *state[1].items()]
        pieces, states = self._all, cast(dict[Any, dict[str, Any]], self.state)
        for path, value in entries:
            name, key = path.rsplit("/", 1)
            piece = pieces[name]
            if isinstance(value, Tensor):
                value = value.to(device, torch.float32).clone()
                if value.ndim and not piece.is_factored:
                    value = value.flatten()[piece.start : piece.start + piece.size]
            states[name][key] = value


def _sums(piece: Piece, squares: Tensor) -> tuple[Tensor, Tensor]:
    """This rank's share of the sums along rows (matrices, rows) and columns (matrices, columns), fp64."""
    if not piece.is_factored:
        return squares.new_zeros(0, dtype=torch.float64), squares.new_zeros(0, dtype=torch.float64)
    height, width = piece.shape[-2:]
    count = piece.shape.numel() // max(1, height * width)
    rows = squares.new_zeros(count, height, dtype=torch.float64)
    columns = squares.new_zeros(count, width, dtype=torch.float64)
    for block, matrix, row, column in piece.stretches(squares):
        rows[matrix, row : row + len(block)] += block.sum(1)
        columns[matrix, column : column + block.shape[1]] += block.sum(0)
    return rows, columns


def sliced(optimizer: torch.optim.Optimizer, worker: WorkerGroup | None) -> torch.optim.Optimizer:
    """An optimiser that may be given slices of parameters: itself, unless it looks at whole matrices."""
    if not isinstance(optimizer, Adafactor):
        return optimizer
    own = SlicedAdafactor(optimizer.param_groups)
    if worker is not None:
        own.summed = worker.all_reduce
    return own


def tensors_of(module: nn.Module, zero: Any, *, stage: int, rank: int) -> ZeroTensors:
    """Tensors that ZeRO holds of a model, whose optimiser `sliced` has made."""
    kind = AdafactorTensors if isinstance(zero.basic_optimizer, SlicedAdafactor) else ZeroTensors
    return kind(module, zero, stage=stage, rank=rank)


class AdafactorTensors(ZeroTensors):
    """`ZeroTensors` of an engine with a `SlicedAdafactor`, to which it tells what the slices are."""

    def __init__(self, module: nn.Module, zero: Any, *, stage: int, rank: int) -> None:
        super().__init__(module, zero, stage=stage, rank=rank)
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        zero = self._zero
        groups = zero.fp16_groups if stage == 3 else zero.bit16_groups
        flats = zero.fp32_partitioned_groups_flat if stage == 3 else zero.single_partition_of_fp32_groups
        self._device = flats[0].device
        self._sliced = cast(SlicedAdafactor, self._optimizer)
        self._sliced.pieces = {
            id(flat): [self._piece(names[id(parameter)], parameter) for parameter in group]
            for flat, group in zip(flats, groups, strict=True)
        }

    def _piece(self, name: str, parameter: Any) -> Piece:
        if self.stage == 3:
            _, place, size = self._zero.grad_position[self._zero.get_param_id(parameter)]
            start = parameter.ds_tensor.numel() * self.rank
            left = max(0, parameter.ds_numel - start)  # behind it is what fills the last rank's part up
            return Piece(name, parameter.ds_shape, start, place, min(size, left))
        fragment = parameter._hp_mapping
        if fragment is None:  # other ranks have all of it
            return Piece(name, parameter.shape, 0, 0, 0)
        inside, own = fragment.lp_fragment_address, fragment.hp_fragment_address
        return Piece(name, parameter.shape, inside.start, own.start, own.numel)

    def state(self, names: Any) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        """Return the optimiser's state as whole tensors by name."""
        return self._sliced.whole_state(names)

    def put_state(self, state: OptimizerState) -> None:
        """Put whole tensors back into the optimiser's state."""
        self._sliced.put_whole_state(state, self._device)

    @property
    def has_state(self) -> bool:
        """Its tensors need not be there to be put back."""
        return True
