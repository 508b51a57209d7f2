"""The page on attacks and defences: what is credited, what is not done again, and that every cell is a config."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks/ is not part of the package

from benchmarks.defence_cells import CELLS, CLIP, NO_NOISE, config_of, settings_of, wanted
from benchmarks.defences import exposure, page, picture, recovered, run_cell, told, words
from fedtorch.config.load import load


def found(channel: str, recovered: float, right: float | None) -> dict[str, Any]:
    return {"channel": channel, "recovered": recovered, "right": right}


def record_of(released: str) -> dict[str, Any]:
    rows = [found("update", 0.5, 1.0), found("update", 1.0, 0.1), found(released, 1.0, 0.3)]
    secrets = [
        {"channel": channel, "times": times, "exposure": bits}
        for channel, times, bits in (("model", 16, 8.0), ("noised", 16, 2.0), ("noised", 16, 1.0), ("noised", 0, 7.0))
    ]
    both = [found(f"keys and values, {kind} weights", share, None) for kind, share in (("own", 0.5), ("the same", 1.0))]
    return {
        "findings": {
            "rows": {"figures": rows},
            "span": {"skipped": "no tokens"},
            "kv": {"figures": both},
            "secrets": {"figures": secrets},
            "membership": {"figures": [{"auc": 0.75}]},
        },
        "averages": {name: {"micro": 0.25} for name in ("accuracy", "loss", "log_likelihood")},
        "cpu_s": 60.0,
    }


def test_an_attacker_is_credited_with_what_tells_something() -> None:
    record = record_of("sum")
    assert recovered(record, "rows", "update") == (0.5, 1.0)  # and not all of them, with nine in ten wrong
    assert told(record, "rows", "update") == 0.5 and told(record, "rows", "sum") == 0.0
    assert recovered(record, "span", "sum") is None and told(record, "span", "sum") is None
    assert exposure(record) == 1.5  # under what is released last
    assert words(record, "own") == 0.5 and words(record, "the same") == 1.0


def test_the_page_has_a_row_for_every_cell_and_the_picture_bars() -> None:
    records = {place: [record_of(CELLS[place[1]].released)] for place in wanted()}
    text = page(records, [0], 10)
    assert "{" not in text and text.count("| 0.75 |") == len(wanted())
    assert "| an epoch of AdamW | 50 % (100 %) | 100 % (30 %) | – | – | 1.5 | 0.75 | 25.00 |" in text
    drawn = picture(records)
    assert ElementTree.fromstring(drawn).tag.endswith("}svg") and drawn == picture(records)
    assert drawn.count('<g id="bar ') == 4 * len(wanted()) and "keys and values, own weights" in drawn


def test_a_cell_that_is_done_is_not_done_again(tmp_path: Path) -> None:
    (tmp_path / "cell.json").write_text(json.dumps({"done": 1}))
    assert run_cell("questions", "adamw", tmp_path, 0, {}, 10) == {"done": 1}


@pytest.mark.parametrize(("task", "cell"), wanted())
def test_every_cell_is_a_config_that_trains_with_its_defence(task: str, cell: str, tmp_path: Path) -> None:
    data = {name: tmp_path / name for name in ("questions", "text2sql", "dialog")}
    (tmp_path / "cell.yaml").write_text(config_of(task, 0, tmp_path / "run", data, 2))
    config = load([tmp_path / "cell.yaml"], settings_of(task, cell))
    assert config.rounds == 2 and config.privacy.kind == ("none" if CELLS[cell].noise is None else "client")
    assert config.privacy.first_clip == (CLIP if CELLS[cell].noise else 0.0)
    assert bool(config.partition.frozen) == (cell == "frozen")
    assert ("clipped" in CELLS[cell].released) == (CELLS[cell].noise is not None)
    assert ("noised" in CELLS[cell].released) == (CELLS[cell].noise not in (None, NO_NOISE))
