"""Which models of a run get a card, and whose scores it has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedtorch.compression.settings import ExchangeConfig
from fedtorch.config import load as yaml_config
from fedtorch.config.schema import Config
from fedtorch.lifecycle.model_cards import write_cards

pytestmark = pytest.mark.long

RESULTS: dict[str, Any] = {
    "rounds": 2,
    "best_round": None,
    "split": "test",
    "clients": {
        "north": {"examples": 30, "scores": {"accuracy": [3.0, 4], "count/0/hits": [2.0, 4]}},
        "West": {"examples": 10, "scores": {"accuracy": [1.0, 2]}},
        "held": {"examples": 0, "scores": {"accuracy": [0.0, 2]}},
    },
    "averages": {"accuracy": {"macro": 0.4, "micro": 0.5, "count": 8}},
    "summary": {"pooled": {"f1_macro": 0.25}, "clients": {"north": {"f1_macro": 0.75}}},
}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "results.json").write_text(json.dumps(RESULTS))
    (tmp_path / "a.yaml").write_text(
        "task: {name: text_classification, model: {random: bert}, data: {source: /nowhere.jsonl}}\nrounds: 2\n"
    )
    return yaml_config.load(tmp_path / "a.yaml")


def model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_the_servers_model_has_the_scores_of_all_clients(config: Config, tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    write_cards(config, tmp_path, folder)
    text = (folder / "README.md").read_text()
    assert "40 rows of 2 clients" in text and "random weights" in text
    assert "| accuracy | 0.5000 | 8 |" in text and "| f1_macro | 0.2500 | 8 |" in text
    assert not [name for name in RESULTS["clients"] if name in text]
    assert 'pipeline("text-classification", model="FOLDER")' in text


def test_a_clients_model_has_its_own_scores(config: Config, tmp_path: Path) -> None:
    north = model(tmp_path / "model" / "north")
    (other := tmp_path / "model" / "something").mkdir()
    write_cards(config, tmp_path, tmp_path / "model")
    text = (north / "README.md").read_text()
    assert "| accuracy | 0.7500 | 4 |" in text and "| f1_macro | 0.7500 | 4 |" in text and "count/" not in text
    assert not list(other.iterdir()) and not (tmp_path / "model" / "README.md").exists()
    out = model(tmp_path / "out")  # as `fedtorch export RUN --client north --out out` writes it
    write_cards(config, tmp_path, out, "north")
    assert (out / "README.md").read_text() == text


def test_a_card_says_how_updates_were_rounded(config: Config, tmp_path: Path) -> None:
    for bits, said in ((32, "`fedavg`, 2 rounds"), (16, "`fedavg` with updates of 16 bits a number, 2 rounds")):
        folder = model(tmp_path / str(bits))
        write_cards(replace(config, exchange=ExchangeConfig(bits=bits)), tmp_path, folder)
        assert said in (folder / "README.md").read_text()


def test_a_task_that_does_not_say_how_it_loads_gets_none(tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    (tmp_path / "results.json").write_text(json.dumps(RESULTS))
    write_cards(yaml_config.load("smoke/fedavg"), tmp_path, folder)
    assert not (folder / "README.md").exists()


@pytest.mark.parametrize("damage", ["{", '{"clients": {}}'])
def test_a_card_that_cannot_be_written_is_a_warning(damage: str, config: Config, tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "results.json").write_text(damage)
    write_cards(config, tmp_path, model(tmp_path / "model"))
    assert "could not be written" in caplog.text
