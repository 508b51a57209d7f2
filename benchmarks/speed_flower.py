"""The plan through Flower: `python speed_flower.py PLAN FINAL` in an environment that has flwr with its simulation.

Server, strategy, messages and Ray are Flower's own; clients are its users' own code, so theirs train in the plain loop.
Two clients at a time, each with one core. A client keeps its model from one turn to the next. What is given is who
takes part, and the batches.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, FitIns, FitRes, Parameters, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from benchmarks.speed_plan import Plan, tell_round, write_final


@cache
def prepared(path: Path) -> tuple[Plan, nn.Module]:
    """Once in every process of Ray's."""
    torch.set_num_threads(1)
    plan = Plan.read(path)
    return plan, plan.model()


class Trainer(NumPyClient):
    """Whoever the server says."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fit(self, parameters: list[np.ndarray], config: Mapping[str, Any]) -> tuple[list[np.ndarray], int, dict]:
        plan, model = prepared(self.path)
        turn = plan.rounds[int(config["round"])][int(config["place"])]
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), parameters, strict=True):
                parameter.copy_(torch.from_numpy(value))
        plan.train(model, turn)
        return [value.detach().numpy() for value in model.parameters()], len(plan.rows[turn.client]), {}


class Planned(FedAvg):
    """FedAvg whose cohorts are the plan's."""

    def __init__(self, plan: Plan, **options: Any) -> None:
        super().__init__(fraction_evaluate=0.0, **options)
        self.plan = plan

    def aggregate_fit(
        self, server_round: int, results: list[tuple[ClientProxy, FitRes]], failures: list[Any]
    ) -> tuple[Parameters | None, dict[str, Any]]:
        if failures:
            raise RuntimeError(f"{len(failures)} clients failed: {failures[0]}")
        return super().aggregate_fit(server_round, results, failures)

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        turns = self.plan.rounds[server_round - 1]
        client_manager.wait_for(len(turns))
        nodes = list(client_manager.all().values())[: len(turns)]
        return [
            (node, FitIns(parameters, {"round": server_round - 1, "place": place})) for place, node in enumerate(nodes)
        ]


def main(arguments: Sequence[str]) -> None:
    """Train by the plan and write the final weights."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    path, final = Path(arguments[0]).resolve(), Path(arguments[1]).resolve()
    plan = Plan.read(path)
    last = len(plan.rounds)

    def after(number: int, weights: list[np.ndarray], _: Mapping[str, Any]) -> None:
        if number:  # it is called with the first weights too
            tell_round()
        if number == last:
            write_final(final, weights)

    def server(_: Context) -> ServerAppComponents:
        start = ndarrays_to_parameters([value.numpy() for value in plan.start.values()])
        strategy = Planned(plan, initial_parameters=start, evaluate_fn=after)
        return ServerAppComponents(config=ServerConfig(num_rounds=last), strategy=strategy)

    run_simulation(
        ServerApp(server_fn=server),
        ClientApp(client_fn=lambda _: Trainer(path).to_client()),
        num_supernodes=max(map(len, plan.rounds)),
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": 2, "include_dashboard": False},
        },
    )
    if not final.exists():
        sys.exit("Flower ended without the final weights")  # it logs what is raised in a client and goes on


if __name__ == "__main__":
    import speed_flower  # Ray's processes find what they are sent by its module, which is not __main__ there

    speed_flower.main(sys.argv[1:])
