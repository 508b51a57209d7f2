"""Workers of several ranks: the same bits as one process, and no rank is left waiting for another."""

from __future__ import annotations

import os
import shutil
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner, pinned
from ranks import expect_exit, run_ranks
from torch import Tensor, nn
from toy import Quadratic

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.local import Local
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.worker import Verdict
from fedtorch.config.schema import CheckpointConfig, ClientConfig, ClientsConfig, Config, EvalConfig, SystemConfig
from fedtorch.core.errors import ConfigError, Interrupted, PeerError, PreflightError
from fedtorch.planning.dry_run import describe
from fedtorch.rounds.under_way import TrainingSaves
from fedtorch.setup.build import build
from fedtorch.train.moment import Moment

pytestmark = pytest.mark.long

CLIENTS = {f"c{i}": (0.3 + 0.4 * i, (-1.0) ** i * (1 + i), 5 + 7 * i) for i in range(5)}  # 2 to 9 steps
TASK = Quadratic(clients=CLIENTS, start=tuple(0.1 * i for i in range(20)), noise=0.7, dropout=0.2, double=False)
CLIENT = ClientConfig(optimizer="sgd", lr=0.05, batch_size=4)
ADAM = ClientConfig(optimizer="adamw", lr=0.05, batch_size=4, optimizer_state="keep", schedule="linear")
PAIRS = SystemConfig(ranks_per_worker=2)
ROUNDS = 3

CASES: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "fedavg": (FedAvg(weights="lorar"), {"clients": ClientsConfig(per_round=4)}),
    "ditto": (Ditto(lam=0.5), {"client": ADAM, "eval": EvalConfig(every=2, best="per_client", per_example=True)}),
    "local": (Local(), {"paradigm": "local", "client": ADAM, "eval": EvalConfig(patience=1)}),
}


def config_of(name: str, folder: Path | str, **changes: Any) -> Config:
    algorithm, settings = CASES[name]
    return make_config(
        Path(folder) / name, TASK, algorithm, **{"client": CLIENT, "rounds": ROUNDS, **settings, **changes}
    )


def outcome(config: Config, comm: Communicator | None = None, resume: int | None = None) -> tuple[str, Any, Any]:
    result = make_runner(config, comm).run(resume)
    return result.digest, result.scores, result.each if config.eval.per_example else None


def all_cases(folder: str, system: SystemConfig) -> dict[str, Any]:
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=30) as comm:
        return {name: outcome(config_of(name, folder, system=system), comm) for name in CASES}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("size", "system"),
    [(5, PAIRS), (4, replace(PAIRS, server_works=True)), (4, SystemConfig(ranks_per_worker=(2, 1)))],
    ids=["server-and-4", "server-works", "two-and-one"],
)
def test_workers_of_two_ranks_give_the_bits_of_one_process(size: int, system: SystemConfig, tmp_path: Path) -> None:
    server, *others = run_ranks(all_cases, size, str(tmp_path / "many"), system)
    for name in CASES:
        assert server[name] == outcome(config_of(name, tmp_path / "one")), name
        assert not any(each[name][0] for each in others)
    files = sorted(path.name for path in (tmp_path / "many/ditto/checkpoints/clients").iterdir())
    assert len(files) == len(CLIENTS)  # each state is written once, by the worker's leader


def interrupted(folder: str, who: int, moment: int, saving: CheckpointConfig) -> str:
    """Rank `who` alone hears a signal, when it asks for the `moment`th time."""
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=30) as comm:
        left = [moment]

        def stop() -> bool:
            left[0] -= comm.rank == who
            return left[0] <= 0

        try:
            make_runner(config_of("ditto", folder, checkpoint=saving, system=PAIRS), comm, stop=stop).run()
        except Interrupted:
            return "interrupted"
        return "finished"


def resumed(folder: str, round: int, saving: CheckpointConfig) -> tuple[str, int]:
    """The digest, and how many trainings this rank went on with."""
    gone_on, usual = [], TrainingSaves.take

    def take(self: TrainingSaves) -> Moment | None:
        gone_on.append(found := usual(self))
        return found

    TrainingSaves.take = take  # type: ignore[method-assign]
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=30) as comm:
        config = config_of("ditto", folder, system=PAIRS, checkpoint=saving)
        return outcome(config, comm, round)[0], sum(found is not None for found in gone_on)


@pytest.mark.processes
@pytest.mark.parametrize("every_steps", [None, 3])
def test_a_signal_to_a_rank_that_does_not_lead_stops_all_and_loses_nothing(
    every_steps: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saving = CheckpointConfig(every=1, every_steps=every_steps)
    expected = outcome(config_of("ditto", tmp_path / "whole"))[0]
    assert run_ranks(interrupted, 5, str(tmp_path), 2, 45, saving) == ["interrupted"] * 5
    config = config_of("ditto", tmp_path, checkpoint=saving)
    found = make_runner(config).components.checkpoints.latest()
    assert found is not None and found.round in (1, 2)
    shutil.copytree(config.folder, tmp_path / "copy" / config.folder.name)
    ended = run_ranks(resumed, 5, str(tmp_path), found.round, saving)
    assert ended[0][0] == expected
    went_on = [count for _, count in ended[1:]]
    assert went_on[0] == went_on[1] and went_on[2] == went_on[3] and any(went_on) == (every_steps is not None)
    # one process takes nothing up of workers of two ranks
    assert outcome(config_of("ditto", tmp_path / "copy", checkpoint=saving), resume=found.round)[0] == expected
    assert ("another ranks of a worker" in caplog.text) == (every_steps is not None)


# --- errors on one rank


@dataclass(frozen=True)
class Fragile(Quadratic):
    """Fails at client c1, in its second step, on the ranks `where`; `by` an error, a kill or a hang."""

    where: tuple[int, ...] = ()
    by: str = "error"

    def load(self, client: str, split: str) -> Any:
        rows = super().load(client, split)
        return [(*row, float(client == "c1" and split == "train")) for row in rows]

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
        if batch[0, 2] and int(os.environ.get("RANK", self.where[0])) in self.where and model.w.grad is None:
            steps = getattr(model, "steps", 0) + 1
            model.steps = steps  # type: ignore[assignment]
            if steps % 2 == 0:
                if self.by == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if self.by == "hang":
                    time.sleep(20)  # longer than the deadline
                raise OverflowError("the text of a client")
        return super().loss(model, batch[:, :2])

    def predict(self, model: nn.Module, examples: Any, batch_size: int) -> list[float]:
        return super().predict(model, [row[:2] for row in examples], batch_size)


def fragile(folder: str, where: tuple[int, ...], by: str = "error", timeout: float = 30) -> Any:
    task = Fragile(clients=CLIENTS, start=(0.0, 0.5), noise=0.7, double=False, where=where, by=by)
    config = make_config(Path(folder), task, client=CLIENT, system=PAIRS)
    if "RANK" not in os.environ:
        return outcome(config)[0]
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=timeout) as comm:
        runner = make_runner(config, comm)
        found = []
        result = runner.trainer._train

        def watch(client: Any) -> Any:
            report = result(client)
            found.append((client.name, report.status))
            return report

        runner.trainer._train = watch  # type: ignore[method-assign]
        pinned(runner)
        return runner.run().digest, dict(found)


@pytest.mark.processes
@pytest.mark.parametrize("where", [(1,), (2,), (3,), (4,), (1, 2, 3, 4)], ids=str)
def test_a_client_that_fails_on_one_rank_fails_on_all_ranks_of_the_worker(
    where: tuple[int, ...], tmp_path: Path
) -> None:
    expected = fragile(str(tmp_path / "one"), (0,))
    outcomes = run_ranks(fragile, 5, str(tmp_path / "many"), where)
    failed = {rank: statuses["c1"] for rank, (_, statuses) in enumerate(outcomes) if "c1" in statuses}
    if hit := set(failed) & set(where):
        assert outcomes[0][0] == expected
        assert set(failed) in ({1, 2}, {3, 4})
        assert all(failed[r] == ("failed:OverflowError" if r in hit else "failed:PeerError") for r in failed)
    else:
        assert set(failed.values()) == {"ok"}


@dataclass(frozen=True)
class Tight(Quadratic):
    """Has no memory for more than two rows of client c1 at a time, on the ranks `where`."""

    where: tuple[int, ...] = ()

    def load(self, client: str, split: str) -> Any:
        return [(*row, float(client == "c1" and split == "train")) for row in super().load(client, split)]

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
        if batch[0, 2] and len(batch) > 2 and int(os.environ.get("RANK", self.where[0])) in self.where:
            raise torch.OutOfMemoryError("injected")
        return super().loss(model, batch[:, :2])

    def predict(self, model: nn.Module, examples: Any, batch_size: int) -> list[float]:
        return super().predict(model, [row[:2] for row in examples], batch_size)


def tight(folder: str, where: tuple[int, ...], retry: bool) -> Any:
    task = Tight(clients=CLIENTS, start=(0.0, 0.5), noise=0.7, double=False, where=where)
    config = make_config(Path(folder), task, client=CLIENT, system=replace(PAIRS, oom_retry=retry))
    if "RANK" not in os.environ:
        return outcome(config)[0]
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=30) as comm:
        runner = make_runner(config, comm)
        digest = runner.run().digest
        return digest, [report.client for report in runner.context.server.accepted]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("where", "retry"),
    [
        ((2, 4), True),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [((2, 4), False), ((1, 2, 3, 4), True)]),
    ],
)
def test_ranks_of_a_worker_try_a_client_again_together_when_one_is_out_of_memory(
    where: tuple[int, ...], retry: bool, tmp_path: Path
) -> None:
    expected = tight(str(tmp_path / "one"), (0,), retry)
    (digest, accepted), *_ = run_ranks(tight, 5, str(tmp_path / "many"), where, retry)
    assert digest == expected
    assert ("c1" in accepted) is retry and len(accepted) == len(CLIENTS) - (not retry)


@pytest.mark.processes
@pytest.mark.parametrize("by", ["kill", pytest.param("hang", marks=pytest.mark.slow)])
def test_a_rank_that_dies_or_hangs_in_a_step_ends_the_run_with_its_name(by: str, tmp_path: Path) -> None:
    outcomes = expect_exit(fragile, 5, str(tmp_path), (2, 4), by, 6.0, timeout=120)
    lone = [rank for rank in (1, 3) if "DeadlineError" in outcomes[rank].error]
    assert lone and all(outcome.exit_code for outcome in outcomes)
    assert any(f"rank {rank + 1}" in outcomes[rank].error for rank in lone)


# --- the group by itself


def operations() -> list[Any]:
    with DistributedCommunicator.join(("a",), timeout_s=20) as comm:
        group = comm.join_worker((0, 1))
        assert group is not None and comm.join_worker((0, 1)) is group
        found: list[Any] = [group.any(group.rank == 1), group.any(False), group.all_gather_floats([0.1, group.rank])]
        sent = torch.arange(6, dtype=torch.float64).view(2, 3)
        if group.leads:
            group.send(sent, (7, 8, 9))
        else:
            tensor, about = group.receive()
            found.append((tensor.tolist(), about))
        try:
            if group.leads:
                assert group.agree_on_verdict(Verdict.FAILED) is Verdict.FAILED
            else:
                group.receive()
        except PeerError:
            found.append("peer")
        found += [group.agree_on_verdict(Verdict.FINE), group.agree_on_verdict(Verdict(group.leads))]
        memory = Verdict.OUT_OF_MEMORY
        found += [group.agree_on_verdict(memory), group.agree_on_verdict(Verdict.FAILED if group.leads else memory)]
        try:
            found.append(group.any(False) if group.leads else group.all_gather_floats([1.0]))
        except PreflightError as error:
            found.append(str(error))
        return found


@pytest.mark.processes
def test_what_ranks_of_a_worker_agree_on() -> None:
    leader, other = run_ranks(operations, 2)
    assert leader[:3] == other[:3] == [True, False, [[0.1, 0.0], [0.1, 1.0]]]
    assert other[3] == ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [7, 8, 9, 0, 0, 0, 0, 0])
    assert leader[3:7] == [Verdict.FINE, Verdict.FAILED, Verdict.OUT_OF_MEMORY, Verdict.FAILED]
    assert other[4] == "peer" and other[5:9] == leader[3:7]
    assert "do not run the same steps" in leader[-1] and "do not run the same steps" in other[-1]


# --- settings


def test_ranks_that_cannot_be_shared_out_are_refused_before_they_meet(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="system.ranks_per_worker is 2 but 3 of 4 ranks train"):
        build(config_of("fedavg", tmp_path, system=PAIRS), num_ranks=4, rank=0)
    with pytest.raises(ConfigError, match=r"ranks_per_worker is \[2, 1\] but 4 of 5 ranks train, .*; start 4 ranks"):
        build(config_of("fedavg", tmp_path, system=SystemConfig(ranks_per_worker=(2, 1))), num_ranks=5, rank=0)


def test_one_process_does_the_work_of_all_and_the_dry_run_shows_the_ranks(tmp_path: Path) -> None:
    config = config_of("fedavg", tmp_path, system=PAIRS)
    assert build(config, num_ranks=1, rank=0).topology.workers == ((0,),)
    text = describe(build(config, num_ranks=5, rank=0), num_ranks=5)
    assert "rank 1-2 " in text and "rank 3-4 " in text
