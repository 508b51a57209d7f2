"""Which algorithms a scale that is fixed before the round is refused for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness import make_config, make_runner
from toy import Quadratic

from fedtorch.algorithms.adapters.hetlora import HetLoRA
from fedtorch.algorithms.adapters.rolora import RoLoRA
from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.fedassistant import FedAssistant
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.feddyn import FedDyn
from fedtorch.algorithms.fednova import FedNova
from fedtorch.algorithms.fedprox import FedProx
from fedtorch.algorithms.local import Local
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.algorithms.sums import why_not_ahead
from fedtorch.config.schema import SystemConfig
from fedtorch.core.errors import ConfigError
from fedtorch.core.update import Report

TASK = Quadratic(clients={"a": (1.0, 1.0, 4), "b": (2.0, -1.0, 4)}, start=(1.0, 2.0))
LATE = "known only when all clients are done"


@dataclass(frozen=True)
class OwnWeights(FedAvg):
    """Weighs in a way of its own, and does not say how a client's weight is known."""

    def weigh(self, reports: Any) -> list[float]:
        return [1.0 for _ in reports]


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        (FedAvg(weights="lorar"), LATE),
        (FedAvg(weights="loss_reduction"), LATE),
        (FedNova(), LATE),
        (HetLoRA(), LATE),
        (OwnWeights(), LATE),
        (FedAvg(robust="median"), "combines updates in a way of its own"),
        (FedAssistant(payload="delta"), "compressed messages"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Algorithm) else "",
)
def test_weights_that_are_known_at_the_end_are_refused(algorithm: Algorithm, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"system.sum_scale is previous but algorithm.name is .*{why}"):
        make_runner(make_config(tmp_path, TASK, algorithm, system=SystemConfig(sum_scale="previous")))


def test_where_nothing_is_summed_it_is_refused(tmp_path: Path) -> None:
    config = make_config(tmp_path, TASK, Local(), system=SystemConfig(sum_scale="previous"), paradigm="local")
    with pytest.raises(ConfigError, match="paradigm is local, where no server adds up"):
        make_runner(config)


@pytest.mark.parametrize(
    "algorithm",
    [FedAvg(), FedAvg(weights="equal"), FedProx(), Scaffold(), FedDyn(), RoLoRA()],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_own_weights_are_those_that_weights_are_made_of(algorithm: Algorithm) -> None:
    assert why_not_ahead(algorithm) == ""
    reports = [Report("a", examples=3), Report("b", examples=8, draws=2), Report("c", examples=1, extra={"size": 9.0})]
    own = [algorithm.own_weight(report) for report in reports]
    total = sum(number or 0.0 for number in own)
    assert algorithm.weigh(reports) == pytest.approx([(number or 0.0) / total for number in own], rel=1e-15)
