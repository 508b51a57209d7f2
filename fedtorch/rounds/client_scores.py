"""Scores of the clients that are evaluated on this rank, each with the model it would use."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from torch import Tensor

from fedtorch.core import devices
from fedtorch.core.client import ClientState
from fedtorch.core.errors import FedtorchError
from fedtorch.core.own_frames import own_place
from fedtorch.core.scores import COUNT, LOSS, RECEIVED
from fedtorch.core.state_keys import TRAINED, TRAINED_ROUND
from fedtorch.rounds.best_model import BestModel
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.membership import Stopped
from fedtorch.rounds.private_weights import private_weights
from fedtorch.rounds.references import References
from fedtorch.rounds.scoring import added, chooses_by, evaluate
from fedtorch.tasks.base import Scores

log = logging.getLogger(__name__)

# Clients whose tokenised data a rank keeps; a rank's memory must not grow with the clients it hosts.
CACHED_CLIENTS = 64

# Batches evaluated between two signs of life; within them, examples of similar length are put together.
BATCHES_PER_BEAT = 2

Each = dict[str, tuple[float, ...]]  # metric -> one value per example


class ClientScorer:
    """Evaluates this rank's clients at their home; all ranks of a worker do so together and the leader's scores count.

    A client that cannot be evaluated has no scores: that is not worth a training run. A worker of several ranks cannot
    go on without one of them, so there the error ends the run.
    """

    def __init__(self, context: RoundContext) -> None:
        self.context = context
        self.each: dict[str, Each] = {}
        """scores of single examples of the last evaluation that asked for them, by client"""
        # ranks that evaluate a client together have to come to the end of it together
        self._is_alone = context.components.worker is None
        self._load = lru_cache(maxsize=CACHED_CLIENTS)(self._referred)
        self._references = References(context.components.engine)
        self._at_home = lru_cache(maxsize=None)(self._find_at_home)  # an evaluation is no pass over all clients

    def scores(self, split: str, *, at_best: bool) -> dict[str, Scores]:
        """Evaluate every client at home here, with its present or its best model, on all ranks of a worker alike.

        A stop ends it early, with what there is.
        """
        config, results = self.context.config.eval, {}
        each = config.per_example and at_best
        try:
            for name in self.here(split):
                weights, private = self.model(name, at_best=at_best)
                self.each[name] = {}
                results[name] = self._score(name, split, weights, private, self.each[name] if each else None)
            if config.also_received and not at_best:
                received = self.received_scores(split)
                results = {name: {**pairs, **received[name]} for name, pairs in results.items()}
        except Stopped:
            pass  # all ranks must come to the same meeting, which then stops them together
        return self._leaders({name: pairs for name, pairs in results.items() if pairs})

    def received_scores(self, split: str) -> dict[str, Scores]:
        """With the weights received last, as `received/<metric>`."""
        context, results = self.context, {}
        for name in self.here(split):
            private = private_weights(context.components, name, context.store.get(name))
            scores = self._score(name, split, context.vectors.weights, private)
            results[name] = {f"{RECEIVED}{n}": pair for n, pair in scores.items() if not n.startswith(COUNT)}
        return results

    def model(self, name: str, *, at_best: bool = False) -> tuple[Tensor, Tensor | None]:
        """Weights that a client is evaluated with: flat shared ones and flat private ones."""
        context = self.context
        state = context.store.get(name)
        has_best = BestModel(context.server).round is not None
        if at_best and has_best and not BestModel(state).has_client_model:
            state = ClientState()  # as in the best round: it trained only later
        received = context.vectors.weights
        weights = context.algorithm.eval_weights(received, state)
        is_trained = context.config.eval.point == "trained" and state.numbers.get(TRAINED_ROUND) == context.round - 1
        if weights is received and is_trained:
            weights = state.tensors[TRAINED]
        private = private_weights(context.components, name, state)
        if at_best:
            best = BestModel(state)
            return best.client_weights(received, weights), best.client_private(private)
        return weights, private

    def here(self, split: str) -> list[str]:
        """The clients with examples in `split` that this rank evaluates, without those that were lost."""
        return [name for name in self._at_home(split) if name not in self.context.members.lost]

    def _find_at_home(self, split: str) -> list[str]:
        """Evaluate the clients at home, those that were lost among them: in one process they may be its own."""
        components = self.context.components
        sizes, evaluators = components.task.manifest(), components.placement.evaluators
        here = [name for name, each in sizes.items() if each.get(split) and self.context.role.hosts(evaluators[name])]
        shows = self.context.mechanism.shows_scores
        return [name for name in here if shows or not sizes[name].get("train") or self._counts(name, split)]

    def _counts(self, name: str, split: str) -> bool:
        """Do a client's scores leave as noised counts?"""
        return self.context.mechanism.counts(name, split)

    def _score(
        self, name: str, split: str, weights: Tensor, private: Tensor | None, each: Each | None = None
    ) -> Scores:
        """One client's scores on a split with the given model; `each` receives those of single examples."""
        try:
            return self._score_parts(name, split, weights, private, each)
        except (FedtorchError, Stopped):
            raise
        except Exception as error:  # a name only; the text may quote the client's data
            if devices.is_fault(error):
                raise devices.fault(error, f"when client {name} was evaluated") from error
            if not self._is_alone:
                raise
            kind, done = f"{type(error).__name__}{own_place(error)}", self.context.round
            log.warning("client %s could not be evaluated after round %d: %s; training goes on", name, done, kind)
            log.debug("evaluating client %s", name, exc_info=error)
            return {}

    def _score_parts(self, name: str, split: str, weights: Tensor, private: Tensor | None, each: Each | None) -> Scores:
        context, components = self.context, self.context.components
        context.comm.heartbeat(phase="evaluate", round=context.round, client=name)
        context.working(f"evaluating {name}")
        examples, size = self._load(name, split), context.config.eval.batch_size
        is_received = weights.data_ptr() == context.vectors.weights.data_ptr()
        components.engine.load(weights, private, version=context.vectors.version if is_received else None)
        result: Scores = {}
        counts = self._counts(name, split)
        if counts:
            each = {}
        by_loss = chooses_by(context.config.eval, components.task) == LOSS
        kept: list[tuple[Any, Any]] | None = [] if components.task.chosen else None
        for number, part in enumerate(components.task.eval_batches(examples, size * BATCHES_PER_BEAT)):
            result = added(result, evaluate(components.task, components.engine, part, size, each, kept, by_loss))
            # how many batches there are is nobody's business where scores have noise
            self._beat(name, 0 if counts else number)
        if counts:
            about = [examples, weights, *([] if private is None else [private])]
            return context.mechanism.counted(name, context.round, split, each or {}, about)
        if kept:
            seen, predictions = zip(*kept, strict=True)
            result = {**result, **components.task.client_scores(name, result, seen, predictions)}
        return result

    def _referred(self, name: str, split: str) -> Sequence[Any]:
        """Load a client's examples, with the start's reference where the task compares with one."""
        context, task = self.context, self.context.components.task
        beat = partial(self._beat, name, 0)
        return self._references.by_start(
            task, name, split, task.load(name, split), context.config.eval.batch_size, beat
        )

    def _beat(self, name: str, step: int) -> None:
        self.context.comm.heartbeat(phase="evaluate", round=self.context.round, client=name, step=step)
        if self.context.role.is_stopped():
            raise Stopped

    def _leaders(self, own: Mapping[str, Scores]) -> dict[str, Scores]:
        """The scores as this worker's leader has them, so that all its ranks choose the same best models."""
        worker = self.context.components.worker
        if worker is None:
            return dict(own)
        places = [(name, metric) for name, pairs in own.items() for metric in pairs]
        values = worker.all_gather_floats([value for name, metric in places for value in own[name][metric]])[0]
        scores: dict[str, Scores] = {name: {} for name in own}
        for place, (name, metric) in enumerate(places):
            scores[name][metric] = values[2 * place], int(values[2 * place + 1])
        return scores
