"""Memory that a micro-batch's activations take, found without computing one."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_map

from fedtorch.planning.step_time import largest_client
from fedtorch.setup.build import BuiltRun
from fedtorch.setup.engine import is_shared_out
from fedtorch.train.activations import Kept, counted
from fedtorch.train.precision import DTYPES

log = logging.getLogger(__name__)


def activation_bytes(built: BuiltRun) -> int | None:
    """Bytes that the first micro-batch of the largest client keeps for its backward pass, beside the weights.

    Copies of weights in 16 bits, which autocast keeps until then, are in it. The forward pass has shapes and no
    numbers, so it takes neither the time nor the memory of a real one. None: the task looks at numbers, or its data
    are not on this machine.
    """
    task, module, hp = built.training, built.engine.module, built.config.client
    kept, was_training = Kept(), module.training
    try:
        examples = task.load(largest_client(built).name, "train")[: hp.batch_size]
        with torch.random.fork_rng([]), _shapes_of(module, _low(built)) as (mode, weights):
            if task.refers_to:
                examples = _with_references(built, examples)
            with unset_fake_temporarily():
                batch = task.collate(examples, True)
            module.train()
            kept.leave_out(weights)
            with counted(kept), built.engine.autocast():
                task.loss(module, _as_shapes(batch, mode))
    except Exception as error:  # whatever a model or task raises where it looks at numbers, or finds no file
        log.debug("activations were not counted: %s", type(error).__name__)
        return None
    finally:
        module.train(was_training)
    return kept.bytes


@torch.no_grad()
def _with_references(built: BuiltRun, examples: Sequence[Any]) -> Sequence[Any]:
    """Examples as the loss gets them that compares with a fixed model, whose numbers are 0 here."""
    with built.engine.autocast():
        found = built.training.reference_of(built.engine.module, examples)
    with unset_fake_temporarily():
        return built.training.with_reference(examples, torch.zeros(found.shape))


def _low(built: BuiltRun) -> torch.dtype | None:
    """16 bits in which an engine has a pass's parameters by itself; None: autocast makes copies, or there are none.

    FSDP lets go of gathered ones between the passes, so they are not kept for the backward pass.
    """
    settings, ranks = built.config.engine, max(built.topology.sizes, default=1)
    has_own = settings.kind == "deepspeed" or is_shared_out(settings, ranks)
    return DTYPES.get(settings.precision) if has_own else None


@contextmanager
def _shapes_of(module: nn.Module, low: torch.dtype | None = None) -> Iterator[tuple[FakeTensorMode, list[Tensor]]]:
    """In here the module's parameters have shapes on the CPU and no numbers, whether or not they had some before.

    Gives torch's mode for such tensors, which is on, and all weights of the module: parameters and buffers.
    low: number format of its parameters; None: their own.
    """
    held = [(part, name, own) for part in module.modules() for name, own in part._parameters.items() if own is not None]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        rooms = {id(own): torch.empty_like(own, device="cpu") for *_, own in held}
        rooms = {key: room.to(low) if low and room.is_floating_point() else room for key, room in rooms.items()}
        fakes = {id(own): nn.Parameter(rooms[id(own)], own.requires_grad) for *_, own in held}
        buffers = [each for buffer in module.buffers() for each in (buffer, mode.from_tensor(buffer))]
        try:
            for part, name, own in held:
                setattr(part, name, fakes[id(own)])  # an LSTM has them in a list too
            yield mode, [*fakes.values(), *buffers]
        finally:
            for part, name, own in held:
                setattr(part, name, own)


def _as_shapes(batch: Any, mode: FakeTensorMode) -> Any:
    """A batch, or whatever else holds tensors, without their numbers."""
    return tree_map(lambda leaf: mode.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf, batch)
