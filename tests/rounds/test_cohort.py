"""A sampler of one's own: what is wrong with it shows before the ranks meet, or ends the run on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from harness import make_config, make_runner
from ranks import expect_exit
from toy import Quadratic

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import ClientsConfig, Config
from fedtorch.core.client import Client
from fedtorch.core.errors import ConfigError, FedtorchError, PreflightError, QuorumError
from fedtorch.core.sampling import Sampler
from fedtorch.core.update import Report
from fedtorch.rounds.report_checks import check_complete
from fedtorch.setup.build import build

TASK = Quadratic(clients={name: (1.0, index, 5) for index, name in enumerate("abcdef")})


@dataclass(frozen=True)
class Nobody(Sampler):
    """Draws nobody from round `after` on."""

    after: int = 0

    def draw(self, clients: Sequence[Client], count: int, *, seed: int, round: int) -> Sequence[Client]:
        return clients[:count] if round < self.after else []


@dataclass(frozen=True)
class Twice(Sampler):
    """Draws the first client twice."""

    def draw(self, clients: Sequence[Client], count: int, *, seed: int, round: int) -> Sequence[Client]:
        return [clients[0]] * 2


@dataclass(frozen=True)
class Again(Twice):
    """The same, and means it."""

    with_replacement: ClassVar[bool] = True


@dataclass(frozen=True)
class Wilful(Sampler):
    """Draws something else every time it is asked, from round `after` on."""

    after: int = 0
    asked: ClassVar[list[int]] = []

    def draw(self, clients: Sequence[Client], count: int, *, seed: int, round: int) -> Sequence[Client]:
        if round < self.after:
            return clients[:count]
        self.asked.append(round)
        return [clients[(len(self.asked) + place) % len(clients)] for place in range(count)]


@dataclass(frozen=True)
class OfTheRank(Sampler):
    """Goes by the rank in the second round, as nothing may."""

    def draw(self, clients: Sequence[Client], count: int, *, seed: int, round: int) -> Sequence[Client]:
        import os

        return clients[:count] if round == 0 or os.environ["RANK"] == "0" else clients[-count:]


def config_of(folder: Path, sampler: type[Sampler], *, weights: Any = "size", **fields: Any) -> Config:
    sampling = {"name": f"{__name__}:{sampler.__qualname__}", **fields}
    clients = ClientsConfig(per_round=2, sampling=sampling)
    return make_config(folder, TASK, FedAvg(weights=weights), clients=clients, rounds=3)


@pytest.mark.parametrize(
    ("sampler", "error", "code", "said"),
    [
        (Nobody, QuorumError, 5, "in round 1 `Nobody` drew nobody"),
        (Twice, ConfigError, 2, "in round 1 `Twice` drew client `a` more than once"),
        (
            Again,
            ConfigError,
            2,
            "clients.sampling is Again, which draws with replacement, and algorithm.weights is size",
        ),
    ],
)
def test_the_first_rounds_draw_is_checked_before_the_ranks_meet(
    sampler: type[Sampler], error: type[FedtorchError], code: int, said: str, tmp_path: Path
) -> None:
    with pytest.raises(error) as caught:
        build(config_of(tmp_path, sampler), num_ranks=3, rank=1)
    assert caught.value.exit_code == code and said in str(caught.value)


def test_a_later_rounds_draw_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(QuorumError, match="in round 3 `Nobody` drew nobody"):
        make_runner(config_of(tmp_path, Nobody, after=2)).run()


def test_a_client_that_a_sampler_of_ones_own_draws_twice_counts_twice(tmp_path: Path) -> None:
    runner = make_runner(config_of(tmp_path, Again, weights="equal"))
    result = runner.run()
    assert {report.client: report.draws for report in runner.context.server.accepted} == {"a": 2}
    assert result.weights == {"a": 1.0}


def test_ranks_that_draw_different_clients_for_the_first_round_do_not_fit_together(tmp_path: Path) -> None:
    one, other = (build(config_of(tmp_path, Wilful), num_ranks=3, rank=rank).facts() for rank in (0, 1))
    assert {key for key in one if one[key] != other[key]} == {"clients of the first round"}
    one, other = (build(config_of(tmp_path, Nobody, after=9), num_ranks=3, rank=rank).facts() for rank in (0, 1))
    assert one == other


def test_a_round_in_which_a_drawn_client_was_not_trained_once_ends_the_run() -> None:
    drawn = [(Client(name, index, {"train": 5}), 1) for index, name in enumerate("abc")]
    check_complete([Report(name) for name in "cab"], drawn)
    for reports in ("ab", "", "abca"):
        with pytest.raises(PreflightError, match="the ranks drew different clients for a round"):
            check_complete([Report(name) for name in reports], drawn)
    for reports in ("ab", "abc"):  # a lost client may have delivered before
        check_complete([Report(name) for name in reports], drawn, lost={"c": 0})


def drawn_by_rank(folder: str) -> None:
    with DistributedCommunicator.join(tuple(TASK.clients), timeout_s=60) as comm:
        make_runner(config_of(Path(folder), OfTheRank), comm).run()


@pytest.mark.processes
@pytest.mark.slow
def test_ranks_that_come_apart_in_a_later_round_end_with_a_reason(tmp_path: Path) -> None:
    server, *workers = expect_exit(drawn_by_rank, 3, str(tmp_path))
    assert server.exit_code == 4 and "the ranks drew different clients" in server.error
    assert all(worker.exit_code for worker in workers)
