"""Silos whose rows are on one rank each: what the others learn of them is what they declare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks
from record_rows import SILOS, config

from fedtorch.main import main


def entries_of(path: str, *words: str) -> dict[str, Any]:
    """A rank of a run; the entries of the manifest as it knows them."""
    from fedtorch.lifecycle import session
    from fedtorch.setup import pinned_data

    found: dict[str, Any] = {}
    exchange = pinned_data.exchange_sizes

    def exchanged(*about: Any) -> Any:
        told = exchange(*about)
        found.update(told.task.prepared["clients"])
        return told

    for module in (pinned_data, session):
        if hasattr(module, "exchange_sizes"):
            module.exchange_sizes = exchanged
    assert main(["--config", path, "--set", *words]) == 0
    return found


@pytest.mark.processes
def test_ranks_know_of_each_other_what_is_declared_and_train_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = config(tmp_path, promise="eval: {noise_multiplier: 2, units: {bank: {dev: 3}}}")
    path.write_text(path.read_text().replace("dev: 0,", "dev: 0.2,"))
    assert main(["--config", str(path)]) == 0
    alone = json.loads((tmp_path / "run" / "results.json").read_text())
    for silo in SILOS:
        (tmp_path / "silos" / silo / "ledger.jsonl").write_text('{"form": 1}\n')
    places = ", ".join(f"{silo}: {rank}" for rank, silo in enumerate(SILOS, 1))
    words = ["system.placement=pinned", f"system.pinned={{{places}}}", f"run.dir={tmp_path / 'pinned' / 'run'}"]
    for known in run_ranks(entries_of, 4, str(path), *words, timeout=120):
        splits = {silo: {"train": {"examples": 8}} for silo in SILOS}
        splits["bank"]["dev"] = {"examples": 3}
        assert known == {silo: {"splits": each} for silo, each in splits.items()}
    found = json.loads((tmp_path / "pinned" / "run" / "results.json").read_text())
    assert [found[key] for key in ("digest", "best_round")] == [alone[key] for key in ("digest", "best_round")]
    assert found["privacy"]["silos"] == alone["privacy"]["silos"]
