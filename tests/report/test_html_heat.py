"""The heat map of a page, cell by cell."""

from __future__ import annotations

import re

from fedtorch.report.html_heat import MOST_LABELS, heat_map


def rows(text: str) -> list[list[str]]:
    return [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in re.findall("<tr>(.*?)</tr>", text)[1:]]


def test_the_largest_client_and_the_most_frequent_label_come_first() -> None:
    text = heat_map({"a": {"x": 1, "y": 2}, "b": {"x": 1, "z": 4}})
    assert re.findall("<th>(.*?)</th>", text) == ["client", "rows", "z", "x", "y"]
    assert rows(text) == [["b", "5", "4", "1", "0"], ["a", "3", "0", "1", "2"]]
    assert '<td data-v="4" style="background:rgba(31,119,180,0.80)" title="b, z: 80% of its rows">' in text
    assert '<td data-v="5">5</td>' in text and "note" not in text


def test_numbers_that_are_hidden_or_below_zero_have_no_colour() -> None:
    text = heat_map({"a": {"x": 4.5, "y": None, "z": -2.0}}, lambda count: "few" if count is None else f"{count:.1f}")
    assert rows(text) == [["a", "2.5", "4.5", "few", "-2.0"]]
    assert '<td data-v="" title="a, y: not shown">few</td>' in text
    assert "180,1.00)" in text and "180,0.00)" in text  # 4.5 of 2.5 rows, and -2
    assert "180,0.00)" in heat_map({"a": {"x": 0}}) and rows(heat_map({"a": {"x": 0}})) == [["a", "0", "0"]]
    assert "180,0.80)" in heat_map({"a": {"x": 0.4, "y": 0.1}})
    assert "180,0.00)" in heat_map({"a": {"x": 1, "y": -1}})  # no rows in all: of nothing there is no share


def test_labels_beyond_the_most_frequent_ones_are_counted() -> None:
    assert MOST_LABELS == 40
    counts = {f"label {i}": i + 1 for i in range(MOST_LABELS + 2)}
    text = heat_map({"a": counts})
    assert f"The {MOST_LABELS} most frequent of {MOST_LABELS + 2} labels." in text
    assert len(rows(text)[0]) == 2 + MOST_LABELS and "label 1<" not in text and "label 2<" in text
    assert "most frequent" not in heat_map({"a": {f"{i}": 1 for i in range(MOST_LABELS)}})
