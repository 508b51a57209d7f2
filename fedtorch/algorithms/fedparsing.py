"""FedParsing: a server with labels, clients without, and a student and a teacher on each client; with its baselines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor, nn

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.kept import Kept
from fedtorch.algorithms.limits import Limits
from fedtorch.algorithms.mean_teacher import Comparable, Consistency, MeanTeacher, Student, Teacher, matching
from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import Share
from fedtorch.core.server import ServerState
from fedtorch.core.update import Report
from fedtorch.core.weights import Layout
from fedtorch.train.engine import Engine, GradientHook
from fedtorch.train.job import ClientJob, Trainable
from fedtorch.train.loop import LossCurve
from fedtorch.train.settings import ClientConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MaskedWords:
    """`algorithm.masked_words`: what the group hydranet_mlm does to the clients' questions."""

    share: Share = 0.15
    """of the question's tokens that are chosen"""
    masked: Share = 0.8
    """of the chosen ones that are replaced by the mask"""
    random: Share = 0.1
    """of the chosen ones that are replaced by any token; the rest stay as they are"""

    def __post_init__(self) -> None:
        if self.masked + self.random > 1:
            raise ConfigError(f"masked is {self.masked} and random {self.random}; together they may be at most 1")


@runtime_checkable
class MaskingTask(Protocol):
    """A task whose model also predicts masked words, as the group hydranet_mlm asks for."""

    @property
    def masked_words(self) -> bool:
        """Has the model a head that predicts masked words?"""
        ...

    def collate(self, examples: Sequence[Any], train: bool) -> Any: ...
    def masked_word_loss(
        self, model: nn.Module, batch: Any, *, share: float, masked: float, random: float
    ) -> tuple[Tensor, int]: ...


@runtime_checkable
class ColumnTask(Protocol):
    """A task whose examples are pairs of a question and a column, so that a question can be cut into several."""

    @property
    def batch_unit(self) -> str:
        """`question`: all columns of a question are in one batch."""
        ...

    @property
    def client_input(self) -> str:
        """`pair`: a client's model reads question and column."""
        ...


@dataclass(frozen=True)
class FedParsing(Algorithm):
    """The server trains on its labels, sends w_s^t; K clients move a student towards its teacher's answers; then eq. 4.

    w_avg = (w_s^t + Σ_k w_k) / (K + 1): the server counts as one more client, whatever the sizes. It trains on from
    w_avg, and that is what is evaluated and sent next. What a client does not train comes back as it was.
    """

    group: Literal["hydranet", "hydranet_mlm", "fedparsing", "fedparsing_ema"] = "fedparsing_ema"
    """clients: none; masked words; a teacher that is frozen; a teacher that is a moving average of the student"""
    student: Student = field(default_factory=Student)
    """where a client's student starts"""
    teacher: Teacher = field(default_factory=Teacher)
    """what the teacher is and how it moves"""
    consistency: Consistency = field(default_factory=Consistency)
    """what student and teacher are compared on"""
    masked_words: MaskedWords = field(default_factory=MaskedWords)
    """of the group hydranet_mlm"""
    train_encoder: bool = True
    """do clients train the encoder; false: the decoder only"""
    decoder: tuple[str, ...] = ("decoder.*", "masked_words.*")
    """which parameters are the decoder, by shell patterns over their names; the others are the encoder"""

    def __post_init__(self) -> None:
        has_student = self.group in ("fedparsing", "fedparsing_ema")
        unused: dict[str, Any] = {} if self.group == "hydranet_mlm" else {"masked_words": MaskedWords()}
        unused |= {} if has_student else {"student": Student(), "teacher": Teacher(), "consistency": Consistency()}
        for name, default in unused.items():
            if getattr(self, name) != default:
                raise ConfigError(f"{name} is set but group is {self.group}, which does not use it; remove it")

    def check(self, hp: ClientConfig, task: Any) -> None:
        """Epochs are what the teacher and the paper count in. Warns of a teacher that cannot move before the end."""
        if hp.steps is not None:
            raise ConfigError(f"client.steps is {hp.steps} but fedparsing counts in epochs; set client.epochs instead")
        moves = self.group in ("fedparsing", "fedparsing_ema") and self._teacher.update != "frozen"
        if moves and self.teacher.every == "epoch" and hp.epochs == 1:
            log.warning(
                "client.epochs is 1 and the teacher is updated after each epoch, when the client has ended: the result "
                "is that of algorithm.teacher.update frozen; set client.epochs to 2 or more, or "
                "algorithm.teacher.every to step"
            )
        self._check_task(task)

    def _check_task(self, task: Any) -> None:
        """The server must have labels, and the task must offer what the group's clients need."""
        if not task.server_examples() or not isinstance(task, Comparable):
            raise ConfigError(
                f"algorithm.name is fedparsing but the task {type(task).__name__} has no labelled data for the server "
                "or cannot compare a student with a teacher; set task.name to wikisql, or paradigm to federated"
            )
        has_head = isinstance(task, MaskingTask) and task.masked_words
        if self.group == "hydranet_mlm" and not has_head:
            raise ConfigError("algorithm.group is hydranet_mlm, which needs a head; set task.masked_words to true")
        is_cut = isinstance(task, ColumnTask) and (task.batch_unit, task.client_input) != ("question", "pair")
        if self.consistency.type == "hard" and is_cut:
            raise ConfigError(
                "algorithm.consistency.type is hard, which needs all columns of a question together; set "
                "task.batch_unit to question and task.client_input to pair"
            )

    @property
    def limits(self) -> Limits:
        """Clients have no labels; in the supervised group they take no part. A student may begin with w^0."""
        has_clients = self.group != "hydranet"
        return replace(super().limits, needs_labels=False, trains_clients=has_clients, reads_initial=True)

    def kept(self, layout: Layout, private: Layout) -> Kept:
        """The student's decoder, where it goes on from round to round."""
        kept = super().kept(layout, private)
        shapes = {f"student/{name}": shape for name, shape in zip(layout.names, layout.shapes, strict=True)}
        if self.student.init != "persistent":
            return replace(kept, shapes=shapes)
        decoder = () if self.group == "hydranet_mlm" else matching(layout.names, self.decoder)
        return Kept(shapes, client=tuple(f"student/{name}" for name in decoder), by_clients=True)

    def server_train(self, server: ServerState, job: ClientJob | None) -> None:
        """E epochs on the labelled data, from w_avg (eq. 3), in round 0 from the start."""
        assert job is not None  # check_task
        curve = job.train(server.weights)
        job.engine.snapshot(server.weights)
        if len(curve):
            log.info("server: loss %.4f -> %.4f in %d steps", curve.losses[0], curve.losses[-1], len(curve))

    def client_update(self, job: ClientJob) -> Report:
        """Train on unlabelled rows and send the student."""
        received = job.received["weights"]
        decoder = matching(job.engine.shared.names, self.decoder)
        if self.group == "hydranet_mlm":
            assert isinstance(job.task, MaskingTask)  # check_task
            objective = MaskedWordTask(job.task, self.masked_words)
            curve = job_with(job, objective).train(received, before_step=self._hook(decoder))
        else:
            curve = self._follow_teacher(job, received, decoder)
        job.send_difference(received)
        return self._report(job, curve)

    def weigh(self, reports: Sequence[Report]) -> list[float]:
        """1 / (K + 1) each: the pseudo-gradients' sum with these weights leaves 1 / (K + 1) of w_s^t (eq. 4).

        Under size-proportional sampling a client counts once per draw, and K is the number of draws.

        Logs a warning if no student ever differed from its teacher: without dropout both are the same function, the
        gradient is exactly zero, and the clients do nothing.
        """
        losses = [value for report in reports for value in (report.loss_max, report.loss_min)]
        if self.group != "hydranet_mlm" and not any(losses):
            log.warning(
                "the consistency loss of all %d clients is exactly 0, so they send back what they received: student "
                "and teacher agree because nothing disturbs the student; set task.head_dropout or "
                "task.encoder.dropout above 0, or algorithm.student.init to another value than global",
                len(reports),
            )
        draws = sum(report.draws for report in reports)
        return [report.draws / (draws + 1) for report in reports]

    @property
    def _teacher(self) -> Teacher:
        """With the group's own rule where none is set."""
        update: Literal["ema", "frozen"] = "ema" if self.group == "fedparsing_ema" else "frozen"
        return self.teacher if self.teacher.update is not None else replace(self.teacher, update=update)

    def _follow_teacher(self, job: ClientJob, received: Tensor, decoder: Sequence[str]) -> LossCurve:
        settings = self._teacher
        own = decoder if settings.scope == "decoder" else job.engine.shared.names
        assert isinstance(job.task, Comparable)  # check_task
        teacher = MeanTeacher(job.task, job.engine, received, settings, self.consistency, own)
        epochs = [plan.epoch for plan in job.plans(len(job.examples), purpose="train")]
        ends = {n for n, epoch in enumerate(epochs, start=1) if n == len(epochs) or epochs[n] != epoch}

        def on_step(n: int) -> None:
            if settings.every == "step" or n in ends:
                teacher.update()
            job.on_step(n)

        start = self._student(job, received, decoder)
        follower = job_with(job, teacher, on_step)
        curve = follower.train(start, before_step=self._hook(decoder), held=teacher.held)
        if self.student.init == "persistent":
            kept = job.engine.shared.view(job.engine.flat.detach())
            job.state.tensors |= {f"student/{name}": kept[name].cpu().clone() for name in decoder}
        return curve

    def _student(self, job: ClientJob, received: Tensor, decoder: Sequence[str]) -> Tensor:
        """The flat weights that the student starts from."""
        if self.student.init == "global":
            return received
        start, layout = received.clone(), job.engine.shared
        found = layout.view(job.initial)
        if self.student.init == "persistent":
            found = {
                name: job.state.tensors.get(f"student/{name}", place) for name, place in layout.view(received).items()
            }
        for name, place in layout.view(start).items():
            if name in decoder:
                place.copy_(found[name])
        return start

    def _hook(self, decoder: Sequence[str]) -> GradientHook | None:
        """Takes the encoder's gradients away where it is not to be trained."""
        if self.train_encoder:
            return None
        kept = set(decoder)

        def forget_encoder(engine: Engine) -> None:
            engine.forget_gradients([name for name in engine.trained_names if name not in kept])

        return forget_encoder

    def _report(self, job: ClientJob, curve: LossCurve) -> Report:
        losses = curve.losses or (0.0,)
        return Report(
            client=job.client.name,
            examples=job.client.sizes["train"],
            steps=len(curve),
            loss_first=losses[0],
            loss_last=losses[-1],
            loss_max=max(losses),
            loss_min=min(losses),
            loss_mean=sum(losses) / len(losses),
            curve=tuple(curve.losses),
            extra=curve.numbers(),
        )


@dataclass(frozen=True)
class MaskedWordTask:
    """A task whose loss is that of masked words."""

    task: MaskingTask
    """whose collation and `masked_word_loss` are used"""
    settings: MaskedWords
    """which share of the tokens is masked, and how"""

    def collate(self, examples: Sequence[Any], train: bool) -> Any:
        """As the task does."""
        return self.task.collate(examples, train)

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        """(sum, number of chosen tokens)."""
        settings = self.settings
        return self.task.masked_word_loss(
            model, batch, share=settings.share, masked=settings.masked, random=settings.random
        )


def job_with(job: ClientJob, task: Trainable, on_step: Callable[[int], None] | None = None) -> ClientJob:
    """Copy a job, its state included, with another objective."""
    return replace(job, task=task, on_step=on_step or job.on_step)
