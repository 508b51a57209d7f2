"""Memory that a micro-batch's activations take, found without computing one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from fedtorch.planning.step_time import first_examples, largest_client
from fedtorch.setup.build import BuiltRun
from fedtorch.train.activations import Kept, counted

log = logging.getLogger(__name__)


def activation_bytes(built: BuiltRun) -> int | None:
    """Bytes that the first micro-batch of the largest client keeps for its backward pass, beside the weights.

    Copies of weights in 16 bits, which autocast keeps until then, are in it. The forward pass has shapes and no
    numbers, so it takes neither the time nor the memory of a real one. None: the task looks at numbers, or its data
    are not on this machine.
    """
    task, engine, hp = built.training, built.engine, built.config.client
    kept, was_training = Kept(), engine.module.training
    try:
        examples = first_examples(built, largest_client(built), hp.batch_size)
        batch = task.collate(examples, True)
        engine.module.train()
        with torch.random.fork_rng([]), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            shapes = tree_map(lambda leaf: mode.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf, batch)
            kept.leave_out(_weights(engine.module, mode))
            with counted(kept), engine.autocast():
                task.loss(engine.module, shapes)
    except Exception as error:  # whatever a model or task raises where it looks at numbers, or finds no file
        log.debug("activations were not counted: %s", type(error).__name__)
        return None
    finally:
        engine.module.train(was_training)
    return kept.bytes


def _weights(module: torch.nn.Module, mode: FakeTensorMode) -> Iterator[Tensor]:
    """The module's tensors, as they are and as the mode sees them."""
    for tensor in chain(module.parameters(), module.buffers()):
        yield tensor
        yield mode.from_tensor(tensor)
