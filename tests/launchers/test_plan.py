"""Which runs a sweep consists of, how they are named, and which of them are done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedtorch.config import load as yaml_config
from fedtorch.core.errors import ConfigError
from launchers.plan import Point, is_done, make_points, parse_grid, planned, save_plan


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    folder = tmp_path / "configs"
    folder.mkdir()
    for name in ("b", "a"):
        (folder / f"{name}.yaml").write_text("task: {name: text2sql, data: synthetic}\n")
    return folder


def test_a_folder_of_configs_times_a_grid_times_seeds(configs: Path, tmp_path: Path) -> None:
    grid = parse_grid(["client.lr=1e-3,1e-4", "rounds=5,10"])
    points = make_points([configs], tmp_path / "out", grid=grid, seeds=[0, 1], overrides=["client.batch_size=4"])
    assert len(points) == 2 * 4 * 2
    assert [point.name for point in points[:3]] == [
        "a,client.lr=1e-3,rounds=5,seed=0",
        "a,client.lr=1e-3,rounds=5,seed=1",
        "a,client.lr=1e-3,rounds=10,seed=0",
    ]
    config = points[1].request.load()
    assert (config.client.lr, config.rounds, config.run.seed, config.client.batch_size) == (1e-3, 5, 1, 4)
    assert config.folder == tmp_path / "out" / points[1].name and config.run.name == points[1].name


def test_commas_inside_brackets_belong_to_the_value() -> None:
    assert parse_grid(["client.betas=[0.9,0.98],[0.9,0.999]", "server={optimizer: sgd, lr: 1}"]) == {
        "client.betas": ["[0.9,0.98]", "[0.9,0.999]"],
        "server": ["{optimizer: sgd, lr: 1}"],
    }


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (["client.lr"], "expected key=a,b,c"),
        (["client.lr=1,,2"], "expected key=a,b,c"),
        (["=1,2"], "expected key=a,b,c"),
        (["a=1", "a=2"], "--grid a is given twice"),
        (["run.seed=1,2"], "for seeds there is --seeds"),
        (["run.dir=x"], "the sweep names runs and folders itself"),
    ],
)
def test_a_grid_that_means_nothing_is_refused(entries: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_grid(entries)


def test_names_that_look_alike_keep_folders_of_their_own(configs: Path, tmp_path: Path) -> None:
    grid = {"task.data": ["a/b", "a:b", "x" * 300]}
    names = [point.name for point in make_points([configs / "a.yaml"], tmp_path, grid=grid)]
    assert len(set(names)) == 3 and all("/" not in name and len(name) <= 120 for name in names)


@pytest.mark.parametrize(
    ("paths", "seeds", "said"),
    [
        (["none.yaml"], [], "none.yaml does not exist"),
        (["."], [], "is a folder without a .yaml file"),
        (["configs/a.yaml", "configs/a.yaml"], [], "two runs of the sweep are called a;"),
        (["configs/a.yaml"], [3, 3], "two runs of the sweep are called a,seed=3"),
    ],
)
def test_configs_that_cannot_be_a_sweep(
    paths: list[str], seeds: list[int], said: str, configs: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        make_points([tmp_path / path for path in paths], tmp_path / "out", grid={}, seeds=seeds)


def leave_run(point: Point, state: str) -> None:
    point.folder.mkdir(parents=True)
    (point.folder / "config.yaml").write_text(yaml_config.to_yaml(point.request.load()))
    (point.folder / "status.json").write_text(json.dumps({"state": state}))


def test_a_finished_run_is_done_and_an_interrupted_one_is_not(configs: Path, tmp_path: Path) -> None:
    first, second = make_points([configs], tmp_path / "out", grid={"client.lr": ["1e-3"]})
    assert not is_done(first)
    leave_run(first, "done")
    leave_run(second, "interrupted")
    assert is_done(first) and not is_done(second)


def test_a_folder_with_other_settings_is_refused_and_what_changes_no_result_is_not(
    configs: Path, tmp_path: Path
) -> None:
    (point,) = make_points([configs / "a.yaml"], tmp_path / "out", grid={})
    leave_run(point, "done")
    (tracked,) = make_points([configs / "a.yaml"], tmp_path / "out", grid={}, overrides=["track.tensorboard=false"])
    assert is_done(tracked)
    (other,) = make_points([configs / "a.yaml"], tmp_path / "out", grid={}, overrides=["rounds=1"])
    with pytest.raises(ConfigError, match=r"other settings: rounds was \d+ and is now 1; take another --dir"):
        is_done(other)
    (more,) = make_points([configs / "a.yaml"], tmp_path / "out", grid={}, overrides=["rounds=77"])
    assert not is_done(more)


def test_plans_of_one_folder_add_up(configs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert planned(out) == []
    for seeds in ([0], [0, 1]):
        save_plan(out, make_points([configs / "a.yaml"], out, grid={}, seeds=seeds))
    assert planned(out) == ["a,seed=0", "a,seed=1"]
