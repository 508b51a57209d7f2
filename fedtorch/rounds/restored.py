"""Do the states of a checkpoint fit the model, the config and the round? Compared before anything goes on from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from fedtorch.core import state_keys as keys
from fedtorch.core.client import ClientState
from fedtorch.core.errors import CheckpointError
from fedtorch.core.norms import is_finite
from fedtorch.core.server import ServerState
from fedtorch.core.shown import shortened
from fedtorch.core.weights import Layout
from fedtorch.rounds.context import RoundContext
from fedtorch.tasks.base import SERVER
from fedtorch.train.optim import misfit
from fedtorch.trainers.named import trainer_of

T = TypeVar("T")
Flat = dict[str, tuple[Layout, tuple[int, ...]]]
"""Name of a tensor -> the layout whose dtype it has, and its shape"""

_COUNTS = {keys.WITHOUT_GAIN, keys.VOID_ROUNDS, keys.SERVER_STEPS, keys.FAILED_SAVES}
_ROUNDS = {keys.BEST_ROUND, keys.EVALUATED, keys.SERVER_TRAINED, keys.VOID_ROUNDS, keys.TRAINED_ROUND}
_MARKS = {keys.STOPPED, keys.BEST_IS_RECEIVED, keys.NOT_EVALUATED}
_TRAIN = "train"  # the purpose that every rule of the package trains for
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
    layout, algorithm = context.vectors.layout, context.algorithm
    exchanged = algorithm.travels.vectors
    names = {*exchanged, keys.BEST, keys.MOMENTUM, keys.FIRST_MOMENT, keys.SECOND_MOMENT}
    flat: Flat = {name: (layout, (layout.size,)) for name in names}
    kept = algorithm.kept(context.components.engine.shared, context.components.engine.private)
    flat |= {name: (layout, shape) for name, shape in kept.shapes.items()}
    for name in algorithm.travels.varying:
        for key in {name, keys.best(name)} & set(saved.tensors):
            flat[key] = (layout, (saved.tensors[key].numel(),))
    yield from _lacking(_needed(context, saved, round), saved)
    yield from _misfits(flat, saved.tensors)
    for name, tensor in saved.tensors.items():
        if name == keys.SECOND_MOMENT:  # squares may be too large for fp32: their steps are 0, and the run goes on
            if not (tensor >= 0).all():
                yield f"has numbers in `{name}` that are no squares"
        elif tensor.is_floating_point() and not name.startswith(keys.SERVER_JOB) and not is_finite(tensor):
            yield f"has numbers in `{shortened(name)}` that are not finite"
    yield from _numbers(saved.numbers, round)
    of_job = ClientState(keys.part_of(saved.tensors, keys.SERVER_JOB), keys.part_of(saved.numbers, keys.SERVER_JOB))
    yield from _of_client(context, SERVER, of_job, round)


def _needed(context: RoundContext, saved: ServerState, round: int) -> Iterator[str]:
    """The entries without which the server's state is not whole."""
    algorithm, rule, numbers = context.algorithm, context.server.optimizer.settings, saved.numbers
    yield from algorithm.travels.vectors
    if algorithm.travels.vectors and keys.BEST_ROUND in numbers:
        yield keys.BEST
    stepped = algorithm.limits.trains_clients and round > numbers.get(keys.VOID_ROUNDS, 0)
    if not algorithm.travels.vectors or not stepped:
        return
    engine = context.components.engine
    yield from algorithm.kept(engine.shared, engine.private).server
    if not algorithm.limits.steps_with_optimizer:
        return
    if rule.optimizer in ("adam", "yogi", "adagrad", "adamw"):
        yield from (keys.FIRST_MOMENT, keys.SECOND_MOMENT, keys.SERVER_STEPS)
    elif rule.optimizer == "sgd" and rule.momentum:
        yield keys.MOMENTUM


def _needed_by_client(context: RoundContext, name: str, state: ClientState) -> Iterator[str]:
    """The entries without which the state of a client that has trained is not whole."""
    engine, numbers = context.components.engine, state.numbers
    if keys.BEST_IS_RECEIVED in numbers:
        if not numbers[keys.BEST_IS_RECEIVED]:
            yield keys.BEST_WEIGHTS
        if engine.private.size:
            yield keys.BEST_PRIVATE
    if keys.TRAINED_ROUND in numbers:
        yield keys.TRAINED
    if not any(key not in keys.OF_BEST for key in (*state.tensors, *numbers)) and (state.tensors or numbers):
        return  # evaluated, and never drawn
    if engine.private.size:
        yield keys.PRIVATE
    yield from context.algorithm.kept(engine.shared, engine.private).client
    if context.config.exchange.error_feedback:
        yield keys.LEFT_OUT
    hp, prefix = context.config.client_for(name), keys.optimizer(_TRAIN)
    has_optimizer = any(key.startswith(prefix) for key in (*state.tensors, *numbers))
    if has_optimizer and hp.steps is not None:
        yield keys.cursor(_TRAIN)
    if has_optimizer and hp.schedule_span == "run":
        yield keys.steps(_TRAIN)
    taken = any(numbers.get(key, 0) > 0 for key in (keys.cursor(_TRAIN), keys.steps(_TRAIN)))
    had_one = hp.optimizer != "sgd" and not engine.owners and not numbers.get(keys.has_no_optimizer(_TRAIN))
    if taken and not has_optimizer and hp.optimizer_state == "keep" and had_one:
        yield prefix


def _of_client(context: RoundContext, name: str, state: ClientState, round: int) -> Iterator[str]:
    engine, algorithm = context.components.engine, context.algorithm
    shared, private = engine.shared, engine.private
    flat: Flat = {key: (shared, (shared.size,)) for key in (keys.PERSONAL, keys.TRAINED, keys.BEST_WEIGHTS)}
    flat |= {key: (private, (private.size,)) for key in (keys.PRIVATE, keys.BEST_PRIVATE)}
    flat |= {key: (shared, shape) for key, shape in algorithm.kept(shared, private).shapes.items()}
    if context.config.exchange.error_feedback:
        flat[keys.LEFT_OUT] = shared, (shared.size,)
    if name != SERVER:
        needed = _needed_by_client(context, name, state)
        yield from _lacking(filter(context.role.may_have, needed), state)
    yield from _misfits(flat, state.tensors)
    own = {key: value for key, value in state.numbers.items() if not key.startswith(keys.TRAINER)}
    yield from _numbers(own, round)
    shapes = {n: shape for layout in (shared, private) for n, shape in zip(layout.names, layout.shapes, strict=True)}
    purposes: dict[str, dict[str, Tensor | int | float]] = {}
    entries: dict[str, Tensor | int | float] = {**state.tensors, **state.numbers}
    for key, value in entries.items():
        if key.startswith(keys.TRAINER):  # they have names that a user gives
            continue
        purpose, found, rest = key.partition(keys.OPTIMIZER)
        if found and not key.startswith(keys.SERVER_JOB):
            purposes.setdefault(purpose, {})[rest] = value
    settings = context.config.client_for(name)
    if settings.trainer is not None and (problem := trainer_of(settings.trainer).misfit(state, shapes, settings)):
        yield problem
    dtype = (shared if shared.size else private).dtype
    for purpose, kept in purposes.items():
        if problem := misfit(settings.optimizer, shapes, dtype, kept):
            yield f"{problem} (optimiser of `{shortened(purpose)}`)"


def _lacking(needed: Iterable[str], state: ServerState | ClientState) -> Iterator[str]:
    for name in needed:
        if name not in state.tensors and name not in state.numbers:
            yield f"has no `{name}`, which this algorithm and model need"


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
