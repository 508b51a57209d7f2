"""Which examples go into which optimiser step: a function of sizes, seeds and a cursor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch

from fedtorch.core.seeds import generator_for
from fedtorch.train.lengths import Lengths, filled, grouped, usual_size


@dataclass(frozen=True)
class StepPlan:
    """One optimiser step, by example indices."""

    micro_batches: tuple[tuple[int, ...], ...]
    """The examples of each."""
    divisor: int
    """What their losses are divided by."""
    epoch: int
    """Of the run."""


@dataclass(frozen=True)
class SplitBatch:
    """A micro-batch in parts, of which one is in memory at a time; together they have the gradient of the whole."""

    parts: tuple[Any, ...]
    """Each a batch as the task collates it."""


@dataclass(frozen=True)
class Batching:
    """How a client's examples are cut into steps."""

    batch_size: int
    """Examples of a micro-batch."""
    accumulation: int = 1
    """Micro-batches per step."""
    rule: str = "exact"
    """`exact`: a step at the epoch's end takes what is left and divides by the micro-batches actually used. `spill`
    (the Lorar authors' loop, not to be used for anything else): what is left at an epoch's end is not stepped; its
    gradient goes into the first step of the next epoch, still divided by `accumulation`, and is lost at the end of the
    round."""
    shuffle: bool = True
    """a new order in every epoch, or always the examples' own"""
    by_length: bool = False
    """examples of like length together, see `grouped`"""
    max_tokens: int | None = None
    """of a micro-batch, in place of `batch_size`, see `filled`"""
    lengths: Sequence[Lengths] = ()
    """of the examples; for the two before"""

    def steps_per_epoch(self, num_examples: int) -> int:
        """Optimiser steps of one pass over the data; with `max_tokens`, where epochs differ, those of one of them."""
        micro = ceil(num_examples / self.batch_size)
        if self.max_tokens is not None:
            micro = len(self._micro_batches(num_examples, 0, 0, ""))
        return micro // self.accumulation if self.rule == "spill" else ceil(micro / self.accumulation)

    def epochs(self, num_examples: int, *, first: int, count: int, seed: int, client: str) -> Iterator[StepPlan]:
        """The steps of `count` whole epochs, of which the first has the number `first` in the run."""
        left: list[tuple[int, ...]] = []
        for epoch in range(first, first + count):
            micro = self._micro_batches(num_examples, epoch, seed, client)
            if self.rule == "exact":
                for start in range(0, len(micro), self.accumulation):
                    group = tuple(micro[start : start + self.accumulation])
                    yield StepPlan(group, len(group), epoch)
                continue
            whole = len(micro) - len(micro) % self.accumulation
            for start in range(0, whole, self.accumulation):
                group = (*left, *micro[start : start + self.accumulation])
                left = []
                yield StepPlan(group, self.accumulation, epoch)
            left += micro[whole:]

    def steps(
        self, num_examples: int, *, cursor: int, count: int, seed: int, client: str, epoch: int = 0
    ) -> Iterator[StepPlan]:
        """`count` steps, going through the data epoch after epoch (rule `exact`), from the `cursor`-th of `epoch` on.

        A cursor beyond that epoch's steps is one in a later epoch.
        """
        if self.max_tokens is None:
            skipped, cursor = divmod(cursor, self.steps_per_epoch(num_examples))
            epoch += skipped
        while count > 0:
            plans = list(self.epochs(num_examples, first=epoch, count=1, seed=seed, client=client))
            taken = plans[cursor : cursor + count]
            yield from taken
            epoch, cursor, count = epoch + 1, max(0, cursor - len(plans)), count - len(taken)

    def _micro_batches(self, num_examples: int, epoch: int, seed: int, client: str) -> list[tuple[int, ...]]:
        order: Sequence[int] = range(num_examples)
        if self.shuffle:
            order = torch.randperm(num_examples, generator=generator_for(seed, "order", client, epoch)).tolist()
        if self.by_length:
            size = self.batch_size if self.max_tokens is None else usual_size(self.lengths, self.max_tokens)
            order = grouped(order, self.lengths, size * self.accumulation)
        if self.max_tokens is not None:
            return filled(order, self.lengths, self.max_tokens)
        return [tuple(order[start : start + self.batch_size]) for start in range(0, num_examples, self.batch_size)]
