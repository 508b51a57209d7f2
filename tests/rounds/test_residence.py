"""Which runs may keep the vectors of a round on devices, what that takes, and what rules of one's own must say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from harness import SGD, make_config
from toy import Quadratic

from fedtorch.algorithms.base import on_device
from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedavg import FedAvg, FedOpt
from fedtorch.algorithms.feddyn import FedDyn
from fedtorch.algorithms.fednova import FedNova
from fedtorch.algorithms.fedprox import FedProx
from fedtorch.algorithms.local import Local
from fedtorch.algorithms.pfedme import PFedMe
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.compression.settings import ExchangeConfig
from fedtorch.config.schema import ClientsConfig, ServerConfig
from fedtorch.config.system import SystemConfig
from fedtorch.core.update import Report
from fedtorch.privacy.settings import PrivacyConfig
from fedtorch.rounds.residence import memory_bytes, why_on_host
from fedtorch.setup.build import build
from fedtorch.train.job import ClientJob

TASK = Quadratic({name: (1.0, 2.0, 4) for name in "abcde"}, start=(0.0,), width=1 << 18, double=False)  # 1 MiB


@dataclass(frozen=True)
class Weighs(FedAvg):
    """A rule of one's own about what the server does."""

    def own_weight(self, report: Report) -> float | None:
        return 1.0


@dataclass(frozen=True)
class Trains(FedAvg):
    """One about what clients do, which says nothing of devices."""

    def client_update(self, job: ClientJob) -> Report:
        return super().client_update(job)


@dataclass(frozen=True)
class TrainsThere(Trains):
    """The same, written for any device."""

    @on_device
    def client_update(self, job: ClientJob) -> Report:
        return super().client_update(job)


def built(folder: Path, algorithm: Any = None, **changes: Any) -> Any:
    return build(make_config(folder, TASK, algorithm, **changes), num_ranks=3, rank=1)


@pytest.mark.parametrize(
    "algorithm",
    [FedAvg(), FedOpt(), FedProx(), FedNova(), Ditto(), Scaffold(), Weighs(), TrainsThere()],
    ids=lambda a: type(a).__name__,
)
def test_rules_whose_clients_compute_anywhere_may_keep_vectors_on_devices(algorithm: Any, tmp_path: Path) -> None:
    changes = {"server": ServerConfig(optimizer="sgd")} if isinstance(algorithm, FedOpt) else {}
    assert why_on_host(built(tmp_path, algorithm, **changes)) == ""


PRIVACY = PrivacyConfig(kind="client", clip=0.5, noise_multiplier=1.0, delta=1e-2, simulate=True, seed=1)
REASONS: list[tuple[str, Any, dict[str, Any]]] = [
    ("clients of FedDyn compute", FedDyn(), {}),
    ("clients of PFedMe compute", PFedMe(), {}),
    ("clients of Trains compute", Trains(), {}),
    ("nothing is exchanged", Local(), {}),
    ("more with updates than add them up", FedAvg(robust="median"), {}),
    ("system.exchange is send", None, {"system": SystemConfig(exchange="send")}),
    ("exchange.bits packs", None, {"exchange": ExchangeConfig(bits=4)}),
    (
        "privacy is kept",
        FedAvg(weights="equal"),
        {"privacy": PRIVACY, "clients": ClientsConfig(sampling="poisson", rate=1.0)},
    ),
]


@pytest.mark.parametrize(("reason", "algorithm", "changes"), REASONS, ids=[reason for reason, *_ in REASONS])
def test_what_looks_at_vectors_on_the_host_is_said(
    reason: str, algorithm: Any, changes: dict[str, Any], tmp_path: Path
) -> None:
    assert reason in why_on_host(built(tmp_path, algorithm, **changes))


@pytest.mark.parametrize(("megabytes", "vectors"), [(1024, 4), (2, 3), (1, 2)])
def test_a_device_has_what_was_received_and_the_updates_that_wait(megabytes: int, vectors: int, tmp_path: Path) -> None:
    """Five clients on two workers are three at most; what `system.update_memory_mb` does not hold is in files."""
    found = built(tmp_path, client=replace(SGD), system=SystemConfig(server_works=False, update_memory_mb=megabytes))
    assert memory_bytes(found) == vectors << 20
