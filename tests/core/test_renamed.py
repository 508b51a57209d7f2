"""Code from outside that uses names of an earlier version is told the new ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedtorch
from fedtorch import Algorithm
from fedtorch.config.load import load
from fedtorch.core.errors import ConfigError
from fedtorch.core.renamed import MODULES


@pytest.mark.parametrize(
    ("member", "value", "now"),
    [
        ("exchanged", (), "travels.vectors"),
        ("exchanged_vectors", (), "travels.vectors"),
        ("on_device", True, "@on_device at each function"),
        ("judged_weights", print, "eval_weights"),
        ("precisions", ("fp32",), "limits.precisions"),
        ("reads_initial", True, "limits.reads_initial"),
        ("why_not_ahead", "", "own_weight"),
        ("check_task", print, "check(hp, task)"),
    ],
)
def test_a_member_of_an_old_name_is_refused_with_the_new_one(member: str, value: Any, now: str) -> None:
    """It would be ignored without a word."""
    with pytest.raises(TypeError, match=f"Mine defines `{member}`, which is `{re.escape(now)}` now"):
        type("Mine", (Algorithm,), {member: value})


@pytest.mark.parametrize("given", [lambda self, hp: None, lambda self: None, lambda self, hp, task, more: None])
def test_a_function_of_other_arguments_is_refused_with_those_of_today(given: Any) -> None:
    """Before a run begins, in which it would fail with an error that says nothing of why."""
    said = r"Mine defines `check\(self.*\)`, which is called with \(hp, task\) now"
    with pytest.raises(TypeError, match=said):
        type("Mine", (Algorithm,), {"check": given})


@pytest.mark.parametrize(
    "given", [lambda self, hp, task: None, lambda self, *given: None, lambda self, hp, task=1: None]
)
def test_a_function_that_takes_todays_arguments_is_taken(given: Any) -> None:
    type("Mine", (Algorithm,), {"check": given})


def test_an_import_of_a_module_that_has_moved_names_the_new_one(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for number, (old, name) in enumerate([("fedtorch.update", "Report"), ("fedtorch.config", "ClientsConfig")]):
        (tmp_path / f"of_last_year{number}.py").write_text(f"from {old} import {name}\n")
        (tmp_path / "run.yaml").write_text(f'algorithm: {{name: "of_last_year{number}:Mine"}}\n')
        with pytest.raises(ConfigError, match=f"`{old}` is `{MODULES[old]}` now.*importable from `fedtorch`"):
            load(tmp_path / "run.yaml")


def test_moved_modules_are_where_the_error_says() -> None:
    for old, new in MODULES.items():
        assert __import__(new, fromlist=["_"]).__name__ == new
        room = Path(fedtorch.__file__).parent / old.removeprefix("fedtorch.")
        assert not room.with_suffix(".py").exists()


def test_what_users_build_on_is_importable_from_the_package() -> None:
    for name in fedtorch._PUBLIC:
        assert getattr(fedtorch, name).__name__ == name or name == "Scores"
        assert name in dir(fedtorch)
    assert fedtorch.Report is __import__("fedtorch.core.update", fromlist=["_"]).Report
    with pytest.raises(AttributeError, match="no attribute 'Reports'"):
        _ = fedtorch.Reports


@pytest.mark.processes
def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, fedtorch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
