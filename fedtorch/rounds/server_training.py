"""The server's own training data: the job with which an algorithm trains on them, on rank 0."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from fedtorch.core.client import Client, ClientState
from fedtorch.core.state_keys import SERVER_JOB, part_of
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.membership import Stopped
from fedtorch.tasks.base import SERVER
from fedtorch.train.job import ClientJob
from fedtorch.train.outgoing import Outgoing


class ServerTraining:
    """Calls `Algorithm.server_train` with the server's own data as a job. Only the server may use it.

    What the job keeps (optimiser, place in the data) is in the ServerState under `server/`, so it is in every
    checkpoint; the examples are loaded once. If training is interrupted or fails, the ServerState is as it was.
    """

    def __init__(self, context: RoundContext) -> None:
        self.context = context

    def train(self) -> None:
        """The server's training after `context.round` rounds.

        Raises:
            Stopped: a signal came.
        """
        algorithm, server = self.context.algorithm, self.context.server
        job = self._job() if self.context.components.training.server_examples() else None
        algorithm.server_train(server, job)
        if job is not None:
            server.tensors |= {SERVER_JOB + name: tensor for name, tensor in job.state.tensors.items()}
            server.numbers |= {SERVER_JOB + name: number for name, number in job.state.numbers.items()}

    @cached_property
    def examples(self) -> Sequence[Any]:
        """The server's training examples."""
        return self.context.components.training.load(SERVER, "train")

    def _job(self) -> ClientJob:
        context, components, server = self.context, self.context.components, self.context.server

        def on_step(n: int) -> None:
            context.comm.heartbeat(phase="server_train", round=context.round, client=SERVER, step=n)
            context.working(f"{SERVER} step {n}")
            if components.stop():
                raise Stopped

        on_step(0)
        return ClientJob(
            client=Client(SERVER, -1, {"train": components.training.server_examples()}),
            round=context.round,
            run_seed=context.config.run.seed,
            received=context.vectors.by_name(),
            state=ClientState(
                part_of(server.tensors, SERVER_JOB),
                part_of(server.numbers, SERVER_JOB),
            ),
            outgoing=Outgoing(torch.zeros(0), (), type(context.algorithm).__name__),
            engine=components.engine,
            task=components.training,
            hp=context.settings_of(SERVER),
            examples=self.examples,
            on_step=on_step,
            rounds=context.config.rounds + 1,
        )
