"""Who trains where `system.server_works` is left to the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import make_config
from toy import Quadratic

from fedtorch.config.schema import Config, EngineConfig, SystemConfig
from fedtorch.privacy.settings import PrivacyConfig, SecureSum
from fedtorch.rounds.placement import make_topology

RANKS = 3
PRIVATE = PrivacyConfig(kind="client", clip=1.0, noise_multiplier=1.0, delta=1e-5)


@pytest.fixture(autouse=True)
def _small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks are on a machine with as many cores, and no GPU."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(RANKS))
    monkeypatch.setattr("os.cpu_count", lambda: RANKS)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def config(**changes: Any) -> Config:
    return make_config(Path("run"), Quadratic(clients={"a": (1.0, 0.0, 4), "b": (1.0, 1.0, 4)}), **changes)


def trains(found: Config, ranks: int = RANKS) -> bool:
    """Does rank 0?"""
    return make_topology(found, ranks).worker_of(0) is not None


def test_the_server_trains_where_its_core_would_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trains(config())
    monkeypatch.setattr("os.cpu_count", lambda: RANKS + 1)
    assert not trains(config())  # it has a core of its own
    monkeypatch.setattr("os.cpu_count", lambda: RANKS - 1)
    assert not trains(config())  # the other ranks use all cores
    assert trains(config(), 1)


@pytest.mark.parametrize("here", ["1", "2", None])
def test_it_only_serves_where_ranks_are_elsewhere_or_nobody_says_where(
    here: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    if here:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
    assert not trains(config())


@pytest.mark.parametrize(("gpus", "does"), [(1, False), (RANKS - 1, False), (RANKS, True), (RANKS + 5, True)])
def test_it_trains_where_its_gpu_would_idle_and_only_serves_where_gpus_are_shared(
    gpus: int, does: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    assert trains(config()) is trains(config(system=SystemConfig(device="cuda"))) is does
    assert trains(config(system=SystemConfig(device="cpu")))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(RANKS - 1))  # the others are on another machine
    assert not trains(config())


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": EngineConfig(kind="deepspeed")},
        {"system": SystemConfig(ranks_per_worker=2)},
        {"system": SystemConfig(ranks_per_worker=(1, 1))},
        {"system": SystemConfig(placement="pinned", pinned={"a": 1, "b": 2})},
        {"system": SystemConfig(server_works=False)},
        {"privacy": PRIVATE},
        {"privacy": PrivacyConfig(clip=1.0, secure_sum=SecureSum())},
    ],
    ids=["deepspeed", "pairs", "list", "pinned", "told", "private", "secure-sum"],
)
def test_it_only_serves_where_it_has_other_work_or_must_not_see_a_client(changes: dict[str, Any]) -> None:
    assert not trains(config(**changes))


def test_what_was_asked_for_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert trains(config(system=SystemConfig(server_works=True)))
