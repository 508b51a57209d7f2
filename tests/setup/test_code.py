"""The digests of the code that a run executes: what counts, found without importing any of it."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import pytest

from fedtorch.core.errors import ConfigError
from fedtorch.core.version import PACKAGE
from fedtorch.setup import code
from fedtorch.setup.code import Code, code_digest, codes_of
from fedtorch.setup.digest import main

BOMB = "raise SystemExit('imported')\n"


def own(tmp_path: Path, config: str, *overrides: str) -> dict[str, str]:
    """Name -> digest of the files that are not the package's."""
    (tmp_path / "run.yaml").write_text(config)
    return {Path(each.what).name: each.digest for each in files(codes_of([tmp_path / "run.yaml"], overrides))}


def files(found: list[Code]) -> list[Code]:
    return [each for each in found if not each.what.startswith("fedtorch ") and "built on" not in each.what]


@pytest.fixture(autouse=True)
def plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with files that end a process which imports them."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("mine", "helper", "unused", "kit/__init__", "kit/deep", "kit/near"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(BOMB)
    return tmp_path


def test_the_package_counts_by_all_its_files_as_ranks_compare_it() -> None:
    package = codes_of([])[0]
    assert package.what.startswith("fedtorch ") and package.digest.startswith("sha256:") and len(package.digest) == 71
    assert code_digest() == package.digest[7:23]


def test_what_was_built_on_this_machine_has_a_line_of_its_own() -> None:
    built = {each.what.partition(",")[0]: each.digest for each in codes_of([]) if "built on" in each.what}
    found = {str(p.relative_to(PACKAGE)): hashlib.sha256(p.read_bytes()).hexdigest() for p in PACKAGE.rglob("*.so")}
    assert built == {name: f"sha256:{digest}" for name, digest in found.items()}


def test_a_changed_file_of_the_package_changes_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = codes_of([])[0].digest
    changed = {**code._package_files(), "core/update.py": b"pass\n"}
    monkeypatch.setattr(code, "_package_files", lambda: changed)
    assert codes_of([])[0].digest != before


def test_a_class_that_a_config_names_counts_and_is_not_imported(tmp_path: Path) -> None:
    found = own(tmp_path, "algorithm: {name: 'mine:Mine'}\n")
    assert found == {"mine.py": f"sha256:{hashlib.sha256(BOMB.encode()).hexdigest()}"} and "mine" not in sys.modules


@pytest.mark.parametrize(
    "line", ["import helper", "from helper import thing", "def f():\n    import helper", "import os, helper as h"]
)
def test_what_a_plug_in_imports_of_its_folder_counts_too(line: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"{line}\n")
    assert set(own(tmp_path, "algorithm: {name: 'mine:Mine'}\n")) == {"mine.py", "helper.py"}


def test_packages_and_relative_imports_are_followed(tmp_path: Path) -> None:
    (tmp_path / "kit" / "deep.py").write_text("from . import near\n")
    assert set(own(tmp_path, "task: {name: 'kit.deep:Task'}\n")) == {"__init__.py", "deep.py", "near.py"}


def test_packages_around_a_module_are_imported_before_it(tmp_path: Path) -> None:
    (tmp_path / "kit" / "deep.py").write_text("x = 1\n")
    assert set(own(tmp_path, "task: {name: 'kit.deep:Task'}\n")) == {"__init__.py", "deep.py"}


def test_imports_of_a_package_above_are_followed(tmp_path: Path) -> None:
    (tmp_path / "kit" / "sub").mkdir()
    (tmp_path / "kit" / "sub" / "lower.py").write_text("from .. import near\nfrom ..deep import x\n")
    found = own(tmp_path, "task: {name: 'kit.sub.lower:Task'}\n")
    assert set(found) == {"__init__.py", "lower.py", "near.py", "deep.py"}


def test_a_file_of_rows_is_no_code_and_a_script_that_is_not_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n")
    assert own(tmp_path, f"task: {{data: '{tmp_path / 'rows.jsonl'}', script: '{tmp_path / 'none.py'}'}}\n") == {}


def test_files_that_import_each_other_and_one_that_is_no_python_are_each_there_once(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import helper\n")
    (tmp_path / "helper.py").write_text("import mine, unused\n")
    (tmp_path / "unused.py").write_text("this is no Python")
    assert set(own(tmp_path, "algorithm: {name: 'mine:Mine'}\n")) == {"mine.py", "helper.py", "unused.py"}


def test_code_of_every_layer_and_of_set_counts(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("algorithm: {name: 'helper:H'}\nclients: {sampling: {name: 'unused:S'}}\n")
    found = own(tmp_path, "base: base.yaml\nalgorithm: {name: fedavg}\n", "task.name=mine:T")
    assert set(found) == {"helper.py", "unused.py", "mine.py"}


def test_a_script_and_a_folder_with_code_count_and_texts_do_not(tmp_path: Path) -> None:
    script, folder = tmp_path / "mine.py", tmp_path / "kit"
    config = f"task: {{script: '{script}', model: '{folder}'}}\nrun: {{name: 'fedtorch.core:X', dir: 'nowhere:else'}}\n"
    assert set(own(tmp_path, config)) == {"mine.py", "__init__.py", "deep.py", "near.py"}


def test_the_command_prints_what_a_policy_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text("algorithm: {name: 'mine:Mine'}\n")
    assert main(["run.yaml"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "code:" and said[1].startswith("  - sha256:") and " # fedtorch " in said[1]
    assert said[-1] == f"  - sha256:{hashlib.sha256(BOMB.encode()).hexdigest()} # mine.py"


def test_a_config_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "no.yaml")]) == 2 and "no.yaml" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"run\.yaml"):
        shutil.copy(__file__, tmp_path / "run.yaml")
        codes_of([tmp_path / "run.yaml"])
