"""Code from outside that uses names of an earlier version goes on working, or is told the new ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

import fedtorch
from fedtorch import Algorithm, Task
from fedtorch.config.load import load
from fedtorch.core.errors import ConfigError
from fedtorch.core.renamed import MODULES


def test_members_are_overridden_by_their_old_names_with_a_warning() -> None:
    with pytest.warns(
        FutureWarning,
        match="defines `(exchanged|judged_weights)`, which is called `(exchanged_vectors|eval_weights)` now",
    ):

        class Mine(Algorithm):
            exchanged: ClassVar[tuple[str, ...]] = ()

            def judged_weights(self, received: Any, state: Any) -> Any:
                return "mine"

    assert Mine().exchanged_vectors == () and Mine().eval_weights(None, None) == "mine"  # type: ignore[arg-type]

    with pytest.warns(FutureWarning, match="`measured`"):

        class Counting(Task):
            def measured(self, model: Any) -> dict[str, float]:
                return {"tokens": 3.0}

    assert Counting().pop_counters(None) == {"tokens": 3.0}  # type: ignore[arg-type]


def test_a_member_under_both_names_is_refused() -> None:
    with pytest.raises(TypeError, match="Both defines both `exchanged` and `exchanged_vectors`"):

        class Both(Algorithm):
            exchanged: ClassVar[tuple[str, ...]] = ()
            exchanged_vectors: ClassVar[tuple[str, ...]] = ()


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


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, fedtorch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
