"""What a worker does in a round: train its own clients of the cohort, one after the other."""

from __future__ import annotations

import logging
import re
import time
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from fedtorch.client import Client
from fedtorch.errors import DataError, FedtorchError
from fedtorch.evaluate import CACHED_CLIENTS
from fedtorch.job import ClientJob
from fedtorch.rank import Rank, Stopped
from fedtorch.sampling import cohort
from fedtorch.update import Report

log = logging.getLogger(__name__)


class Work:
    """Trains clients on this rank; their updates and new states wait in the rank's buffers for the server's decision.

    outgoing: the one vector that every client's update is written to before it is put away.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.outgoing = torch.zeros_like(rank.received)
        self.load = lru_cache(maxsize=CACHED_CLIENTS)(rank.setting.training.load)

    def of_this_round(self) -> list[Report]:
        """Train this worker's clients of the cohort; each either delivers, or fails and stays as it was."""
        rank, setting = self.rank, self.rank.setting
        clients = rank.config.clients
        per_round = len(setting.clients) if clients.per_round == "all" else clients.per_round
        drawn = cohort(setting.clients, per_round, clients.sampling, seed=rank.config.run.seed, round=rank.round)
        costs = {client.name: rank.cost(client) for client, _ in drawn}
        placed = setting.topology.assign(costs, rank.homes if rank.is_stateful else None)
        reports = []
        try:
            for client, draws in drawn:
                if rank.hosts(placed[client.name]):
                    reports.append(self._train(client, draws))
        except Stopped:
            pass  # all ranks must come to the same meeting, which then stops them together
        return reports

    def _train(self, client: Client, draws: int) -> Report:
        """One client's round: its report; its update and new state wait for the server's decision."""
        rank, setting = self.rank, self.rank.setting
        started = time.monotonic()

        def on_step(n: int) -> None:
            rank.comm.heartbeat(phase="train", round=rank.round, client=client.name, step=n)
            rank.working(f"{client.name} step {n}")
            if setting.stop():
                raise Stopped

        try:
            on_step(0)
            job = ClientJob(
                client=client,
                round=rank.round,
                run_seed=rank.config.run.seed,
                received=rank.planes(rank.received),
                state=rank.store.get(client.name),
                outgoing=rank.planes(self.outgoing),
                engine=setting.engine,
                task=setting.training,
                hp=rank.config.client_for(client.name),
                examples=self.load(client.name, "train"),
                on_step=on_step,
            )
            version = self._clear_outgoing()
            update = setting.algorithm.client_update(job)
            report = update.report
            if update.grad is not None:
                self._take_over(update.grad, version)
                # a norm is finite exactly when every element is; as a norm, the largest takes 10 times as long
                norm, (low, high) = torch.linalg.vector_norm(self.outgoing).item(), torch.aminmax(self.outgoing)
                report = replace(report, norm=norm, max_abs=max(high.item(), -low.item()))
                rank.updates.put(client.name, self.outgoing)
            if rank.is_stateful:
                if update.grad is not None or report.steps:  # a client that rested is as it was
                    rank.store.stage(client.name, job.state)
            elif job.state.tensors or job.state.numbers:
                raise FedtorchError(
                    f"{type(setting.algorithm).__name__} left something in a client's state, but its stateful() says "
                    "that clients keep nothing; return True there, so that every client has a home"
                )
        except Exception as error:  # goes into the report as a name; the text may quote the client's data
            if isinstance(error, Stopped | FedtorchError) and not isinstance(error, DataError):
                raise
            kind = re.sub(r"\W", "_", type(error).__name__, flags=re.ASCII)[:50]  # a status is one short word
            log.warning("client %s failed in round %d: %s", client.name, rank.round + 1, kind)
            log.debug("client %s, round %d", client.name, rank.round + 1, exc_info=error)
            return Report(client.name, status=f"failed:{kind}", seconds=time.monotonic() - started)
        extra = {**report.extra, "draws": draws} if draws > 1 else report.extra
        return replace(report, extra=extra, seconds=time.monotonic() - started)

    def _clear_outgoing(self) -> int:
        """Forget the last client's update; returns the version of the emptied vector."""
        if len(self.rank.algorithm.exchanged) > 1:
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
