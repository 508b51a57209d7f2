"""Tables of `data check`: exact numbers of all splits, labels of train, tokens in bins that tell who is cut."""

from __future__ import annotations

import math
from collections import Counter

from fedtorch.data.own.overview import ClientRows, Overview
from fedtorch.stats.of_overview import stats_of
from fedtorch.stats.table import Stats, Table

NORTH = ClientRows({"train": 3, "test": 1}, Counter(x=2, y=1), tokens=[1, 4, 9, 9], inside=2)
WEST = ClientRows({"train": 1, "dev": 2}, Counter(y=1, z=0), tokens=[0, 15, 5])


def found(**changes: object) -> Stats:
    clients = {"north": NORTH, "west": WEST}
    overview = Overview("text_classification", clients, **changes)  # type: ignore[arg-type]
    return stats_of(overview, 8, "a tokenizer")


def table(name: str, stats: Stats) -> Table:
    (one,) = (each for each in stats.tables if each.name == name)
    return one


def test_every_number_is_that_of_the_rows() -> None:
    stats = found()
    assert (stats.unit, stats.silos, stats.min_count) == ("row", ("north", "west"), None)
    assert (stats.tokenizer, stats.max_length, stats.task) == ("a tokenizer", 8, "text_classification")
    assert table("rows", stats) == Table(
        "rows", "rows", "names", ("train", "test", "dev"), (), 1, False, (4.0, 1.0, 2.0), 0.0,
        {"north": (3.0, 1.0, 0.0), "west": (1.0, 0.0, 2.0)},
    )  # fmt: skip
    assert table("twice", stats) == Table(
        "twice", "rows that stand twice", "names", ("twice",), (), 1, False, (2.0,), 0.0,
        {"north": (2.0,), "west": (0.0,)},
    )  # fmt: skip
    assert table("labels", stats) == Table(
        "labels", "labels of train", "names", ("x", "y"), (), 1, True, (2.0, 2.0), 0.0,
        {"north": (2.0, 1.0), "west": (0.0, 1.0)},
    )  # fmt: skip


def test_bins_of_tokens_end_where_the_longest_row_does() -> None:
    """Edges at the powers of the root of two and at one more than `task.max_length`; the last is above the longest."""
    tokens = table("tokens", found())
    assert tokens.edges == (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 9.0, 12.0, 16.0, math.inf)
    assert tokens.silos == {
        "north": (0, 1, 0, 0, 1, 0, 0, 2, 0, 0),
        "west": (1, 0, 0, 0, 1, 0, 0, 0, 1, 0),
    }
    assert tokens.pooled == (1, 1, 0, 0, 2, 0, 0, 2, 1, 0)
    assert tokens.kind == "bins" and tokens.parts and len(tokens.cells) == len(tokens.edges) - 1
    assert tokens.title == "tokens, by a tokenizer"


def test_a_split_for_all_counts_once_and_rows_of_several_labels_are_no_parts() -> None:
    assert table("rows", found(shared={"test": ("north", "west")})).pooled == (4.0, 1.0, 2.0)
    twice = ClientRows({"train": 1, "test": 1}, Counter(y=2), tokens=[])
    overview = Overview("spans", {"north": NORTH, "west": twice}, {"test": ("north", "west")})
    stats = stats_of(overview, 8, "t")
    assert table("rows", stats).pooled == (4.0, 1.0) and table("rows", stats).silos["west"] == (1.0, 1.0)
    assert not table("labels", stats).parts


def test_without_labels_there_is_no_table_of_them() -> None:
    stats = stats_of(Overview("seq2seq", {"north": ClientRows({"train": 2})}), 8, "t")
    assert [each.name for each in stats.tables] == ["rows", "twice", "tokens"]
    assert table("tokens", stats).pooled == (0.0,) * 4 and table("tokens", stats).edges == (
        0.0,
        1.0,
        2.0,
        9.0,
        math.inf,
    )
