"""Workers are kept busy equally long: costs are learnt from rounds, and no bit depends on it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness import make_config, make_runner
from ranks import run_ranks
from toy import Quadratic

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.core.update import Report
from fedtorch.rounds.pace import Pace
from fedtorch.rounds.topology import Topology
from fedtorch.train.job import ClientJob

COSTS = {"a": 8.0, "b": 8.0, "c": 16.0}


def test_what_was_not_measured_counts_as_it_was_expected() -> None:
    assert Pace().expected(COSTS) == COSTS


def test_a_new_client_has_the_median_rate_of_those_that_are_known() -> None:
    pace = Pace()
    pace.see([Report("a", seconds=4.0), Report("b", seconds=12.0)], COSTS)
    assert pace.expected(COSTS) == {"a": 4.0, "b": 12.0, "c": 16.0}
    assert pace.expected({"c": 7.0}) == {"c": 7.0}


def test_half_of_a_rate_is_new() -> None:
    pace = Pace()
    for seconds in (8.0, 4.0):
        pace.see([Report("a", seconds=seconds)], COSTS)
    assert pace.expected({"a": 16.0}) == {"a": 12.0}


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_clock_that_cannot_be_true_tells_nothing(seconds: float) -> None:
    pace = Pace()
    pace.see([Report("a", seconds=seconds)], COSTS)
    assert pace.expected(COSTS) == COSTS


def test_rates_that_overflow_tell_nothing() -> None:
    pace = Pace()
    pace.see([Report("a", seconds=1e300)], {"a": 1e-10})
    assert pace.expected({"a": 1e10}) == {"a": 1e10}


def test_clients_stay_unless_the_longest_worker_ends_much_earlier() -> None:
    topology, costs = Topology(3), {"a": 8.0, "b": 8.0, "c": 8.0, "d": 8.0}
    usual = topology.assign(costs, None)
    for slow, moves in ((8.8, False), (24.0, True)):
        pace = Pace()
        pace.see([Report(name, seconds=slow if name == "a" else 8.0) for name in costs], costs)
        placed = pace.assign(topology, costs)
        assert (placed != usual) == moves
    assert [name for name in costs if placed[name] == placed["a"]] == ["a"]


def test_nobody_is_moved_from_a_worker_of_its_own() -> None:
    topology, costs = Topology(4), {"a": 8.0, "b": 8.0, "c": 8.0}
    pace = Pace()
    pace.see([Report(name, seconds=seconds) for name, seconds in zip("abc", (1.0, 2.0, 9.0), strict=True)], costs)
    assert pace.assign(topology, costs) == topology.assign(costs, None)


CLIENTS = {f"c{i}": (1.0, float(i), 8) for i in range(4)}


@dataclass(frozen=True)
class Sleepy(FedAvg):
    """FedAvg whose clients `c0` and `c2` take much longer than their equals."""

    def client_update(self, job: ClientJob) -> Any:
        """Train, and rest."""
        if job.client.name in ("c0", "c2"):
            time.sleep(0.3)
        return super().client_update(job)


def placed(folder: str, comm: Communicator | None = None) -> tuple[str, list[dict[str, int]]]:
    """The digest on the server, and who trained whom in each round."""
    runner = make_runner(make_config(Path(folder) / "run", Quadratic(clients=CLIENTS), Sleepy(), rounds=2), comm)
    found, train = list[dict[str, int]](), runner.trainer.train_cohort

    def watched() -> list[Report]:
        reports = train()
        found.append(runner.trainer.placed)
        return reports

    runner.trainer.train_cohort = watched  # type: ignore[method-assign]
    return runner.run().digest, found


def placed_on_a_rank(folder: str) -> tuple[str, list[dict[str, int]]]:
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=30) as comm:
        return placed(folder, comm)


@pytest.mark.processes
def test_clients_that_take_long_have_different_workers_from_the_second_round(tmp_path: Path) -> None:
    alone, _ = placed(str(tmp_path / "alone"))
    (digest, first), *others = run_ranks(placed_on_a_rank, 3, str(tmp_path))
    assert digest == alone
    assert all(rounds == first for _, rounds in others)
    before, after = first
    assert before["c0"] == before["c2"]
    assert after["c0"] != after["c2"]
