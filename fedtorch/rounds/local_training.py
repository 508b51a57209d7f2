"""Work of a worker in a round: train its own clients of the cohort, one after the other."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, cached_property, lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from fedtorch.comm.wire import report_problem
from fedtorch.comm.worker import Verdict
from fedtorch.core import devices
from fedtorch.core.client import Client, ClientState
from fedtorch.core.errors import DataError, FedtorchError, PeerError, UpdateError
from fedtorch.core.norms import norm_and_max
from fedtorch.core.own_frames import own_place
from fedtorch.core.sampling import draws_of
from fedtorch.core.state_keys import TRAINED, TRAINED_ROUND
from fedtorch.core.update import RESTS, Report
from fedtorch.rounds.aggregation import Decision, reports_for_log
from fedtorch.rounds.buffer import Buffer, Late
from fedtorch.rounds.client_scores import CACHED_CLIENTS
from fedtorch.rounds.cohort import draw
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.membership import Stopped
from fedtorch.rounds.pace import Pace, longest_of
from fedtorch.rounds.placement import costs
from fedtorch.rounds.private_weights import private_weights
from fedtorch.rounds.references import References
from fedtorch.rounds.report_checks import check_places
from fedtorch.rounds.under_way import UnderWay, added
from fedtorch.train.attacks.attackers import Attackers
from fedtorch.train.job import ClientJob
from fedtorch.train.outgoing import MESSAGE, Outgoing
from fedtorch.train.settings import ClientConfig
from fedtorch.trainers.named import trainer_of

log = logging.getLogger(__name__)

OUT_OF_MEMORY = "failed:OutOfMemoryError"


@dataclass(frozen=True)
class Told:
    """Facts for the records of a round's clients, on the server."""

    reports: Sequence[Report]
    """of the clients, by their own names; one that was refused is not ok"""
    weights: Mapping[str, float]
    """client -> its weight in the combination"""
    figures: Mapping[str, float] = field(default_factory=dict)
    """further numbers of the round"""
    arrivals: Sequence[Mapping[str, Any]] = ()
    """of asynchronous rounds: one record for each client that arrived"""


class ClientTrainer:
    """Trains clients on this rank; their updates and new states wait in the rank's buffers for the server's decision.

    A client that fails, or whose algorithm did not send what it has to, leaves nothing behind but its report.
    """

    def __init__(self, context: RoundContext) -> None:
        self.context = context
        self.drawn: list[tuple[Client, int]] = []
        """the cohort of the round, each client with how often it was drawn"""
        self.placed: dict[str, int] = {}
        """client of this round -> worker"""
        self.costs: dict[str, float] = {}
        """client of this round -> relative cost, before anything was measured"""
        self.pace = Pace()
        self.buffer = Buffer(context)
        self.attackers = Attackers(context.config.attack, context.components.training, context.config.run.seed)
        self._steps = 0  # of the client that is trained
        self._delivered: Report | None = None  # of the client that is trained, once its update is in the buffer
        self.trainer_of = cache(trainer_of)
        self.load = lru_cache(maxsize=CACHED_CLIENTS)(self.attackers.load)
        self._references = References(context.components.engine)
        self._under_way = UnderWay(context)

    @property
    def per_round(self) -> int:
        """Clients drawn for a round; with replacement they may be more than there are."""
        components = self.context.components
        return draws_of(components.config.clients.drawn, components.sampler, len(components.clients))

    def chance(self, client: Client) -> Fraction:
        """That the client is drawn for a round."""
        components = self.context.components
        return components.sampler.chance(
            client, self.per_round, num_clients=len(components.clients), num_examples=self._examples
        )

    @cached_property
    def _examples(self) -> int:
        return int(self.context.components.clients.train_sizes.sum())

    def train_cohort(self) -> list[Report]:
        """Train this worker's clients of the cohort; each either delivers, or fails and stays as it was."""
        context, components = self.context, self.context.components
        self.drawn = draw(context)
        self.costs = costs(context.config, components.training, (client for client, _ in self.drawn))
        if context.has_homes:
            self.placed = components.topology.assign(self.costs, components.placement.homes)
        else:
            self.placed = self.pace.assign(components.topology, self.costs)
        reports = []
        self.buffer.begin(self.drawn, self.placed)
        try:
            for client, draws in self.drawn:
                if context.role.hosts(self.placed[client.name]):
                    reports.append(self._train_or_retry(client))
                    self.buffer.put(reports[-1], draws)
        except Stopped:
            pass  # all ranks must come to the same meeting, which then stops them together
        return reports if context.role.leads else []

    def begin(self) -> None:
        """Begin with the first round that is done now; called by all ranks alike, after a restore too."""

    def end(self) -> None:
        """The run is over, or was cut: nothing is under way any more."""

    def settle(self, accepted: Sequence[Report]) -> None:
        """A round's exchange is over: the states of the accepted clients count, the others' go, as do all updates."""
        self.context.store.commit([report.client for report in accepted])
        self.context.updates.clear()

    def told(self, decision: Decision) -> Told:
        """Tell what the records say of the round's clients."""
        return Told(reports_for_log(decision), decision.weights)

    def learn(self, accepted: Sequence[Report]) -> None:
        """How long these clients took, where that may change who trains them; the same on all ranks."""
        if self.context.places_anew:
            self.pace.see(accepted, self.costs)

    def waited_for(self, reports: Sequence[Report]) -> str:
        """One line on the worker whose clients took longest in this round; empty with less than two workers."""
        return longest_of(reports, self.placed)

    def _train_or_retry(self, client: Client) -> Report:
        """One client's round; out of memory, once more with every micro-batch in two parts (system.oom_retry)."""
        context = self.context
        report = self._train(client)
        hp = context.config.client_for(client.name)
        can_retry = context.config.system.oom_retry and hp.can_halve_batches
        if report.status != OUT_OF_MEMORY or not can_retry:  # the same on all ranks of the worker
            return report
        shown = context.mechanism.shown(client.name)
        log.warning("client %s ran out of memory and is tried again with half the micro-batch", shown)
        return self._train(client, parts=2)

    def _train(self, client: Client, parts: int = 1) -> Report:
        """One client's round: its report; its update and new state wait for the server's decision.

        All ranks of a worker come to the same verdict; an error on one of them is the others' PeerError, and only where
        all that failed ran out of memory is it that on all of them.
        """
        started, device = time.monotonic(), self.context.components.engine.device
        devices.begin_count(device)
        report, failure, of_a_peer = Report(client.name), "", False
        self._steps, self._delivered = 0, None
        try:
            if why := self.context.mechanism.rests(client.name, self.context.round):
                log.warning("round %d: client %s: %s", self.context.round + 1, client.name, why)
                return self.context.mechanism.reported(Report(client.name, status=RESTS))
            report = self._train_client(client, parts)
        except Exception as error:  # goes into the report as a name; the text may quote the client's data
            if isinstance(error, Stopped | FedtorchError) and not isinstance(error, DataError):
                raise
            if devices.is_fault(error):
                name, round = self.context.mechanism.shown(client.name), self.context.round + 1
                raise devices.fault(error, f"in round {round}, in step {self._steps + 1} of client {name}") from error
            failure, of_a_peer = self._failure(client, error), isinstance(error, PeerError)
        if not of_a_peer:
            failure = self._settled(failure)
        if failure:
            self.context.components.engine.free()
            if self._delivered is not None:
                self.buffer.take_back(self._key(client.name))
            report = Report(client.name, status=failure)
        if self.context.config.track.device_usage:
            report = replace(report, extra={**report.extra, **devices.usage(device)})
        return self.context.mechanism.reported(replace(report, seconds=time.monotonic() - started))

    def _failure(self, client: Client, error: Exception) -> str:
        """The status of a client whose training raised `error`, which is logged."""
        kind = re.sub(r"\W", "_", type(error).__name__, flags=re.ASCII)[:50]  # a status is one short word
        shown = f"{kind}: {error}" if isinstance(error, UpdateError) else kind
        shown += "" if self.context.mechanism.hides_clients else own_place(error)
        name, round = self.context.mechanism.shown(client.name), self.context.round + 1
        level = logging.INFO if isinstance(error, Late) else logging.WARNING
        log.log(level, "client %s failed in round %d: %s", name, round, shown)
        if not self.context.mechanism.hides_clients:
            log.debug("client %s, round %d", name, round, exc_info=error)
        return OUT_OF_MEMORY if is_out_of_memory(error) else f"failed:{kind}"

    def _settled(self, failure: str) -> str:
        """The status that all ranks of the worker agree on, this one's being `failure` (empty: none)."""
        worker = self.context.components.worker
        if worker is None:
            return failure
        verdict = worker.agree_on_verdict(Verdict.OUT_OF_MEMORY if failure == OUT_OF_MEMORY else Verdict(bool(failure)))
        if verdict is Verdict.OUT_OF_MEMORY:
            return OUT_OF_MEMORY
        if verdict is Verdict.FAILED and failure in ("", OUT_OF_MEMORY):
            return f"failed:{PeerError.__name__}"
        return failure

    def _train_client(self, client: Client, parts: int) -> Report:
        """Train the client; its update and its new state are in the rank's buffers."""
        on_step = partial(self._on_step, client.name)
        on_step(0)
        # the buffer's next vector, which then keeps the update as it is
        job = self._make_job(client, parts, outgoing=self.context.blank(), on_step=on_step)
        job.saves = self._under_way.of(client.name, counts=job.silo is None)
        job.hand_over = partial(self._hand_over, job)
        report = self._run(job)
        self._keep_trained(job, report)
        if job.outgoing.is_sent:
            report = self._deliver(job, report)
        self._stage(job, report)
        self.buffer.closing.arrive(client.name)
        return report

    @property
    def _visit(self) -> int:
        """Number of the training, from 0, by which its client's draws and place in the data go."""
        return self.context.round

    def _key(self, client: str) -> str:
        """Name under which the client's update and new state wait."""
        return client

    def _state(self, client: str) -> ClientState:
        """State with which the client begins."""
        return self.context.store.get(client)

    def _settings(self, client: str) -> ClientConfig:
        """Its local training, with the learning rate of the version from which it starts."""
        return self.context.settings_of(client)

    def _hand_over(self, job: ClientJob, report: Report) -> None:
        """Let the update travel while its client trains on, if it may; else it is kept when the client is done.

        It may not where something else comes to it: an attacker's or a mechanism's changes.
        """
        is_own = job.client.name in self.attackers or self.context.mechanism.changes_updates
        if self.buffer.is_under_way and not is_own:
            report = replace(report, extra={**report.extra, **self._counts(job)})
            draws = next(draws for client, draws in self.drawn if client.name == job.client.name)
            self.buffer.put(self._deliver(job, report), draws)

    def _deliver(self, job: ClientJob, report: Report) -> Report:
        """Measure the update and keep it for the exchange, unless that is done; the report with what was measured."""
        if (delivered := self._delivered) is not None:
            return replace(report, norm=delivered.norm, max_abs=delivered.max_abs)
        report = self._measured(job, report)
        if not self.context.has_messages:
            check_places(job.outgoing, self.context.sent_places(job.client.name))
        self._delivered = report = self._put(job, report)
        return report

    def _put(self, job: ClientJob, report: Report) -> Report:
        """Keep what is sent for the client; the report of it."""
        sent, packing = job.outgoing.flat, self.context.packing
        if packing is not None:
            sent, report = packing.pack(job, report)
        if self.context.role.leads:  # the others' are the same
            self.context.updates.put(self._key(job.client.name), sent)
        return report

    def _make_job(self, client: Client, parts: int, *, outgoing: Tensor, on_step: Callable[[int], None]) -> ClientJob:
        """Make the job of an algorithm, which writes the update to `outgoing`."""
        context, components = self.context, self.context.components
        state, hp = self._state(client.name), self._settings(client.name)
        names, received = context.algorithm.travels.vectors, context.vectors.for_clients()
        if context.has_messages:
            names, received = (MESSAGE,), {**context.server.tensors, **received}
        private = private_weights(components, client.name, state)
        trainer = None if hp.trainer is None else self.trainer_of(hp.trainer)
        if trainer is not None and trainer.wants_raw:  # which compares with whatever it likes
            examples = self.load(client.name, "train")
        else:
            examples = self._referred(client.name, private, on_step)
        silo = context.mechanism.work(client.name, context.round, examples, [drawn.name for drawn, _ in self.drawn])
        return ClientJob(
            client=client,
            round=self._visit,
            run_seed=context.config.run.seed,
            received=received,
            state=state,
            outgoing=Outgoing(outgoing, names, type(context.algorithm).__name__),
            engine=components.engine,
            task=components.training,
            hp=hp,
            examples=examples if silo is None else silo.hidden,
            on_step=on_step,
            first_private=private,
            rounds=context.config.rounds,
            chance=self.chance(client),
            parts=parts,
            silo=silo,
            trainer=trainer,
        )

    def _referred(self, client: str, private: Tensor | None, on_step: Callable[[int], None]) -> Sequence[Any]:
        """Load a client's training examples, with their reference where the task compares with one."""
        context, task = self.context, self.context.components.training
        examples, beat = self.load(client, "train"), partial(on_step, 0)
        size = context.config.client_for(client).batch_size
        if task.refers_to == "round":
            return self._references.by_round(task, examples, size, beat, (context.vectors.weights, private))
        return self._references.by_start(task, client, "train", examples, size, beat)

    def _check_in_time(self, client: str) -> None:
        """Before each step. Raises Late: what comes of it would not count."""
        self.buffer.closing.check(client)

    def _on_step(self, client: str, n: int) -> None:
        self._check_in_time(client)
        self._steps = n
        context, client = self.context, self.context.mechanism.shown(client)
        context.comm.heartbeat(phase="train", round=context.round, client=client, step=n)
        context.working(f"{client} step {n}")
        if context.role.is_stopped():
            raise Stopped

    def _run(self, job: ClientJob) -> Report:
        """The algorithm's work; the report with what the task counted meanwhile."""
        algorithm, task = self.context.algorithm, self.context.components.training
        returned = algorithm.client_update(job)
        counted = added({} if job.saves is None else job.saves.counted, task.pop_counters(job.engine.module))
        counted = dict(zip(counted, job.engine.summed([*counted.values()]), strict=True))
        counted |= self._counts(job)
        report = job.outgoing.close(returned)
        report = replace(report, extra={**report.extra, **counted})
        if problem := report_problem(report):
            raise FedtorchError(f"{type(algorithm).__name__} made a report that cannot be sent: {problem}")
        return report

    def _counts(self, job: ClientJob) -> Mapping[str, float]:
        """Count by the task's rules what the client has, where that may be known."""
        return {} if job.silo is not None else self.context.components.training.counts(job.examples)

    def _keep_trained(self, job: ClientJob, report: Report) -> None:
        """Keep the trained weights where clients are evaluated with them (eval.point)."""
        context, received = self.context, self.context.vectors.weights
        # one that is evaluated with a model of its own has that in its state already
        is_evaluated = context.algorithm.eval_weights(received, job.state) is received
        if context.config.eval.point == "trained" and report.steps and is_evaluated:
            job.state.tensors[TRAINED] = context.components.engine.snapshot()
            job.state.numbers[TRAINED_ROUND] = context.round

    def _measured(self, job: ClientJob, report: Report) -> Report:
        """The report with the update's norm; that of a message is known to the algorithm only."""
        update, name, round = job.outgoing.flat, job.client.name, self.context.round
        if name in self.attackers:
            drawn = [client for client, _ in self.drawn]
            self.attackers.spoil(update, name, round=round, drawn=drawn, learn=partial(self._learned, job))
        self.context.comm.faults("update", round=round, client=name, update=update)
        if self.context.has_messages:
            return report
        is_changed = name in self.attackers or self.context.mechanism.changes_updates
        report = self.context.mechanism.outgoing(update, report)
        norm, max_abs = (None if is_changed else job.outgoing.measured) or norm_and_max(update)
        return replace(report, norm=norm, max_abs=max_abs)

    def _learned(self, attacker: ClientJob, client: Client) -> Tensor:
        """Return what `client` learns in this round, for an attacker whose own training is over; nothing else stays."""
        outgoing = torch.zeros_like(attacker.outgoing.flat)
        self._run(self._make_job(client, attacker.parts, outgoing=outgoing, on_step=attacker.on_step))
        return outgoing

    def _stage(self, job: ClientJob, report: Report) -> None:
        """Hold the new state back until the server has decided."""
        if self.context.is_stateful:
            job.check_state()
            if job.outgoing.is_sent or report.steps:  # a client that rested is as it was
                self.context.store.stage(self._key(job.client.name), job.state)
        elif job.state.tensors or job.state.numbers:
            raise FedtorchError(
                f"{type(self.context.algorithm).__name__} left something in a client's state, but its `kept` says "
                "that clients keep nothing; say `by_clients=True` there, so that every client has a home"
            )


def is_out_of_memory(error: Exception) -> bool:
    """Was the memory of the device or of the host at its end, on this rank or on one of its worker?"""
    if isinstance(error, PeerError):
        return error.out_of_memory
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
