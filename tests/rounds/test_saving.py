"""`checkpoint.overlap`: the server writes while the next clients train, the same files."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from harness import make_config, make_runner
from ranks import run_ranks
from toy import Quadratic

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import CheckpointConfig, ClientsConfig, Config, EvalConfig, ServerConfig
from fedtorch.core.errors import CheckpointError, Interrupted, NonFiniteError, QuorumError
from fedtorch.core.update import Report
from fedtorch.rounds.local_training import ClientTrainer
from fedtorch.rounds.runner import Runner

TASK = Quadratic({"a": (1.0, -1.0, 4), "b": (2.0, 3.0, 2), "c": (0.5, 8.0, 6)}, noise=0.5)
CASES: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "fedavg": (FedAvg(), {}),
    "scaffold": (Scaffold(), {}),
    "ditto": (Ditto(lam=0.5), {"eval": EvalConfig(every=2, on_start=True, best="per_client")}),
    "adam": (FedAvg(), {"server": ServerConfig(optimizer="adam", lr=0.1)}),
    "late scores": (FedAvg(), {"eval": EvalConfig(overlap=True)}),
}


def config_of(folder: Path, name: str, overlap: bool, **changes: Any) -> Config:
    algorithm, settings = CASES[name]
    checkpoint = CheckpointConfig(every=1, keep=99, overlap=overlap, save_retries=1)
    return make_config(folder, TASK, algorithm, **{"rounds": 4, "checkpoint": checkpoint, **settings, **changes})


def run(folder: Path, name: str, overlap: bool, comm: Communicator | None = None) -> Any:
    runner = make_runner(config_of(folder, name, overlap), comm)
    result = runner.run()
    assert runner.saving.saved == 4
    return result.digest, result.best_round, result.scores


def on_ranks(folder: Path, name: str) -> Any:
    with DistributedCommunicator.join(list(TASK.clients), timeout_s=60) as comm:
        return run(folder, name, True, comm)


def files(folder: Path) -> dict[str, str]:
    """Path -> sha256 of what a resume reads; not of the manifests, which have the config."""
    (top,) = folder.rglob("checkpoints")
    found = [path for path in sorted(top.rglob("*.*")) if path.is_file() and path.name != "manifest.json"]
    return {str(path.relative_to(top)): sha256(path.read_bytes()).hexdigest() for path in found}


@pytest.mark.parametrize("name", CASES)
def test_the_files_are_those_of_a_run_that_waits(name: str, tmp_path: Path) -> None:
    assert run(tmp_path / "on", name, True) == run(tmp_path / "off", name, False)
    found = files(tmp_path / "on")
    assert found == files(tmp_path / "off")
    assert {f"round_{n:06d}/server.safetensors" for n in (1, 2, 3, 4)} <= found.keys()


@pytest.mark.processes
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ditto"])
def test_the_files_are_those_of_one_process(name: str, tmp_path: Path) -> None:
    assert run_ranks(on_ranks, 3, tmp_path / "ranks", name)[0] == run(tmp_path / "alone", name, False)
    assert files(tmp_path / "ranks") == files(tmp_path / "alone")


def test_the_server_writes_when_the_next_clients_have_what_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def noted(owner: type, name: str, round_of: Any) -> None:
        method = getattr(owner, name)

        def instead(self: Any, *args: Any, **more: Any) -> Any:
            seen.append(f"{name} {round_of(self, *args)}")
            return method(self, *args, **more)

        monkeypatch.setattr(owner, name, instead)

    noted(ClientTrainer, "train_cohort", lambda self: self.context.round)
    noted(Checkpoints, "write", lambda self, round, *rest: round)
    noted(Runner, "_step", lambda self, *rest: self.context.round)
    runner = make_runner(config_of(tmp_path, "fedavg", True, rounds=2))
    runner.run()
    # the last one waits for nothing
    assert seen == ["train_cohort 0", "_step 0", "write 1", "train_cohort 1", "_step 1", "write 2"]


def test_a_disk_that_refuses_is_tried_again_and_then_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, refused = Checkpoints.write, list[int]()

    def refusing(self: Checkpoints, round: int, *args: Any, **more: Any) -> Path:
        if round in (1, 3):
            refused.append(round)
            raise CheckpointError("the disk is full")
        return write(self, round, *args, **more)

    monkeypatch.setattr(Checkpoints, "write", refusing)
    assert run(tmp_path / "again", "scaffold", True)[0] == run(tmp_path / "off", "scaffold", False)[0]
    assert refused == [1, 3, 1, 3]

    monkeypatch.setattr(Checkpoints, "write", lambda self, round, *args, **more: refusing(self, 1))
    with pytest.raises(CheckpointError, match="the state after round 2 could not be saved"):
        run(tmp_path / "ended", "scaffold", True)


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    runner = make_runner(config_of(tmp_path, "fedavg", True))
    step = runner._step

    def broken(decision: Any) -> bool:
        counts = step(decision)
        if runner.context.round == 1:
            runner.context.server.weights[0] = float("nan")
        return counts

    runner._step = broken  # type: ignore[method-assign]
    with pytest.raises(NonFiniteError, match="after round 2 are not finite"):
        runner.run()
    assert runner.saving.saved == 1


def stopped_while_saving(folder: Path) -> tuple[str, list[int]]:
    """The last rank is asked to stop as the second round is saved; what came of it, and the rounds that it trained."""
    saved, trained = list[int](), list[int]()
    with DistributedCommunicator.join(list(TASK.clients), timeout_s=60) as comm:
        runner = make_runner(config_of(folder, "ditto", True), comm, stop=lambda: comm.rank == 1 and len(saved) > 1)
        save, train = runner.saving.begin, runner.trainer.train_cohort

        def begin(**how: bool) -> None:
            saved.append(runner.context.round)
            save(**how)

        def train_cohort() -> list[Report]:
            trained.append(runner.context.round)
            return train()

        runner.saving.begin, runner.trainer.train_cohort = begin, train_cohort  # type: ignore[method-assign]
        try:
            runner.run()
        except Interrupted as error:
            return str(error), trained
    return "", trained


@pytest.mark.processes
def test_a_rank_that_is_asked_to_stop_while_the_round_is_saved_is_heard_before_another_one(tmp_path: Path) -> None:
    for said, trained in run_ranks(stopped_while_saving, 2, tmp_path):
        assert "2 rounds are saved" in said and trained == [0, 1]
    assert {f"round_{n:06d}/server.safetensors" for n in (1, 2)} <= files(tmp_path).keys()


ENDS = {
    "a client must not fail": (ClientsConfig(on_failure="stop"), NonFiniteError, 2),
    "too few usable updates": (ClientsConfig(on_failure="skip", min=3), QuorumError, 4),
}


def failing(folder: Path, clients: ClientsConfig, fails: str = "", comm: Communicator | None = None) -> Runner:
    """A run of six rounds that saves by the clock, so not before its end; a client fails from the third round on."""
    config = make_config(folder, TASK, rounds=6, clients=clients, checkpoint=CheckpointConfig(every="auto"))
    runner = make_runner(config, comm)
    train = runner.trainer._train_client

    def trained(client: Any, parts: int) -> Report:
        if client.name == fails and runner.context.round > 1:
            raise ValueError("no rows")
        return train(client, parts)

    runner.trainer._train_client = trained  # type: ignore[method-assign]
    return runner


def ended_on_ranks(folder: Path, kind: str) -> None:
    clients, error, _ = ENDS[kind]
    with DistributedCommunicator.join(list(TASK.clients), timeout_s=60) as comm, pytest.raises(error):
        failing(folder, clients, "b", comm).run()


@pytest.mark.parametrize("kind", ENDS)
def test_a_run_that_the_server_ends_saves_the_rounds_before(kind: str, tmp_path: Path) -> None:
    clients, error, whole = ENDS[kind]
    with pytest.raises(error):
        failing(tmp_path / "run", clients, "b").run()
    assert Checkpoints(tmp_path / "run" / "checkpoints", keep=1).latest().round == whole  # type: ignore[union-attr]
    with pytest.raises(error):  # nothing has changed
        failing(tmp_path / "run", clients, "b").run(whole)
    if kind == "a client must not fail":
        undisturbed = failing(tmp_path / "alone", clients).run()
        assert failing(tmp_path / "run", clients).run(whole).digest == undisturbed.digest


@pytest.mark.processes
@pytest.mark.parametrize("kind", ENDS)
def test_so_do_all_its_ranks(kind: str, tmp_path: Path) -> None:
    run_ranks(ended_on_ranks, 2, tmp_path, kind)
    assert Checkpoints(tmp_path / "checkpoints", keep=1).latest().round == ENDS[kind][2]  # type: ignore[union-attr]
