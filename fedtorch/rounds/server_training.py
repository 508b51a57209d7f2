"""The server's own training data: the job with which an algorithm trains on them, on rank 0."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from fedtorch.core.client import Client, ClientState
from fedtorch.rounds.context import Rank, Stopped
from fedtorch.tasks.base import SERVER
from fedtorch.train.job import ClientJob

_PREFIX = f"{SERVER}/"


class ServerShare:
    """Calls `Algorithm.server_train` with the server's share as a job. Only the server may use it.

    What the job keeps (optimiser, place in the data) is in the ServerState under `server/`, so it is in every
    checkpoint; the examples are loaded once. If training is interrupted or fails, the ServerState is as it was.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    def train(self) -> None:
        """The server's training after `rank.round` rounds.

        Raises:
            Stopped: a signal came.
        """
        algorithm, server = self.rank.algorithm, self.rank.server
        job = self._job() if self.rank.setting.training.server_examples() else None
        algorithm.server_train(server, job)
        if job is not None:
            server.tensors |= {_PREFIX + name: tensor for name, tensor in job.state.tensors.items()}
            server.numbers |= {_PREFIX + name: number for name, number in job.state.numbers.items()}

    @cached_property
    def examples(self) -> Sequence[Any]:
        """The server's training examples."""
        return self.rank.setting.training.load(SERVER, "train")

    def _job(self) -> ClientJob:
        rank, setting, server = self.rank, self.rank.setting, self.rank.server

        def on_step(n: int) -> None:
            rank.comm.heartbeat(phase="server_train", round=rank.round, client=SERVER, step=n)
            rank.working(f"{SERVER} step {n}")
            if setting.stop():
                raise Stopped

        on_step(0)
        return ClientJob(
            client=Client(SERVER, -1, {"train": setting.training.server_examples()}),
            round=rank.round,
            run_seed=rank.config.run.seed,
            received=rank.planes(rank.received),
            state=ClientState(
                {n.removeprefix(_PREFIX): t for n, t in server.tensors.items() if n.startswith(_PREFIX)},
                {n.removeprefix(_PREFIX): x for n, x in server.numbers.items() if n.startswith(_PREFIX)},
            ),
            outgoing={},
            engine=setting.engine,
            task=setting.training,
            hp=rank.config.client_for(SERVER),
            examples=self.examples,
            on_step=on_step,
            rounds=rank.config.rounds + 1,
        )
