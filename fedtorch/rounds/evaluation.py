"""When scores count: an evaluation of all clients, the best model by it, and whether training goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from fedtorch.comm.wire import Packet
from fedtorch.core.client import ClientState
from fedtorch.core.scores import LOSS
from fedtorch.core.state_keys import BEST_ROUND, NOT_EVALUATED
from fedtorch.rounds.best_model import BestModel, standing
from fedtorch.rounds.client_scores import ClientScorer, Each
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.scoring import averages, chooses_by
from fedtorch.tasks.base import Scores

NO_ROUNDS: Mapping[str, int] = {}
Answer = Callable[[Mapping[str, Scores]], Sequence[Packet]]


class Evaluation:
    """Evaluates every client at its home and keeps the best model. All methods are called by all ranks alike.

    Where `eval.best` is `together`, the server chooses one best round by the dev scores of all clients; every client
    keeps what it is evaluated with beside the server's best weights. Else, and where nothing is exchanged, each client
    chooses its own best round and keeps the whole model in its state. See `BestModel`.
    """

    def __init__(self, context: RoundContext) -> None:
        self.context = context
        self.scorer = ClientScorer(context)
        """evaluates this rank's clients"""
        self.best = BestModel(context.server)
        """the best round for all, on every rank; its weights are the server's alone"""
        self.metric = chooses_by(context.config.eval, context.components.task)
        """what decides"""
        self.by_client = context.config.eval.best == "per_client" or not context.algorithm.travels.vectors
        """does each client choose a best round of its own?"""
        self._own: dict[str, Scores] | None = None
        """this rank's scores of an evaluation that was begun"""
        self.each: dict[str, Each] = {}
        """after `at_the_end`, on the server, the scores of single examples if `eval.per_example` asks for them:
        client -> metric -> one value per example in the split's order (NaN: the example does not count)"""
        self.rounds: dict[str, int] = {}
        """after `at_the_end`, on the server, client -> the round that it has chosen for itself, as rounds done"""

    def begin(self) -> None:
        """Evaluate this rank's clients on `eval.split`; what they are evaluated with stays as it is until `finish`."""
        context = self.context
        context.broadcast()
        with context.timed("evaluate"):
            self._own = self.scorer.scores(context.config.eval.split, at_best=False)

    @property
    def is_under_way(self) -> bool:
        """Was one begun that is not finished?"""
        return self._own is not None

    def finish(self) -> dict[str, Scores]:
        """Update the best; scores per client on the server, elsewhere of own clients."""
        context, own = self.context, self._own or {}
        self._own = None
        with context.timed("evaluate"):
            # the last chance to stop: from here on the evaluation counts
            scores, answered = self._gather(own, answer=self._choose)
            if self.by_client:
                self._keep_own_best(own)
                answered = self._rest(scores)
            self._keep_best(answered)
        return scores

    def at_the_end(self) -> dict[str, Scores]:
        """Evaluate the best model on `eval.final_split`; the server's weights become the best ones."""
        context, split = self.context, self.context.config.eval.final_split
        received: dict[str, Scores] = {}
        if context.config.eval.also_received:  # of the newest weights, so before the best ones replace them
            context.broadcast()
            with context.timed("evaluate"):
                received = self.scorer.received_scores(split)
        self.take_best()
        with context.timed("evaluate"):
            own = self.scorer.scores(split, at_best=True)
            if context.config.eval.per_example:
                self.each = self._gather_each(self.scorer.each)
            whole = {name: {**pairs, **received.get(name, {})} for name, pairs in own.items()}
            return self._gather(whole, self._own_rounds(own))[0]

    def take_best(self) -> None:
        """The server's weights become the best ones, if there are such, on all ranks."""
        context = self.context
        if context.comm.is_server and self.best.server_weights is not None:
            context.vectors.first.copy_(self.best.server_weights)
            for name in context.vectors.varying.held:
                context.server.tensors.pop(name, None)
            context.server.tensors.update(self.best.server_varying(context.vectors.varying.held))
        context.vectors.written()
        context.broadcast()

    def _own_rounds(self, names: Iterable[str]) -> dict[str, int]:
        """The best round of each of this rank's clients, where clients choose for themselves."""
        if not self.by_client:
            return {}
        found = {name: BestModel(self.context.store.get(name)).round for name in names}
        return {name: round for name, round in found.items() if round is not None}

    def _gather(
        self, own: Mapping[str, Scores], rounds: Mapping[str, int] = NO_ROUNDS, answer: Answer | None = None
    ) -> tuple[dict[str, Scores], Sequence[Packet]]:
        """(all clients' scores on the server, what it answers to them, on all ranks).

        rounds: of this rank's clients, which it keeps in `self.rounds`.
        """
        context = self.context
        messages = [
            context.message(
                "score",
                name,
                numbers={**context.mechanism.told(name), **({BEST_ROUND: rounds[name]} if name in rounds else {})},
                lists={metric: (total, float(count)) for metric, (total, count) in pairs.items()},
            )
            for name, pairs in (own.items() if context.role.leads else ())
        ]
        found: dict[str, Scores] = {}

        def reply(gathered: list[Packet]) -> Sequence[Packet]:
            found.update(self._scores(gathered))
            return () if answer is None else answer(found)

        gathered, answered = context.members.exchange("scores", messages, reply)
        told = {context.name(message): message.numbers for message in gathered}
        for name, numbers in told.items():
            context.mechanism.heard(name, numbers, context.server)
        self.rounds = {name: int(numbers[BEST_ROUND]) for name, numbers in told.items() if BEST_ROUND in numbers}
        return found, answered

    def _scores(self, gathered: Sequence[Packet]) -> dict[str, Scores]:
        return {
            self.context.name(message): {metric: (pair[0], int(pair[1])) for metric, pair in message.lists.items()}
            for message in gathered
        }

    def _gather_each(self, own: Mapping[str, Each]) -> dict[str, Each]:
        context = self.context
        messages = [
            context.message("numbers", name, lists=values)
            for name, values in (own.items() if context.role.leads else ())
        ]
        gathered = context.members.exchange("scores", messages).gathered
        return {context.name(message): dict(message.lists) for message in gathered}

    def _choose(self, scores: Mapping[str, Scores]) -> Sequence[Packet]:
        """On the server: is this the best round for all, and does the run end here?"""
        if self.by_client:
            return ()
        numbers = {"is_best": int(self._offer(scores)), "stopped": int(self.best.has_stopped)}
        return [self.context.message("decision", numbers=numbers)]

    def _keep_best(self, answered: Sequence[Packet]) -> None:
        """Do as the server has chosen."""
        context = self.context
        for message in answered:
            if message.numbers["stopped"]:
                self.best.stop()
            if message.numbers["is_best"]:
                self.best.note_round(context.round)  # elsewhere too, see `ClientScorer.model`
                for name in context.store.clients():
                    self._keep(name, context.store.get(name))

    def _offer(self, scores: Mapping[str, Scores]) -> bool:
        """On the server: is this the best evaluation so far? Its weights are kept."""
        config, server = self.context.config.eval, self.context.server
        means = dict[str, float]()
        for metric in (self.metric, LOSS):
            macro, micro, count = averages(self.context.components.task, scores, metric, config.split)
            if count:
                means[metric] = micro if config.merge else macro
        is_best = self.metric in means and self._is_best(self.best, means)
        if is_best:
            varying = {
                name: server.tensors[name] for name in self.context.vectors.varying.held if name in server.tensors
            }
            self.best.keep_server_weights(self.context.vectors.first, varying)
        return is_best

    def _is_best(self, best: BestModel, means: Mapping[str, float]) -> bool:
        """Offer the model with these means after the present round."""
        config = self.context.config.eval
        return best.offer(standing(self.metric, means), self.context.round, config.patience, config.ties)

    def _rest(self, scores: Mapping[str, Scores]) -> Sequence[Packet]:
        """Where clients choose for themselves: does the run end here, as every one of them has ceased to gain?

        Every client that has a score; where nothing is exchanged, every one that trains: without a score it goes on.
        """
        context, patience = self.context, self.context.config.eval.patience
        if patience is None:
            return ()
        resting = [
            context.message("numbers", name)
            for name in (context.store.clients() if context.role.leads else ())
            if BestModel(context.store.get(name)).without_gain >= patience
        ]

        def answer(gathered: Sequence[Packet]) -> Sequence[Packet]:
            found = {context.name(message) for message in gathered}
            waited_for = {name for name, pairs in scores.items() if pairs.get(self.metric, (0.0, 0))[1]}
            if not context.algorithm.travels.vectors:
                waited_for = set(context.components.clients.without(context.members.lost).names())
            have_stopped = bool(waited_for) and waited_for <= found
            return [context.message("decision", numbers={"is_best": 0, "stopped": int(have_stopped)})]

        return context.members.exchange("resting", resting, answer, may_stop=False).answered

    def _keep_own_best(self, scores: Mapping[str, Scores]) -> None:
        """Every client's best round by its own dev score; a client that stopped gaining rests from then on."""
        context = self.context
        for name, pairs in scores.items():
            means = {metric: total / count for metric, (total, count) in pairs.items() if count}
            if self.metric not in means:  # nothing to choose by
                continue
            state = context.store.get(name)
            best = BestModel(state)
            # one that trains alone may not have trained since it was evaluated last
            if not context.algorithm.travels.vectors and (best.has_stopped or not state.numbers.pop(NOT_EVALUATED, 0)):
                continue
            if self._is_best(best, means):
                self._keep(name, state)
            else:
                self._commit(name, state)

    def _keep(self, name: str, state: ClientState) -> None:
        """Put the model that a client is evaluated with into its state as its best one.

        The server keeps the best of what all clients share, unless each has a best round of its own.
        """
        weights, private = self.scorer.model(name)
        is_own = self.by_client or weights.data_ptr() != self.context.vectors.weights.data_ptr()
        BestModel(state).keep_client_model(weights.to("cpu", copy=True) if is_own else None, private)
        self._commit(name, state)

    def _commit(self, name: str, state: ClientState) -> None:
        self.context.store.stage(name, state)
        self.context.store.adopt(name, name)  # what else is staged waits for its buffer
