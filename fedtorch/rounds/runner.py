"""The round loop. Every rank runs it; it names no algorithm, task or model.

Who trains which client in which round is computed on every rank alike, from the seed, the round, the topology and how
long clients took before; it is never sent, and no result depends on it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtorch.core.errors import BudgetError, FedtorchError, Interrupted
from fedtorch.core.mechanism import RoundFacts
from fedtorch.core.state_keys import EVALUATED, SERVER_TRAINED
from fedtorch.core.update import Report
from fedtorch.rounds import replicas
from fedtorch.rounds.aggregation import Decision, apply_verdict, exchange, gather, steps
from fedtorch.rounds.asynchrony.trainers import trainer_for
from fedtorch.rounds.checkpointing import Saving, digest, restore
from fedtorch.rounds.cohort import release
from fedtorch.rounds.components import RunComponents
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.evaluation import Evaluation
from fedtorch.rounds.export import ModelWriter
from fedtorch.rounds.initial_weights import share_initial
from fedtorch.rounds.membership import Ended, Returned, Stopped
from fedtorch.rounds.opened_leaves import steps_of
from fedtorch.rounds.report_checks import check_complete
from fedtorch.rounds.result import Result
from fedtorch.rounds.scoring import pooled_scores
from fedtorch.rounds.server_training import ServerTraining
from fedtorch.tasks.base import Scores

log = logging.getLogger(__name__)


class Runner:
    """Trains, evaluates, saves. An error on any rank ends the run on all, through the launcher or a deadline."""

    def __init__(self, components: RunComponents) -> None:
        self.components = components
        self.context = RoundContext(components)
        self.evaluation = Evaluation(self.context)
        self.result = Result()
        self.trainer = trainer_for(self.context)
        self.server_training = ServerTraining(self.context)
        self.weights: dict[str, float] = {}
        """of the round's clients in the combination"""
        self.figures: dict[str, float] = {}
        """what the algorithm measured of it"""
        self.arrivals: Sequence[Mapping[str, Any]] = ()
        """who arrived for it, where rounds do not wait for their clients"""
        self.saving = Saving(self.context)
        self.steps = steps_of(self.context)

    def run(self, resume: int | None = None) -> Result:
        """Train from the start, or from the checkpoint after `resume` rounds; all ranks call it alike.

        Raises:
            Interrupted: a signal came; the last complete round is saved.
            Returned: lost ranks are back; the same.
            BudgetError: another round would pass `privacy.max_epsilon`; the same.
            QuorumError, NonFiniteError: updates were too few, or one must not fail; the same. Of weights that are not
                finite nothing is saved.
            FedtorchError: see `errors`.
        """
        context, config = self.context, self.components.config
        self.saving.saved = context.progress.round = resume or 0
        self._enter(resume)
        context.comm.enable_loss_recovery()  # until here nothing was computed that a restart would lose
        context.members.note_losses()  # in an earlier run of this job
        context.members.leave_out(self.components.left_out)
        context.vectors.open_record()
        self.steps.begin(resumed=resume is not None)
        self.trainer.begin()
        try:
            self._server_train_if_due()
            self._evaluate_if_due()  # on_start, or one that a signal kept from being finished
            while context.round < config.rounds and not self.evaluation.best.has_stopped:
                self._one_round()
            return self._finish()
        except (Stopped, Returned, Ended, BudgetError) as cut:
            self.saving.finish()
            if context.round > self.saving.saved:
                self.saving.save(is_last=True)
            if isinstance(cut, Ended):
                raise cut.reason from None
            if not isinstance(cut, Stopped):
                raise
            left = "goes on where it was" if config.checkpoint.saves_steps else "will be repeated"
            raise Interrupted(
                f"stopped by a signal; {context.round} rounds are saved, the one under way {left}"
            ) from None
        finally:
            self.trainer.end()

    def catch_up(self, round: int) -> None:
        """After the run's end, for ranks that missed it: take the last state and the best weights, for `export`.

        All ranks of such a job call it alike. Nothing is trained, recorded or saved.
        """
        self.saving.saved = self.context.progress.round = round
        self._enter(round)
        self.context.members.note_losses()
        self.evaluation.take_best()

    def _enter(self, resume: int | None) -> None:
        self._share_initial_weights()
        if resume is not None:
            restore(self.context, resume)
            if self.context.has_messages:
                replicas.share_state(self.context)

    def export(self, folder: Path) -> None:
        """After `run`: write the models that clients were evaluated with into `folder`; all ranks call it alike.

        That one cannot be written is a warning, and no reason to lose the run's result.

        Raises:
            Interrupted: a signal came; the run, resumed, is evaluated and written again.
        """
        try:
            failed = ModelWriter(self.context, self.evaluation.scorer, folder).write_all()
        except Stopped:
            raise Interrupted(
                f"stopped by a signal; all {self.context.round} rounds are saved, not all models are written"
            ) from None
        if failed:
            (name, error), *more = failed.items()
            what = f"the model of {name}" if name else "the model"
            others = f", nor those of {len(more)} other clients" if more else ""
            log.warning("%s could not be saved in %s: %s: %s%s", what, folder, type(error).__name__, error, others)

    def _one_round(self) -> None:
        context, config = self.context, self.components.config
        self.weights, self.figures, self.arrivals = {}, {}, ()
        context.progress.is_training = True
        context.schedule.begin_round()
        reports = self._clients_round() if context.algorithm.limits.trains_clients else []
        context.progress.is_training = False
        context.progress.round += 1
        try:
            self._server_train_if_due()
            if not context.algorithm.limits.trains_clients:
                self.saving.agree()
            self._evaluate_if_due()
        finally:  # before saving: a resume drops the records of rounds that are not in the checkpoint
            self._track_round(reports)
        context.seconds = {}  # the next round's record shows the checkpoint's seconds
        is_last = context.round == config.rounds or self.evaluation.best.has_stopped
        if is_last or context.schedule.is_due(context.round):
            self.saving.begin(is_last=is_last)
            if is_last or not (config.checkpoint.overlap and context.algorithm.limits.trains_clients):
                self.saving.finish()

    def _clients_round(self) -> Sequence[Report]:
        """The cohort trains and the server takes its step; the reports, complete on the server."""
        context = self.context
        context.broadcast()
        self.saving.write()  # what the clients need is on its way
        while True:
            decision = self._train_and_combine()
            with context.timed("aggregate"):
                try:
                    apply_verdict(context, decision)
                except FedtorchError as error:
                    raise Ended(error) from None
                is_done = self._step(decision)
                self.trainer.learn(decision.accepted)
                self.trainer.settle(decision.accepted if is_done else ())
            if is_done:
                context.vectors.round_done()
                return self._note(decision)

    def _train_and_combine(self) -> Decision:
        """A cohort is drawn and trains, and what it sends is combined."""
        context, members = self.context, self.context.members
        with context.timed("train"):
            own = self.trainer.train_cohort()
            self.trainer.buffer.close()
        self.saving.finish()
        with context.timed("train"), self.trainer.buffer.finished():
            self._finish_evaluation()
            context.comm.pass_updates(context.updates, own, round=context.round)
            reports, decided = gather(context, own, self.trainer.drawn, self.steps.oath())
        with context.timed("aggregate"):
            self.steps.sworn(reports if context.comm.is_server else own, self.trainer.drawn)
            if context.comm.is_server:
                drawn = self.trainer.drawn
                check_complete(reports, drawn, [c.name for c, _ in drawn if context.client_of(c.name) in members.lost])
                if not context.mechanism.hides_clients and (waited := self.trainer.waited_for(reports)):
                    log.debug("round %d: %s", context.round + 1, waited)
            return members.retry_on_loss("aggregate", lambda: exchange(context, reports, self.trainer.drawn, decided))

    def _server_train_if_due(self) -> None:
        """The server's own training, unless it was done in this round; a signal during it leaves it to be repeated."""
        context, algorithm = self.context, self.components.algorithm
        if not algorithm.limits.trains_server:
            return
        if context.server.numbers.get(SERVER_TRAINED, -1) >= context.round:  # equal on all ranks, see `restore`
            return
        with context.timed("server_train"):
            if context.comm.is_server:
                try:
                    self.server_training.train()
                    context.server.numbers[SERVER_TRAINED] = context.round  # at once: a stop may come at the meeting
                except Stopped:
                    pass  # all ranks must come to the same meeting, which then stops them together
            context.members.barrier("server_train")
        context.server.numbers[SERVER_TRAINED] = context.round
        context.vectors.written()

    def _evaluate_if_due(self) -> None:
        """Evaluate the present weights if the schedule asks for it and it was not done yet."""
        context, config = self.context, self.components.config
        due = config.eval.on_start
        if context.round:
            due = bool(config.eval.every) and (context.round % config.eval.every == 0 or context.round == config.rounds)
        if due and context.server.numbers.get(EVALUATED, -1) < context.round:
            self.evaluation.begin()
            if not config.eval.overlap or context.round == config.rounds:
                self._finish_evaluation()

    def _finish_evaluation(self) -> None:
        """Evaluate the weights that the server still has; with `eval.overlap` the next round is trained by now."""
        if self.evaluation.is_under_way:
            scores = self.evaluation.finish()
            self.context.server.numbers[EVALUATED] = self.context.round
            self._track_scores(scores, late=self.context.progress.is_training)

    def _share_initial_weights(self) -> None:
        """Every rank starts from the server's model."""
        context, engine = self.context, self.components.engine
        context.members.barrier("init", may_stop=False)
        share_initial(self.components)
        context.begin_vectors()
        engine.adopt_initial(context.spill)
        is_needed = context.algorithm.limits.reads_initial or self.components.is_engine_shared
        is_needed = is_needed or bool(self.components.task.refers_to) or context.config.has_trainers
        if context.algorithm.travels.vectors and not is_needed:
            engine.forget_initial()

    def _step(self, decision: Decision) -> bool:
        """The server's step along what was combined; False: that must not leave, and the round is to be done again."""
        context = self.context
        if not steps(context, decision):
            return True
        if context.has_messages:
            decision.weights = replicas.step(context, decision.accepted, decision.messages, decision.reduced)
        else:
            is_released, grad = release(context, decision.combined, decision.accepted)
            if not is_released:
                return False
            self.steps.take(decision, grad)
            if context.scale is not None and context.comm.is_server:
                context.scale.learn(decision.accepted)
        return True

    def _note(self, decision: Decision) -> Sequence[Report]:
        """Keep what the records say of the round; the reports of its clients."""
        told = self.trainer.told(decision)
        self.weights, self.figures = dict(told.weights), {**decision.figures, **told.figures}
        self.arrivals = told.arrivals
        self.result.weights.update(self.weights)
        return told.reports

    def _finish(self) -> Result:
        """Digest of the final state, then the best model on the final split; the server's engine holds that model."""
        context, result = self.context, self.result
        self.steps.end()
        result.rounds, result.digest = context.round, digest(context)
        result.lost = {} if context.mechanism.hides_clients else context.members.lost
        if context.round > self.saving.saved:
            # once more, if the disk refused: the best weights are about to take the place of the last ones
            self.saving.save(is_last=True)
        result.scores = self.evaluation.at_the_end()
        result.privacy = context.mechanism.summary(context.server) if context.comm.is_server else {}
        result.trust = self.steps.summary()
        result.each = self.evaluation.each if context.comm.is_server else {}
        result.best_round, result.client_rounds = self.evaluation.best.round, self.evaluation.rounds
        self._track_scores(result.scores, final=True)
        if (tracker := self.components.tracker) is not None:
            if result.each:
                tracker.examples(context.round - 1, self.components.config.eval.final_split, result.each)
            tracker.end(context.round - 1, context.comm.meter.take())
        self.components.engine.load(context.vectors.weights)
        return result

    def _track_round(self, reports: Sequence[Report]) -> None:
        """Record the round that is over; a client that rested has nothing to show."""
        context, tracker = self.context, self.components.tracker
        if tracker is None:
            return
        shown = [
            report for report in reports if context.algorithm.travels.vectors or report.steps or report.status != "ok"
        ]
        traffic = Counter(context.comm.meter.take())
        for report in shown:  # what clients counted beside: keys and values between the two ranks of a worker
            if report.is_ok:
                traffic.update({name: int(value) for name, value in report.extra.items() if name.endswith("_bytes")})
        facts = RoundFacts(shown, self.weights, context.seconds, traffic, self.figures, arrivals=self.arrivals)
        facts = context.mechanism.facts(context.round - 1, facts, context.server)
        self.result.reports.update({report.client: report for report in facts.reports or ()})
        tracker.round(context.round - 1, facts)

    def _track_scores(self, scores: Mapping[str, Scores], *, final: bool = False, late: bool = False) -> None:
        config = self.components.config.eval
        if self.components.tracker is not None and scores:
            split = config.final_split if final else config.split
            label = "final" if final else "training"
            task, round = self.components.task, self.context.round - 1
            pooled, behind = pooled_scores(task, scores, split), {name: task.behind(s) for name, s in scores.items()}
            scored = self.evaluation.best.round if final else None
            own = self.evaluation.rounds if final else {}
            self.components.tracker.evaluation(
                round,
                split,
                scores,
                label=label,
                pooled=pooled,
                late=late,
                weights_of=scored,
                own_rounds=own,
                shared=task.sharing(split),
                behind=behind,
            )
