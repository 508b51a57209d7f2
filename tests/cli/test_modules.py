"""Modules that are commands too: importing one runs nothing."""

from __future__ import annotations

import importlib
from pathlib import Path

import fedtorch
import launchers


def test_importing_a_command_does_not_run_it() -> None:
    found = list[str]()
    for package in (fedtorch, launchers):
        root = Path(str(package.__file__)).parent
        for path in sorted(root.rglob("*.py")):
            if '\nif __name__ == "__main__":\n' in path.read_text():
                found.append(".".join(path.relative_to(root.parent).with_suffix("").parts))
                assert callable(importlib.import_module(found[-1]).main), found[-1]
    assert {"fedtorch.main", "fedtorch.report.__main__", "fedtorch.setup.data_prepare", "launchers.local"} < set(found)
