"""From a dry run to an audit: persons of three silos, an adapter, shared noise against the server and one silo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks
from record_rows import BERT, config
from supervisor import as_rank

import fedtorch
from fedtorch.main import main
from fedtorch.privacy.record import silo as noising
from fedtorch.report.command_line import main as report

SHARED = "epsilon: 3.0\n  noise_at: shared\n  secure_sum: {threshold: 1.0}\n  colluders: 1"


def job(folder: Path) -> Path:
    """Three silos with a column `patient`, LoRA on an encoder, ε 3 for each person."""
    path = config(folder)
    text = path.read_text().replace(BERT, BERT[:-1] + ", adapter: {kind: lora, r: 2}}")
    text = text.replace("noise_multiplier: 1.0", SHARED).replace("weights: equal", "weights: declared")
    path.write_text(text.replace("epochs: 1}", "steps: 1}\nserver: {optimizer: adam, lr: 0.02}"))
    return path


@pytest.mark.processes
@pytest.mark.slow
def test_what_is_promised_is_run_reported_and_audited_and_half_the_noise_is_noticed(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = job(tmp_path)
    assert main(["--config", str(path), "--dry-run", "--ranks", "4"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "of each person (column patient), against the server together with 1 of the silos, by shares of" in said
    assert "a round's gradient has 1.414 times less noise than with local noise" in said
    run_ranks(as_rank, 4, ["--config", str(path)], timeout=240)
    report(["privacy", "run", "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert "of each person (column patient, 2 rows at most), against the server together with 1 silo, any 1 " in said
    assert "by the noise of 2 silos together: sums are opened with 3 parts or more, of which up to 1 may be" in said
    for silo in ("bank", "clinic", "shop"):
        (line,) = (line for line in said.splitlines() if line.startswith(f"| {silo} |"))
        assert line.startswith(f"| {silo} | 8 | 2 | 0.5 |") and 2.99 < float(line.split("|")[-2]) <= 3
    kept = fedtorch.audit_run("run", ["canaries"], delta=0.01, canaries=900).findings["canaries"]
    assert "nothing that contradicts it" in kept.said
    add = noising.ADD["normal"]

    def half(total: np.ndarray[Any, Any], deviation: float, stream: Any) -> None:
        add(total, deviation / 2, stream)

    monkeypatch.setattr(noising, "ADD", {"normal": half})
    broken = fedtorch.audit_run("run", ["canaries"], delta=0.01, canaries=900).findings["canaries"]
    assert "spread" in broken.said and "contradict" in broken.said and "nothing that" not in broken.said
