"""What a worker does in a round: train its own clients of the cohort, one after the other."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from fedtorch.comm.wire import report_problem
from fedtorch.comm.worker import Verdict
from fedtorch.core.client import Client
from fedtorch.core.errors import DataError, FedtorchError, PeerError
from fedtorch.core.sampling import cohort
from fedtorch.core.update import Report
from fedtorch.rounds.context import RoundContext, Stopped
from fedtorch.rounds.evaluation import CACHED_CLIENTS
from fedtorch.rounds.placement import costs
from fedtorch.train.job import ClientJob

log = logging.getLogger(__name__)

OUT_OF_MEMORY = "failed:OutOfMemoryError"


class ClientTrainer:
    """Trains clients on this rank; their updates and new states wait in the rank's buffers for the server's decision.

    drawn: the cohort of the round, each client with how often it was drawn.
    outgoing: the vector that the present client's update is written to; the buffer then keeps it without a copy.
    """

    def __init__(self, context: RoundContext) -> None:
        self.context = context
        self.drawn: list[tuple[Client, int]] = []
        self.outgoing = context.updates.blank()
        self.placed: dict[str, int] = {}  # client of this round -> worker
        self.load = lru_cache(maxsize=CACHED_CLIENTS)(context.components.training.load)

    @property
    def per_round(self) -> int:
        """Clients drawn for a round; with replacement they may be more than there are."""
        config, number = self.context.config.clients, len(self.context.components.clients)
        if config.per_round == "all":
            return number
        return config.per_round if config.sampling == "size_proportional" else min(config.per_round, number)

    def share(self, client: Client) -> Fraction:
        """The client's chance to be drawn for a round."""
        if self.context.config.clients.sampling != "size_proportional":
            return Fraction(self.per_round, len(self.context.components.clients))
        return 1 - (1 - Fraction(client.sizes["train"], self._examples)) ** self.per_round

    @cached_property
    def _examples(self) -> int:
        return sum(client.sizes["train"] for client in self.context.components.clients)

    def train_cohort(self) -> list[Report]:
        """Train this worker's clients of the cohort; each either delivers, or fails and stays as it was."""
        context, components = self.context, self.context.components
        rule = context.config.clients.sampling
        clients: Sequence[Client] = components.clients
        if context.lost:
            clients = [client for client in clients if context.round < context.lost.get(client.name, context.round + 1)]
        per_round = len(clients) if context.config.clients.per_round == "all" else self.per_round
        self.drawn = cohort(clients, per_round, rule, seed=context.config.run.seed, round=context.round)
        expected = costs(context.config, components.training, (client for client, _ in self.drawn))
        placed = self.placed = components.topology.assign(expected, context.homes if context.has_homes else None)
        reports = []
        try:
            for client, draws in self.drawn:
                if context.hosts(placed[client.name]):
                    reports.append(self._train_or_retry(client, draws))
        except Stopped:
            pass  # all ranks must come to the same meeting, which then stops them together
        return reports if context.leads else []

    def waited_for(self, reports: Sequence[Report]) -> str:
        """One line on the worker whose clients took longest in this round; empty with less than two workers."""
        taken: dict[int, float] = {}
        for report in reports:
            worker = self.placed[report.client]
            taken[worker] = taken.get(worker, 0.0) + report.seconds
        if len(taken) < 2:
            return ""
        (longest, slowest), (second, _) = sorted(((s, worker) for worker, s in taken.items()), reverse=True)[:2]
        clients = [report.client for report in reports if self.placed[report.client] == slowest]
        return (
            f"waited longest for worker {slowest} ({', '.join(clients[:5])}): {longest:.1f} s, "
            f"{longest - second:.1f} s longer than for any other"
        )

    def _train_or_retry(self, client: Client, draws: int) -> Report:
        """One client's round; out of memory, once more with every micro-batch in two parts (system.oom_retry)."""
        context = self.context
        report = self._train(client, draws)
        can_retry = context.config.system.oom_retry and context.config.client_for(client.name).batch_size > 1
        if report.status != OUT_OF_MEMORY or not can_retry:  # the same on all ranks of the worker
            return report
        log.warning("client %s ran out of memory and is tried again with half the micro-batch", client.name)
        return self._train(client, draws, parts=2)

    def _train(self, client: Client, draws: int, parts: int = 1) -> Report:
        """One client's round: its report; its update and new state wait for the server's decision.

        All ranks of a worker come to the same verdict; an error on one of them is the others' PeerError, and only where
        all that failed ran out of memory is it that on all of them.
        """
        started = time.monotonic()
        worker, report, failure, of_a_peer = self.context.components.worker, Report(client.name), "", False
        try:
            report = self._train_client(client, parts)
        except Exception as error:  # goes into the report as a name; the text may quote the client's data
            if isinstance(error, Stopped | FedtorchError) and not isinstance(error, DataError):
                raise
            kind = re.sub(r"\W", "_", type(error).__name__, flags=re.ASCII)[:50]  # a status is one short word
            failure, of_a_peer = f"failed:{kind}", isinstance(error, PeerError)
            if is_out_of_memory(error):
                failure = OUT_OF_MEMORY
            log.warning("client %s failed in round %d: %s", client.name, self.context.round + 1, kind)
            log.debug("client %s, round %d", client.name, self.context.round + 1, exc_info=error)
        if worker is not None and not of_a_peer:
            own = Verdict.OUT_OF_MEMORY if failure == OUT_OF_MEMORY else Verdict(bool(failure))
            verdict = worker.agree_on_verdict(own)
            if verdict is Verdict.OUT_OF_MEMORY:
                failure = OUT_OF_MEMORY
            elif verdict is Verdict.FAILED and failure in ("", OUT_OF_MEMORY):
                failure = f"failed:{PeerError.__name__}"
        if failure:
            self.context.components.engine.free()
            return Report(client.name, status=failure, seconds=time.monotonic() - started)
        extra = {**report.extra, "draws": draws} if draws > 1 else report.extra
        return replace(report, extra=extra, seconds=time.monotonic() - started)

    def _train_client(self, client: Client, parts: int) -> Report:
        """Train the client; its update and its new state are in the rank's buffers."""
        context, components = self.context, self.context.components

        def on_step(n: int) -> None:
            context.comm.heartbeat(phase="train", round=context.round, client=client.name, step=n)
            context.working(f"{client.name} step {n}")
            if context.is_stopped():
                raise Stopped

        self.outgoing = context.updates.blank()
        on_step(0)
        state = context.store.get(client.name)
        job = ClientJob(
            client=client,
            round=context.round,
            run_seed=context.config.run.seed,
            received=context.server_vectors(),
            state=state,
            outgoing=context.split_vectors(self.outgoing),
            engine=components.engine,
            task=components.training,
            hp=context.config.client_for(client.name),
            examples=self.load(client.name, "train"),
            on_step=on_step,
            first_private=context.private_of(client.name, state),
            rounds=context.config.rounds,
            share=self.share(client),
            parts=parts,
        )
        version = self._clear_outgoing()
        update = components.algorithm.client_update(job)
        measured = components.training.pop_counters(components.engine.module)
        report = replace(update.report, extra={**update.report.extra, **measured})
        if problem := report_problem(report):
            raise FedtorchError(f"{type(components.algorithm).__name__} made a report that cannot be sent: {problem}")
        received = context.shared  # one that is judged with a model of its own has that in its state already
        is_judged = components.algorithm.eval_weights(received, job.state) is received
        if context.config.eval.point == "trained" and report.steps and is_judged:
            job.state.tensors["trained"] = components.engine.snapshot()
            job.state.numbers["trained/round"] = context.round
        if update.grad is not None:
            self._take_over(update.grad, version)
            context.comm.faults("update", round=context.round, client=client.name, update=self.outgoing)
            if not context.has_messages:
                # a norm is finite only when every element is; as a norm, the largest takes 10 times as long
                norm, (low, high) = torch.linalg.vector_norm(self.outgoing).item(), torch.aminmax(self.outgoing)
                report = replace(report, norm=norm, max_abs=max(high.item(), -low.item()))
            if context.leads:  # the others' are the same
                context.updates.put(client.name, self.outgoing)
        if context.is_stateful:
            if update.grad is not None or report.steps:  # a client that rested is as it was
                context.store.stage(client.name, job.state)
        elif job.state.tensors or job.state.numbers:
            raise FedtorchError(
                f"{type(components.algorithm).__name__} left something in a client's state, but its stateful() says "
                "that clients keep nothing; return True there, so that every client has a home"
            )
        return report

    def _clear_outgoing(self) -> int:
        """Forget the last client's update; returns the version of the emptied vector."""
        if len(self.context.algorithm.exchanged_vectors) > 1:
            self.outgoing.fill_(torch.nan)  # so that a part which an algorithm forgets is refused, not taken over
        return self.outgoing._version

    def _take_over(self, grad: Tensor, version: int) -> None:
        """Make `outgoing` the update that the algorithm returned: it filled `job.outgoing`, or has its own vector."""
        if grad.data_ptr() != self.outgoing.data_ptr():
            if grad.shape != self.outgoing.shape:
                raise ValueError(f"Update.grad has shape {tuple(grad.shape)}, expected {tuple(self.outgoing.shape)}")
            self.outgoing.copy_(grad)
        elif self.outgoing._version == version:
            raise ValueError("Update.grad is job.outgoing, but nothing was written to it; use job.send_difference")


def is_out_of_memory(error: Exception) -> bool:
    """Of the device or of the host, for which torch has no class of its own; on this rank or on one of its worker."""
    if isinstance(error, PeerError):
        return error.out_of_memory
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
