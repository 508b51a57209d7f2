"""Proposals: what each key is made of, what noise forbids, and which silos look broken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from counted_tables import exact, hidden, labels, lengths, noised, noised_by_silo, table

from fedtorch.stats.broken import alike, remarks, surely
from fedtorch.stats.proposals import as_yaml, proposals
from fedtorch.stats.table import Stats

RUN = Path("runs/stats")


def weights(**counts: float) -> Stats:
    return exact(labels({"east": tuple(counts.values())}, tuple(counts)))


def test_labels_and_the_least_length_that_cuts_one_in_a_hundred() -> None:
    found = proposals(exact(), RUN)
    assert (found.run, found.task, found.labels) == (str(RUN), "text_classification", ("bad", "good"))
    assert found.max_length == 64 and found.why["max_length"] == "tokens of 'words'; 1.00% of 200 rows are longer"
    more = exact(lengths({"east": (0, 100, 0, 98, 2, 1)}))  # 3 of 201 are longer than 64
    assert proposals(more, RUN).max_length == 128
    assert not found.class_weights and found.tokenizer is None and "class_weights" not in found.why
    assert proposals(exact(tables=()), RUN).max_length is None and proposals(exact(tables=()), RUN).labels == ()


def test_a_length_beyond_the_last_bound_is_not_proposed() -> None:
    found = proposals(exact(lengths({"east": (0, 50, 0, 0, 0, 50)})), RUN)
    assert found.max_length is None and "rows reach beyond the last bound" in found.why["max_length"]
    nothing = proposals(exact(lengths({"east": (0, 0, 0, 0, 0, 0)})), RUN)
    assert nothing.max_length is None and "too few rows were counted" in nothing.why["max_length"]


def test_a_length_rests_on_no_number_that_noise_could_have_made() -> None:
    # 56 rows of 198 are longer than 32, 2 of them longer than 64: of noise of 2 that is as good as none
    found = proposals(noised(exact()), RUN)
    assert found.max_length == 64 and "3 standard deviations of the noise above 0" in found.why["max_length"]
    assert "it stays open whether more than 1%" in found.why["max_length"]
    sure = proposals(noised(exact(), 0.1), RUN)  # 2 + 3·.1·√2 of 200 - 3·.1·√6 are more than one in a hundred
    assert sure.max_length == 128 and "0.00% of 200 rows are longer, 0.15% at most" in sure.why["max_length"]
    assert proposals(noised(exact(), 100.0), RUN).max_length is None
    few = proposals(hidden(exact()), RUN)  # 2 of 198 may be longer than 128
    assert few.max_length == 64 and "beyond it no number is shown" in few.why["max_length"]
    units = table("units", ("units",), {"east": (1814,)})
    many = hidden(exact(units, lengths({"east": (4, 900, 900, 5, 4, 1)})))
    assert proposals(many, RUN).max_length == 32  # 5, and 9 that are hidden, of 1805
    assert "0.28% of 1805 rows are longer, 0.78% at most" in proposals(many, RUN).why["max_length"]


def test_weights_are_those_of_balanced_where_a_label_is_rare() -> None:
    found = proposals(weights(bad=90.0, good=30.0, rare=20.0), RUN)
    assert found.class_weights == {"bad": 0.5185, "good": 1.556, "rare": 2.333}  # 140 / (3 · 90) and so on
    assert found.why["class_weights"] == "the most frequent label has 4.5 times the rows of the rarest"
    assert proposals(weights(bad=90.0, good=30.0), RUN).class_weights == {}  # 3 to 1 and no more
    assert proposals(replace(weights(bad=90, good=3), task="token_classification"), RUN).class_weights == {}
    several = exact(labels({"east": (90, 3)}, parts=False))
    assert proposals(several, RUN).class_weights == {}
    assert proposals(weights(bad=90.0), RUN).class_weights == {}


def test_weights_rest_on_no_number_that_is_hidden_or_noise() -> None:
    few = proposals(hidden(weights(bad=90, rare=3)), RUN)
    assert few.class_weights == {} and few.why["class_weights"] == "not proposed, as the rows of 'rare' are not shown"
    near = proposals(noised(weights(bad=90.0, rare=6.0)), RUN)
    assert near.class_weights == {} and "'rare' are within 3 standard deviations" in near.why["class_weights"]
    assert proposals(noised(weights(bad=90.0, rare=6.1)), RUN).class_weights
    assert proposals(weights(bad=90.0, rare=0.0), RUN).why["class_weights"].endswith("'rare' are none")
    assert not surely(6.0, 2.0) and surely(6.1, 2.0) and not surely(0, 0.0) and not surely(None, 0.0)


def test_found_labels_are_proposed_and_labels_of_other_tasks_are_not() -> None:
    found = table("found_labels", ("sun", "rain"), {"east": (9, 8)}, "found", threshold=4.25)
    run = exact(tables=(found,))
    assert proposals(run, RUN).labels == ("sun", "rain")
    assert proposals(run, RUN).why["labels"] == "found in silos' rows, each 4.25 times or more"
    both = proposals(exact(found), RUN)  # found, and then counted by silo
    assert both.labels == ("bad", "good") and both.why["labels"] == "found in silos' rows, each 4.25 times or more"
    assert proposals(replace(run, task="seq2seq"), RUN).labels == ()
    kinds = table("entities", ("PER", "LOC"), {"east": (9, 8)})
    spans = exact(tables=(kinds,), task="token_classification")
    assert proposals(spans, RUN).labels == ("PER", "LOC")
    assert proposals(spans, RUN).why["labels"] == "those that silos counted by"
    one = table("entities", ("PER", "LOC"), {"east": (9, 0), "west": (9, 8)})
    assert remarks(exact(tables=(one,))) == ["west: it alone has the label 'LOC'"]


def test_the_yaml_is_laid_over_a_config_and_names_cannot_leave_their_line(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer/made_of.json").write_text("{}")
    odd = ("a: b # c", "new\nrounds: 9", 'quote"\u2028x', "no")
    run = exact(labels({"east": (90, 80, 70, 2), "we\nst: x": (0, 50, 50, 0)}, odd))
    assert yaml.safe_load(as_yaml(run, tmp_path)) == {
        "task": {
            "data": {"labels": list(odd)},
            "max_length": 64,
            "class_weights": dict(proposals(run, tmp_path).class_weights),
            "tokenizer": str(tmp_path / "tokenizer"),
        }
    }
    assert list(proposals(run, tmp_path).class_weights) == list(odd)
    text = as_yaml(exact(tables=()), RUN)
    assert yaml.safe_load(text) is None and "# Nothing is proposed." in text
    assert "# max_length: tokens of 'words'; 1.00% of 200 rows are longer\n  max_length: 64" in as_yaml(exact(), RUN)


def test_the_tokenizer_is_the_runs_own_or_that_whose_tokens_were_counted(tmp_path: Path) -> None:
    words, run = tmp_path / "words", tmp_path / "run"
    counted = exact(tokenizer=str(words))
    assert proposals(counted, run).tokenizer is None
    for folder in (words, run / "tokenizer"):
        folder.mkdir(parents=True)
        (folder / "made_of.json").write_text("{}")
        assert proposals(counted, run).tokenizer == str(folder)
        assert proposals(exact(tokenizer=None), run).tokenizer == (str(folder) if folder != words else None)


def broken(*tables: Any, **changed: Any) -> list[str]:
    return remarks(exact(*tables, **changed))


def test_nothing_is_said_of_data_in_order() -> None:
    assert remarks(exact()) == remarks(noised(exact())) == remarks(noised_by_silo(exact())) == []


def test_silos_that_look_broken_are_named_with_the_reason() -> None:
    rows = table("rows", ("train", "dev"), {"east": (0, 9), "north": (80, 8)})
    assert broken(rows) == ["east: has no rows of train"]
    assert not any("rows of train" in line for line in remarks(hidden(exact(rows))))  # what is hidden may be anything
    near = table("rows", ("train",), {"east": (5.7,), "north": (80,)})
    assert "east: has no more rows of train than noise could make (6 ± 2)" in remarks(noised_by_silo(exact(near)))
    one = labels({"east": (75, 0), "north": (20, 60)})
    assert broken(one) == [
        "east: all its rows have the label 'bad'; others have several",
        "north: it alone has the label 'good'",
    ]
    assert remarks(hidden(exact(one))) == []
    assert "as far as noise shows, have the label 'bad'" in remarks(noised_by_silo(exact(one)))[0]
    assert broken(labels({"east": (75, 0), "north": (60, 0)})) == []
    twice = table("twice", ("twice",), {"east": (58,), "north": (45,), "west": (0,)})
    assert broken(twice) == ["east: 58 of its 115 rows stand twice"]  # half of 92 are 46


def test_a_median_is_far_off_if_it_is_so_wherever_in_its_bin_it_is() -> None:
    usual = {"east": (0, 9, 0, 0, 0, 0), "north": (0, 9, 0, 0, 0, 0)}  # 1 to 16
    assert broken(lengths({**usual, "west": (0, 0, 0, 0, 9, 0)})) == []  # from 65 on, not 8 times 17
    assert broken(lengths({**usual, "west": (0, 0, 0, 0, 0, 9)})) == []  # from 129 on, 8 times 17 is 136
    edges = (0.0, 1.0, 16.0, 33.0, 65.0, 129.0, float("inf"))
    far = lengths({**usual, "west": (0, 0, 0, 0, 0, 9)}, edges=edges)
    assert broken(far) == ["west: the median of its tokens is 129 or more, those of the others are within 1 to 15"]
    short = lengths({name: (0, 0, 0, 0, 9, 0) for name in usual} | {"west": (9, 0, 0, 0, 0, 0)}, "characters")
    assert broken(short) == ["west: the median of its characters is 0, those of the others are within 65 to 128"]
    assert broken(lengths({"west": (0, 0, 0, 0, 0, 9)})) == []
    edges = (0.0, 1.0, 16.0, 32.0, 64.0, 128.0, float("inf"))  # from 128 on, which is 8 times 16 and no more
    assert broken(lengths({**usual, "west": (0, 0, 0, 0, 0, 9)}, edges=edges)) == []
    spread = {"east": (0, 9, 0, 0, 0, 0), "north": (0, 0, 9, 0, 0, 0), "west": (0, 0, 0, 0, 0, 9)}
    edges = (0.0, 1.0, 8.0, 16.0, 64.0, 129.0, float("inf"))
    assert broken(lengths(spread, edges=edges)) == [
        "west: the median of its tokens is 129 or more, those of the others are within 1 to 15"
    ]


def test_of_a_single_row_that_stands_twice_is_told_too() -> None:
    rows = table("rows", ("train",), {"east": (1,), "north": (80,)})
    twice = table("twice", ("twice",), {"east": (1,), "north": (0,)})
    assert "east: 1 of its 1 rows stand twice" in broken(rows, twice)


def test_labels_that_are_written_otherwise_are_told_and_not_merged() -> None:
    names = ("Mild", "mild ", "sévère", "se\u0301ve\u0300re", "grave", "ｇｒａｖｅ")
    found = broken(labels({"east": (9, 9, 9, 9, 9, 9), "west": (9, 9, 9, 9, 9, 9)}, names))
    assert len(found) == 3 and found[0].startswith("labels 'Mild', 'mild ' differ in case, spaces or the form of")
    assert proposals(exact(labels({"east": (9,) * 6}, names)), RUN).labels == names
    assert alike("Straße X") == alike("STRASSEx") and alike("a-b") != alike("ab")
