"""One client's work in one round, as an algorithm sees it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from torch import Tensor, nn

from fedtorch.core.client import Client, ClientState
from fedtorch.core.seeds import seed_for
from fedtorch.train.batches import Batching, SplitBatch, StepPlan
from fedtorch.train.engine import Engine, GradientHook
from fedtorch.train.loop import LossCurve, Step, train
from fedtorch.train.optim import LocalTraining


class Trainable(Protocol):
    """The part of a task that local training needs."""

    def collate(self, examples: Sequence[Any], train: bool) -> Any: ...
    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor | int]: ...


@dataclass
class ClientJob:
    """Everything an algorithm needs to train `client` in round `round` (0-based).

    received: what the server broadcast, flat CPU vectors by name (`Algorithm.exchanged_vectors`); read only.
    state: what the client keeps; the algorithm replaces entries. Taken back if the client fails or is refused.
    outgoing: flat CPU vectors to fill with what the client sends, by name; empty if nothing is exchanged.
    first_private: the private weights it starts its first round with, flat; None: the engine's initial ones.
    parts: into how many every micro-batch is cut, to be held in memory one by one.
    rounds: of the whole run. share: the client's chance to be drawn for one.
    hp: the client's local training settings. examples: its training data, which never leaves this rank.
    on_step(n): called after every optimiser step (heartbeat, progress, interruption).
    """

    client: Client
    round: int
    run_seed: int
    received: Mapping[str, Tensor]
    state: ClientState
    outgoing: Mapping[str, Tensor]
    engine: Engine
    task: Trainable
    hp: LocalTraining
    examples: Sequence[Any]
    on_step: Callable[[int], None]
    first_private: Tensor | None = None
    rounds: int = 1
    share: Fraction = Fraction(1)
    parts: int = 1

    def seed(self, purpose: str) -> int:
        """The seed for one purpose of this client in this round."""
        return seed_for(self.run_seed, purpose, self.client.name, self.round)

    @property
    def initial(self) -> Tensor:
        """w^0, the shared weights that the run started from; flat, on the CPU, not to be changed."""
        return self.engine.initial_shared

    @property
    def private(self) -> Tensor | None:
        """The client's private weights, flat over the engine's private layout; None: the engine's initial ones."""
        return self.state.tensors.get("private", self.first_private)

    def plans(self, num_examples: int, *, purpose: str, epochs: int | None = None) -> list[StepPlan]:
        """The round's optimiser steps over `num_examples` examples: `epochs` or else what `hp` says."""
        batching = Batching(self.hp.batch_size, self.hp.accumulation, self.hp.accumulation_rule)
        seed, name = seed_for(self.run_seed, purpose), self.client.name
        if epochs is None and self.hp.steps is not None:
            cursor = int(self.state.numbers.get(f"{purpose}/cursor", 0))
            self.state.numbers[f"{purpose}/cursor"] = cursor + self.hp.steps
            return list(batching.steps(num_examples, cursor=cursor, count=self.hp.steps, seed=seed, client=name))
        count = epochs or self.hp.epochs or 1
        # numbered through the run, so that 10 rounds of 1 epoch see the data in the same order as 1 round of 10
        first = self.round * count
        if epochs is None and self.hp.total_epochs is not None:
            count = max(0, min(count, self.hp.total_epochs - first))
        return list(batching.epochs(num_examples, first=first, count=count, seed=seed, client=name))

    def steps_of_the_run(self, num_examples: int, *, epochs: int | None = None, rounds: range | None = None) -> int:
        """The optimiser steps over `num_examples` examples that this client is expected to take in the run.

        rounds: count only these; None: all.
        """
        rounds = range(self.rounds) if rounds is None else rounds
        if epochs is None and self.hp.steps is not None:
            return math.ceil(self.share * len(rounds) * self.hp.steps)
        first, last = (number * (epochs or self.hp.epochs or 1) for number in (rounds.start, rounds.stop))
        if epochs is None and self.hp.total_epochs is not None:
            first, last = (min(number, self.hp.total_epochs) for number in (first, last))
        count = max(0, last - first)
        batching = Batching(self.hp.batch_size, self.hp.accumulation, self.hp.accumulation_rule)
        return math.ceil(self.share * count * batching.steps_per_epoch(num_examples))

    def train(
        self,
        weights: Tensor,
        *,
        purpose: str = "train",
        before_step: GradientHook | None = None,
        epochs: int | None = None,
        data: Sequence[Any] | None = None,
        hp: LocalTraining | None = None,
        run_steps: int | None = None,
    ) -> LossCurve:
        """Train from `weights` (flat, shared) and the client's private ones; the result is in `engine`.

        purpose: tells apart several trainings in one round: their seeds, optimiser states and cursors.
        data: other examples than the client's own (pseudo data). run_steps: over which `schedule_span: run` falls;
        None: as many steps in every round as in this one. Keeps the private weights, and the optimiser's
        state where `hp.optimizer_state` is `keep`, in `state`.
        """
        settings = hp or self.hp
        examples = self.examples if data is None else data
        plans = self.plans(len(examples), purpose=purpose, epochs=epochs)
        spans_run = settings.schedule_span == "run"
        taken = int(self.state.numbers.get(f"{purpose}/steps", 0)) if spans_run else 0
        if run_steps is None:
            run_steps = self.steps_of_the_run(len(examples), epochs=epochs)
        total = run_steps if spans_run else len(plans)
        self.engine.start(
            weights,
            self.private,
            settings,
            steps=total,
            taken=taken,
            seed=self.seed(f"{purpose}/dropout"),
            optimizer_state=self._kept_optimizer(purpose) if settings.optimizer_state == "keep" else None,
        )
        curve = train(
            self.engine,
            self.collated(plans, examples),
            self.task.loss,
            before_step=before_step,
            after_step=self.on_step,
        )
        if spans_run:
            self.state.numbers[f"{purpose}/steps"] = taken + len(plans)
        if settings.optimizer_state == "keep":
            tensors, numbers = self.engine.optimizer_state()
            self.state.tensors.update({f"{purpose}/optimizer/{key}": value for key, value in tensors.items()})
            self.state.numbers.update({f"{purpose}/optimizer/{key}": value for key, value in numbers.items()})
        self.keep_private()
        return curve

    def keep_private(self) -> None:
        """Put the engine's private weights into the client's state."""
        if self.engine.private.size:
            self.state.tensors["private"] = self.engine.snapshot_private()

    def send_difference(self, received: Tensor) -> None:
        """Put `received` − trained weights into `outgoing["weights"]`: the pseudo-gradient."""
        self.engine.difference(received, self.outgoing["weights"])

    def collated(self, plans: Sequence[StepPlan], examples: Sequence[Any]) -> Iterator[Step]:
        """The planned steps with their batches, collated one step at a time."""
        for plan in plans:
            batches = [self._collated([examples[i] for i in micro]) for micro in plan.micro_batches]
            yield Step(batches, plan.divisor, plan.epoch)

    def _collated(self, examples: Sequence[Any]) -> Any:
        size = math.ceil(len(examples) / self.parts)
        batches = [self.task.collate(examples[at : at + size], True) for at in range(0, len(examples), size)]
        return batches[0] if len(batches) == 1 else SplitBatch(tuple(batches))

    def _kept_optimizer(self, purpose: str) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        prefix = f"{purpose}/optimizer/"
        tensors = {k.removeprefix(prefix): v for k, v in self.state.tensors.items() if k.startswith(prefix)}
        numbers = {k.removeprefix(prefix): v for k, v in self.state.numbers.items() if k.startswith(prefix)}
        return tensors, numbers
