"""Tables on the terminal: what stands in them, and what is said of who sees which number."""

from __future__ import annotations

import io
from dataclasses import replace

from counted_tables import EDGES, SILOS, exact, hidden, labels, lengths, noised, noised_by_silo, table

from fedtorch.core.terminal import PlainConsole
from fedtorch.data.own.overview import label_divergence
from fedtorch.stats.said import how_often, promise, who_sees
from fedtorch.stats.shown import Grid, divergences, grids, number, share, show, told_edges
from fedtorch.stats.table import Stats


def grid(stats: Stats, name: str) -> Grid:
    (found,) = (each for each in grids(stats) if each.name == name)
    return found


def texts(stats: Stats, name: str) -> list[list[str]]:
    found = grid(stats, name)
    return [[text for text, _ in row] for row in (*found.rows, *[found.total] * bool(found.total))]


def test_small_facts_of_a_silo_stand_in_one_row() -> None:
    assert grid(exact(), "rows").heads == ("silo", "train", "dev", "test", "units", "twice", "JS")
    east, north, west, whole = texts(exact(), "rows")
    assert east[:-1] == ["east", "100", "10", "5", "100", "3"] and whole == ["all", "200", "20", "10", "200", "4", ""]
    counts = {"east": {"bad": 75, "good": 25}, "north": {"bad": 20, "good": 60}, "west": {"bad": 10, "good": 10}}
    assert divergences(exact()) == label_divergence(counts)
    assert [east[-1], north[-1], west[-1]] == [f"{each:.3f}" for each in label_divergence(counts).values()]


def test_names_have_the_most_frequent_first_and_a_column_for_each_silo() -> None:
    assert grid(exact(), "words").heads == ("found", "all", "east", "north", "west")
    assert texts(exact(), "words") == [["cough", "73", "60", "10", "3"], ["fever", "69", "40", "20", "9"]]
    assert grid(exact(), "words").notes == ("Shown is what was counted 9.5 times or more.",)
    many = {f"silo{i}": (1.0, 2.0) for i in range(10)}
    found = grid(exact(labels(many), silos=tuple(many)), "labels")
    assert len(found.heads) == 2 + 8 and found.notes == ("2 more silos stand on the page and in the file.",)
    assert grid(exact(labels(many, most=3), silos=tuple(many)), "labels").notes[0] == "A unit is in 3 cells at most."


def test_labels_that_were_found_stand_in_one_table() -> None:
    found = replace(table("found_labels", ("good", "bad"), {"east": (95, 105)}, "found", threshold=5.0), silos={})
    names = [each.name for each in grids(exact(found))]
    assert names == ["rows", "labels", "tokens", "words"]
    assert grid(exact(found), "labels").notes == (
        "Nobody declared these labels: they were found.",
        "Shown is what was counted 5 times or more.",
    )
    near = grid(noised(exact(found)), "labels").notes
    assert "Shown is what was counted more than 5 times." in near
    assert grid(exact(tables=(found,)), "found_labels").notes == ("Shown is what was counted 5 times or more.",)


def test_lengths_have_quantiles_in_bounds_and_the_share_that_is_cut() -> None:
    assert grid(exact(), "tokens").heads == ("silo", "median", "95 %", "> 16", "> 32", "> 64", "> 128")
    east, _, _, whole = texts(exact(), "tokens")
    assert east == ["east", "17 to 32", "33 to 64", "90.0%", "40.0%", "0.0%", "0.0%"]
    assert whole == ["all", "17 to 32", "33 to 64", "61.0%", "28.0%", "1.0%", "0.0%"]  # 56 of 200 are longer than 32
    few = exact(lengths({"east": (0, 9, 0, 0, 0, 0)}))
    assert grid(few, "tokens").heads[3:] == ("> 16", "> 32")  # the first that none exceeds, and max_length
    assert told_edges(replace(few, max_length=128), few.tables[4]) == [2, 5]
    assert told_edges(few, replace(few.tables[4], name="characters")) == []
    usual = replace(few.tables[4], edges=(0.0, 1.0, 16.0, 33.0, 64.0, 129.0, EDGES[-1]))
    assert told_edges(replace(few, max_length=15), usual) == [2]  # 16 is a power of 2; the first that none exceeds
    many = exact(lengths({"east": (9, 9, 9, 9, 9, 9)}, edges=(0.0, 17.0, 18.0, 19.0, 20.0, 21.0, EDGES[-1])))
    assert told_edges(many, many.tables[4]) == [1, 2, 3, 4, 5]


def test_a_number_that_is_not_shown_and_noise_are_told() -> None:
    assert number(None, 0.0, 5) == ("*", None) and number(None, 0.0, None) == ("-", None)
    assert number(12.4, 3.14159, None) == ("12 ± 3.1", 12.4) and number(-0.2, 1.0, None)[0] == "0 ± 1"
    assert share(None) == ("-", None) and share(0.25) == ("25.0%", 0.25) and share(0.25, 0.3)[0] == "25.0% (≤ 30.0%)"
    assert texts(hidden(exact()), "rows")[2] == ["west", "20", "*", "*", "20", "*", "0.000"]
    # numbers are hidden beyond 64: 54 are shown of 198, and 2 of all 200 are in none that is
    assert texts(hidden(exact()), "tokens")[-1][4] == f"{54 / 198:.1%} (≤ {56 / 198:.1%})"
    assert texts(noised(exact()), "labels") == [["bad", "105 ± 2"], ["good", "95 ± 2"]]
    assert texts(noised(exact()), "rows") == [["all", "200 ± 2", "20 ± 2", "10 ± 2", "200 ± 2", "4 ± 2"]]
    assert texts(noised_by_silo(exact()), "labels")[0] == ["bad", "105 ± 3.5", "75 ± 2", "20 ± 2", "10 ± 2"]
    assert divergences(noised_by_silo(exact())) == {}
    assert divergences(hidden(exact(labels({"east": (9, 1), "north": (9, 9), "west": (9, 9)})))) == {}
    assert divergences(exact(labels({"east": (9, 1)}), tables=())) == {}


def test_everything_is_printed_and_no_name_is_a_command_to_the_terminal() -> None:
    out = io.StringIO()
    odd = table("recur", ("east, north", "\x1b[2Jmany [red]"), {"east": (4, 3)})
    show(exact(odd), PlainConsole(file=out, width=120))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "all 200 20 10 200 4" in lines and "east, north 4 4" in lines and r"\u001b[2Jmany [red] 3 3" in lines
    assert any(line.startswith("Protection of each row: none") for line in lines) and "\x1b" not in out.getvalue()


def test_what_is_said_without_privacy_names_who_has_what() -> None:
    plainly = " ".join(who_sees(exact()))
    assert promise(exact()) == "none: the numbers are exact, without noise"
    assert "Of each silo by itself all parties see: rows; units; twice; labels; tokens; words" in plainly
    assert "The server has received every silo's numbers. Nothing is promised" in plainly and "below" not in plainly
    assert "a rare one may be a person's" in plainly
    assert "* stands for a number that is not shown: fewer than 5 units are behind it" in " ".join(
        who_sees(hidden(exact()))
    )
    pooled = exact(
        tables=tuple(replace(each, silos={}) for each in exact().tables), masked=True, silos=("east", "west")
    )
    masked = " ".join(who_sees(pooled))
    assert "Nobody, the server neither, has seen a number of one silo" in masked
    assert "The server has received sums alone" in masked and "There are two silos: each can subtract" in masked
    assert "masks hide each silo's own numbers" in promise(pooled)
    assert "two silos" not in " ".join(who_sees(replace(pooled, silos=SILOS)))
    assert "* stands for" not in plainly + " ".join(who_sees(exact(min_count=1)))
    assert "* stands for" in " ".join(who_sees(exact(min_count=2)))
    assert "The server says which beginnings of names are counted next." in plainly
    known = exact(tables=tuple(each for each in exact().tables if each.kind != "found"))
    assert "beginnings" not in " ".join(who_sees(known)) and "a rare one" not in " ".join(who_sees(known))
    assert how_often(table("words", ("x",), {"a": (1,)}, "found", threshold=1.0)) == ""


def test_what_is_said_with_privacy_has_unit_budget_and_against_whom() -> None:
    said = promise(noised(exact()))
    assert said.startswith(
        "differential privacy of each row, epsilon 4 at delta 1e-05 in all, by each silo's own noise"
    )
    assert said.endswith("against the server, the other silos and everybody who sees the tables")
    lines = " ".join(who_sees(noised(exact())))
    assert "The tables have sums over all silos alone." in lines and "one that few units have stays hidden" in lines
    assert "Nothing is promised" not in lines
    shared = {"epsilon": 1, "noise_at": "shared", "colluders": 2, "unit": "person"}
    assert "each person, epsilon 1 in all, by noise of which each silo" in promise(noised(exact(), privacy=shared))
    assert "against the server with 2 silos and everybody" in promise(noised(exact(), privacy=shared))
    apart = {"silos": {"east": {"epsilon": 1.0, "delta": 0.1}, "west": {"epsilon": 2.0}}}
    assert "by silo: east epsilon 1 at delta 0.1 in all, west epsilon 2 in all" in promise(
        noised(exact(), privacy=apart)
    )
    both = {**apart, "epsilon": 4.0, "delta": 0.1}
    assert "each row, epsilon 4 at delta 0.1 in all, by noise" in promise(noised(exact(), privacy=both))
    assert "epsilon not told" in promise(noised(exact(), privacy={"silos": {}}))
    pretended = noised(exact(), privacy={"epsilon": 4.0, "simulated": True})
    assert promise(pretended) == "simulated: nothing is promised, as everybody can compute the noise"
    assert "cannot tell" not in " ".join(who_sees(pretended))
