"""Every smoke config, the default job and the small real one train, shrunk to seconds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedtorch.main import main

CONFIGS = Path(__file__).parents[2] / "configs"
SHRUNK = ("task.max_train=4", "task.max_dev=2", "task.max_test=2", "rounds=1", "track.tensorboard=false")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the synthetic data are prepared already."""
    from fedtorch.data.synthetic import prepare

    folder = tmp_path_factory.mktemp("work")
    prepare(folder / "data" / "synthetic")
    return folder


@pytest.mark.parametrize("path", sorted((CONFIGS / "smoke").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_smoke_config_trains_and_judges(path: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    assert main(["--config", str(path), "--set", *SHRUNK]) == 0
    run = workplace / "runs" / path.stem
    results = json.loads((run / "results.json").read_text())
    assert len(results["clients"]) == (9 if path.stem == "centralized" else 8)
    assert results["averages"]["exact_match"]["count"] == 16
    shutil.rmtree(run)


def test_the_default_job_trains_and_shows_the_silos_alone_beside_it(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workplace)
    assert main(["--set", *SHRUNK, "eval.every=1"]) == 0
    out = capsys.readouterr().out
    assert "library" in out and "local" in out and "tensorboard --logdir" in out and "fedtorch.report" in out


@pytest.mark.data
def test_the_small_real_config_trains_on_prepared_real_data(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedtorch.data.prepare import main as data_main

    monkeypatch.chdir(tmp_path)
    raw = str(shared_data / "text2sql")
    assert data_main(["prepare", "text2sql", "--raw", raw, "--out", "data/text2sql"]) == 0
    assert main(["--config", str(CONFIGS / "lorar" / "real_small_lorar.yaml"), "--set", *SHRUNK]) == 0
    results = json.loads((tmp_path / "runs" / "real_small_lorar" / "results.json").read_text())
    assert set(results["clients"]) >= {"atis", "advising", "geoquery", "imdb"}
