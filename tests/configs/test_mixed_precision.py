"""Every smoke config trains and evaluates in bf16, with finite scores."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fedtorch.config.find import shipped
from fedtorch.main import main

CONFIGS = shipped()
SMOKE = [*sorted((CONFIGS / "smoke").glob("[!_]*.yaml")), CONFIGS / "fewfedweight" / "small" / "smoke_ffw_full.yaml"]
SHRUNK = ("rounds=1", "track.tensorboard=false", "engine.precision=bf16")


def numbers(tree: Any) -> list[float]:
    """All numbers in a tree of JSON."""
    if isinstance(tree, dict | list):
        return [x for part in (tree.values() if isinstance(tree, dict) else tree) for x in numbers(part)]
    return [tree] if isinstance(tree, int | float) else []


@pytest.mark.slow
@pytest.mark.parametrize("path", SMOKE, ids=lambda path: path.stem)
def test_a_smoke_config_runs_in_bf16(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--config", str(path), "--set", *SHRUNK]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    results = json.loads((folder / "results.json").read_text())
    scores = [client["scores"] for client in results["clients"].values() if "scores" in client]
    assert scores and all(map(math.isfinite, numbers(scores)))
    assert {client.get("status") for client in results["clients"].values()} <= {"ok", None}  # None: not drawn
