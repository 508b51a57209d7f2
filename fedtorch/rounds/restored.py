"""Do the states of a checkpoint fit the model, the config and the round? Compared before anything goes on from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from fedtorch.algorithms.base import Algorithm
from fedtorch.core import state_keys as keys
from fedtorch.core.client import ClientState
from fedtorch.core.errors import CheckpointError
from fedtorch.core.norms import is_finite
from fedtorch.core.overrides import overrides
from fedtorch.core.server import ServerState
from fedtorch.core.shown import shortened
from fedtorch.core.weights import Layout
from fedtorch.rounds.context import RoundContext
from fedtorch.tasks.base import SERVER
from fedtorch.train.optim import misfit

T = TypeVar("T")
Flat = dict[str, tuple[Layout, tuple[int, ...]]]
"""Name of a tensor -> the layout whose dtype it has, and its shape"""

_COUNTS = {keys.WITHOUT_GAIN, keys.VOID_ROUNDS, keys.SERVER_STEPS, keys.FAILED_SAVES}
_ROUNDS = {keys.BEST_ROUND, keys.EVALUATED, keys.SERVER_TRAINED, keys.VOID_ROUNDS, keys.TRAINED_ROUND}
_MARKS = {keys.STOPPED, keys.BEST_IS_RECEIVED, keys.NOT_EVALUATED}
_OF_PURPOSES = ("cursor", "epoch", "steps")


def check_server(context: RoundContext, saved: ServerState, folder: Path, round: int) -> None:
    """Refuse a state of the server that this run cannot have had after `round` rounds.

    Raises:
        CheckpointError: it names the folder, the entry, what is there and what belongs there.
    """
    if problem := next(_of_server(context, saved, round), None):
        raise CheckpointError(f"{folder} {problem}; begin anew with `--resume never`, or name another checkpoint")


def check_client(context: RoundContext, name: str, state: ClientState, folder: Path, round: int) -> None:
    """Compare a client's state with the model and the run.

    Raises:
        CheckpointError: it names the client as well.
    """
    if problem := next(_of_client(context, name, state, round), None):
        raise CheckpointError(
            f"the state of client {shortened(name)} in {folder} {problem}; begin anew with `--resume never`, or name "
            "another checkpoint"
        )


def _of_server(context: RoundContext, saved: ServerState, round: int) -> Iterator[str]:
    layout, algorithm = context.components.engine.shared, context.algorithm
    exchanged = algorithm.exchanged_vectors
    names = {*exchanged, keys.BEST, keys.MOMENTUM, keys.FIRST_MOMENT, keys.SECOND_MOMENT}
    flat: Flat = {name: (layout, (layout.size,)) for name in names}
    flat |= {name: (layout, shape) for name, shape in algorithm.kept_tensors(layout).items()}
    for name in algorithm.varying_vectors:
        for key in {name, keys.best(name)} & set(saved.tensors):
            flat[key] = (layout, (saved.tensors[key].numel(),))
    missing = [name for name in _needed(context, saved, round) if name not in saved.tensors]
    if missing:
        yield f"has no `{missing[0]}` of {layout.size} numbers, which this algorithm and model need"
    yield from _misfits(flat, saved.tensors)
    for name in (*exchanged, *algorithm.varying_vectors):
        if name in saved.tensors and not is_finite(saved.tensors[name]):
            yield f"has numbers in `{name}` that are not finite"
    yield from _numbers(saved.numbers, round)
    yield from _of_client(context, SERVER, ClientState(_of_job(saved.tensors), _of_job(saved.numbers)), round)


def _of_job(kept: Mapping[str, T]) -> dict[str, T]:
    """State that the server's training on its own data keeps, as a client's would."""
    return {
        name.removeprefix(keys.SERVER_JOB): value for name, value in kept.items() if name.startswith(keys.SERVER_JOB)
    }


def _needed(context: RoundContext, saved: ServerState, round: int) -> Iterator[str]:
    """The tensors without which the server's state is not whole."""
    yield from context.algorithm.exchanged_vectors
    if context.algorithm.exchanged_vectors and keys.BEST_ROUND in saved.numbers:
        yield keys.BEST
    rule, numbers = context.config.server, saved.numbers
    if overrides(type(context.algorithm), "server_update", Algorithm) or not context.algorithm.exchanged_vectors:
        return
    if rule.optimizer in ("adam", "yogi", "adagrad", "adamw") and numbers.get(keys.SERVER_STEPS, 0):
        yield from (keys.FIRST_MOMENT, keys.SECOND_MOMENT)
    stepped = context.algorithm.trains_clients and round > numbers.get(keys.VOID_ROUNDS, 0)
    if rule.optimizer == "sgd" and context.server.optimizer.settings.momentum and stepped:
        if not context.mechanism.hides_clients:
            yield keys.MOMENTUM


def _of_client(context: RoundContext, name: str, state: ClientState, round: int) -> Iterator[str]:
    engine, algorithm = context.components.engine, context.algorithm
    shared, private = engine.shared, engine.private
    flat: Flat = {key: (shared, (shared.size,)) for key in (keys.PERSONAL, keys.TRAINED, keys.BEST_WEIGHTS)}
    flat |= {key: (private, (private.size,)) for key in (keys.PRIVATE, keys.BEST_PRIVATE)}
    flat |= {key: (shared, shape) for key, shape in algorithm.kept_tensors(shared).items()}
    yield from _misfits(flat, state.tensors)
    yield from _numbers(state.numbers, round)
    shapes = {n: shape for layout in (shared, private) for n, shape in zip(layout.names, layout.shapes, strict=True)}
    purposes: dict[str, dict[str, Tensor | int | float]] = {}
    entries: dict[str, Tensor | int | float] = {**state.tensors, **state.numbers}
    for key, value in entries.items():
        purpose, found, rest = key.partition(keys.OPTIMIZER)
        if found and not key.startswith(keys.SERVER_JOB):
            purposes.setdefault(purpose, {})[rest] = value
    dtype = (shared if shared.size else private).dtype
    for purpose, kept in purposes.items():
        if problem := misfit(context.config.client_for(name).optimizer, shapes, dtype, kept):
            yield f"{problem} (optimiser of `{shortened(purpose)}`)"


def _misfits(flat: Mapping[str, tuple[Layout, tuple[int, ...]]], tensors: Mapping[str, Tensor]) -> Iterator[str]:
    for name, tensor in tensors.items():
        if name not in flat:
            continue
        layout, shape = flat[name]
        if tensor.dtype != layout.dtype or tuple(tensor.shape) != shape:
            found = f"{_kind(tensor.dtype)} of {tuple(tensor.shape)}"
            yield f"has {found} as `{name}`, where {_kind(layout.dtype)} of {shape} belongs"


def _kind(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _numbers(numbers: Mapping[str, int | float], round: int) -> Iterator[str]:
    for name, value in numbers.items():
        last = name.rpartition("/")[2]
        is_count = name in _COUNTS | _ROUNDS or (last in _OF_PURPOSES and name.count("/") == 1)
        if is_count and (value < 0 or value != math.floor(value) if math.isfinite(value) else True):
            yield f"has {shortened(value)} as `{shortened(name)}`, which is a count"
        elif name in _ROUNDS and value > round:
            yield f"has {shortened(value)} as `{shortened(name)}`, but is of {round} rounds"
        elif name in _MARKS and value not in (0, 1):
            yield f"has {shortened(value)} as `{shortened(name)}`, which is 0 or 1"
        elif name == keys.SUM_EXPONENT and not (abs(value) < 1100 and value == math.floor(value)):
            yield f"has {shortened(value)} as `{shortened(name)}`, which is an exponent of fp64"
        elif name == keys.CLIP and not 0 < value < math.inf:
            yield f"has {shortened(value)} as `{shortened(name)}`, which is a norm"
        elif name == keys.BEST_SCORE and math.isnan(value):
            yield f"has {shortened(value)} as `{shortened(name)}`, which is a score"
