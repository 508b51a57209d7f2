"""A signal at any moment, and other ways in which ranks could come apart."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from ranks import run_ranks
from toy import Quadratic

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.local import Local
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import CheckpointConfig, ClientConfig, ClientsConfig, Config, EvalConfig, ServerConfig
from fedtorch.core.errors import Interrupted
from fedtorch.core.server import ServerState
from fedtorch.core.update import Update
from fedtorch.train.engine import Engine
from fedtorch.train.job import ClientJob
from fedtorch.train.settings import RateOverRounds

pytestmark = pytest.mark.long

TASK = Quadratic(clients={"a": (1.0, 1.0, 6), "b": (2.0, -1.0, 9)}, start=(0.3, -0.7), noise=0.5, double=False)
CLIENT = ClientConfig(optimizer="adamw", lr=0.1, batch_size=4, optimizer_state="keep")
FALLING = ClientConfig(optimizer="sgd", lr=0.1, batch_size=4, lr_over_rounds=RateOverRounds("cosine", 0.01))

LONG = replace(CLIENT, steps=3, epochs=None, schedule="cosine", schedule_span="run", schedule_floor=0.1)
NESTEROV = ServerConfig(optimizer="sgd", lr=0.7, momentum=0.9, nesterov=True)


@dataclass(frozen=True)
class Stepping(FedAvg):
    """A server that moves by itself before each round."""

    def server_train(self, server: ServerState, job: ClientJob | None) -> None:
        server.weights.mul_(0.9)
        server.numbers["own_steps"] = server.numbers.get("own_steps", 0) + 1


CASES: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "fedavg": (FedAvg(weights="lorar"), {}),
    "stepping": (Stepping(), {}),
    "ditto": (Ditto(lam=0.5), {}),
    "checkpoints beside training": (Ditto(lam=0.5), {"checkpoint": CheckpointConfig(every=1, overlap=True)}),
    "checkpoints by the clock": (Ditto(lam=0.5), {"checkpoint": CheckpointConfig(lose=0.0, cost=1.0)}),
    "local": (Local(), {"paradigm": "local"}),
    "diloco": (FedAvg(weights="equal"), {"client": LONG, "server": NESTEROV}),
    "rate over rounds": (Scaffold(), {"client": FALLING}),
    "trained": (
        FedAvg(),
        {
            "client": replace(CLIENT, schedule="cosine", schedule_span="run", warmup_ratio=0.1),
            "clients": ClientsConfig(per_round=1),
            "eval": EvalConfig(on_start=True, point="trained", also_received=True, best="per_client", per_example=True),
        },
    ),
}


def config_of(name: str, folder: Path, **changes: Any) -> Config:
    algorithm, settings = CASES[name]
    common = {"rounds": 3, "client": CLIENT, "eval": EvalConfig(every=2, on_start=True)}
    return make_config(folder / name, TASK, algorithm, **{**common, **settings, **changes})


def outcome(config: Config, comm: Communicator | None = None, stop: Callable[[], bool] | None = None) -> Any:
    runner = make_runner(config, comm, **({"stop": stop} if stop else {}))
    found = runner.components.checkpoints.latest() if comm is None else None
    result = runner.run(None if found is None else found.round)
    return result.digest, result.best_round, result.scores


@pytest.mark.parametrize("name", CASES)
def test_a_signal_at_any_moment_changes_nothing(name: str, tmp_path: Path) -> None:
    asked = 0

    def never() -> bool:
        nonlocal asked
        asked += 1
        return False

    expected = outcome(config_of(name, tmp_path / "whole"), stop=never)
    assert asked > 20
    for moment in range(1, asked + 1):
        config, left = config_of(name, tmp_path / str(moment)), [moment]

        def stop(left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] <= 0

        with pytest.raises(Interrupted):
            outcome(config, stop=stop)
        assert outcome(config) == expected, f"stopped when asked for the {moment}th time"


SAVING = CheckpointConfig(every=1, every_steps=2)


@pytest.mark.parametrize("name", ["ditto", "rate over rounds", "diloco"])
def test_a_signal_repeats_no_step_where_they_are_saved(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, own_step = 0, Engine.step

    def step(self: Engine, *args: Any, **kwargs: Any) -> Any:
        nonlocal taken
        taken += 1
        return own_step(self, *args, **kwargs)

    monkeypatch.setattr(Engine, "step", step)
    expected = outcome(config_of(name, tmp_path / "whole"))
    wanted, taken = taken, 0
    for moment in range(1, 60, 4):
        config, left = config_of(name, tmp_path / str(moment), checkpoint=SAVING), [moment]

        def stop(left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] <= 0

        with contextlib.suppress(Interrupted):
            outcome(config, stop=stop)
            break
        assert outcome(config) == expected, f"stopped when asked for the {moment}th time"
        assert taken == wanted
        taken = 0
    else:
        moment = 60
    assert moment > 20


def interrupted_on_three(folder: str, moment: int) -> str:
    with DistributedCommunicator.join(("a", "b"), timeout_s=20) as comm:
        left = [moment]

        def stop() -> bool:
            left[0] -= comm.rank == 1  # only one rank hears the signal
            return left[0] <= 0

        try:
            outcome(config_of("fedavg", Path(folder), checkpoint=CheckpointConfig(every=1)), comm, stop)
        except Interrupted:
            return "interrupted"
        return "finished"


@pytest.mark.processes
@pytest.mark.parametrize("moment", [1, 4, 7, 12, 15])
def test_a_signal_to_one_of_three_ranks_stops_all_and_loses_nothing(moment: int, tmp_path: Path) -> None:
    assert run_ranks(interrupted_on_three, 3, str(tmp_path), moment) == ["interrupted"] * 3
    expected = outcome(config_of("fedavg", tmp_path / "whole"))
    assert outcome(config_of("fedavg", tmp_path)) == expected


def various_on_three(folder: str) -> dict[str, Any]:
    """Cases in which ranks could disagree about what comes next."""
    with DistributedCommunicator.join(("a", "b", "c"), timeout_s=20) as comm:
        return {name: outcome(config, comm) for name, config in various(Path(folder)).items()}


def various(folder: Path) -> dict[str, Config]:
    still = replace(TASK, noise=0.0)
    untrained = replace(TASK, clients={**TASK.clients, "c": (1.0, 5.0, 0)})
    heavy = {"a": {"epochs": 10}}
    return {
        "early stop": make_config(
            folder / "1",
            still,
            paradigm="local",
            rounds=300,
            client=replace(CLIENT, lr=0.5),
            eval=EvalConfig(patience=2),
        ),
        "no training data": make_config(folder / "2", untrained, Ditto(), client=CLIENT, rounds=2, per_client=heavy),
        "no training data, local": make_config(
            folder / "3", untrained, paradigm="local", client=CLIENT, rounds=2, per_client=heavy
        ),
        "server trains": make_config(folder / "4", TASK, Stepping(), client=CLIENT, rounds=3, eval=EvalConfig(every=1)),
        "failing": make_config(folder / "6", replace(TASK, poison=("b",)), client=CLIENT, rounds=2),
    }


@pytest.mark.processes
def test_three_ranks_agree_with_one_process_where_they_could_come_apart(tmp_path: Path) -> None:
    server = run_ranks(various_on_three, 3, str(tmp_path / "three"))[0]
    for name, config in various(tmp_path / "one").items():
        assert server[name] == outcome(config), name


@dataclass(frozen=True)
class OwnVector(FedAvg):
    """Returns a vector of its own instead of sending it."""

    def client_update(self, job: ClientJob) -> Update:  # type: ignore[override]
        curve = job.train(job.received["weights"])
        return Update(job.received["weights"] - job.engine.flat.detach(), self.report(job, curve))


@dataclass(frozen=True)
class Forgetful(FedAvg):
    """Returns the job's vector, but filled it for client `a` only."""

    def client_update(self, job: ClientJob) -> Update:  # type: ignore[override]
        curve = job.train(job.received["weights"])
        if job.client.name == "a":
            job.send_difference(job.received["weights"])
        return Update(job.outgoing["weights"], self.report(job, curve))


def test_an_update_may_be_a_vector_of_the_algorithms_own(tmp_path: Path) -> None:
    weights = []
    for algorithm in (FedAvg(), OwnVector()):
        runner = make_runner(make_config(tmp_path / type(algorithm).__name__, TASK, algorithm, client=CLIENT))
        runner.run()
        weights.append(runner.context.server.weights.clone())
    assert torch.equal(*weights)


def test_one_clients_update_is_never_sent_for_another(tmp_path: Path) -> None:
    runner = make_runner(make_config(tmp_path, TASK, Forgetful(), client=CLIENT, rounds=1))
    runner.run()
    assert set(runner.result.weights) == {"a"}


def test_local_with_sampled_clients_counts_only_evaluations_of_trained_ones(tmp_path: Path) -> None:
    config = make_config(
        tmp_path, replace(TASK, noise=0.0), paradigm="local", rounds=8, client=replace(CLIENT, lr=0.01),
        clients=ClientsConfig(per_round=1), eval=EvalConfig(patience=1),
    )  # fmt: skip
    assert make_runner(config).run().rounds == 8  # every trained client still gains
