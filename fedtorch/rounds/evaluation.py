"""Who is judged on what, by which worker, and which model is the best so far."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import Tensor

from fedtorch.core.client import ClientState
from fedtorch.core.errors import FedtorchError
from fedtorch.rounds.best_model import Selection
from fedtorch.rounds.context import RoundContext, Stopped
from fedtorch.rounds.scoring import added, averages, judge
from fedtorch.tasks.base import Scores
from fedtorch.tracking.records import RECEIVED

log = logging.getLogger(__name__)

# Clients whose tokenised data a rank keeps; a rank's memory must not grow with the clients it hosts.
CACHED_CLIENTS = 64

# Batches judged between two signs of life; within them, examples of similar length are put together.
BATCHES_PER_BEAT = 2


class Evaluation:
    """Judges every client at its home, with the model it would use, and keeps the best model.

    All ranks of a worker judge its clients; the leader's scores count.
    Where `eval.best` is `together`, the server chooses one best round by the dev scores of all clients; every client
    keeps what it is judged with beside the server's best weights. Else, and where nothing is exchanged, each client
    chooses its own best round and keeps the whole model, `best/weights` and `best/private` in its state.
    All methods are called by all ranks alike.

    each: after `at_the_end`, on the server, the scores of single examples if `eval.per_example` asks for them:
    client -> metric -> one value per example in the split's order (NaN: the example does not count).
    """

    def __init__(self, context: RoundContext) -> None:
        self.context = context
        self.metric = context.config.eval.select_by or context.components.task.main_metric
        self.by_client = context.config.eval.best == "per_client" or not context.algorithm.exchanged_vectors
        self.each: dict[str, dict[str, tuple[float, ...]]] = {}
        # ranks that judge a client together have to come to the end of it together
        self._is_alone = context.components.worker is None
        self._load = lru_cache(maxsize=CACHED_CLIENTS)(context.components.task.load)
        self._judged_here = lru_cache(maxsize=None)(self._at_home)  # an evaluation is no pass over all clients

    def during_training(self) -> dict[str, Scores]:
        """Judge on `eval.split` and update the best; scores per client on the server, elsewhere of own clients."""
        context = self.context
        context.broadcast()
        with context.timed("evaluate"):
            own = self._judge(context.config.eval.split, at_best=False)
            context.barrier("scores")  # the last chance to stop: from here on the evaluation counts
            scores = self._gather(own)
            if self.by_client:
                self._keep_own_best(own)
            self._keep_best(scores)
        return scores

    def at_the_end(self) -> dict[str, Scores]:
        """Judge the best model on `eval.final_split`; the server's weights become the best ones."""
        context = self.context
        received: dict[str, Scores] = {}
        if context.config.eval.also_received:  # of the newest weights, so before the best ones replace them
            context.broadcast()
            with context.timed("evaluate"):
                received = self._judge_received(context.config.eval.final_split)
        if context.comm.is_server and "best" in context.server.tensors:
            context.server.weights.copy_(context.server.tensors["best"])
        context.is_fresh = False
        context.broadcast()
        with context.timed("evaluate"):
            own = self._judge(context.config.eval.final_split, at_best=True)
            context.barrier("scores")
            if context.config.eval.per_example:
                self.each = self._gather_each()
            return self._gather({name: {**pairs, **received.get(name, {})} for name, pairs in own.items()})

    def _at_home(self, split: str) -> list[str]:
        """The clients with examples in `split` that this rank judges."""
        context = self.context
        sizes = context.components.task.manifest()
        return [name for name in sizes if sizes[name].get(split) and context.hosts(context.judges[name])]

    def _here(self, split: str) -> list[str]:
        """The same without those that were lost, which in one process may be of its own clients."""
        return [name for name in self._judged_here(split) if name not in self.context.lost]

    def _judge(self, split: str, *, at_best: bool) -> dict[str, Scores]:
        """Scores of the clients at home here."""
        eval_config, results = self.context.config.eval, {}
        each = eval_config.per_example and at_best
        try:
            for name in self._here(split):
                weights, private = self._model(name, at_best=at_best)
                self.each[name] = {}
                results[name] = self._score(name, split, weights, private, self.each[name] if each else None)
            if eval_config.also_received and not at_best:
                received = self._judge_received(split)
                results = {name: {**pairs, **received[name]} for name, pairs in results.items()}
        except Stopped:
            pass  # all ranks must come to the same meeting, which then stops them together
        return self._leaders({name: pairs for name, pairs in results.items() if pairs})

    def _judge_received(self, split: str) -> dict[str, Scores]:
        """Scores with the weights received last, as `received/<metric>`."""
        results = {}
        for name in self._here(split):
            private = self.context.private_of(name, self.context.store.get(name))
            scores = self._score(name, split, self.context.shared, private)
            results[name] = {f"{RECEIVED}{metric}": pair for metric, pair in scores.items()}
        return results

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

    def _model(self, name: str, *, at_best: bool = False) -> tuple[Tensor, Tensor | None]:
        """What a client is judged with: flat shared weights and flat private ones."""
        context = self.context
        state = context.store.get(name)
        if at_best and "best_round" in context.server.numbers and "best/is_received" not in state.numbers:
            state = ClientState()  # as in the best round: it trained only later
        received = context.shared
        weights = context.algorithm.eval_weights(received, state)
        is_trained = context.config.eval.point == "trained" and state.numbers.get("trained/round") == context.round - 1
        if weights is received and is_trained:
            weights = state.tensors["trained"]
        private = context.private_of(name, state)
        if at_best:
            weights = received if state.numbers.get("best/is_received") else state.tensors.get("best/weights", weights)
            private = state.tensors.get("best/private", private)
        return weights, private

    def _score(
        self,
        name: str,
        split: str,
        weights: Tensor,
        private: Tensor | None,
        each: dict[str, tuple[float, ...]] | None = None,
    ) -> Scores:
        """One client's scores on a split with the given model; `each` receives those of single examples.

        Without scores if judging fails: it is not worth a training run.
        """
        try:
            return self._score_parts(name, split, weights, private, each)
        except (FedtorchError, Stopped):
            raise
        except Exception as error:  # a name only; the text may quote the client's data
            if not self._is_alone:
                raise
            kind, done = type(error).__name__, self.context.round
            log.warning("client %s could not be judged after round %d: %s; training goes on", name, done, kind)
            log.debug("judging client %s", name, exc_info=error)
            return {}

    def _score_parts(
        self,
        name: str,
        split: str,
        weights: Tensor,
        private: Tensor | None,
        each: dict[str, tuple[float, ...]] | None,
    ) -> Scores:
        context, components = self.context, self.context.components
        context.comm.heartbeat(phase="evaluate", round=context.round, client=name)
        context.working(f"judging {name}")
        components.engine.load(weights, private)
        examples, size = self._load(name, split), context.config.eval.batch_size
        result: Scores = {}
        for number, part in enumerate(components.task.eval_batches(examples, size * BATCHES_PER_BEAT)):
            result = added(result, judge(components.task, components.engine, part, size, each))
            context.comm.heartbeat(phase="evaluate", round=context.round, client=name, step=number)
            if context.is_stopped():
                raise Stopped
        return result

    def _gather(self, own: Mapping[str, Scores]) -> dict[str, Scores]:
        context = self.context
        messages = [
            context.message(
                "score", name, lists={metric: (total, float(count)) for metric, (total, count) in pairs.items()}
            )
            for name, pairs in (own.items() if context.leads else ())
        ]
        return {
            context.name(message): {metric: (pair[0], int(pair[1])) for metric, pair in message.lists.items()}
            for message in context.retry_on_loss("scores", lambda: context.comm.gather(messages, round=context.round))
        }

    def _gather_each(self) -> dict[str, dict[str, tuple[float, ...]]]:
        context = self.context
        messages = [
            context.message("numbers", name, lists=values)
            for name, values in (self.each.items() if context.leads else ())
        ]
        gathered = context.retry_on_loss("scores", lambda: context.comm.gather(messages, round=context.round))
        return {context.name(message): dict(message.lists) for message in gathered}

    def _keep_best(self, scores: Mapping[str, Scores]) -> None:
        """One best round for all, chosen by the server."""
        context, config = self.context, self.context.config.eval
        is_best = False
        if context.comm.is_server and not self.by_client:
            macro, micro, count = averages(scores, self.metric)
            selection = Selection(context.server.numbers, config.patience)
            is_best = bool(count) and selection.offer(micro if config.merge else macro, context.round)
            if is_best:
                best = context.server.tensors.setdefault("best", torch.empty_like(context.server.weights))
                best.copy_(context.server.weights)
        if self.by_client and config.patience is not None and self._all_have_stopped(scores, config.patience):
            context.server.numbers["stopped"] = 1
        stopped = int(context.server.numbers.get("stopped", 0))
        answer = [context.message("decision", numbers={"is_best": int(is_best), "stopped": stopped})]
        answer = answer if context.comm.is_server else []
        (answered,) = context.retry_on_loss(
            "best", lambda: context.comm.broadcast_messages(answer, round=context.round)
        )
        if answered.numbers["stopped"]:
            context.server.numbers["stopped"] = 1
        if answered.numbers["is_best"]:
            context.server.numbers["best_round"] = context.round  # elsewhere too, see `_model`
            for name in context.store.clients():
                self._keep(name, context.store.get(name))

    def _all_have_stopped(self, scores: Mapping[str, Scores], patience: int) -> bool:
        """On the server: has every client ceased to gain? Called by all ranks.

        Every client that has a score; where nothing is exchanged, every one that trains: without a score it goes on.
        """
        context = self.context
        resting = [
            context.message("numbers", name)
            for name in (context.store.clients() if context.leads else ())
            if context.store.get(name).numbers.get("evaluations_without_gain", 0) >= patience
        ]
        gathered = context.retry_on_loss("resting", lambda: context.comm.gather(resting, round=context.round))
        found = {context.name(message) for message in gathered}
        waited_for = {name for name, pairs in scores.items() if pairs.get(self.metric, (0.0, 0))[1]}
        if not context.algorithm.exchanged_vectors:
            waited_for = {client.name for client in context.components.clients if client.name not in context.lost}
        return bool(waited_for) and waited_for <= found

    def _keep_own_best(self, scores: Mapping[str, Scores]) -> None:
        """Every client's best round by its own dev score; a client that stopped gaining rests from then on."""
        context = self.context
        for name, pairs in scores.items():
            total, count = pairs.get(self.metric, (0.0, 0))
            if not count:  # nothing to choose by
                continue
            state = context.store.get(name)
            # one that trains alone may not have trained since it was judged last
            if not context.algorithm.exchanged_vectors and (
                state.numbers.get("stopped") or not state.numbers.pop("unjudged", 0)
            ):
                continue
            if Selection(state.numbers, context.config.eval.patience).offer(total / count, context.round):
                self._keep(name, state)
            else:
                context.store.stage(name, state)
                context.store.commit([name])

    def _keep(self, name: str, state: ClientState) -> None:
        """Put the model that a client is judged with into its state as its best one.

        The server keeps the best of what all clients share, unless each has a best round of its own.
        """
        context = self.context
        weights, private = self._model(name)
        best: dict[str, Tensor] = {}
        if self.by_client or weights.data_ptr() != context.shared.data_ptr():
            best["best/weights"] = weights.clone()
        if private is not None:
            best["best/private"] = private
        kept = {key: value for key, value in state.tensors.items() if not key.startswith("best/")}
        numbers = {**state.numbers, "best/is_received": int("best/weights" not in best)}
        context.store.stage(name, ClientState({**kept, **best}, numbers))
        context.store.commit([name])
