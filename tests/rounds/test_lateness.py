"""Over-selection and a deadline: who is late fails by the one way there is, and a record is enough to do it again."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness import make_config, make_runner
from ranks import run_ranks
from toy import Quadratic

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.job.event_log import EventLog
from fedtorch.config.schema import CheckpointConfig, ClientConfig, ClientsConfig, Config, PartitionConfig, SystemConfig
from fedtorch.core.errors import ConfigError
from fedtorch.core.update import Report
from fedtorch.rounds.buffer import LATE, Closing, Late
from fedtorch.setup.build import build
from fedtorch.train.job import ClientJob

CLIENTS = {f"c{i}": (0.3 + 0.4 * i, (-1.0) ** i * (1 + i), 5 + 7 * i) for i in range(6)}
TASK = Quadratic(clients=CLIENTS, start=(0.1, 0.2, 0.3), head=(0.5,), noise=0.7, double=False)


@dataclass(frozen=True)
class Slow(FedAvg):
    """FedAvg of which some clients take long, in each of their steps."""

    slow: tuple[str, ...] = ()

    def client_update(self, job: ClientJob) -> Report:
        if job.client.name in self.slow:
            for step in range(200):
                time.sleep(0.02)
                job.on_step(step)
        return super().client_update(job)


def config(folder: Path | str, clients: ClientsConfig, **changes: Any) -> Config:
    settings: dict[str, Any] = {
        "client": ClientConfig(optimizer="adamw", lr=0.05, batch_size=4, optimizer_state="keep"),
        "partition": PartitionConfig(private=("head",)),
        "clients": clients,
        "rounds": 3,
        "checkpoint": CheckpointConfig(every=1),
        **changes,
    }
    algorithm = settings.pop("algorithm", FedAvg())
    return make_config(Path(folder), TASK, algorithm, **settings)


def test_the_first_of_more_count_and_the_others_are_late(tmp_path: Path) -> None:
    runner = make_runner(config(tmp_path, ClientsConfig(per_round=3, extra=2)))
    seen: list[dict[str, str]] = []
    track = runner._track_round

    def keep(reports: Any) -> None:
        seen.append({report.client: report.status for report in reports})
        track(reports)

    runner._track_round = keep  # type: ignore[method-assign]
    result = runner.run()
    assert result.rounds == 3
    for statuses in seen:
        assert len(statuses) == 5 and sorted(statuses.values()) == [LATE] * 2 + ["ok"] * 3


def test_with_extra_that_nobody_needs_it_is_the_run_of_those_who_count(tmp_path: Path) -> None:
    plain = make_runner(config(tmp_path / "plain", ClientsConfig())).run()
    patient = make_runner(config(tmp_path / "patient", ClientsConfig(deadline=1e6))).run()
    assert plain.digest == patient.digest


def write_records(path: Path, late: dict[int, list[str]]) -> None:
    path.write_text(
        "".join(
            json.dumps({"kind": "client", "round": round + 1, "client": name, "status": LATE}) + "\n"
            for round, names in late.items()
            for name in names
        )
    )


def as_rank(folder: str, clients: ClientsConfig, slow: tuple[str, ...]) -> tuple[str, dict[int, list[str]]]:
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=30) as comm:
        comm.preflight({})
        setting = config(Path(folder) / "run", clients, algorithm=Slow(slow=slow))
        runner, late = make_runner(setting, comm), dict[int, list[str]]()
        track = runner._track_round

        def keep(reports: Any) -> None:
            late[runner.context.round - 1] = [report.client for report in reports if report.status == LATE]
            track(reports)

        runner._track_round = keep  # type: ignore[method-assign]
        return runner.run().digest, late


@pytest.mark.processes
@pytest.mark.parametrize(
    "clients",
    [ClientsConfig(per_round=3, extra=3), pytest.param(ClientsConfig(deadline=0.4), marks=pytest.mark.slow)],
    ids=["extra", "deadline"],
)
def test_a_replay_of_the_record_has_the_same_bits_without_the_clocks(clients: ClientsConfig, tmp_path: Path) -> None:
    slow = ("c4", "c5")
    (digest, late), *_ = run_ranks(as_rank, 3, str(tmp_path), clients, slow, timeout=90)
    assert all(late[round] for round in range(3))
    write_records(tmp_path / "metrics.jsonl", late)
    again = ClientsConfig(per_round=clients.per_round, extra=clients.extra, replay=str(tmp_path / "metrics.jsonl"))
    replayed = make_runner(config(tmp_path / "again", again)).run()
    assert replayed.digest == digest
    assert make_runner(config(tmp_path / "other", ClientsConfig())).run().digest != digest


def lateness(clients: ClientsConfig, times: list[float]) -> Closing:
    found = Closing(clients, EventLog(), clock=lambda: times[0])
    found.begin(0)
    return found


def test_after_the_deadline_a_client_is_late_and_before_it_not() -> None:
    times = [10.0]
    found = lateness(ClientsConfig(deadline=2.0), times)
    times[0] = 12.0
    found.check("a")
    times[0] = 12.1
    with pytest.raises(Late, match=r"clients.deadline: it was not done after 2 s"):
        found.check("a")
    found.begin(1)
    found.check("a")


def test_the_first_ones_count_also_where_two_are_done_at_once() -> None:
    found = lateness(ClientsConfig(per_round=2, extra=1), [0.0])
    found.arrive("a")
    found.arrive("b")
    with pytest.raises(Late, match="2 others were done"):
        found.arrive("c")


@pytest.mark.parametrize(
    ("changes", "ranks", "reason"),
    [
        ({"clients": ClientsConfig(per_round=5, extra=2)}, 1, "clients.per_round and clients.extra come to 7"),
        ({"clients": ClientsConfig(deadline=1.0), "system": SystemConfig(ranks_per_worker=2)}, 3, "ranks_per_worker"),
        (
            {"clients": ClientsConfig(per_round=2, extra=1, sampling="size_proportional"), "algorithm": "equal"},
            1,
            "draws clients more than once",
        ),
        ({"clients": ClientsConfig(replay="/nowhere")}, 1, "clients.replay is /nowhere, whose records cannot be read"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], ranks: int, reason: str, tmp_path: Path) -> None:
    if changes.get("algorithm") == "equal":
        changes = {**changes, "algorithm": FedAvg(weights="equal")}
    with pytest.raises(ConfigError, match=reason):
        build(config(tmp_path, changes.pop("clients"), **changes), num_ranks=ranks, rank=0)


def test_all_have_no_extra() -> None:
    with pytest.raises(ConfigError, match="clients.extra is 1 but clients.per_round is all"):
        ClientsConfig(extra=1)
