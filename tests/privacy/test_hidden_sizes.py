"""How many rows a client trains on is told where `privacy.reveal` has `sizes`, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from smoke_runs import BRIEF

from fedtorch.main import main
from fedtorch.tracking.run_folder import read_run

SETTINGS = (
    "rounds=1",
    "clients={sampling: poisson, rate: 0.5}",
    "algorithm={name: fedavg, weights: equal}",
    "server={optimizer: sgd, lr: 1.0}",
    "eval={every: 1, merge: true}",
    BRIEF,
    "track={tensorboard: false, progress: 'off'}",
)


@pytest.mark.long
@pytest.mark.parametrize("reveal", ["[scores]", "[scores, sizes]"])
def test_clients_scores_bring_no_sizes_with_them(
    reveal: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    private = f"{{kind: client, clip: 0.5, noise_multiplier: 1.0, delta: 1.0e-3, reveal: {reveal}}}"
    given = [*SETTINGS, f"privacy={private}", f"run.dir={folder}", f"privacy.ledger={tmp_path / 'ledger.jsonl'}"]
    assert main(["--config", "smoke/fedavg", "--set", *given]) == 0, capsys.readouterr().err
    results = json.loads((folder / "results.json").read_text())
    sizes = [entry["examples"] for entry in results["clients"].values()]
    assert len(sizes) == 8 and all(entry["scores"] for entry in results["clients"].values())
    assert set(sizes) == ({None} if reveal == "[scores]" else {16})
    assert read_run(folder).examples == dict(zip(results["clients"], sizes) if reveal != "[scores]" else ())
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert not [words for words in table if words[:2] == ["library", "16"]] or reveal != "[scores]"
