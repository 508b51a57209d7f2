"""The page of preferences: its rows from the tastes that made them, its tables from folders of runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks/ is not part of the package

from benchmarks.preference_rows import SIZES, TESTED, Answer, Known, tastes, write_rows
from benchmarks.preferences import METHODS, RATE, read, table, write_config
from fedtorch.config.load import load


def test_what_can_be_known_of_the_rows_is_counted_on_the_rows_themselves(tmp_path: Path) -> None:
    known = write_rows(3, tmp_path / "rows.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    for name, size in SIZES.items():
        own = [row for row in rows if row["clinic"] == name]
        assert [row["part"] for row in own] == ["train"] * size + ["test"] * TESTED
        assert TESTED / 2 < known[name].common < known[name].all < TESTED
    assert write_rows(3, tmp_path / "again.jsonl") == known
    assert (tmp_path / "again.jsonl").read_text() == (tmp_path / "rows.jsonl").read_text()


def test_a_treatment_is_worth_the_same_to_all_and_an_opening_is_not() -> None:
    each, ice, please = tastes(0), Answer("", "ice", ""), Answer("please", "ice", "")
    assert len({taste.shared(ice) for taste in each.values()}) == 1
    assert len({taste.worth(please) - taste.worth(ice) for taste in each.values()}) == len(SIZES)
    assert (ice.text, please.text) == (" try ice", " please try ice")


def finished(out: Path, method: str, seed: int, right: float) -> None:
    folder = out / "runs" / f"{method}-{seed}"
    folder.mkdir(parents=True)
    scores = {"reward_accuracy": [right, TESTED], "margin": [TESTED / 4, TESTED]}
    (folder / "results.json").write_text(json.dumps({"clients": {name: {"scores": scores} for name in SIZES}}))


def test_tables_have_means_ranges_and_the_rows_behind_them(tmp_path: Path) -> None:
    finished(tmp_path, "federated", 0, 0.7 * TESTED)
    finished(tmp_path, "federated", 1, 0.8 * TESTED)
    (tmp_path / "runs" / "local-0").mkdir()  # one that has not ended
    found = read(tmp_path, [0, 1, 2])
    known = {seed: dict.fromkeys(SIZES, Known(TESTED // 2, TESTED)) for seed in (0, 1)}
    lines = table("reward_accuracy", found, known, True).splitlines()
    cells = f"| {TESTED} × 2 | 75.0 (70.0 to 80.0) | 50.0 (50.0 to 50.0) | 100.0 (100.0 to 100.0) |"
    assert f"| north | {SIZES['north']} {cells}" in lines and len(lines) == 3 + len(SIZES)
    assert f"| {TESTED * len(SIZES)} × 2 | 0.25 (0.25 to 0.25) |" in table("margin", found, known, False)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_config(tmp_path: Path, name: str) -> None:
    (tmp_path / "configs").mkdir()
    config = load([write_config(tmp_path, name, 1, RATE)])
    assert config.task_name == "preference" and (config.client.trainer is not None) == (name == "trl")
    assert (config.paradigm, config.task.kind) == (
        {"local": "local", "together": "centralized"}.get(name, "federated"), "ipo" if name == "ipo" else "dpo"
    )  # fmt: skip
