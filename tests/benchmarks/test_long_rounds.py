"""The page of long rounds: its rows, its runs' settings, its table and picture from finished runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks/ is not part of the package

from benchmarks.long_rounds import OUTER, TESTED, TOGETHER, TRAINED, config_of, draw, measured, table, write_rows
from fedtorch.config.load import load


@pytest.mark.long
def test_rows_are_as_many_dialogs_of_each_domain(shared_data: Path, tmp_path: Path) -> None:
    write_rows(shared_data / "dialog" / "sgd", tmp_path)
    for name, most in (("train", TRAINED), ("test", TESTED)):
        rows = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        domains = [row["domain"] for row in rows]
        assert len(set(domains)) == 6 and all(domains.count(domain) == most for domain in set(domains))


@pytest.mark.parametrize("method", [*OUTER, TOGETHER])
def test_every_run_takes_as_many_steps(method: str, tmp_path: Path) -> None:
    for every in (5, 300):
        config = load(config_of(tmp_path, "x", method, every, 300, 0))
        assert config.rounds * (config.client.steps or 0) == 300
        assert config.client.accumulation == (6 if method == TOGETHER else 1)
        assert config.server.nesterov is (method == "DiLoCo")


def test_a_finished_run_is_read_and_told(tmp_path: Path) -> None:
    for name, loss in (("DiLoCo-300-5-0", 2.0), ("plain_mean-300-5-0", 2.5), ("every_step_together-300-300-0", 1.5)):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "results.json").write_text(json.dumps({"averages": {"log_likelihood": {"micro": -loss}}}))
    cases = [("DiLoCo", 5), ("plain mean", 5), (TOGETHER, 300)]
    found = {(method, every): [measured(tmp_path, method, every, 300, 0)] for method, every in cases}
    text = table(found, 300, [0])
    assert "| 5 (60) | 2.000 (2.000) | 2.500 (2.500) |" in text and f"{TOGETHER}: 1.500" in text
    draw(found, tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text().count("<path") > 10
