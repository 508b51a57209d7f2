"""The experiment through Flower: `python peer_flower.py EXPERIMENT FOLDER` in an environment that has flwr and torch.

What a round configures and how its results are combined is Flower's own strategy; its clients are its users' own code,
so theirs train in the plain loop. No server and no Ray: the strategy's methods are called as Flower's server does.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAdam, FedAvg, FedProx, Strategy
from peer_experiment import MU, SERVER, Experiment, network, read, train, write_weights
from torch import Tensor, nn

Penalty = Callable[[nn.Module, Sequence[Tensor], float], Tensor]


class Proxy(ClientProxy):
    """A client's name; nothing is asked through it."""

    def get_properties(self, *_: object, **__: object) -> None: ...
    def get_parameters(self, *_: object, **__: object) -> None: ...
    def fit(self, *_: object, **__: object) -> None: ...
    def evaluate(self, *_: object, **__: object) -> None: ...
    def reconnect(self, *_: object, **__: object) -> None: ...


def squared(module: nn.Module, received: Sequence[Tensor], mu: float) -> Tensor:
    """The paper's: mu/2 times the squared norm of the whole difference."""
    return mu / 2 * sum((p - r).square().sum() for p, r in zip(module.parameters(), received, strict=True))


def as_documented(module: nn.Module, received: Sequence[Tensor], mu: float) -> Tensor:
    """What the docstring of Flower's FedProx has users write: the sum of the tensors' norms, which are not squared."""
    return mu / 2 * sum((p - r).norm(2) for p, r in zip(module.parameters(), received, strict=True))


def run(experiment: Experiment, strategy: Strategy, penalty: Penalty | None = None) -> dict[str, Tensor]:
    """All rounds under a strategy; the final weights."""
    names = list(experiment.start)
    parameters = ndarrays_to_parameters([value.numpy() for value in experiment.start.values()])
    for number, cohort in enumerate(experiment.cohorts, 1):
        manager = SimpleClientManager()
        for client in cohort:
            manager.register(Proxy(client))
        orders = {proxy.cid: fit for proxy, fit in strategy.configure_fit(number, parameters, manager)}
        results = []
        for client in cohort:
            module, fit = network(), orders[client]
            received = [torch.from_numpy(np.array(value)) for value in parameters_to_ndarrays(fit.parameters)]
            module.load_state_dict(dict(zip(names, received, strict=True)))
            rows, mu = experiment.rows[client], fit.config.get("proximal_mu", 0.0)
            train(module, rows, penalty and partial(penalty, module, received, mu))
            sent = ndarrays_to_parameters([p.detach().numpy() for p in module.parameters()])
            results.append((Proxy(client), FitRes(Status(Code.OK, ""), sent, len(rows[1]), {})))
        parameters, _ = strategy.aggregate_fit(number, results, [])
    final = map(torch.from_numpy, parameters_to_ndarrays(parameters))
    return dict(zip(names, final, strict=True))


def main(arguments: Sequence[str]) -> None:
    """Write the final weights of every method into the folder."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    experiment, folder = read(Path(arguments[0])), Path(arguments[1])
    start = ndarrays_to_parameters([value.numpy() for value in experiment.start.values()])
    few = {"min_fit_clients": 1, "min_available_clients": 1}
    adam = {"eta": SERVER["lr"], "beta_1": SERVER["beta1"], "beta_2": SERVER["beta2"], "tau": SERVER["tau"]}
    methods: dict[str, tuple[Strategy, Penalty | None]] = {
        "fedavg": (FedAvg(**few), None),
        "fedprox": (FedProx(proximal_mu=MU, **few), squared),
        "fedprox_documented": (FedProx(proximal_mu=MU, **few), as_documented),
        "fedadam": (FedAdam(initial_parameters=start, **adam, **few), None),
    }
    for name, (strategy, penalty) in methods.items():
        write_weights(folder / f"flower_{name}.npz", run(experiment, strategy, penalty))


if __name__ == "__main__":
    main(sys.argv[1:])
