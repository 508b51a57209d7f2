"""A worker is killed and the others go on: the run equals one in a single process in which its clients fail there."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from harness import make_config, make_runner, pinned
from losses import lose_at
from ranks import expect_exit, start_ranks
from toy import Quadratic

from fedtorch.algorithms.fedassistant import FedAssistant
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm import distributed
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.job.rendezvous import Rendezvous
from fedtorch.comm.sparse.peers import GroupPeers
from fedtorch.comm.sums import early_sides
from fedtorch.comm.sums.aggregation import Aggregation
from fedtorch.comm.sums.sending_pace import SendingPace
from fedtorch.comm.worker import WorkerGroup
from fedtorch.compression.compressors import TopK
from fedtorch.config.asynchrony import AsyncConfig, ClockConfig, DurationConfig, StalenessConfig
from fedtorch.config.schema import (
    CheckpointConfig,
    ClientConfig,
    ClientsConfig,
    Config,
    EvalConfig,
    PartitionConfig,
    ServerConfig,
    SystemConfig,
)
from fedtorch.core.errors import QuorumError
from fedtorch.core.update import Report
from fedtorch.rounds.checkpointing import digest
from fedtorch.rounds.placement import place
from fedtorch.rounds.result import Result
from fedtorch.setup.build import build
from fedtorch.train.job import ClientJob

pytestmark = pytest.mark.processes

CLIENTS = {f"c{i}": (0.3 + 0.4 * i, (-1.0) ** i * (1 + i), 5 + 7 * i) for i in range(7)}
TASK = Quadratic(clients=CLIENTS, start=tuple(0.1 * i for i in range(50)), head=(0.5, -0.5), noise=0.7, double=False)
SIZE, VICTIM, ROUND = 4, 2, 1


def config(folder: Path | str, **changes: Any) -> Config:
    settings: dict[str, Any] = {
        "client": ClientConfig(optimizer="adamw", lr=0.05, batch_size=4, optimizer_state="keep"),
        "partition": PartitionConfig(private=("head",)),
        "clients": ClientsConfig(per_round=5, on_loss="continue"),
        "rounds": 4,
        "eval": EvalConfig(every=1),
        "checkpoint": CheckpointConfig(every=1),
        **changes,
    }
    return make_config(Path(folder), TASK, **settings)


def victims(setting: Config, size: int = SIZE) -> list[str]:
    """The clients at home on the rank that dies."""
    built = build(setting, num_ranks=size, rank=1)
    homes = place(setting, built.task, built.training, built.clients, built.topology).homes
    names = [name for name, worker in homes.items() if VICTIM in built.topology.workers[worker]]
    assert 1 <= len(names) < len(CLIENTS) - 3
    return names


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str, is_due: Callable[..., bool]) -> None:
    """Die when the method is called and `is_due` with its arguments."""
    original = getattr(owner, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_due(self, *args, **kwargs):
            kill()
        return original(self, *args, **kwargs)

    setattr(owner, name, method)


def after(owner: Any, name: str, is_due: Callable[..., bool]) -> None:
    """The same when it has returned."""
    original = getattr(owner, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, *args, **kwargs)
        if is_due(self, *args, **kwargs):
            kill()
        return answer

    setattr(owner, name, method)


def in_phase(phase: str, round: int) -> Callable[..., bool]:
    return lambda self, **doing: (doing["phase"], doing["round"]) == (phase, round)


def nth(number: int, is_due: Callable[..., bool]) -> Callable[..., bool]:
    calls: list[bool] = []

    def is_it(*args: Any, **kwargs: Any) -> bool:
        calls.append(is_due(*args, **kwargs))
        return calls[-1] and sum(calls) == number

    return is_it


def arm(phase: str) -> None:
    """This rank dies in that phase of the second round."""
    comm = DistributedCommunicator
    if phase == "train":
        before(comm, "heartbeat", in_phase(phase, ROUND))
    elif phase == "broadcast":  # the first one of that number is the evaluation's
        before(comm, "heartbeat", nth(2, in_phase(phase, ROUND)))
    elif phase in ("evaluate", "checkpoint"):
        before(comm, "heartbeat", in_phase(phase, ROUND + 1))
    elif phase == "weights":  # the fourth: w and head at the start, then one for each evaluation
        before(comm, "broadcast", nth(4, lambda *args, **kwargs: True))
    elif phase == "weights to train":  # without evaluations; all are alike after the start
        before(comm, "broadcast", nth(2, lambda *args, **kwargs: True))
    elif phase == "report":
        before(comm, "gather_reports", lambda self, reports, round, **how: round == ROUND)
    elif phase == "header":
        after(
            Rendezvous,
            "_tell",
            lambda self, name, rank, told, mail: told.get("phase") == "gather" and told["round"] == ROUND,
        )
    elif phase == "payload":
        after(Aggregation, "agree", lambda self, op, terms: self.round == ROUND)
    elif phase == "aggregate":
        after(distributed, "answer_requests", lambda aggregation: aggregation.round == ROUND)
    elif phase == "exchange":
        before(comm, "all_gather_updates", lambda self, *args, round: round == ROUND)
    elif phase == "exchanged":
        after(comm, "all_gather_updates", lambda self, *args, round: round == ROUND)
    elif phase in ("home", "pieces"):  # what the first round's second selections left out goes to the server first
        number = {"home": 1, "pieces": 2}[phase]
        before(GroupPeers, "all_to_all", nth(number, lambda self, *args: self._aggregation.round == ROUND))
    elif phase == "slices":
        before(GroupPeers, "all_gather", lambda self, *args: self._aggregation.round == ROUND)
    elif phase == "sliced":
        after(GroupPeers, "all_gather", lambda self, *args: self._aggregation.round == ROUND)
    elif phase == "step":
        before(WorkerGroup, "any", nth(12, lambda *args: True))
    elif phase == "scores":
        before(comm, "meet", lambda self, phase, round, **how: (phase, round) == ("scores", ROUND + 1))
    elif phase == "announced":  # and nothing of it sent
        send_early(before)
    elif phase == "sent early":
        send_early(after)
    elif phase == "sent as a sum":  # when nothing was sent before all clients of this rank were done
        SendingPace.pays = lambda *args: False  # type: ignore[method-assign]
        after(early_sides, "send_sum", lambda aggregation, *args: aggregation.round == ROUND)
    elif phase == "sums":
        before(early_sides.EarlySender, "close", lambda self, beat: self._main.round == ROUND)
    elif phase == "all sent":  # and reported
        before(early_sides.EarlySender, "finish", lambda self: self._main.round == ROUND)


def send_early(when: Callable[..., None]) -> None:
    """`before` or `after` a part is sent: one update as it is, or a sum where more clients were done by then."""
    when(early_sides, "send_updates", lambda grads, aggregation, *args, **how: aggregation.round == ROUND)
    when(early_sides, "send_sum", lambda aggregation, *args: aggregation.round == ROUND)


EARLY = SystemConfig(sum_scale="previous")


def as_rank(folder: str, phase: str, changes: dict[str, Any]) -> tuple[Result, frozenset[int]]:
    rank = int(os.environ["RANK"])
    if rank == VICTIM:
        arm(phase)
    way: Any = "send" if changes.get("system") == EARLY else "auto"  # in memory nothing is sent early
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=20, exchange=way, recovers=True) as comm:
        comm.preflight({})
        return pinned(make_runner(config(folder, **changes), comm)).run(), comm.lost


def alone(folder: Path, at: tuple[str, int, bool], size: int = SIZE, **changes: Any) -> Result:
    """In one process the same clients are lost at that meeting: (phase, rounds done, is a round under way)."""
    setting = config(folder, **changes)
    runner, gone = make_runner(setting), victims(setting, size)

    lose_at(runner, at, gone)
    return runner.run()


FAILS, COUNTS, EVALUATED = ("gather", ROUND, True), ("broadcast", ROUND + 1, False), ("files", ROUND + 1, False)


@pytest.mark.parametrize(
    ("phase", "at"),
    [
        ("broadcast", FAILS),  # before it
        ("train", FAILS),
        ("report", FAILS),
        ("header", FAILS),
        ("payload", FAILS),
        ("aggregate", COUNTS),  # after its update was taken over
        ("weights", COUNTS),
        ("evaluate", COUNTS),
        ("scores", COUNTS),
        ("checkpoint", EVALUATED),
    ],
)
def test_a_killed_worker_is_gone_and_the_rest_is_as_in_one_process(
    phase: str, at: tuple[str, int, bool], tmp_path: Path
) -> None:
    expected = alone(tmp_path / "alone", at)
    outcomes = start_ranks(as_rank, SIZE, str(tmp_path / "run"), phase, {}).join(timeout=90)
    assert outcomes[VICTIM].exit_code == -signal.SIGKILL
    for rank, outcome in enumerate(outcomes):
        if rank != VICTIM:
            assert not outcome.error and outcome.exit_code == 0, f"rank {rank}: {outcome.error}"
            assert outcome.result[1] == {VICTIM}
    result = outcomes[0].result[0]
    assert result.rounds == 4 and result.lost == expected.lost and set(expected.lost.values()) == {ROUND + 1}
    assert result.digest == expected.digest
    assert result.scores == expected.scores and set(result.scores) == set(CLIENTS) - set(result.lost)
    assert result.weights == expected.weights and result.best_round == expected.best_round
    # a checkpoint is complete: the lost clients' states are in it as they were saved last
    found = Checkpoints(tmp_path / "run" / "checkpoints", keep=2).latest()
    assert found is not None and found.round == 4
    resumed = make_runner(config(tmp_path / "run", rounds=5)).run(4)
    assert resumed.rounds == 5 and not resumed.lost and set(resumed.scores) == set(CLIENTS)


@pytest.mark.parametrize("phase", ["train", "announced", "sent early", "sent as a sum", "sums", "report", "all sent"])
def test_where_updates_travel_early_the_rest_goes_on_as_in_one_process(phase: str, tmp_path: Path) -> None:
    changes = {"system": EARLY}
    expected = alone(tmp_path / "alone", FAILS, **changes)
    outcomes = start_ranks(as_rank, SIZE, str(tmp_path / "run"), phase, changes).join(timeout=90)
    assert [o.exit_code for o in outcomes] == [0, 0, -signal.SIGKILL, 0], [o.error for o in outcomes]
    result = outcomes[0].result[0]
    assert result.lost == expected.lost and set(result.lost.values()) == {ROUND + 1}
    assert result.digest == expected.digest and result.scores == expected.scores


BUFFERS = AsyncConfig(
    buffer=3,
    concurrent=5,
    staleness=StalenessConfig("polynomial"),
    clock=ClockConfig(duration=DurationConfig(sd=1.0, min=0.01)),
)


@pytest.mark.parametrize(
    ("phase", "at"),
    [
        ("train", FAILS),
        ("sent early", FAILS),
        ("scores", COUNTS),
        pytest.param("announced", FAILS, marks=pytest.mark.slow),
        pytest.param("report", FAILS, marks=pytest.mark.slow),
        pytest.param("header", FAILS, marks=pytest.mark.slow),  # its part of the sum is there, and no longer it
        pytest.param("sums", FAILS, marks=pytest.mark.slow),
        pytest.param("checkpoint", EVALUATED, marks=pytest.mark.slow),
    ],
)
def test_jobs_of_lost_clients_are_arrivals_of_weight_0(phase: str, at: tuple[str, int, bool], tmp_path: Path) -> None:
    changes = {"system": EARLY, "asynchrony": BUFFERS, "clients": ClientsConfig(on_loss="continue"), "rounds": 6}
    expected = alone(tmp_path / "alone", at, **changes)
    outcomes = start_ranks(as_rank, SIZE, str(tmp_path / "run"), phase, changes).join(timeout=90)
    assert [o.exit_code for o in outcomes] == [0, 0, -signal.SIGKILL, 0], [o.error for o in outcomes]
    result = outcomes[0].result[0]
    assert result.rounds == 6 and result.lost == expected.lost and len(result.lost) > 0
    assert result.digest == expected.digest and result.scores == expected.scores
    assert result.digest != make_runner(config(tmp_path / "whole", **changes)).run().digest


REAL = replace(BUFFERS, clock=ClockConfig(kind="real"))


@pytest.mark.parametrize(
    "phase",
    [
        "train",
        "header",
        *(pytest.param(p, marks=pytest.mark.slow) for p in ("report", "sums", "checkpoint")),
    ],
)
def test_by_the_real_clock_the_jobs_of_lost_clients_are_written_down_and_replayed(phase: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"system": EARLY, "clients": ClientsConfig(on_loss="continue"), "rounds": 6}
    changes["eval"] = EvalConfig(every=0)  # so that the last weights stay after the run
    outcomes = start_ranks(as_rank, SIZE, str(tmp_path / "run"), phase, {**changes, "asynchrony": REAL}).join(90)
    assert [o.exit_code for o in outcomes] == [0, 0, -signal.SIGKILL, 0], [o.error for o in outcomes]
    result = outcomes[0].result[0]
    assert result.rounds == 6 and len(result.lost) > 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "arrivals.jsonl").read_text().splitlines()[1:]]
    assert {line["client"] for line in lines if line["status"] in ("lost", "left")} == set(result.lost)
    changes["asynchrony"] = replace(BUFFERS, clock=ClockConfig(), replay=str(tmp_path / "run"))
    replayed = make_runner(config(tmp_path / "again", **changes))
    replayed.run()
    replayed.context.members.lost.update(result.lost)  # whose states the run's digest leaves out
    assert digest(replayed.context) == result.digest


COMPRESSED = FedAssistant(payload="delta", compression="topk", topk=TopK(ratio=0.2), exchange="replicated")
STAR = replace(COMPRESSED, exchange="star")
# what is left out is not with the ranks that own slices, so none of it is lost with one
SLICES = replace(COMPRESSED, exchange="allreduce", server_residual="returned")
KEPT_IN_SLICES = replace(COMPRESSED, exchange="allreduce")


@pytest.mark.parametrize(
    ("algorithm", "phase", "at"),
    [
        (COMPRESSED, "exchange", FAILS),
        (COMPRESSED, "exchanged", COUNTS),
        (SLICES, "slices", FAILS),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (COMPRESSED, "train", FAILS),
                (STAR, "payload", FAILS),
                (STAR, "weights", COUNTS),
                (SLICES, "pieces", FAILS),
                (SLICES, "sliced", COUNTS),
                (replace(COMPRESSED, exchange="allreduce", second_selection=False), "pieces", FAILS),
            ]
        ),
    ],
    ids=lambda value: getattr(value, "exchange", value) if not isinstance(value, tuple) else value[0],
)
def test_where_messages_travel_the_rest_goes_on_as_in_one_process(
    algorithm: FedAssistant, phase: str, at: tuple[str, int, bool], tmp_path: Path
) -> None:
    changes = {"algorithm": algorithm, "server": ServerConfig(optimizer="adam", lr=0.1)}
    expected = alone(tmp_path / "alone", at, **changes)
    outcomes = start_ranks(as_rank, SIZE, str(tmp_path / "run"), phase, changes).join(timeout=90)
    assert [o.exit_code for o in outcomes] == [0, 0, -signal.SIGKILL, 0], [o.error for o in outcomes]
    result = outcomes[0].result[0]
    assert result.lost == expected.lost and set(result.lost.values()) == {ROUND + 1}
    assert result.digest == expected.digest and result.scores == expected.scores


@pytest.mark.parametrize(("phase", "done"), [("slices", 2), pytest.param("home", 1, marks=pytest.mark.slow)])
def test_without_the_owner_of_a_slice_the_others_go_on_with_theirs(phase: str, done: int, tmp_path: Path) -> None:
    changes = {"algorithm": KEPT_IN_SLICES, "server": ServerConfig(optimizer="adam", lr=0.1)}
    outcomes = start_ranks(as_rank, SIZE, str(tmp_path / "run"), phase, changes).join(timeout=90)
    assert [o.exit_code for o in outcomes] == [0, 0, -signal.SIGKILL, 0], [o.error for o in outcomes]
    result = outcomes[0].result[0]
    assert result.rounds == 4 and set(result.lost.values()) == {done}
    again = make_runner(config(tmp_path / "run", rounds=5, **changes)).run(4)
    assert again.rounds == 5 and not again.lost


@pytest.mark.parametrize("phase", ["step", pytest.param("report", marks=pytest.mark.slow)])
def test_a_worker_of_two_ranks_is_lost_with_either_of_them(phase: str, tmp_path: Path) -> None:
    changes = {"system": SystemConfig(ranks_per_worker=2)}
    outcomes = start_ranks(as_rank, 5, str(tmp_path / "run"), phase, changes).join(timeout=90)
    assert [o.exit_code for o in outcomes] == [0, 7, -signal.SIGKILL, 0, 0], [o.error for o in outcomes]
    assert "DeadlineError" in outcomes[1].error
    result = outcomes[0].result[0]
    (done,) = set(result.lost.values())
    expected = alone(tmp_path / "alone", ("gather", done - 1, True), 5, **changes)
    assert result.lost == expected.lost and result.rounds == 4
    assert result.digest == expected.digest and result.scores == expected.scores


@dataclass(frozen=True)
class Failing(FedAvg):
    """FedAvg of which some clients fail from the second round on."""

    names: tuple[str, ...] = ()

    def client_update(self, job: ClientJob) -> Report:
        if job.client.name in self.names and job.round >= ROUND:
            raise ValueError("as if it were lost")
        return super().client_update(job)


STATELESS: dict[str, Any] = {
    "clients": ClientsConfig(on_loss="continue"),
    "client": ClientConfig(optimizer="sgd", lr=0.05, batch_size=4),
    "partition": PartitionConfig(),
    "eval": EvalConfig(every=0),
}


@pytest.mark.parametrize("phase", ["weights to train", "train"])
def test_where_all_take_part_it_equals_a_run_in_which_those_clients_always_fail(phase: str, tmp_path: Path) -> None:
    setting = config(tmp_path / "alone", **STATELESS)
    expected = make_runner(replace(setting, algorithm=Failing(names=tuple(victims(setting))))).run()
    outcomes = start_ranks(as_rank, SIZE, str(tmp_path / "run"), phase, STATELESS).join(timeout=90)
    assert outcomes[0].result[0].digest == expected.digest


def test_too_few_clients_left_end_the_run_on_all_ranks(tmp_path: Path) -> None:
    changes = {**STATELESS, "clients": ClientsConfig(on_loss="continue", min=7)}
    outcomes = expect_exit(as_rank, SIZE, str(tmp_path), "train", changes, timeout=90)
    for rank, outcome in enumerate(outcomes):
        assert outcome.exit_code == (-signal.SIGKILL if rank == VICTIM else QuorumError.exit_code)
        assert rank == VICTIM or "clients are left after a loss, but clients.min is 7" in outcome.error


def lose_the_server(folder: str) -> None:
    if os.environ["RANK"] == "0":
        before(DistributedCommunicator, "heartbeat", in_phase("aggregate", ROUND))
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=60, recovers=True) as comm:
        make_runner(config(folder), comm).run()


def test_without_the_server_all_end_at_once(tmp_path: Path) -> None:
    outcomes = expect_exit(lose_the_server, SIZE, str(tmp_path))
    assert [o.exit_code for o in outcomes] == [-signal.SIGKILL, 7, 7, 7], outcomes[1].error
