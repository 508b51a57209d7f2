"""Every test that the conformance page names is there, and every method has a row with a link and a test."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "conformance.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.splitlines() if line[:2] == "| "]
METHODS = (
    *("FedAvg", "FedOpt", "FedProx", "SCAFFOLD", "FedNova", "Ditto", "pFedMe", "FedDyn", "FedPer", "LG-FedAvg"),
    *("[Lorar]", "[FedMatch]", "[FedParsing]", "[FewFedWeight]", "[FedAssistant]", "[DiLoCo](long-rounds.md)"),
    *("Clipping", "Denominator", "Moving clip", "Accounting", "Noise"),
    *("FedIT", "HetLoRA", "FLoRA", "FedEx-LoRA", "Fed-SB"),
)
# papers without code that we know of, and what is nobody's
WITHOUT_LINK = ("[Streaming DiLoCo]", "FFA-LoRA", "FedSA-LoRA", "RoLoRA", "FlexLoRA", "Secure sum")


@cache
def functions(file: str) -> set[str]:
    """Names of a test file's functions."""
    return {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_test_that_the_page_names_is_there() -> None:
    assert NAMED and [f"{file}::{name}" for file, name in NAMED if name not in functions(file)] == []


def test_a_method_has_a_row_that_says_everything() -> None:
    for method in METHODS:
        (row,) = [row for row in ROWS if row[0].startswith(method)]
        assert len(row) == 5 and all(row) and not any("|" in cell for cell in row), method
        _, _, theirs, _, tests = row
        assert re.search(r"\]\[[\w-]+\]", theirs) and "::test_" in tests, method


def test_a_method_without_code_of_others_has_a_row_with_a_test() -> None:
    for method in WITHOUT_LINK:
        (row,) = [row for row in ROWS if row[0].startswith(method)]
        assert len(row) == 5 and all(row) and "::test_" in row[-1], method


def test_every_link_of_the_page_is_defined_and_used() -> None:
    used = set(re.findall(r"\]\[([\w-]+)\]", PAGE))
    defined = re.findall(r"^\[([\w-]+)\]: https://github\.com/", PAGE, flags=re.MULTILINE)
    assert used == set(defined) and len(defined) == len(set(defined))
