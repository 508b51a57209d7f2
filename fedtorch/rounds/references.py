"""Examples with what a fixed model makes of them, for losses that compare the trained model with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedtorch.tasks.base import Task
from fedtorch.train.engine import Engine


class References:
    """Gives examples their reference (`Task.refers_to`); what the start model makes of them is computed once.

    It is a function of the initial weights and a client's examples alone: computed in batches of one size in the order
    of the examples, without dropout, so not even its bits depend on ranks, packing or a resume. So it is in no state
    and no checkpoint; a resumed run computes it again. A rank keeps a few bytes an example of the clients it met.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._kept: dict[tuple[str, str], Tensor] = {}

    def by_start(
        self, task: Task, client: str, split: str, examples: Sequence[Any], size: int, beat: Callable[[], None]
    ) -> Sequence[Any]:
        """Examples with the numbers of the run's start; themselves, where the task refers to nothing.

        size: of a batch, always the same for a client's split. beat: is called before each batch. Other weights are in
        the engine afterwards. All ranks of a worker call it alike.
        """
        if not task.refers_to:
            return examples
        if (client, split) not in self._kept:
            self.engine.load(self.engine.initial_shared)
            self._kept[client, split] = reference_numbers(task, self.engine, examples, size, beat)
        return task.with_reference(examples, self._kept[client, split])

    def by_round(
        self,
        task: Task,
        examples: Sequence[Any],
        size: int,
        beat: Callable[[], None],
        weights: tuple[Tensor, Tensor | None],
    ) -> Sequence[Any]:
        """Examples with the numbers of these weights, flat shared and private ones; otherwise as `by_start`."""
        self.engine.load(*weights)
        return task.with_reference(examples, reference_numbers(task, self.engine, examples, size, beat))


@torch.no_grad()
def reference_numbers(
    task: Task, engine: Engine, examples: Sequence[Any], size: int, beat: Callable[[], None] = lambda: None
) -> Tensor:
    """Ask the weights in the engine about examples, at least one: (examples, numbers), fp32 on the CPU.

    The module is in eval mode afterwards.
    """
    engine.module.eval()
    found = []
    for start in range(0, len(examples), size):
        beat()
        with engine.autocast():
            found.append(task.reference_of(engine.module, examples[start : start + size]).float().cpu())
    return torch.cat(found)
