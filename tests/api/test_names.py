"""What `fedtorch` itself offers, and that importing it is quick."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import fedtorch

SOURCE = Path(fedtorch.__file__)


def test_every_name_is_there_is_exported_and_is_known_to_type_checkers() -> None:
    names = fedtorch._PUBLIC
    assert sorted(names) == sorted(fedtorch.__all__) and set(names) <= set(dir(fedtorch))
    for name, module in names.items():
        assert getattr(fedtorch, name) is getattr(import_module(module), name)
    (checked,) = (node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If))
    imported = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    assert {alias.asname: node.module for node in imported for alias in node.names} == names
    assert (SOURCE.parent / "py.typed").is_file()


@pytest.mark.processes
def test_importing_it_imports_nothing_but_itself() -> None:
    script = (
        "import sys; before = set(sys.modules); import fedtorch; new = set(sys.modules) - before;"
        "print(*sorted(name for name in new if name.partition('.')[0] not in sys.stdlib_module_names))"
    )
    environ = {"PYTHONPATH": str(SOURCE.parents[1])}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["fedtorch", "fedtorch.core", "fedtorch.core.version"]
