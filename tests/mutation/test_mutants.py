"""Small changes of the rules are noticed by their tests: a sample of mutants, and a list of those that are not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml
from mutants import mutants, sample, survives

ROOT = Path(__file__).parents[2]
SURVIVORS = Path(__file__).with_name("survivors.yaml")
MOST = 6
"""mutants of a file"""

# the tests that a file's mutants have to get past, small ones that start no process
TESTS = {
    "algorithms/loss_reduction": ["tests/papers/test_lorar_rounds.py"],
    "metrics/apir": ["tests/metrics/test_apir.py"],
    "metrics/significance": ["tests/metrics/test_significance.py"],
    "metrics/spans": ["tests/metrics/test_spans.py"],
}


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


@pytest.fixture(scope="module")
def imported() -> None:
    """What the tests import of others, once for all forks."""
    for name in ("scipy.stats", "sklearn.metrics", "transformers"):
        pytest.importorskip(name)


@pytest.mark.slow
@pytest.mark.usefixtures("imported")
@pytest.mark.parametrize("name", sorted(TESTS))
def test_what_survives_is_listed_with_its_reason(name: str) -> None:
    path = ROOT / "fedtorch" / f"{name}.py"
    module, source = "fedtorch." + name.replace("/", "."), path.read_text()
    tests = [str(ROOT / part) if part.endswith(".py") else part for part in TESTS[name]]
    listed = (yaml.safe_load(SURVIVORS.read_text()) or {}).get(name) or {}
    assert all(listed.values()), f"a survivor of {name} has no reason"
    assert not set(listed) - {mutant.name for mutant in mutants(source)}, "listed, but no mutant of the file any more"
    chosen = sample(source, MOST)
    assert survives(module, path, ast.parse(source), tests), "the tests fail without any change"
    left = {mutant.name for mutant in chosen if survives(module, path, mutant.tree, tests)}
    assert left == set(listed) & {mutant.name for mutant in chosen}
