"""Every smoke config, the default job and the small real one train, shrunk to seconds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from few_rows import prepare_few

from fedtorch.config.find import shipped
from fedtorch.config.load import load
from fedtorch.main import main
from fedtorch.models.t5 import generate_greedily
from fedtorch.tasks import text2sql

pytestmark = pytest.mark.long

CONFIGS = shipped()
OTHERS = {"fedparsing"}  # not text-to-SQL; see test_fedparsing_configs.py
SHRUNK = ("task.max_train=4", "task.max_dev=2", "task.max_test=2", "rounds=1", "track.tensorboard=false")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the synthetic data are prepared already."""
    from fedtorch.data import synthetic, synthetic_qa

    folder = tmp_path_factory.mktemp("work")
    synthetic.prepare(folder / "data" / "synthetic")
    synthetic_qa.prepare(folder / "data" / "synthetic_qa")
    return folder


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token is generated for a query; whole ones would be most of the time, and nobody looks at what they say."""

    def few(*args: Any, max_length: int, **how: Any) -> list[list[int]]:
        return generate_greedily(*args, max_length=min(1, max_length), **how)

    monkeypatch.setattr(text2sql, "generate_greedily", few)


CLIENTS = {"text2sql": 8, "qa": 5}
# those of the dialog task are trained by tests/papers/test_fedassistant_task.py
HERE = [
    path
    for path in sorted((CONFIGS / "smoke").glob("[!_]*.yaml"))
    if path.stem not in OTHERS and path.stem.split("_")[0] not in ("feda", "gpt")
]


# mean over the clients' last losses of the round, mean norm of their updates, loss on test where it is evaluated
LOSSES: dict[str, tuple[float, float, float | None]] = {
    "async": (6.15301, 0.09566, 6.27407),
    "centralized": (6.14092, 0.28493, 6.18575),
    "coverquery": (0.99750, 0.68247, None),
    "decomfl": (6.13619, 1.10744, 6.28936),
    "ditto": (6.15874, 0.09562, 6.26155),
    "esim": (0.99987, 0.00000, None),
    "fedadam": (6.15874, 0.09562, 6.28000),
    "fedavg": (6.15874, 0.09562, 6.27049),
    "feddyn": (6.14433, 0.15438, 6.20826),
    "fedkseed": (6.13997, 1.78126, 6.28943),
    "fedmatch": (1.00002, 0.08105, None),
    "fedmatch_pal_sampled": (1.00254, 0.03609, None),
    "fednova": (6.13020, 0.16072, 6.22873),
    "fedopt_lorar": (6.15874, 0.09558, 6.26923),
    "fedper": (0.68257, 0.09146, None),
    "fedprox_sampled": (6.13746, 0.16897, 6.24335),
    "local": (6.15874, 0.00000, 6.26301),
    "pfedme": (6.18735, 0.01044, 6.24362),
    "re2": (0.99984, 0.00000, None),
    "scaffold": (6.15874, 1.47794, 6.23548),
}


@pytest.mark.parametrize("path", HERE, ids=lambda path: path.stem)
def test_a_smoke_config_trains_and_evaluates(path: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    assert main(["--config", str(path), "--set", *SHRUNK]) == 0
    run = workplace / "runs" / path.stem
    results = json.loads((run / "results.json").read_text())
    config = load(path)
    num_clients = CLIENTS[config.task_name.partition("_")[0]]
    assert len(results["clients"]) == num_clients + (config.paradigm == "centralized")
    assert results["averages"][config.task.main_metric]["count"] == 2 * num_clients
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [record for record in records if record["kind"] == "client" and record["status"] == "ok"]
    test_loss = results["averages"].get("loss", {}).get("micro")
    found = (fmean(r["loss_last"] for r in trained), fmean(r["norm"] for r in trained), test_loss)
    # not the bits: other processors sum in another order
    assert found == pytest.approx(LOSSES[path.stem], abs=1e-4)
    shutil.rmtree(run)


def test_the_default_job_trains_and_shows_the_clients_alone_beside_it(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workplace)
    assert main(["--set", *SHRUNK, "eval.every=1"]) == 0
    out = capsys.readouterr().out
    assert "library" in out and "local" in out and "tensorboard --logdir" in out and "fedtorch report" in out


@pytest.mark.data
def test_the_small_real_config_trains_on_prepared_real_data(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare_few("text2sql", shared_data, "data/text2sql")
    assert main(["--config", "lorar/real_small_lorar", "--set", *SHRUNK]) == 0
    results = json.loads((tmp_path / "runs" / "real_small_lorar" / "results.json").read_text())
    assert set(results["clients"]) >= {"atis", "advising", "geoquery", "imdb"}


@pytest.mark.data
@pytest.mark.parametrize("row", ["fm_h_lr", pytest.param("esim_small", marks=pytest.mark.slow)])
def test_the_small_fedmatch_rows_train_on_prepared_real_data(
    row: str, shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare_few("fedqa", shared_data, "data/fedqa")
    configs = [f"fedmatch/{row}", *([] if row == "esim_small" else ["overlays/fedmatch_small_random"])]
    assert main(["--config", *configs, "--set", *SHRUNK]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    results = json.loads((run / "results.json").read_text())
    assert set(results["clients"]) == {"privacyqa", "pubmedqa", "fiqa", "insuranceqa", "medquad"}
    assert run.name == "+".join(config.rpartition("/")[2] for config in configs)


def test_the_rows_of_fedkseed_have_the_values_of_paper_and_code() -> None:
    found = {name: load(f"fedkseed/{name}") for name in ("natural_instructions", "natural_instructions_pro", "dolly")}
    for name, config in found.items():
        algorithm, client = config.algorithm, config.client
        assert (algorithm.seeds, algorithm.eps, algorithm.pro) == (4096, 5e-4, name.endswith("_pro"))
        assert (client.steps, client.batch_size, client.lr) == (200, 1, 3e-7)
    assert [(c.rounds, c.clients.per_round) for c in found.values()] == [(40, 37), (40, 37), (60, 10)]
