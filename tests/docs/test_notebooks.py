"""The notebooks of the documentation run, and show what is stored in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from notebooks import code_cells, differences, execute, texts
from ranks import run_ranks

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.processes
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_is_stored_in_it(path: Path, tmp_path: Path) -> None:
    (shown,) = run_ranks(execute, 1, str(path), str(tmp_path))
    for cell, outputs in zip(code_cells(path), shown, strict=True):
        stored = texts(cell["outputs"])
        assert len(stored) == len(texts(outputs)), "".join(cell["source"])
        assert [line for pair in zip(stored, texts(outputs)) for line in differences(*pair)] == []


def test_there_are_four_and_none_names_a_place_of_its_own() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first_run", "own_algorithm", "own_data", "preferences"]
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text())["cells"]
        assert [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"] == list(
            range(1, len(code_cells(path)) + 1)
        )
        assert not [text for cell in code_cells(path) for text in texts(cell["outputs"]) if "/tmp" in text]


@pytest.mark.parametrize(
    ("stored", "shown", "number"),
    [
        ("loss 0.51  1.2s  left 3m\na", "loss 0.52  8.0s  left 45s\na", 0),
        ("loss 0.51", "loss 0.81", 1),
        ("True", "False", 1),
        ("west 3 of 3", "east 3 of 3", 1),
        ("a\nb", "a", 1),
    ],
)
def test_times_and_last_digits_may_differ_and_nothing_else(stored: str, shown: str, number: int) -> None:
    assert len(differences(stored, shown)) == number
