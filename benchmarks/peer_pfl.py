"""The experiment through pfl-research: `python peer_pfl.py EXPERIMENT FOLDER` in an environment that has pfl and torch.

All of it is pfl's own: its simulation, its local training, its algorithms. What is given is the order of the users.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peer_experiment import (
    BATCH_SIZE,
    EPOCHS,
    MU,
    PER_ROUND,
    RATE,
    ROUNDS,
    SIZES,
    Experiment,
    network,
    read,
    write_weights,
)
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints, WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


class Module(nn.Module):
    """The network with the two methods that pfl asks of a model."""

    def __init__(self, start: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.inner = network()
        self.inner.load_state_dict(dict(start))

    def loss(self, features: Tensor, classes: Tensor, **_: object) -> Tensor:
        return nn.functional.cross_entropy(self.inner(features), classes.long())

    def metrics(self, *_: object, **__: object) -> dict[str, Any]:
        return {}


class CopyingStorage(InMemoryUserStateStorage):
    """Keeps what it was given: pfl's own keeps the tensors themselves, which with option I are the next user's too."""

    def save_state(self, state: Any, user_id: str, key: str | None = None) -> None:
        super().save_state(state.apply_elementwise(torch.clone), user_id, key)


def run(experiment: Experiment, algorithm: Any, params: Any, weighting: Any) -> dict[str, Tensor]:
    """All rounds under an algorithm; the final weights."""
    module = Module(experiment.start)
    order = iter([client for cohort in experiment.cohorts for client in cohort])
    users = FederatedDataset(
        lambda name: Dataset([part.numpy() for part in experiment.rows[name]], user_id=name), lambda: next(order)
    )
    # one step against an update of weights, which pfl gives as a gradient, at rate 1: the mean itself
    server = torch.optim.SGD(module.parameters(), lr=1.0)
    algorithm.run(
        params,
        SimulatedBackend(training_data=users, val_data=users, postprocessors=[weighting]),
        PyTorchModel(module, torch.optim.SGD, server),
        NNTrainHyperParams(local_num_epochs=EPOCHS, local_learning_rate=RATE, local_batch_size=BATCH_SIZE),
        send_metrics_to_platform=False,
    )
    return dict(module.inner.named_parameters())


def main(arguments: Sequence[str]) -> None:
    """Write the final weights of every method into the folder."""
    experiment, folder = read(Path(arguments[0])), Path(arguments[1])
    common = {
        "central_num_iterations": ROUNDS, "evaluation_frequency": ROUNDS + 1, "train_cohort_size": PER_ROUND,
        "val_cohort_size": None,
    }  # fmt: skip

    def scaffold(is_gradient: bool, storage: InMemoryUserStateStorage) -> SCAFFOLDParams:
        return SCAFFOLDParams(
            population=len(SIZES), use_gradient_as_control_variate=is_gradient, user_state_storage=storage, **common
        )

    methods = {
        "fedavg": (FederatedAveraging(), NNAlgorithmParams(**common), WeightByDatapoints()),
        "fedprox": (FedProx(), FedProxParams(mu=MU, **common), WeightByDatapoints()),
        "scaffold": (SCAFFOLD(), scaffold(False, InMemoryUserStateStorage()), WeightByUser()),
        "scaffold_one": (SCAFFOLD(), scaffold(True, InMemoryUserStateStorage()), WeightByUser()),
        "scaffold_one_copied": (SCAFFOLD(), scaffold(True, CopyingStorage()), WeightByUser()),
    }
    for name, (algorithm, params, weighting) in methods.items():
        write_weights(folder / f"pfl_{name}.npz", run(experiment, algorithm, params, weighting))


if __name__ == "__main__":
    main(sys.argv[1:])
