"""Messages stay short whatever they quote, and a user's words are no formula and no markup in what is written."""

from __future__ import annotations

import pytest

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.core.shown import bounded, for_csv, for_markdown, markdown_row, shortened

LONG = "x" * 100_000


@pytest.mark.parametrize(
    "value",
    [LONG, LONG.encode(), [LONG] * 9, {LONG: LONG}, [[1]] * 1000, 10**5000, "a\nb", "\ud800", {"a": [1]}],
    ids=range(9),
)
def test_a_shown_value_is_short_and_on_one_line(value: object) -> None:
    shown = shortened(value)
    assert len(shown) <= 80 and "\n" not in shown
    shown.encode()


def test_short_values_are_shown_as_they_are() -> None:
    assert [shortened(value) for value in ("a", 1, 1.5, None, [1, 2])] == ["'a'", "1", "1.5", "None", "[1, 2]"]


@pytest.mark.parametrize("quoted", [LONG, f"`{'a b ' * 30_000}`", f"'{'é ' * 60_000}'", "\n".join(["row"] * 100_000)])
def test_an_error_is_short_whatever_it_quotes(quoted: str) -> None:
    text = str(ConfigError(f"task.x is {quoted}; set it to 1"))
    assert len(text) < 13_000 and text.startswith("task.x is") and text.endswith("set it to 1")


def test_a_long_path_in_an_error_keeps_its_end() -> None:
    assert str(DataError("/folder/" + "a" * 5000 + "/rows.jsonl:3: empty")).endswith("/rows.jsonl:3: empty")


def test_a_short_message_is_not_touched() -> None:
    text = "clients.per_round is 12 but `text2sql` has 8 clients; set it to at most 8"
    assert bounded(text) == text


@pytest.mark.parametrize("char", ["\x1b[2J", "\x9b31m", "\0", "\r", "\u202e", "\ud800"])
def test_no_error_commands_a_terminal_whatever_it_quotes(char: str) -> None:
    text = str(DataError(f"x.jsonl:3: label {char}good is unknown\nset task.labels"))
    assert text.startswith("x.jsonl:3: label \\u") and "\nset task.labels" in text
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    text.encode()


@pytest.mark.parametrize("text", ["=1+1", "+cmd|'/c calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1"])
def test_a_formula_is_a_text_in_a_cell(text: str) -> None:
    assert for_csv(text) == f"'{text}"


@pytest.mark.parametrize("cell", [-1.5, 3, "-1.5", "+2", "-", "a=b", "", None])
def test_numbers_and_plain_texts_stay_as_they_are_in_a_cell(cell: object) -> None:
    assert for_csv(cell) == cell


def test_markup_is_text_in_a_table() -> None:
    assert for_markdown("a|b\n<img src=x> [y](z) & c") == r"a\|b &lt;img src=x> \[y](z) &amp; c"
    assert for_markdown("run [final] of 3") == "run [final] of 3"


def test_a_row_of_a_table_has_as_many_cells_as_it_was_given() -> None:
    row = markdown_row(["a|b", 1, "<b>", "x\ny", "\x1b[2J"])
    assert row == r"| a\|b | 1 | &lt;b> | x y | \\u001b[2J |"  # a reader sees \u001b
