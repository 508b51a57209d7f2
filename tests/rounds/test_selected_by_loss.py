"""The loss as what chooses the best model: for every task, and of its own accord where answers are wrong for long."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from smoke_runs import BRIEF
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

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


@pytest.mark.long
def test_the_line_and_the_records_say_whose_weights_were_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--config", "smoke/fedavg", "--set", *SMALL, BRIEF, "eval={every: 1, ties: earlier}"]) == 0
    out = capsys.readouterr().out
    assert "scored: weights of round 1\n" in out and "2 rounds, scored: weights of round 1" in out
    assert "test loss" in out
    lines = (tmp_path / "runs" / "fedavg" / "metrics.jsonl").read_text().splitlines()
    (final,) = [r for r in map(json.loads, lines) if r["kind"] == "eval_total" and r["label"] == "final"]
    assert (final["round"], final["weights_of"]) == (2, 1)


@pytest.mark.long
def test_where_clients_choose_for_themselves_the_records_say_which_round_each_has_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["task.max_train=4", "task.max_dev=2", "task.max_test=2", "rounds=3", "client.lr=0.1"]
    evaluation = "eval={best: per_client, select_by: loss, on_start: true}"
    assert main(["--config", "smoke/fedavg", "--set", *settings, evaluation]) == 0
    out, run = capsys.readouterr().out, tmp_path / "runs" / "fedavg"
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses: dict[str, list[float]] = {}
    for record in records:
        if record["kind"] == "eval" and record["label"] == "training":
            losses.setdefault(record["client"], []).append(record["metrics"]["loss"][0])
    expected = {client: each.index(min(each)) for client, each in losses.items()}
    assert len(set(expected.values())) > 1, "or the test shows nothing"
    finals = [record for record in records if record["kind"] == "eval" and record["label"] == "final"]
    assert {record["client"]: record["weights_of"] for record in finals} == expected
    clients = json.loads((run / "results.json").read_text())["clients"]
    assert {client: found["best_round"] for client, found in clients.items()} == expected
    (total,) = [record for record in records if record["kind"] == "eval_total" and record["label"] == "final"]
    assert "weights_of" not in total
    first, last = min(expected.values()), max(expected.values())
    assert f"scored: weights of rounds {first} to {last}, each client's best\n" in out
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert {client: int(rows[client][4]) for client in expected} == expected  # the table, too
    for client, round in expected.items():  # and the curve
        accumulator = EventAccumulator(str(run / "tensorboard" / f"client-{client}"), size_guidance={"scalars": 0})
        accumulator.Reload()
        assert [event.step for event in accumulator.Scalars("final/eval/test/loss")] == [round]
