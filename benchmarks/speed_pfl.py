"""The plan through pfl-research: `torchrun --nproc_per_node=2 speed_pfl.py PLAN FINAL` in an environment that has pfl.

All of it is pfl's own: simulation, local training, algorithm, reduction; users are spread over its processes by their
steps, as its documentation advises for unequal users. What is given is who takes part, and the batches.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks.speed_plan import Plan, Turn, tell_round, write_final


class Module(nn.Module):
    """The model with the two methods that pfl asks of it."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.inner = plan.model()
        self.plan = plan

    def loss(self, batch: Tensor) -> Tensor:
        return self.plan.loss(self.inner, batch)

    def metrics(self, *_: object, **__: object) -> dict[str, Any]:
        return {}


class Planned(Dataset):
    """A user's rows in the planned batches; dropout starts from the planned seed."""

    def __init__(self, plan: Plan, turn: Turn) -> None:
        super().__init__([plan.rows[turn.client].numpy()], user_id=turn.client)
        self.plan, self.turn = plan, turn

    def iter(self, batch_size: int | None) -> Iterator[list[Tensor]]:
        torch.manual_seed(self.turn.seed)
        yield from ([batch] for batch in self.plan.batches(self.turn))


class Rounds(TrainingProcessCallback):
    """Says when a round is over."""

    def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
        if pytorch_ops.distributed.global_rank == 0:
            tell_round()
        return False, Metrics()


def main(arguments: Sequence[str]) -> None:
    """Train by the plan and write the final weights."""
    torch.set_num_threads(1)
    plan = Plan.read(Path(arguments[0]))
    module = Module(plan)
    # Users are (round, place): pfl's sampler names them one after the other.
    turns = {(number, place): turn for number, each in enumerate(plan.rounds) for place, turn in enumerate(each)}
    order = itertools.cycle(turns)  # it asks for a cohort more than it trains
    steps = {user: len(turn.batches) for user, turn in turns.items()}
    current: dict[str, int] = {}

    def dataset(user: tuple[int, int]) -> Planned:
        current["steps"] = steps[user]
        return Planned(plan, turns[user])

    users = FederatedDataset(dataset, lambda: next(order), steps)
    # one step against an update of weights, which pfl gives as a gradient, at rate 1: the mean itself
    server = torch.optim.SGD(module.parameters(), lr=1.0)
    counts = {len(each) for each in plan.rounds}
    (cohort,) = counts
    params = NNAlgorithmParams(
        central_num_iterations=len(plan.rounds), evaluation_frequency=len(plan.rounds) + 1, train_cohort_size=cohort,
        val_cohort_size=None,
    )  # fmt: skip
    FederatedAveraging().run(
        params,
        SimulatedBackend(training_data=users, val_data=users, postprocessors=[WeightByDatapoints()]),
        PyTorchModel(module, lambda parameters, lr: plan.optimizer(parameters, current["steps"]), server),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=plan.spec.lr, local_batch_size=1),
        callbacks=[Rounds()],
        send_metrics_to_platform=False,
    )
    if pytorch_ops.distributed.global_rank == 0:
        write_final(Path(arguments[1]), [value.detach() for value in module.inner.parameters()])


if __name__ == "__main__":
    main(sys.argv[1:])
