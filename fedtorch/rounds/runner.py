"""The round loop. Every rank runs it; it names no algorithm, task or model.

Who trains which client in which round is computed from (seed, round, topology) on every rank, never sent.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedtorch.algorithms.base import Algorithm
from fedtorch.core.errors import Interrupted
from fedtorch.core.update import Report
from fedtorch.rounds import replicas
from fedtorch.rounds.aggregation import Decision, as_shown, conclude, exchange
from fedtorch.rounds.checkpointing import digest, restore, save
from fedtorch.rounds.context import Rank, Setting, Stopped
from fedtorch.rounds.evaluation import Evaluation
from fedtorch.rounds.local_training import Work
from fedtorch.rounds.server_training import ServerShare
from fedtorch.tasks.base import Scores

log = logging.getLogger(__name__)


@dataclass
class Result:
    """What a run came to; complete on the server.

    scores: per client on the final split, with the best model; each: of its single examples, if they are recorded.
    reports, weights: each client's last ones.
    digest: sha256 over the final global weights and every client's state, equal exactly when all bits are.
    lost: clients of workers that were lost -> rounds that had been drawn with them.
    """

    rounds: int = 0
    scores: Mapping[str, Scores] = field(default_factory=dict)
    each: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    reports: dict[str, Report] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    digest: str = ""
    best_round: int | None = None
    lost: dict[str, int] = field(default_factory=dict)


class Runner:
    """Trains, evaluates, saves. An error on any rank ends the run on all, through the launcher or a deadline."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.rank = Rank(setting)
        self.evaluation = Evaluation(self.rank)
        self.result = Result()
        self.work = Work(self.rank)
        self.server_share = ServerShare(self.rank)
        self.weights: dict[str, float] = {}  # of this round
        self.saved = 0  # rounds in the last checkpoint

    def run(self, resume: int | None = None) -> Result:
        """Train from the start, or from the checkpoint after `resume` rounds; all ranks call it alike.

        Raises:
            Interrupted: a signal came; the last complete round is saved.
            FedtorchError: see `errors`.
        """
        rank, config = self.rank, self.setting.config
        self.saved = resume or 0
        self._share_initial_weights()
        if resume is not None:
            restore(rank, resume)
            if rank.has_messages:
                replicas.share_state(rank)
        rank.comm.may_lose()  # until here nothing was computed that a restart would lose
        rank.note_losses()  # in an earlier run of this job
        try:
            self._server_train_if_due()
            self._evaluate_if_due()  # on_start, or one that a signal kept from being finished
            while rank.round < config.rounds and not rank.server.numbers.get("stopped"):
                self._one_round()
            return self._finish()
        except Stopped:
            if rank.round > self.saved:
                save(rank, is_last=True)
                self.saved = rank.round
            raise Interrupted(
                f"stopped by a signal; {rank.round} rounds are saved, the one under way will be repeated"
            ) from None

    def _one_round(self) -> None:
        rank, config = self.rank, self.setting.config
        self.weights = {}
        rank.is_training = True
        reports = self._clients_round() if rank.algorithm.trains_clients else []
        rank.is_training = False
        rank.round += 1
        try:
            self._server_train_if_due()
            self._evaluate_if_due()
        finally:  # before saving: a resume drops the records of rounds that are not in the checkpoint
            self._track_round(reports)
        rank.seconds = {}  # the next round's record shows the checkpoint's seconds
        is_last = rank.round == config.rounds or rank.server.numbers.get("stopped")
        if rank.round % config.checkpoint.every == 0 or is_last:
            if save(rank):
                self.saved = rank.round

    def _clients_round(self) -> list[Report]:
        """The cohort trains and the server takes its step; the reports, complete on the server."""
        rank = self.rank
        rank.broadcast()
        with rank.timed("train"):
            own = self.work.of_this_round()
            rank.arrive("gather")
        with rank.timed("aggregate"):
            reports = rank.together("gather", lambda: rank.comm.gather_reports(own, round=rank.round))
            if rank.comm.is_server and (waited := self.work.waited_for(reports)):
                log.debug("round %d: %s", rank.round + 1, waited)
            decision = rank.together("aggregate", lambda: exchange(rank, reports, self.work.drawn))
            conclude(rank, decision)
            self._step(decision)
            rank.store.commit([report.client for report in decision.accepted])
            rank.updates.clear()
        return as_shown(decision)

    def _server_train_if_due(self) -> None:
        """The server's own training, unless it was done in this round; a signal during it leaves it to be repeated."""
        rank, algorithm = self.rank, self.setting.algorithm
        if type(algorithm).server_train is Algorithm.server_train:
            return
        if rank.server.numbers.get("server_trained", -1) >= rank.round:  # equal on all ranks, see `restore`
            return
        with rank.timed("server_train"):
            if rank.comm.is_server:
                try:
                    self.server_share.train()
                    rank.server.numbers["server_trained"] = rank.round  # at once: a stop may come at the meeting
                except Stopped:
                    pass  # all ranks must come to the same meeting, which then stops them together
            rank.arrive("server_train")
        rank.server.numbers["server_trained"] = rank.round
        rank.is_fresh = False

    def _evaluate_if_due(self) -> None:
        """Judge the present weights if the schedule asks for it and it was not done yet."""
        rank, config = self.rank, self.setting.config
        due = config.eval.on_start
        if rank.round:
            due = bool(config.eval.every) and (rank.round % config.eval.every == 0 or rank.round == config.rounds)
        if due and rank.server.numbers.get("evaluated", -1) < rank.round:
            scores = self.evaluation.during_training()
            rank.server.numbers["evaluated"] = rank.round
            self._track_scores(scores)

    def _share_initial_weights(self) -> None:
        """Every rank starts from the server's model, all of it: rows added to an embedding are drawn at random."""
        rank, engine = self.rank, self.setting.engine
        rank.arrive("init", may_stop=False)
        for part in engine.initial():
            if part.numel():
                rank.comm.broadcast(part.view(-1))
        engine.adopt_initial()
        if rank.algorithm.exchanged:
            rank.shared.copy_(engine.initial_shared)
            rank.is_fresh = True

    def _step(self, decision: Decision) -> None:
        """The server's step along what was combined."""
        rank = self.rank
        if not decision.accepted or not rank.algorithm.exchanged:
            return
        if rank.has_messages:
            decision.weights = replicas.step(rank, decision.accepted, decision.messages)
        elif rank.comm.is_server:
            assert decision.combined is not None
            rank.server.accepted = list(decision.accepted)
            rank.algorithm.server_update(rank.server, decision.combined)
        rank.is_fresh = rank.has_messages  # every rank has taken the step itself
        self.weights = decision.weights
        self.result.weights.update(self.weights)

    def _finish(self) -> Result:
        """Digest of the final state, then the best model on the final split; the server's engine holds that model."""
        rank, result = self.rank, self.result
        result.rounds, result.digest, result.lost = rank.round, digest(rank), rank.lost
        if rank.round > self.saved:
            save(rank)  # once more, if the disk refused: the best weights are about to take the place of the last ones
            self.saved = rank.round  # and must not be saved as these when a signal comes
        result.scores = self.evaluation.at_the_end()
        result.each = self.evaluation.each if rank.comm.is_server else {}
        best_round = rank.server.numbers.get("best_round")
        result.best_round = None if best_round is None else int(best_round)
        self._track_scores(result.scores, final=True)
        if self.setting.tracker is not None and result.each:
            self.setting.tracker.examples(rank.round - 1, self.setting.config.eval.final_split, result.each)
        self.setting.engine.load(rank.shared)
        return result

    def _track_round(self, reports: Sequence[Report]) -> None:
        """Record the round that is over; a client that rested has nothing to show."""
        rank, tracker = self.rank, self.setting.tracker
        if tracker is None:
            return
        shown = [report for report in reports if rank.algorithm.exchanged or report.steps or report.status != "ok"]
        self.result.reports.update({report.client: report for report in shown})
        traffic = Counter(rank.comm.meter.take())
        for report in shown:  # what clients counted beside: keys and values between the two ranks of a worker
            traffic.update({name: int(value) for name, value in report.extra.items() if name.endswith("_bytes")})
        tracker.round(rank.round - 1, shown, self.weights, rank.seconds, traffic)

    def _track_scores(self, scores: Mapping[str, Scores], *, final: bool = False) -> None:
        config = self.setting.config.eval
        if self.setting.tracker is not None and scores:
            split = config.final_split if final else config.split
            label = "final" if final else "training"
            self.setting.tracker.evaluation(self.rank.round - 1, split, scores, label=label)
