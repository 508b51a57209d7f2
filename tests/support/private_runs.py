"""Configs and runs with client-level privacy on the toy task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import SGD, make_config
from toy import Quadratic

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.config.schema import ClientsConfig, Config
from fedtorch.privacy.settings import PrivacyConfig

TASK = Quadratic(
    clients={f"client_{i}": (1.0, i / 10 - 1, 3 + i % 3) for i in range(20)}, start=(0.3, -0.7, 1.0), double=False
)
CLIENT: dict[str, Any] = {"kind": "client", "clip": 0.5, "noise_multiplier": 1.0, "delta": 1e-3}


def private(folder: Path, algorithm: Algorithm | None = None, *, rate: float = 0.3, **changes: Any) -> Config:
    """A config of the toy task with privacy; `privacy`: what differs from CLIENT."""
    privacy = PrivacyConfig(**{**CLIENT, **changes.pop("privacy", {})})
    settings = {
        "rounds": 3,
        "client": SGD,
        "clients": ClientsConfig(sampling="poisson", rate=rate),
        "privacy": privacy,
        **changes,
    }
    return make_config(folder, settings.pop("task", TASK), algorithm or FedAvg(weights="equal"), **settings)
