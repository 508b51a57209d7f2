"""Configs by name: from any folder, in a clone and installed; older paths; what is said where nothing is found."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedtorch.config import find as find_module
from fedtorch.config.find import PACKAGE, find, find_all, names, run_name, shipped
from fedtorch.config.load import load
from fedtorch.core.errors import ConfigError
from fedtorch.main import main
from launchers.plan import make_points

ROOT = shipped()
FILES = sorted(ROOT.rglob("*.yaml"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without any config."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def own_root(folder: Path, monkeypatch: pytest.MonkeyPatch, *files: str) -> Path:
    """A package of the test's own, with these files as its configs."""
    for file in files:
        (folder / "fedtorch" / "configs" / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / "fedtorch" / "configs" / file).write_text("rounds: 3\n")
    monkeypatch.setattr(find_module, "PACKAGE", folder / "fedtorch")
    return folder / "fedtorch" / "configs"


def message(given: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(given)
    return str(caught.value)


# Names


def test_every_shipped_config_is_found_by_its_name() -> None:
    for file in FILES:
        name = f"{file.relative_to(ROOT).parts[0]}/{file.stem}"
        spellings = [name, f"{name}.yaml", f"configs/{name}.yaml", file.relative_to(ROOT), f"configs/{name}", file]
        assert [find(Path(given)) for given in spellings] == [file] * len(spellings), name
        assert {run_name(Path(given)) for given in spellings} == {file.stem}, name


def test_no_two_shipped_configs_share_a_name() -> None:
    every = [(file.relative_to(ROOT).parts[0], file.stem) for file in FILES]
    assert len(set(every)) == len(every)
    assert names() == sorted(f"{paper}/{stem}" for paper, stem in every if not stem.startswith("_"))


def test_a_run_by_name_is_called_as_a_run_by_path() -> None:
    assert load("lorar/fedopt_lorar") == load(ROOT / "lorar" / "rows" / "fedopt_lorar.yaml")
    row, overlay = Path("smoke/fedavg"), Path("overlays/zero2")
    assert load([row, overlay]).run.name == "fedavg+zero2"
    assert load([row, overlay]).engine.stage == 2


def test_a_path_wins_over_a_name(elsewhere: Path) -> None:
    (elsewhere / "smoke").mkdir()
    for file in ("smoke/fedavg.yaml", "smoke/fedavg"):
        (elsewhere / file).write_text("rounds: 77\n")
        assert find(Path("smoke/fedavg")) == Path(file)
        assert load("smoke/fedavg").rounds == 77 and load("smoke/fedavg").run.name == "fedavg"


def test_a_folder_of_that_name_does_not_hide_a_config(elsewhere: Path) -> None:
    (elsewhere / "smoke" / "fedavg").mkdir(parents=True)
    assert find(Path("smoke/fedavg")) == ROOT / "smoke" / "fedavg.yaml"


def test_a_path_needs_no_suffix(elsewhere: Path) -> None:
    (elsewhere / "mine.v2.yaml").write_text("rounds: 5\n")
    assert (load("mine.v2").rounds, load("mine.v2").run.name) == (5, "mine.v2")


def test_a_base_may_be_a_name(elsewhere: Path) -> None:
    (elsewhere / "mine.yaml").write_text("base: [lorar/fedopt_lorar, overlays/lorar_code_rates]\nrounds: 2\n")
    config = load("mine.yaml")
    assert (config.rounds, config.algorithm_name, config.client_for("yelp").lr) == (2, "fedopt", 1e-3)


@pytest.mark.long
def test_main_takes_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", "smoke/fedavg", "--dry-run=config", "--set", "rounds=1"]) == 0
    assert "name: fedavg" in capsys.readouterr().out


# Installed


@pytest.mark.processes
def test_an_installed_package_finds_the_configs_inside_it(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for part in ("config", "core"):
        shutil.copytree(PACKAGE / part, site / "fedtorch" / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PACKAGE / "__init__.py", site / "fedtorch")
    shutil.copytree(ROOT, site / "fedtorch" / "configs")
    asked = "import fedtorch.config.find as f, pathlib; print(f.find(pathlib.Path('lorar/fedopt')), len(f.names()))"
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=work, env={"PYTHONPATH": str(site)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(site / "fedtorch/configs/lorar/rows/fedopt.yaml"), str(len(names()))]


def test_configs_inside_the_package_come_before_those_beside_it(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find_module, "PACKAGE", elsewhere / "fedtorch")
    assert shipped() == elsewhere / "configs"
    assert own_root(elsewhere, monkeypatch, "paper/rows/a.yaml") == shipped()
    assert load("paper/a").rounds == 3


@pytest.mark.processes
def test_finding_a_config_needs_no_torch() -> None:
    asked = "import sys, fedtorch.config.find; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], cwd=PACKAGE.parent).returncode == 0


# Older names

MOVED = {
    "configs/deepspeed/zero2_bf16.yaml": "overlays/zero2_bf16",
    "configs/defaults/lorar.yaml": "lorar/_federated",
    "configs/defaults/lorar_common.yaml": "lorar/_base",
    "configs/defaults/lorar_code_rates.yaml": "overlays/lorar_code_rates",
    "configs/defaults/fedmatch.yaml": "fedmatch/_bert",
    "configs/defaults/fedmatch_common.yaml": "fedmatch/_base",
    "configs/defaults/fedmatch_small_random.yaml": "overlays/fedmatch_small_random",
    "configs/defaults/fedparsing_teacher.yaml": "fedparsing/_base",
    "configs/defaults/fewfedweight_small.yaml": "overlays/fewfedweight_small",
    "configs/fedassistant/real_small_feda_top50_none.yaml": "fedassistant/feda_top50_none overlays/fedassistant_small",
    "configs/defaults/fedmatch_small.yaml": "overlays/fedmatch_small",
    "configs/defaults/smoke_bert.yaml": "smoke/_bert",
    "defaults/fedassistant": "fedassistant/_base",
    "configs/fedmatch/sweeps/layers_07.yaml": "fedmatch/figures/layers_07",
    "configs/fewfedweight/real_small_ffw_full.yaml": "fewfedweight/ffw_full overlays/fewfedweight_small",
}


@pytest.mark.parametrize("old", MOVED)
def test_an_older_name_is_refused_with_the_new_one(old: str) -> None:
    assert message(old).endswith(f"; it is `{MOVED[old]}` now")
    assert load([Path(name) for name in MOVED[old].split()])


def test_an_older_base_in_a_clones_own_folder_is_told(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = own_root(elsewhere, monkeypatch, "lorar/_federated.yaml", "mine/x.yaml")
    (root / "mine" / "x.yaml").write_text("base: ../defaults/lorar.yaml\n")
    assert message("mine/x").endswith("; it is `lorar/_federated` now")


# Nothing found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("lorar/fedopt_loar", "did you mean `lorar/fedopt_lorar`"),
        ("fedopt_lorar", "did you mean `lorar/fedopt_lorar` or `smoke/fedopt_lorar`?"),
        ("lora/fm_h_lr.yaml", "did you mean `fedmatch/fm_h_lr`?"),
        ("/nowhere/ffw_ful.yaml", "did you mean `fewfedweight/ffw_full`?"),
        ("fedmatch/rows/fm_h_l", "did you mean `fedmatch/fm_h_l"),
        ("fewfedweight/real_small_ffw_ful", "`fewfedweight/"),
        ("qqqqqqqq", "give the path of a file, or a name such as `smoke/fedavg`"),
        ("lorar/../lorar/fedopt_lorar", "does not exist"),
    ],
)
def test_an_unknown_name_is_told_with_what_comes_near(given: str, said: str) -> None:
    told = message(given)
    assert told.startswith(f"config file {given} does not exist, and no config of that name is in {ROOT}; ")
    assert said in told


def test_an_unknown_base_is_told_with_its_line(elsewhere: Path) -> None:
    (elsewhere / "mine.yaml").write_text("rounds: 1\nbase: [lorar/fedot]\n")
    assert message("mine.yaml").startswith("base file lorar/fedot in mine.yaml:2 does not exist, and no config of ")
    assert "did you mean `lorar/fedopt`" in message("mine.yaml")


@pytest.mark.parametrize("given", ["lorar", "fedmatch/figures", "configs/overlays", "."])
def test_a_folder_is_no_config(given: str) -> None:
    assert message(given) == f"config file {given} is a folder; name one of the files in it"


def test_a_name_of_two_files_is_refused(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = own_root(elsewhere, monkeypatch, "paper/rows/a.yaml", "paper/small/a.yaml")
    told = (
        f"two configs are called paper/a: {root}/paper/rows/a.yaml and {root}/paper/small/a.yaml; give the path of one"
    )
    assert message("paper/a") == told
    assert load("paper/small/a").rounds == 3


def test_an_unknown_name_ends_a_job_before_its_ranks_meet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "5")  # nobody else comes
    assert main(["--config", "smoke/fedagv"]) == 2
    assert "did you mean `smoke/fedavg`" in capsys.readouterr().err


# Sweeps


def test_a_papers_name_stands_for_its_rows(elsewhere: Path) -> None:
    rows = sorted((ROOT / "lorar" / "rows").glob("*.yaml"))
    assert find_all(Path("lorar")) == find_all(Path("configs/lorar")) == find_all(Path("lorar/rows")) == rows
    assert len(find_all(Path("fedmatch/figures"))) == 41
    assert "_base" not in {path.stem for path in find_all(Path("smoke"))}
    assert find_all(Path("lorar/fedopt")) == [Path("lorar/fedopt")]
    (elsewhere / "lorar").mkdir()
    (elsewhere / "lorar" / "mine.yaml").touch()
    assert find_all(Path("lorar")) == [Path("lorar/mine.yaml")]


def test_a_sweep_takes_names_and_lays_configs_over_all(elsewhere: Path) -> None:
    rows = [Path("fewfedweight/ffw_silo"), Path("fewfedweight/ffw_full")]
    points = make_points(rows, elsewhere, grid={}, seeds=[1], overlays=[Path("overlays/fewfedweight_small")])
    assert [point.name for point in points] == [f"{row.name}+fewfedweight_small,seed=1" for row in rows]
    assert [point.request.load().rounds for point in points] == [4, 4]
    assert points[1].request.arguments()[:3] == ("--config", "fewfedweight/ffw_full", "overlays/fewfedweight_small")
