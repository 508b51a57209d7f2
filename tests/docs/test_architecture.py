"""The page on the architecture says what the code is."""

from __future__ import annotations

from pathlib import Path

from tests.test_rules import COMM_FLOORS, ROOMS

PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()


def test_the_table_of_imports_is_the_one_that_is_tested() -> None:
    table = PAGE.partition("| room | may import |\n|---|---|\n")[2].partition("\n\n")[0]
    found = {}
    for line in table.splitlines():
        names, allowed = (cell.strip() for cell in line.strip("|").split("|"))
        found.update(dict.fromkeys(names.split(", "), set(allowed.split(", ")) - {"nothing of ours"}))
    assert found == ROOMS


def test_the_tree_names_every_room() -> None:
    tree = PAGE.partition("```\nfedtorch/\n")[2].partition("```")[0]
    lines = [line for line in tree.splitlines() if line.startswith(("  ", "launchers/"))]
    named = [(line.startswith("    "), line.split()[0].removesuffix("/").removesuffix(".py")) for line in lines]
    assert {name for is_inner, name in named if not is_inner} == set(ROOMS)
    assert tuple(name for is_inner, name in named if is_inner) == COMM_FLOORS
