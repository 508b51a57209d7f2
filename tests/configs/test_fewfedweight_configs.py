"""FewFedWeight's rows: the paper's values, and small runs that train."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest
from few_rows import prepare_few

from fedtorch.config.find import shipped
from fedtorch.config.load import load
from fedtorch.config.schema import Config
from fedtorch.main import main
from fedtorch.models.encoder_decoder import EncoderDecoder
from fedtorch.report.published.fewfedweight import ROWS

pytestmark = pytest.mark.long

FOLDER = shipped() / "fewfedweight"
PAPER = sorted(path.stem for part in ("rows", "figures") for path in (FOLDER / part).glob("*.yaml"))
METHODS = ["ffw_silo", "ffw_silo_da", "ffw_fedavg", "ffw_ditto", "ffw_meta", "ffw_full", "ffw_central"]
ABLATION = ["abl_da", "abl_da_w", "abl_da_dyn"]
SHRUNK = ("task.max_train=4", "task.max_test=2", "rounds=1", "track.tensorboard=false", "task.output_max_length=4")


def row(name: str) -> Config:
    return load(f"fewfedweight/{name}")


def small_row(name: str) -> Config:
    return load([Path("fewfedweight", name), Path("overlays/fewfedweight_small")])


def test_every_row_of_the_paper_has_a_config_and_every_small_one_a_row() -> None:
    assert set(ROWS) <= set(PAPER)
    clients = [f"{kind}_{k}" for kind in ("clients", "silo") for k in (2, 4, 8, 12)]
    others = ["ffw_ditto_simplified", "ffw_meta_printed", "delta_curve"]
    assert sorted([*METHODS, *ABLATION, *clients, *others]) == PAPER
    small = {path.stem.removeprefix("real_small_") for path in (FOLDER / "small").glob("real_small_*.yaml")}
    assert small == {*clients, "start"}
    assert all(small_row(name).task.data == "data/crossfit_small" for name in (*METHODS, *ABLATION))


@pytest.mark.parametrize("name", PAPER)
def test_row_has_the_papers_values(name: str) -> None:
    config = row(name)
    client, task = config.client, config.task
    assert (config.rounds, client.epochs, client.lr, client.batch_size) == (20, 1, 3e-5, 8)
    assert (client.optimizer, client.weight_decay, client.eps, client.max_grad_norm) == ("adamw", 0.01, 1e-8, 0.1)
    assert (client.schedule, client.schedule_span, client.warmup_ratio) == ("linear", "run", 0.06)
    assert (client.optimizer_state, config.eval.every, config.clients.per_round) == ("keep", 0, "all")
    assert (task.model, task.template) == (EncoderDecoder("models/bart-base", dropout=0.1), "paper")
    assert (task.input_max_length, task.output_max_length, task.max_train, task.max_test) == (512, 64, None, None)


# algorithm, aggregation, token weights
ALGORITHMS = {
    "ffw_silo_da": ("silo_augmented", None, "uniform"),
    "ffw_fedavg": ("fedavg", "size", None),
    "ffw_ditto": ("ditto", "size", None),
    "ffw_meta": ("metaweighting", "size", None),
    "ffw_full": ("fewfedweight", "loss", "clamp"),
    "abl_da": ("fewfedweight", "size", "uniform"),
    "abl_da_w": ("fewfedweight", "size", "clamp"),
    "abl_da_dyn": ("fewfedweight", "loss", "uniform"),
    "clients_12": ("fewfedweight", "loss", "clamp"),
    "delta_curve": ("fewfedweight", "loss", "clamp"),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_row_has_its_algorithm(name: str) -> None:
    config = row(name)
    algorithm, weights, tokens = ALGORITHMS[name]
    assert (config.paradigm, config.algorithm_name) == ("federated", algorithm)
    assert weights is None or config.algorithm.weights == weights
    assert tokens is None or config.algorithm.token_weights == tokens
    if algorithm == "fewfedweight":
        assert (config.algorithm.top_k, config.algorithm.temperature) == (7, 1.0)
        assert config.algorithm.size_rounds == (10 if name == "delta_curve" else 0)


def test_where_losses_weigh_a_round_without_one_of_them_is_void() -> None:
    for path in sorted(FOLDER.rglob("[!_]*.yaml")):
        config = load(path)
        number = int(path.stem.rpartition("_")[2]) if "clients_" in path.stem else 4
        by_loss = config.paradigm == "federated" and getattr(config.algorithm, "weights", "") == "loss"
        is_personal = config.algorithm_name != "silo_augmented"  # whose clients send nothing
        assert config.clients.min == (number if by_loss and is_personal else 1), path.stem


def test_the_smoke_config_trains_and_can_be_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedtorch.report.command_line import main as report

    monkeypatch.chdir(tmp_path)
    smoke = "fewfedweight/smoke_ffw_full"
    settings = ["track.tensorboard=false", "rounds=1"]
    assert main(["--config", smoke, "--set", *settings]) == 0
    results = json.loads((tmp_path / "runs" / "smoke_ffw_full" / "results.json").read_text())
    assert results["averages"]["tasks_mean"]["count"] == 8 and len(results["clients"]) == 4
    lines = (tmp_path / "runs" / "smoke_ffw_full" / "metrics.jsonl").read_text().splitlines()
    clients = [record for line in lines if (record := json.loads(line))["kind"] == "client"]
    losses = [fmean(record[kind] for record in clients) for kind in ("pseudo_loss", "annotated_loss")]
    # not the bits: other processors sum in another order
    assert [*losses, results["averages"]["loss"]["micro"]] == pytest.approx([5.03271, 5.34997, 5.33178], abs=1e-4)
    assert main(["--config", smoke, "--set", *settings, "paradigm=local", "run.name=silo"]) == 0
    capsys.readouterr()
    assert report(["apir", "--base", "runs/silo", "--new", "runs/smoke_ffw_full", "--out", "out"]) == 0
    out = capsys.readouterr().out
    assert "Table 1, methods" in out and "30.5 (72/7/39)" in out and "| 8 |" in out
    assert {path.name for path in Path("out").iterdir()} == {
        "apir.md", "smoke_ffw_full_energies.png", "smoke_ffw_full_tasks.png", "smoke_ffw_full_weights.png",
    }  # fmt: skip


@pytest.mark.data
def test_every_small_row_trains_on_the_46_real_tasks(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare_few("crossfit", shared_data, "data/crossfit_small", "--vocab-size", "2000")
    tiny = ["task.model.d_model=16", "task.model.d_ff=32", "task.model.num_layers=1", "task.input_max_length=16"]
    assert main(["--config", "fewfedweight/real_small_start", "--set", *SHRUNK, *tiny]) == 0
    for name in ("ffw_silo", "ffw_full"):
        row = [f"fewfedweight/{name}", "overlays/fewfedweight_small"]
        assert main(["--config", *row, "--set", *SHRUNK, "task.max_train=1", "task.input_max_length=16"]) == 0
        results = json.loads((tmp_path / "runs" / f"{name}+fewfedweight_small" / "results.json").read_text())
        assert results["averages"]["tasks_mean"]["count"] == 47
