"""Cells of CSV files are texts, whatever they look like."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedtorch.data.own.source import open_tables


@pytest.mark.parametrize(("name", "separator"), [("a.csv", ","), ("a.tsv", "\t")])
def test_every_cell_of_a_table_is_a_text_as_it_was_written(name: str, separator: str, tmp_path: Path) -> None:
    lines = [["text", "label", "site"], ["NA", "01", "2"], ["null", "1.50", "x y"], ['"two\nlines"', "true", ""]]
    (tmp_path / name).write_text("".join(separator.join(line) + "\n" for line in lines))
    with open_tables(str(tmp_path / name), tmp_path) as [table]:
        assert list(table.rows) == [
            {"text": "NA", "label": "01", "site": "2"},
            {"text": "null", "label": "1.50", "site": "x y"},
            {"text": "two\nlines", "label": "true", "site": ""},
        ]
