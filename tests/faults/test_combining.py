"""Combining updates on the server may take long: it gives a sign of life with every update that it asks for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from harness import make_config, make_runner
from ranks import expect_exit, run_ranks
from torch import Tensor
from toy import Quadratic

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.sums.accepted import AcceptedUpdates

pytestmark = pytest.mark.processes

CLIENTS = {f"c{i}": (1.0, float(i), 3) for i in range(6)}
TASK = Quadratic(clients=CLIENTS, start=(0.0, 0.5), double=False)


@dataclass(frozen=True)
class Median(FedAvg):
    """The median of each number; slow at every update, or at the end."""

    each_s: float = 0.0
    last_s: float = 0.0

    def aggregate(self, updates: AcceptedUpdates, weights: Sequence[float]) -> Tensor:
        kept = []
        for update in updates:
            time.sleep(self.each_s)
            kept.append(update.clone())
        time.sleep(self.last_s)
        return torch.stack(kept).median(0).values


def as_rank(folder: str, algorithm: Median) -> str:
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=5) as comm:
        comm.preflight({})
        return make_runner(make_config(Path(folder), TASK, algorithm, rounds=1), comm).run().digest


def test_combining_for_longer_than_the_timeout_ends_nothing_while_updates_are_asked_for(tmp_path: Path) -> None:
    expected = make_runner(make_config(tmp_path / "one", TASK, Median(), rounds=1)).run().digest
    began = time.monotonic()
    assert run_ranks(as_rank, 3, str(tmp_path / "many"), Median(each_s=1.0))[0] == expected
    assert time.monotonic() - began > 5.5


@pytest.mark.slow
def test_combining_in_silence_is_a_hang_of_the_server(tmp_path: Path) -> None:
    outcomes = expect_exit(as_rank, 3, str(tmp_path), Median(last_s=9.0))
    for outcome in outcomes[1:]:
        assert outcome.exit_code == 7 and "rank 0 (the server) gave no sign of life" in outcome.error, outcome.error
        assert "round 0, phase send_one" in outcome.error
