"""How long a training step of a config's model takes on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

import torch

from fedtorch.core.client import Client
from fedtorch.planning.probe import REPEAT
from fedtorch.rounds.references import reference_numbers
from fedtorch.setup.build import BuiltRun

_STEPS = 2  # after the first, in each try


class Training(NamedTuple):
    """Seconds of training a config's model with its settings."""

    step_s: float
    """One optimiser step."""
    start_s: float
    """Before a client's first step, its weights and its optimiser, and what the first step takes longer than others."""


def training_seconds(built: BuiltRun) -> Training:
    """Time the config's model on a batch of its largest client, on this thread and those that torch has.

    As in a round: between two clients the difference is taken, so weights and gradients are not in the caches.
    """
    client, hp, engine = largest_client(built), built.config.client, built.engine
    examples = first_examples(built, client)
    batches = [
        built.training.collate(examples[start : start + hp.batch_size], True)
        for start in range(0, min(len(examples), hp.batch_size * hp.accumulation), hp.batch_size)
    ]
    received = engine.initial_shared.clone()
    update = torch.empty_like(received)
    first, later = list[float](), list[float]()
    for _ in range(1 + REPEAT):
        began = time.perf_counter()
        engine.start(received, None, hp, steps=1 + _STEPS, seed=0)
        engine.step(built.training.loss, batches, len(batches))
        stepped = time.perf_counter()
        for _ in range(_STEPS):
            engine.step(built.training.loss, batches, len(batches))
        later.append((time.perf_counter() - stepped) / _STEPS)
        first.append(stepped - began)
        engine.difference(received, update)
    step_s = median(later[1:])
    return Training(step_s, max(0.0, median(first[1:]) - step_s))


def first_examples(built: BuiltRun, client: Client, count: int | None = None) -> Sequence[Any]:
    """Load its first `count` training examples, with their reference where the task compares with one; None: all."""
    task, engine = built.training, built.engine
    examples = task.load(client.name, "train")[:count]
    if not task.refers_to:
        return examples
    engine.load(engine.initial_shared)
    return task.with_reference(examples, reference_numbers(task, engine, examples, built.config.client.batch_size))


def largest_client(built: BuiltRun) -> Client:
    """The one with most training examples, the first of them."""
    return max(built.clients, key=lambda client: client.sizes["train"])
