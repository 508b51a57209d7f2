"""What importing the package does, and what a wheel of it holds."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest
import torch
from sources import FILES, LAUNCHERS, offenders, tree
from sources import text as source

import fedtorch
from fedtorch.metrics.generation import LIBRARIES

ROOT = Path(__file__).parents[1]
OPTIONAL = {
    "bitsandbytes": "bitsandbytes",
    "trl": "trl",
    "bm25s": "bm25s",
    "cryptography": "cryptography",
    "datasets": "datasets",
    "deepspeed": "deepspeed",
    "dp_accounting": "dp-accounting",
    "mlflow": "mlflow-skinny",
    "pandas": "pandas",
    "peft": "peft",
    "rouge_score": "rouge-score",
    "sacrebleu": "sacrebleu",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "sqlglot": "sqlglot",
    "submitit": "submitit",
}
"""Packages that only some runs need: name in imports -> name in installs."""
APART = {"mlflow"}
"""Extras that neither `all` nor `dev` holds: pyproject.toml has the reason."""


@pytest.mark.processes
@pytest.mark.parametrize(("given", "expected"), [(None, "1"), ("0", "0")])
def test_large_vectors_come_in_large_pages_unless_the_user_says_otherwise(given: str | None, expected: str) -> None:
    environ = {key: value for key, value in os.environ.items() if key != "THP_MEM_ALLOC_ENABLE"}
    environ |= {} if given is None else {"THP_MEM_ALLOC_ENABLE": given}
    script = "import sys, fedtorch, os; print(os.environ['THP_MEM_ALLOC_ENABLE'], 'torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == [expected, "False"]  # set before torch could have read it


def test_torch_still_knows_the_setting_of_large_pages() -> None:
    libraries = list((Path(torch.__file__).parent / "lib").glob("*c10*"))
    assert any(b"THP_MEM_ALLOC_ENABLE" in path.read_bytes() for path in libraries)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this clone, built without a network and unpacked."""
    return build(tmp_path_factory)


def build(tmp_path_factory: pytest.TempPathFactory, **environ: str) -> Path:
    """The same with these variables in its environment."""
    clone, unpacked = tmp_path_factory.mktemp("build") / "clone", tmp_path_factory.mktemp("site")
    for name in ("fedtorch", "launchers", "configs"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    script = "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
    command = [sys.executable, "-c", script]
    subprocess.run(command, cwd=clone, env={**os.environ, **environ}, capture_output=True, check=True)
    (built,) = (clone / "dist").glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(unpacked)
    return unpacked


def run(wheel: Path, folder: Path, *words: str) -> str:
    """What a fresh interpreter says that finds fedtorch in the wheel alone."""
    environ = {**os.environ, "PYTHONPATH": str(wheel)}
    done = subprocess.run([sys.executable, *words], env=environ, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def metadata(wheel: Path) -> Message:
    (path,) = wheel.glob("*.dist-info/METADATA")
    return message_from_string(path.read_text())


def files(folder: Path, *patterns: str) -> set[str]:
    return {path.relative_to(folder).as_posix() for pattern in patterns for path in folder.rglob(pattern)}


@pytest.mark.processes
def test_a_wheel_has_every_module_and_config(wheel: Path) -> None:
    patterns = ("*.py", "*.yaml", "*.md", "py.typed")
    inside = files(ROOT / "fedtorch", *patterns)
    for name in ("launchers", "configs"):
        inside |= {f"{name}/{path}" for path in files(ROOT / name, *patterns)}
    assert files(wheel / "fedtorch", *patterns) == inside
    assert {"py.typed", "config/default.yaml", "configs/smoke/fedavg.yaml", "launchers/local.py"} <= inside
    assert {path.name.partition("-")[0] for path in wheel.iterdir()} == {"fedtorch", "fedtorch_nlp"}
    assert [path.read_text() for path in wheel.rglob("LICENSE")] == [(ROOT / "LICENSE").read_text()]


@pytest.mark.processes
def test_the_command_of_a_wheel_says_its_version(wheel: Path, tmp_path: Path) -> None:
    assert metadata(wheel)["Version"] == fedtorch.__version__
    assert run(wheel, tmp_path, "-m", "fedtorch.cli", "--version") == f"fedtorch {fedtorch.__version__}\n"
    (entries,) = wheel.glob("*.dist-info/entry_points.txt")
    assert "fedtorch = fedtorch.cli.__main__:main" in entries.read_text()


@pytest.mark.processes
def test_the_loops_in_c_are_optional(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Built where there is a compiler; where there is none, or it fails, a wheel has all but them."""
    bare = build(tmp_path_factory, CC="false")
    script = "from fedtorch.core import kernels; print(kernels.__file__, kernels.library() is not None)"
    for site, has_loops in ((wheel, bool(shutil.which("cc") or shutil.which("gcc"))), (bare, False)):
        assert len(list(site.rglob("_kernels*.so"))) == has_loops
        path, is_found = run(site, site, "-c", script).split()
        assert Path(path).is_relative_to(site) and is_found == str(has_loops)
    assert files(bare, "*.py") == files(wheel, "*.py")


@pytest.mark.processes
def test_a_wheel_finds_its_own_config(wheel: Path, tmp_path: Path) -> None:
    """A command that imports no torch takes it by its name; `run` fails where it is not there."""
    said = run(wheel, tmp_path, "-m", "fedtorch.cli", "digest", "--config", "smoke/fedavg")
    assert f"# fedtorch {fedtorch.__version__}, " in said


@pytest.mark.processes
def test_a_wheel_runs_its_own_config(wheel: Path, tmp_path: Path) -> None:
    """Found by its name: there is no clone anywhere near."""
    said = run(wheel, tmp_path, "-m", "fedtorch.cli", "run", "--config", "smoke/fedavg", "--dry-run", "--ranks", "5")
    assert "rank 4" in said and not (tmp_path / "runs").exists()


@pytest.mark.processes
def test_a_wheel_starts_its_own_launchers(wheel: Path, tmp_path: Path) -> None:
    """By names that another process on another machine finds too."""
    script = (
        "import pickle, sys; from fedtorch.cli.__main__ import COMMANDS, module_of;"
        "print(*(module_of(COMMANDS[name]) for name in ('local', 'sweep', 'slurm')));"
        "from fedtorch.launchers import start_words; print(*start_words('slurm'));"
        "from fedtorch.launchers.rank_process import RankProcess; print(pickle.dumps(RankProcess(())))"
    )
    modules, words, pickled = run(wheel, tmp_path, "-c", script).splitlines()
    assert modules == "fedtorch.launchers.local fedtorch.launchers.sweep fedtorch.launchers.slurm"
    assert words == "fedtorch slurm" and "fedtorch.launchers.rank_process" in pickled


@pytest.mark.processes
def test_an_extra_holds_what_is_asked_for_in_its_name(wheel: Path) -> None:
    """Calls of `require` in the source against the metadata of the wheel; `all` and `dev` hold all but `APART`."""
    requires = metadata(wheel).get_all("Requires-Dist") or []
    held, wholes = set[tuple[str, str]](), dict[str, list[str]]()
    for text in requires:
        if "extra" in text:
            extra, needs = text.split("extra ==")[1].strip(" \"'"), re.split(r"[<>=; ]", text)[0]
            if needs.startswith("fedtorch-nlp["):  # an extra of other extras
                wholes[extra] = needs.removeprefix("fedtorch-nlp[").rstrip("]").split(",")
            else:
                held.add((extra, needs))
    for whole in ("all", "dev"):
        held |= {(whole, needs) for extra, needs in held if extra in wholes[whole]}
    asked = set(_asked())
    assert {package for package, _ in asked} == set(OPTIONAL)
    for package, extra in asked:
        holders = {extra} if extra in APART else {extra, "all", "dev"}
        assert {name for name, held_package in held if held_package == OPTIONAL[package]} >= holders
    always = {re.split(r"[<>=; ]", text)[0] for text in requires if "extra" not in text}
    assert not always & set(OPTIONAL.values())


def test_an_optional_package_is_imported_where_it_is_used() -> None:
    wanted = re.compile(rf"\b(?:import|from) ({'|'.join(OPTIONAL)})\b")

    def loaded(path: Path) -> list[str]:
        if not wanted.search(source(path)):
            return []
        imports = (node for node in tree(path).body if isinstance(node, ast.Import | ast.ImportFrom))
        return wanted.findall("\n".join(map(ast.unparse, imports)))

    assert offenders([*FILES, *LAUNCHERS], loaded) == {}
    assert wanted.findall("import torch, numpy\nfrom peft import x\nimport scipy.stats") == ["peft", "scipy"]


def _asked() -> Iterator[tuple[str, str]]:
    """(package, extra) of every call of `require`; a package that is no literal stands for the metrics' ones."""
    for path in [*FILES, *LAUNCHERS]:
        for node in ast.walk(tree(path)) if "require(" in source(path) else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "require":
                (extra,) = (word.value.value for word in node.keywords if word.arg == "extra")  # type: ignore[attr-defined]
                for argument in node.args[1:]:
                    found = [argument.value] if isinstance(argument, ast.Constant) else LIBRARIES.values()
                    yield from ((str(package), str(extra)) for package in found)
