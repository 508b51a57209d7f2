"""Canary units: noised steps as promised contradict nothing, half the noise does, with local and with shared noise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks
from record_rows import config
from supervisor import as_rank

import fedtorch
from fedtorch.audit.canaries import judged
from fedtorch.audit.canary_units import canary_units
from fedtorch.privacy.record import silo, steps
from fedtorch.privacy.record.terms import epsilon_of
from fedtorch.privacy.settings import PrivacyConfig, SecureSum

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("exact_accounts")]

pytest.importorskip("dp_accounting")
PROMISES = {
    "local": PrivacyConfig("record", clip=0.5, noise_multiplier=2.0, delta=1e-5, units={"a": 500}),
    "shared": PrivacyConfig(
        "record",
        clip=0.5,
        noise_multiplier=2.0,
        delta=1e-5,
        units={"a": 500},
        noise_at="shared",
        secure_sum=SecureSum(1.0),
    ),
}


@pytest.fixture
def halved(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Half the noise, in silence."""
    add = silo.ADD["normal"]

    def half(total: np.ndarray[Any, Any], deviation: float, stream: Any) -> None:
        add(total, deviation / 2, stream)

    monkeypatch.setattr(silo, "ADD", {"normal": half})
    yield


@pytest.mark.parametrize("at", PROMISES)
def test_what_was_promised_contradicts_nothing(at: str) -> None:
    seen = canary_units(canaries=900, steps=8, rate=0.5, promise=PROMISES[at])
    claimed = epsilon_of([(seen.rate, 2.0, 8)], 1e-5)
    found = judged(seen.presence, seen.is_in, seen.rate, seen.noise, claimed, 1e-5)
    assert found.flags == [] and 0.8 < found.spread < 1.2
    assert found.fit[1] < claimed and 0.5 < found.bound < claimed
    assert seen.noise == pytest.approx(2.0 if at == "local" else 2.0 * (3 / 2) ** 0.5)


@pytest.mark.usefixtures("halved")
@pytest.mark.parametrize("at", PROMISES)
def test_half_the_noise_is_noticed(at: str) -> None:
    seen = canary_units(canaries=900, steps=8, rate=0.5, promise=PROMISES[at])
    claimed = epsilon_of([(seen.rate, 2.0, 8)], 1e-5)
    found = judged(seen.presence, seen.is_in, seen.rate, seen.noise, claimed, 1e-5)
    assert "spread" in found.flags and found.spread < 0.3 and found.fit[0] > claimed


def test_a_unit_that_is_not_clipped_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    add = steps.add_bounded
    monkeypatch.setattr(steps, "add_bounded", lambda total, g, clip, e: add(total, g, 4 * clip, e))
    seen = canary_units(canaries=900, steps=8, rate=0.5, promise=PROMISES["local"])
    claimed = epsilon_of([(seen.rate, 2.0, 8)], 1e-5)
    assert "fit" in judged(seen.presence, seen.is_in, seen.rate, seen.noise, claimed, 1e-5).flags


def test_an_audit_of_a_run_tries_the_silo_that_pays_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = config(tmp_path, promise="per_silo: {shop: {noise_multiplier: 0.6}}")
    run_ranks(as_rank, 2, ["--config", str(path)], timeout=120)
    found = fedtorch.audit_run(tmp_path / "run", ["rows", "canaries"], delta=0.01, canaries=300)
    rows, canaries = found.findings["rows"], found.findings["canaries"]
    assert "no update leaves a silo without noise on every step" in rows.skipped
    assert canaries.said.startswith("the unit is a person; of epsilon")
    (bound, *_) = canaries.figures
    assert bound["claimed"] == epsilon_of([(0.5, 0.6, 4)], 0.01)
    assert found.facts["the server sees"] == "each update, of steps with noise of its silo's own"
    before = json.loads((tmp_path / "run" / "results.json").read_text())["privacy"]["silos"]["shop"]["steps"]
    assert len((tmp_path / "silos" / "shop" / "ledger.jsonl").read_text().splitlines()) == 3 and before == 4
