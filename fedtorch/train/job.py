"""One client's work in one round, as an algorithm sees it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from fedtorch.core import state_keys as keys
from fedtorch.core.client import Client, ClientState
from fedtorch.core.errors import FedtorchError, UpdateError
from fedtorch.core.seeds import seed_for
from fedtorch.core.silo_work import SiloWork
from fedtorch.core.update import Report
from fedtorch.core.weights import sharing_memory
from fedtorch.train.batches import Batching, SplitBatch, StepPlan
from fedtorch.train.engine import Engine, GradientHook
from fedtorch.train.lengths import Lengths
from fedtorch.train.loop import LossCurve, Step
from fedtorch.train.moment import OPTIMIZER, PRIVATE, SHARED, Moment, Saves
from fedtorch.train.noised import NoisedTraining, noised_sum, train_noised
from fedtorch.train.outgoing import Outgoing
from fedtorch.train.saved_loop import SavedLoop
from fedtorch.train.settings import ClientConfig


class Trainable(Protocol):
    """The part of a task that local training needs."""

    def collate(self, examples: Sequence[Any], train: bool) -> Any: ...
    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor | int]: ...


class LocalTrainer(Protocol):
    """It trains a client in place of the package's own loop; `trainers.base.Trainer`."""

    def train(self, job: ClientJob, weights: Tensor) -> LossCurve: ...


class HasLengths(Protocol):
    """A task that knows the length of an example, to put examples into batches by length."""

    def example_lengths(self, examples: Sequence[Any]) -> Sequence[Lengths]: ...


def _wait(report: Report) -> None:
    """The update waits for the end of its client's training."""


@dataclass
class ClientJob:
    """Everything an algorithm needs to train one client in one round.

    The client's output is handed over by `send` and what stands on top of it, each vector once; copies of the job
    (`replace`) share `state` and `outgoing`.
    """

    client: Client
    """whom to train"""
    round: int
    """the round, from 0"""
    run_seed: int
    """see `seed`"""
    received: Mapping[str, Tensor]
    """what the server broadcast, flat vectors by name (`Algorithm.travels.vectors`), read only: on the CPU, or on the
    engine's device where the algorithm takes them there (`algorithms.base.on_device`)"""
    state: ClientState
    """what the client keeps; the algorithm replaces entries. Taken back if the client fails or is refused"""
    outgoing: Outgoing
    """what the client sends; to be filled with `send`"""
    engine: Engine
    """the model and its optimiser, for any client's weights"""
    task: Trainable
    """makes batches of examples and takes their loss"""
    hp: ClientConfig
    """the client's local training settings, with the round's learning rate"""
    examples: Sequence[Any]
    """its training data, which never leaves this rank"""
    on_step: Callable[[int], None]
    """on_step(n): called after every optimiser step (heartbeat, progress, interruption)"""
    first_private: Tensor | None = None
    """the private weights it starts its first round with, flat; None: the engine's initial ones"""
    rounds: int = 1
    """of the whole run"""
    chance: Fraction = Fraction(1)
    """that the client is drawn for a round"""
    parts: int = 1
    """into how many every micro-batch is cut, to be held in memory one by one"""
    sum: Tensor | None = None
    """where a sum of gradients is sent in place of a difference: it, once it was made"""
    silo: SiloWork | None = None
    """where each step is noised: the rows, and how; `examples` tells but how many are declared then"""
    trainer: LocalTrainer | None = None
    """what trains in place of `train.loop`"""
    hand_over: Callable[[Report], None] = _wait
    """hand_over(report): called where all is sent and training goes on, so that the update may travel meanwhile;
    `report` has all that `Algorithm.own_weight` looks at, and that of `client_update` follows"""
    saves: Saves | None = None
    """saves its trainings while they are under way; None: nobody does"""

    def check_state(self) -> None:
        """Look whether what the client keeps will be there in its next round.

        Raises:
            FedtorchError: an entry lies in what was received or is sent, which the next round overwrites.
        """
        if lent := sharing_memory(self.state.tensors, (*self.received.values(), self.outgoing.flat)):
            raise FedtorchError(
                f"{self.outgoing.algorithm} keeps `{lent[0]}` in a client's state, in memory of what was received or "
                "is sent, which the next round overwrites; keep a clone"
            )

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
        return self.state.tensors.get(keys.PRIVATE, self.first_private)

    def plans(
        self, num_examples: int, *, purpose: str, epochs: int | None = None, data: Sequence[Any] | None = None
    ) -> list[StepPlan]:
        """The round's optimiser steps over `num_examples` examples: `epochs` or else what `hp` says.

        data: the examples, where they are not the client's own; `hp` may want to know their lengths.
        """
        batching = self._batching(self.examples if data is None else data)
        seed, name = seed_for(self.run_seed, purpose), self.client.name
        if epochs is None and self.hp.steps is not None:
            return self._next_steps(batching, num_examples, purpose)
        count = epochs or self.hp.epochs or 1
        # numbered through the run, so that 10 rounds of 1 epoch see the data in the same order as 1 round of 10
        first = self.round * count
        if epochs is None and self.hp.total_epochs is not None:
            count = max(0, min(count, self.hp.total_epochs - first))
        return list(batching.epochs(num_examples, first=first, count=count, seed=seed, client=name))

    def _next_steps(self, batching: Batching, num_examples: int, purpose: str) -> list[StepPlan]:
        """`hp.steps` steps from where the last round stopped in the data."""
        numbers, count = self.state.numbers, self.hp.steps or 0
        cursor, epoch = int(numbers.get(keys.cursor(purpose), 0)), int(numbers.get(keys.epoch(purpose), 0))
        seed, name = seed_for(self.run_seed, purpose), self.client.name
        plans = list(batching.steps(num_examples, cursor=cursor, count=count, seed=seed, client=name, epoch=epoch))
        numbers[keys.cursor(purpose)] = cursor + count
        if batching.max_tokens is not None and plans[-1].epoch > epoch:  # nobody has to plan earlier epochs again
            numbers[keys.epoch(purpose)] = last = plans[-1].epoch
            numbers[keys.cursor(purpose)] = sum(plan.epoch == last for plan in plans)
        return plans

    def _batching(self, examples: Sequence[Any]) -> Batching:
        hp = self.hp
        batching = Batching(hp.batch_size, hp.accumulation, hp.accumulation_rule, hp.shuffle)
        if not hp.group_by_length and hp.max_tokens_per_batch is None:
            return batching
        lengths = cast(HasLengths, self.task).example_lengths(examples)
        return replace(batching, by_length=hp.group_by_length, max_tokens=hp.max_tokens_per_batch, lengths=lengths)

    def steps_of_the_run(self, num_examples: int, *, epochs: int | None = None, rounds: range | None = None) -> int:
        """The optimiser steps over `num_examples` examples that this client is expected to take in the run.

        rounds: count only these; None: all. With `hp.max_tokens_per_batch` from what its own examples need.
        """
        rounds = range(self.rounds) if rounds is None else rounds
        if epochs is None and self.hp.steps is not None:
            return math.ceil(self.chance * len(rounds) * self.hp.steps)
        first, last = (number * (epochs or self.hp.epochs or 1) for number in (rounds.start, rounds.stop))
        if epochs is None and self.hp.total_epochs is not None:
            first, last = (min(number, self.hp.total_epochs) for number in (first, last))
        count, own = max(0, last - first), len(self.examples)
        batching = self._batching(self.examples)
        if batching.max_tokens is None:
            return math.ceil(self.chance * count * batching.steps_per_epoch(num_examples))
        return math.ceil(self.chance * count * batching.steps_per_epoch(own) * Fraction(num_examples, max(1, own)))

    def train(
        self,
        weights: Tensor,
        *,
        purpose: str = "train",
        before_step: GradientHook | None = None,
        epochs: int | None = None,
        data: Sequence[Any] | None = None,
        hp: ClientConfig | None = None,
        run_steps: int | None = None,
        held: Mapping[str, Tensor] | None = None,
    ) -> LossCurve:
        """Train from `weights` (flat, shared) and the client's private ones; the result is in `engine`.

        purpose: tells apart several trainings in one round: their seeds, optimiser states and cursors.
        data: other examples than the client's own (pseudo data). run_steps: over which `schedule_span: run` falls;
        None: as many steps in every round as in this one. held: tensors that the steps change beside the engine's
        (a teacher), by name, which are saved and filled again with it. Keeps the private weights, and the optimiser's
        state where `hp.optimizer_state` is `keep`, in `state`.
        """
        if self.trainer is not None:
            return self._train_otherwise(self.trainer, weights, before_step=before_step, data=data)
        hp = hp or self.hp
        examples = self.examples if data is None else data
        plans = self.plans(len(examples), purpose=purpose, epochs=epochs, data=data)
        if run_steps is None:
            run_steps = self.steps_of_the_run(len(examples), epochs=epochs)
        start = partial(self._start, weights, hp, purpose, planned=len(plans), run_steps=run_steps)
        facts = partial(self._facts, weights, hp, len(plans), run_steps)
        if self.silo is None:
            loop = SavedLoop(self.engine, self.task.loss, hp, held or {}, len(plans))
            saved = None
            if self.saves is not None:
                more = repr((purpose, len(examples), self.parts)).encode()
                saved = self.saves.training([*facts(), more], loop.fault)
            steps = partial(self.collated, examples=examples)
            curve = loop.train(plans, steps, start, saved, before_step=before_step, after_step=self.on_step)
        elif data is not None:
            raise UpdateError("with privacy.kind record a client trains on its own rows alone")
        else:
            curve = self._train_noised(self.silo, plans, purpose, facts(), start, before_step, hp)
        if hp.schedule_span == "run":
            self.state.numbers[keys.steps(purpose)] = self._taken(purpose) + len(plans)
        if hp.optimizer_state == "keep":
            self._keep_optimizer(purpose)
        self.keep_private()
        return replace(curve, over_budget=self._over_budget(examples))

    def _train_otherwise(
        self, trainer: LocalTrainer, weights: Tensor, *, before_step: GradientHook | None, data: Sequence[Any] | None
    ) -> LossCurve:
        """The trainer of `client.trainer`, on the client's own rows; what it keeps is in `state`."""
        if before_step is not None or data is not None:
            raise UpdateError("with client.trainer there is no step that an algorithm could change, nor other data")
        curve = trainer.train(self, weights)
        self.keep_private()
        return curve

    def _train_noised(
        self,
        silo: SiloWork,
        plans: Sequence[StepPlan],
        purpose: str,
        facts: Sequence[bytes | memoryview],
        start: Callable[[Moment | None], None],
        before_step: GradientHook | None,
        hp: ClientConfig,
    ) -> LossCurve:
        """As many noised steps as were planned; or one sum, which then waits to be sent."""
        training = NoisedTraining(self.engine, self.task, silo, self.client.name, purpose, facts, start, hp, self.parts)
        if silo.sends_sum:
            self.sum, curve = noised_sum(training)
            self.on_step(1)
            return curve
        saves = None
        if self.saves is not None:
            saves = partial(self.saves.training, [*facts, repr((purpose, self.parts)).encode()])
        return train_noised(training, plans, before_step=before_step, after_step=self.on_step, saves=saves)

    def _facts(self, weights: Tensor, hp: ClientConfig, planned: int, run_steps: int) -> list[bytes | memoryview]:
        """All that a training begins with: what was received, kept and set.

        Of what is kept only what this rank keeps for its worker: others' entries differ before and after a resume.
        """
        kept = {name: tensor for name, tensor in self.state.tensors.items() if self._is_own(name)}
        tensors = {"": weights, **self.received, **kept}
        if self.private is not None and self._is_own(keys.PRIVATE):
            tensors["own"] = self.private
        found: list[bytes | memoryview] = []
        for name in sorted(tensors):
            values = tensors[name].detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy()
            found += [name.encode(), values.data]
        numbers = sorted((name, number) for name, number in self.state.numbers.items() if self._is_own(name))
        return [*found, repr((numbers, hp, planned, run_steps, self.round)).encode()]

    def _is_own(self, entry: str) -> bool:
        owners, worker = self.engine.owners, self.engine.worker
        return owners is None or worker is None or (owners.keeper(entry) or 0) == worker.rank

    def keep_private(self) -> None:
        """Put the engine's private weights into the client's state."""
        if self.engine.private.size:
            self.state.tensors[keys.PRIVATE] = self.engine.snapshot_private()

    def send(self, name: str, tensor: Tensor) -> None:
        """Send `tensor`, which is copied: one of `Algorithm.travels.vectors`, or `MESSAGE` where messages are sent.

        Raises:
            UpdateError: unknown name, another shape or dtype, or sent before.
        """
        self.outgoing.put(name, tensor)

    def send_difference(self, received: Tensor, trained: Tensor | None = None, *, name: str = keys.WEIGHTS) -> Tensor:
        """Send `received` − `trained`, by default the pseudo-gradient; trained: None is the weights in the engine.

        Both flat, and in one place: on the CPU, or on the engine's device. Written straight to where it is sent from:
        what is returned is to be read only.

        Raises:
            UpdateError: as `send`.
        """
        if self.sum is not None:  # whoever looks at what is returned looks at a part of a noised sum
            self.send(name, self.sum)
            return self.sum
        return self.outgoing.subtract(name, received, self.engine.beside if trained is None else lambda _: trained)

    def collated(self, plans: Sequence[StepPlan], examples: Sequence[Any]) -> Iterator[Step]:
        """The planned steps with their batches, collated one step at a time."""
        for plan in plans:
            cut = [self._collated([examples[i] for i in micro]) for micro in plan.micro_batches]
            if (terms := self._terms(batch for parts in cut for batch in parts)) is None:
                whole = [parts[0] if len(parts) == 1 else SplitBatch(tuple(parts)) for parts in cut]
                yield Step(whole, plan.divisor, plan.epoch)
            else:
                yield Step([batch for parts in cut for batch in parts], plan.divisor, plan.epoch, terms)

    def _collated(self, examples: Sequence[Any]) -> list[Any]:
        """A micro-batch in its parts."""
        size = math.ceil(len(examples) / self.parts)
        return [self.task.collate(examples[at : at + size], True) for at in range(0, len(examples), size)]

    def _terms(self, batches: Iterable[Any]) -> int | None:
        """Terms of a step's loss; None where each micro-batch has a mean of its own."""
        count = getattr(self.task, "terms", None)  # what an algorithm makes of a task has an objective of its own
        if count is None or self.hp.spills:  # whose divisor belongs to another step
            return None
        counts = [count(batch) for batch in batches]
        return None if None in counts else sum(counts)

    def _over_budget(self, examples: Sequence[Any]) -> int:
        most, lengths = self.hp.max_tokens_per_batch, self._batching(examples).lengths
        return 0 if most is None else sum(sum(each) > most for each in lengths)

    def _start(
        self,
        weights: Tensor,
        hp: ClientConfig,
        purpose: str,
        found: Moment | None = None,
        *,
        planned: int,
        run_steps: int,
    ) -> None:
        """Load the weights and the optimiser that this client goes on with; found: within this training."""
        spans_run = hp.schedule_span == "run"
        private, kept = self.private, self._kept_optimizer(purpose) if hp.optimizer_state == "keep" else None
        if found is not None:
            weights, private = found.tensors.get(SHARED, weights), found.tensors.get(PRIVATE)
            kept = keys.part_of(found.tensors, OPTIMIZER), keys.part_of(found.numbers, OPTIMIZER)
        self.engine.start(
            weights,
            private,
            hp,
            steps=run_steps if spans_run else planned,
            taken=(self._taken(purpose) if spans_run else 0) + (0 if found is None else found.step),
            seed=self.seed(f"{purpose}/dropout"),
            optimizer_state=kept,
        )
        if found is not None:
            self.engine.go_on(found)

    def _taken(self, purpose: str) -> int:
        """The steps taken in earlier rounds, where the schedule spans the run."""
        return int(self.state.numbers.get(keys.steps(purpose), 0))

    def _keep_optimizer(self, purpose: str) -> None:
        prefix = keys.optimizer(purpose)
        tensors, numbers = self.engine.optimizer_state()
        self.state.tensors.update({prefix + key: value for key, value in tensors.items()})
        self.state.numbers.update({prefix + key: value for key, value in numbers.items()})
        if tensors or numbers:
            self.state.numbers.pop(keys.has_no_optimizer(purpose), None)
        else:
            self.state.numbers[keys.has_no_optimizer(purpose)] = 1

    def _kept_optimizer(self, purpose: str) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        prefix = keys.optimizer(purpose)
        return keys.part_of(self.state.tensors, prefix), keys.part_of(self.state.numbers, prefix)
