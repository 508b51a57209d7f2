"""The configs of the FedParsing paper hold its values, and the small ones train."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from fedtorch.config.find import shipped
from fedtorch.config.load import load
from fedtorch.config.schema import Config
from fedtorch.data.prepare import main as data_main
from fedtorch.data.synthetic_wikisql import prepare
from fedtorch.main import main
from fedtorch.tasks.base import SERVER

ROOT = shipped() / "fedparsing"
GROUPS = ("hydranet", "hydranet_mlm", "fedparsing", "fedparsing_ema")
TABLE = list(itertools.product(GROUPS, (500, 1000, 10000)))
SMALL = {"synthetic", "real_small", "real_small_minilm"}
K = (1, 5, 15, 20, 30)  # and 10, which is a row of table 1


def row(name: str) -> Config:
    return load(f"fedparsing/{name}")


def test_every_row_of_table_1_and_both_figures_are_there() -> None:
    rows = {f"{group}_{size}" for group, size in TABLE}
    figures = {f"k{k}" for k in K} | {"rounds"}
    assert {folder: {path.stem for path in (ROOT / folder).iterdir()} for folder in ("rows", "figures", "small")} == {
        "rows": rows,
        "figures": figures,
        "small": SMALL,
    }


@pytest.mark.parametrize(("group", "size"), TABLE)
def test_a_row_has_the_papers_values(group: str, size: int) -> None:
    config = row(f"{group}_{size}")
    task, client, algorithm = config.task, config.client, config.algorithm
    assert (config.algorithm_name, algorithm.group, task.server_labelled) == ("fedparsing", group, size)
    assert (task.encoder.name, task.max_length, task.head_dropout, task.attention) == ("roberta-base", 96, 0.2, False)
    assert (task.num_clients, task.client_size, task.max_words, task.batch_unit) == (1000, (20, 40), None, "row")
    assert (config.rounds, config.clients.per_round, config.clients.sampling) == (30, 10, "uniform")
    assert (client.optimizer, client.lr, client.momentum, client.batch_size) == ("sgd", 1e-2, 0.0, 10)
    assert (client.epochs, client.max_grad_norm) == (3, 1.0)
    assert config.client_for(SERVER) == client
    assert config.eval.select_by == "overall"
    assert task.masked_words == (group == "hydranet_mlm")
    updates = {"fedparsing": "frozen", "fedparsing_ema": "ema"}
    assert algorithm.teacher.update == updates.get(group)
    assert (algorithm.teacher.lam, algorithm.teacher.every, algorithm.teacher.scope) == (0.99, "epoch", "decoder")
    assert (algorithm.student.init, algorithm.consistency.type, algorithm.train_encoder) == ("global", "mse_prob", True)


def test_the_sweeps_change_one_thing_each() -> None:
    assert [row(f"k{k}").clients.per_round for k in K] == list(K)
    assert {row(f"k{k}").task.server_labelled for k in K} == {1000}
    curve = row("rounds")
    assert (curve.task.server_labelled, curve.eval.every, curve.eval.on_start) == (500, 1, True)


@pytest.mark.long
def test_the_smoke_config_trains_and_evaluates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path / "data" / "synthetic_wikisql")
    monkeypatch.chdir(tmp_path)
    assert main(["--config", "smoke/fedparsing", "--set", "track.tensorboard=false"]) == 0
    results = json.loads((tmp_path / "runs" / "fedparsing" / "results.json").read_text())
    for metric in ("overall", "agg", "sel", "wn", "wc", "op", "val", "logical_form"):
        assert results["averages"][metric]["count"] == 8
    assert (tmp_path / "runs" / "fedparsing" / "model" / "hydranet.safetensors").is_file()
    records = [json.loads(line) for line in (tmp_path / "runs" / "fedparsing" / "metrics.jsonl").open()]
    losses = [record["loss"] for record in records if record["kind"] == "round"]
    # of the clients in two rounds, and of the server's model on test; not the bits: processors sum in other orders
    assert losses[-2:] == pytest.approx([0.01816, 0.02369], abs=1e-4)
    assert results["averages"]["loss"]["micro"] == pytest.approx(5.81246, abs=1e-4)


@pytest.mark.slow
def test_overall_rises_on_synthetic_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--config", "fedparsing/synthetic", "--set", "track.tensorboard=false"]) == 0
    results = json.loads((tmp_path / "runs" / "synthetic" / "results.json").read_text())
    assert results["averages"]["overall"]["count"] == 160
    assert results["averages"]["overall"]["micro"] > 0.5


@pytest.mark.data
@pytest.mark.slow
def test_a_small_real_config_trains(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert data_main(["prepare", "wikisql", "--raw", str(shared_data / "wikisql"), "--out", "data/wikisql"]) == 0
    shrunk = ("rounds=1", "task.server_labelled=8", "task.max_dev=4", "task.max_test=4", "clients.per_round=1")
    command = ["--config", "fedparsing/real_small", "--set", *shrunk, "per_client.server.steps=2"]
    for group in GROUPS:
        changes = (f"algorithm.group={group}", f"task.masked_words={group == 'hydranet_mlm'}", f"run.name={group}")
        assert main([*command, *changes]) == 0
        results = json.loads((tmp_path / "runs" / group / "results.json").read_text())
        assert results["averages"]["overall"]["count"] == 4
