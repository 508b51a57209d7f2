"""Which examples go into which optimiser step: a function of sizes, seeds and a cursor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch

from fedtorch.core.seeds import generator_for


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

    def steps_per_epoch(self, num_examples: int) -> int:
        """Optimiser steps of one pass over the data."""
        micro = ceil(num_examples / self.batch_size)
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

    def steps(self, num_examples: int, *, cursor: int, count: int, seed: int, client: str) -> Iterator[StepPlan]:
        """`count` steps from step `cursor` of the run on, going through the data epoch after epoch (rule `exact`)."""
        per_epoch = self.steps_per_epoch(num_examples)
        done = 0
        while done < count:
            epoch, skip = divmod(cursor + done, per_epoch)
            for index, plan in enumerate(self.epochs(num_examples, first=epoch, count=1, seed=seed, client=client)):
                if index >= skip and done < count:
                    done += 1
                    yield plan

    def _micro_batches(self, num_examples: int, epoch: int, seed: int, client: str) -> list[tuple[int, ...]]:
        order: Sequence[int] = range(num_examples)
        if self.shuffle:
            order = torch.randperm(num_examples, generator=generator_for(seed, "order", client, epoch)).tolist()
        return [tuple(order[start : start + self.batch_size]) for start in range(0, num_examples, self.batch_size)]
