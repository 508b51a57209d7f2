"""The loss as what chooses the best model: for every task, and of its own accord where answers are wrong for long."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedtorch.config.load import load
from fedtorch.main import main

SMALL = ("task.max_train=4", "task.max_dev=2", "task.max_test=2", "rounds=2", "track.tensorboard=false")


def dev_losses(run: Path) -> list[float]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = [r["metrics"]["loss"]["micro"] for r in records if r["kind"] == "eval_total" and r["label"] == "training"]
    assert found and all(value is not None for value in found)
    return found


@pytest.mark.parametrize("name", ["fedavg", "fedmatch", "coverquery", "feda", "gpt_all", "fedparsing"])
def test_every_task_can_be_selected_by_loss(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    evaluation = "eval={select_by: loss, best: together, point: received, also_received: false, per_example: false}"
    settings = [*(key for key in SMALL if name != "fedparsing" or "max_train" not in key), evaluation]
    assert main(["--config", f"smoke/{name}", "--set", *settings]) == 0
    run = tmp_path / "runs" / name
    losses = dev_losses(run)
    results = json.loads((run / "results.json").read_text())
    assert results["best_round"] == 1 + losses.index(min(losses))


def test_a_text_generator_of_random_weights_is_selected_by_loss_and_a_pretrained_one_by_what_it_says() -> None:
    given = {
        "task": {
            "name": "seq2seq",
            "model": {"random": "t5"},
            "data": {"source": "rows.jsonl", "columns": {"source": "a", "target": "b"}, "clients": {"iid": 2}},
        }
    }
    task = load(given).task
    assert task.chooses_by() == "loss" and task.main_metric == "exact_match"
    given["task"]["model"] = {"path": "folder"}
    assert load(given).task.chooses_by() == "exact_match"


def test_the_line_and_the_records_say_whose_weights_were_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--config", "smoke/fedavg", "--set", *SMALL, "eval={every: 1, ties: earlier}"]) == 0
    out = capsys.readouterr().out
    assert "scored: weights of round 1\n" in out and "2 rounds, scored: weights of round 1" in out
    assert "test loss" in out
    lines = (tmp_path / "runs" / "fedavg" / "metrics.jsonl").read_text().splitlines()
    (final,) = [r for r in map(json.loads, lines) if r["kind"] == "eval_total" and r["label"] == "final"]
    assert (final["round"], final["weights_of"]) == (2, 1)
