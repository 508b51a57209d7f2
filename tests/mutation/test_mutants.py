"""Small changes of the rules are noticed by their tests: a sample of mutants, and a list of those that are not."""

from __future__ import annotations
import __future__

import importlib
import shlex
import sys
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import yaml
from mutants import Mutated, limit_of, mutants, sample, survives

ROOT = Path(__file__).parents[2]
SURVIVORS = Path(__file__).with_name("survivors.yaml")
MOST = 6
"""mutants of a file"""
ROOMS = (
    "algorithms",
    "compression",
    "metrics",
    "privacy",
    "report",
    "models/adapters",
    "data/own",
    "tasks",
    "setup",
    "planning",
    "stats",
)
"""every file of theirs in which something can be changed is in `TESTS`"""
SUMS_OF_UPDATES = ("comm/sums/accepted", "comm/sums/reproducible", "core/norms", "core/server", "core/weights")
"""of other rooms what makes the weighted sum and steps along it; so are these"""

TESTS: dict[str, str] = yaml.safe_load(Path(__file__).with_name("tests.yaml").read_text())
"""file of the package -> arguments of pytest: the tests that its mutants have to get past, small ones"""


def test_mutants_have_names_of_their_own_and_differ_from_the_source() -> None:
    lines = ["def f(a: int = 1) -> bool:", "    if a < 2 and not a:", "        raise ValueError(f'{a + 1}')"]
    source = "\n".join([*lines, "    return a * 3 > 4"])
    found = {mutant.name: mutant.tree for mutant in mutants(source)}
    assert set(found) == {
        "f: def f(a: int=1) -> bool: -> def f(a: int=2) -> bool:",
        "f: if a < 2 and (not a): -> if a < 2 or not a:",
        "f: if a < 2 and (not a): -> if a <= 2 and (not a):",
        "f: if a < 2 and (not a): -> if a < 3 and (not a):",
        "f: if a < 2 and (not a): -> if a < 2 and (not not a):",
        "f: return a * 3 > 4 -> return a * 3 >= 4",
        "f: return a * 3 > 4 -> return a / 3 > 4",
        "f: return a * 3 > 4 -> return a * 4 > 4",
        "f: return a * 3 > 4 -> return a * 3 > 5",
    }
    assert {mutant.name for mutant in sample(source, 4)} < set(found)


def test_defaults_and_what_is_rounded_or_last_are_changed_too() -> None:
    lines = [
        "from statistics import stdev",
        "class Key:",
        "    stride: Whole | None = None",
        "    long: Literal['cut', 'windows', 'none'] = 'cut'",
        "    path: str | None = None",
        "def f(xs):",
        "    return int(stdev(xs)), xs[-1]",
    ]
    found = {mutant.name: mutant.tree for mutant in mutants("\n".join(lines))}
    last = "f: return (int(stdev(xs)), xs[-1]) -> return "
    assert set(found) == {
        "Key: stride: Whole | None = None -> stride: Whole | None = 1",
        "Key: long: Literal['cut', 'windows', 'none'] = 'cut' -> long: Literal['cut', 'windows', 'none'] = 'none'",
        f"{last}(round(stdev(xs)), xs[-1])",
        f"{last}(int(pstdev(xs)), xs[-1])",
        f"{last}(int(stdev(xs)), xs[0])",
        f"{last}(int(stdev(xs)), xs[+1])",
        f"{last}(int(stdev(xs)), xs[-2])",
    }
    names: dict[str, Any] = {}
    exec(
        compile(found[f"{last}(int(pstdev(xs)), xs[-1])"], "", "exec", flags=__future__.annotations.compiler_flag),
        names,
    )
    assert names["f"]([0.0, 10.0]) == (5, 10.0)  # a sample's would be 7.07


def test_a_package_may_be_changed_and_has_its_modules_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "changed_package"
    package.mkdir()
    (package / "__init__.py").write_text("LEAST = 1\n")
    (package / "part.py").write_text("from changed_package import LEAST\n")
    (mutant,) = mutants((package / "__init__.py").read_text())
    monkeypatch.setattr(
        sys, "meta_path", [Mutated("changed_package", package / "__init__.py", mutant.tree), *sys.meta_path]
    )
    try:
        assert importlib.import_module("changed_package.part").LEAST == 2
    finally:
        for name in ("changed_package.part", "changed_package"):
            sys.modules.pop(name, None)


def without_tests(package: Path, rooms: Iterable[str], known: Container[str]) -> list[str]:
    """Files of some rooms that can be changed in a way that counts and are not among those known."""
    files = sorted(path for room in rooms for path in (package / room).rglob("*.py"))
    names = [path.relative_to(package).with_suffix("").as_posix() for path in files]
    return [n for n, path in zip(names, files, strict=True) if n not in known and any(mutants(path.read_text()))]


def test_every_rule_is_changed_and_a_new_one_is_noticed(tmp_path: Path) -> None:
    assert without_tests(ROOT / "fedtorch", ROOMS, TESTS) == []
    assert {*SUMS_OF_UPDATES, *TESTS} == set(TESTS) and all(place(name)[0].exists() for name in TESTS)
    (tmp_path / "metrics" / "new").mkdir(parents=True)
    for name, text in (("__init__", "from x import y"), ("rule", "def f(a): return a + 1"), ("old", "LEAST = 1")):
        (tmp_path / "metrics" / "new" / f"{name}.py").write_text(text)
    assert without_tests(tmp_path, ROOMS, {"metrics/new/old"}) == ["metrics/new/rule"]


def import_once() -> None:
    """What the tests import of others, once for all forks; and as in `conftest.py` a slow machine finds no mutant."""
    for name in ("scipy.stats", "sklearn.metrics", "transformers", "hypothesis", "peft", "dp_accounting.pld"):
        pytest.importorskip(name)
    hypothesis.settings.register_profile("busy", deadline=None)
    hypothesis.settings.load_profile("busy")


def place(name: str) -> tuple[Path, str]:
    """File and module."""
    return ROOT / "fedtorch" / f"{name}.py", "fedtorch." + name.removesuffix("/__init__").replace("/", ".")


def words(name: str) -> list[str]:
    """Its tests, for pytest."""
    return [str(ROOT / part) if part.startswith("tests/") else part for part in shlex.split(TESTS[name])]


def listed_survivors(name: str) -> dict[str, str]:
    """Mutant -> why nothing can notice it."""
    return (yaml.safe_load(SURVIVORS.read_text()) or {}).get(name) or {}


@pytest.fixture(scope="module")
def imported() -> None:
    """Once for the tests of all files."""
    import_once()


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.usefixtures("imported")
@pytest.mark.parametrize("name", sorted(TESTS))
def test_what_survives_is_listed_with_its_reason(name: str) -> None:
    path, module = place(name)
    source, tests, listed = path.read_text(), words(name), listed_survivors(name)
    assert all(listed.values()), f"a survivor of {name} has no reason"
    assert not set(listed) - {mutant.name for mutant in mutants(source)}, "listed, but no mutant of the file any more"
    chosen = sample(source, MOST)
    limit = limit_of(module, path, tests)
    assert limit is not None, "the tests fail without any change"
    left = {mutant.name for mutant in chosen if survives(module, path, mutant.tree, tests, limit)}
    assert left == set(listed) & {mutant.name for mutant in chosen}
