"""The page that compares rules for adapters, from folders of runs as they are written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks/ is not part of the package

from benchmarks.adapter_cells import DEALT, MODELS, RULES, write_configs
from benchmarks.adapter_results import Cell, order, page, read
from fedtorch.config.load import load
from fedtorch.core.scores import AGGREGATION_ERROR


def finished(runs: Path, name: str, seed: int, score: float, error: float | None, start: float | None = None) -> None:
    folder = runs / f"{name},seed={seed}"
    folder.mkdir(parents=True)
    results: dict[str, Any] = {"averages": {"accuracy": {"micro": score}}}
    if start is not None:
        results["compare"] = {"start": {"averages": {"accuracy": {"micro": start}}}}
    (folder / "results.json").write_text(json.dumps(results))
    extra = {} if error is None else {AGGREGATION_ERROR: error}
    lines = [{"kind": "client", "loss": 1.0}] + [
        {"kind": "round", "seconds": {"train": 2.0, "wait": 1.0}, "bytes_up": up, "bytes_down": 2 * up, "extra": extra}
        for up in (1_000_000, 3_000_000)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_cells_are_what_the_runs_say(tmp_path: Path) -> None:
    finished(tmp_path, "questions-iid-fedit", 1, 0.8, 0.25, start=0.3)
    finished(tmp_path, "questions-iid-fedit", 2, 0.6, 0.35, start=0.2)
    finished(tmp_path, "questions-iid-fedsa", 1, 0.9, None)
    finished(tmp_path, "questions-iid-fedit", 9, 0.0, 1.0)  # a seed that the page is not of
    (tmp_path / "questions-iid-ffa,seed=1").mkdir()  # one that has not ended
    cells = read(tmp_path, [1, 2])[("questions", "iid")]
    assert cells["fedit"].scores == {"1": 80.0, "2": 60.0} and cells["start"].scores == {"1": 30.0, "2": 20.0}
    assert cells["fedit"].up == [2.0, 2.0] and cells["fedit"].down == [4.0, 4.0] and cells["fedit"].seconds == 12.0
    assert cells["fedit"].errors == [0.25, 0.35] and cells["fedsa"].errors == [] and "ffa" not in cells
    text = page(read(tmp_path, [1, 2]), {"questions": 240, "dialogs": 240}, [1, 2])
    assert "| FedIT | 70.00 ± 14.14 | – | 2.000 | 4.000 | 0.300 | – |" in text and "{" not in text


def test_orders_are_by_the_means_and_the_unit(tmp_path: Path) -> None:
    cells = {
        "fedit": Cell({"1": 6.0, "2": 6.5}),
        "ffa": Cell({"1": 6.2, "2": 6.4}),
        "fedsb": Cell({"1": 7.0, "2": 7.1}),
    }
    told = order("dialogs", "iid", cells)  # nats: the less, the better
    assert told.startswith("- dialogs, iid: FedIT, FFA-LoRA, Fed-SB. With every seed the first is better than 1 of")
    assert order("questions", "iid", cells).startswith("- questions, iid: Fed-SB, FFA-LoRA, FedIT.")
    assert "every seed" not in order("dialogs", "iid", {name: Cell({"1": 1.0}) for name in RULES})


@pytest.mark.parametrize("seed", [1, 3])
def test_every_rule_has_a_config_of_every_task_and_deal(seed: int, tmp_path: Path) -> None:
    files = write_configs(tmp_path, seed, tmp_path / "configs")
    assert len(files) == len(MODELS) * len(DEALT) * len(RULES)
    assert f"home_{seed}" in (tmp_path / "configs" / "dialogs-dirichlet-fedit.yaml").read_text()
    names = {file.stem: load([file]).algorithm_name for file in files if file.stem.startswith("questions-iid")}
    assert names["questions-iid-flora_unlike"] == "flora" and names["questions-iid-ffa"] == "fedavg"
