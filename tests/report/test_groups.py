"""Groups of runs, comparisons of two, and rows of papers' tables, from records that a reader can redo."""

from __future__ import annotations

import argparse
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

from fedtorch.core.errors import ConfigError
from fedtorch.report.groups import Band, Group, charts, differences, group_name, make_groups
from fedtorch.report.published import PAPERS, find_row, unknown_row
from fedtorch.report.published.fedassistant import TABLE as DIALOG
from fedtorch.report.published.fedparsing import QUESTIONS
from fedtorch.report.published.fedparsing import TABLE as PARSING
from fedtorch.report.published.fewfedweight import COSTS, ROWS
from fedtorch.report.published.table import PublishedRow, row_names
from fedtorch.report.significance import add_arguments, compare, single_scores
from fedtorch.tracking.run_folder import Run


def run_of(name: str, records: list[dict[str, Any]] | None = None, **config: Any) -> Run:
    """A run in no folder, as it is read from its files."""
    return Run(Path("runs") / name, {"run": {"name": name, "seed": config.pop("seed", 0)}, **config}, records or [])


def round_of(number: int, loss: float | None) -> dict[str, Any]:
    return {"kind": "round", "round": number, "loss": loss}


def test_a_group_has_the_name_of_its_runs_without_the_seed() -> None:
    assert group_name(["fedavg,seed=0", "fedavg,seed=1"]) == "fedavg"
    assert group_name(["fedavg,seed=0"]) == "fedavg,seed=0"  # alone it keeps its name
    assert group_name(["seed0-a", "seed1-a"]) == "a" and group_name(["a+run.seed=3", "a+run.seed=4"]) == "a"
    assert group_name(["one", "other"]) == "one" and group_name(["seed=0", "seed=1"]) == "seed=0"


def test_a_curve_is_the_mean_and_the_deviation_of_the_seeds_that_have_the_round() -> None:
    one = run_of("a", [round_of(1, 2.0), round_of(2, 1.0), round_of(3, None)])
    other = run_of("b", [round_of(1, 4.0)])
    band = Group("x", [one, other]).losses()
    assert (band.xs, band.mean) == ([1, 2], [3.0, 1.0]) and band.spread == [pytest.approx(2**0.5), 0.0]
    assert Band([1], [3.0], [0.5]).low == [2.5] and Band([1], [3.0], [0.5]).high == [3.5]
    assert Group("x", [one]).label == "x" and Group("x", [one, other]).label == "x (n=2)"


def test_a_clients_losses_are_those_of_rounds_that_it_ended_well() -> None:
    rows = [(1, "a", "ok", 2.0), (2, "a", "failed", 9.0), (3, "a", "ok", 1.0), (1, "b", "ok", 5.0)]
    records = [
        {"kind": "client", "round": number, "client": client, "status": status, "loss_mean": loss}
        for number, client, status, loss in rows
    ]
    assert Group("x", [run_of("a", records)]).client_losses("a") == Band([1, 3], [2.0, 1.0], [0.0, 0.0])


def test_keys_that_groups_differ_in_are_those_that_are_compared() -> None:
    groups = [
        Group("a", [run_of("a", rounds=3, client={"lr": 0.1}, task={"name": "t"})]),
        Group("b", [run_of("b", rounds=3, client={"lr": 0.2}, task={"name": "t"}, seed=4)]),
        Group("c", [run_of("c", rounds=3, client={"lr": 0.1}, task={"name": "t"}, extra=1)]),
    ]
    assert differences(groups) == {"client.lr": [0.1, 0.2, 0.1], "extra": [None, None, 1]}


def test_groups_of_one_name_say_what_sets_them_apart_and_others_do_not() -> None:
    runs = [run_of("same", client={"lr": 0.1}), run_of("same", client={"lr": 0.2}), run_of("other", client={"lr": 0.3})]
    names = [group.name for group in make_groups([(run.name, run) for run in runs])]
    assert names == ["same [client.lr=0.1]", "same [client.lr=0.2]", "other"]
    apart = [run_of(name, client={"lr": lr}) for name, lr in (("a", 0.1), ("b", 0.2))]
    assert [group.name for group in make_groups([(run.name, run) for run in apart])] == ["a", "b"]


def test_charts_are_drawn_of_more_than_one_point_with_those_of_single_tasks_last() -> None:
    def total(number: int, *names: str, label: str = "training", micro: float | None = 0.5) -> dict[str, Any]:
        metrics = {name: {"micro": micro} for name in names}
        return {"kind": "eval_total", "round": number, "split": "dev", "label": label, "metrics": metrics}

    records = [total(1, "t/f1", "acc", "once"), total(2, "t/f1", "acc"), total(3, "never", label="final")]
    records += [total(3, "none", micro=None), total(4, "none", micro=None)]
    assert charts([Group("x", [run_of("a", records)])]) == [("dev", "acc"), ("dev", "t/f1")]


def evaluation(number: int, label: str, client: str, score: Any, **more: Any) -> dict[str, Any]:
    about = {"kind": "eval", "round": number, "split": "dev", "label": label, "client": client}
    return {**about, "metrics": {"acc": score}, **more}


def test_scores_of_a_client_are_shares_of_rounds_in_which_it_has_rows() -> None:
    records = [
        evaluation(1, "training", "a", [1.0, 4]),
        evaluation(2, "training", "a", [0.0, 0]),
        evaluation(3, "training", "a", [None, 4]),
        evaluation(4, "global", "a", [3.0, 4]),
        evaluation(5, "final", "a", [4.0, 4]),
        evaluation(1, "training", "b", [2.0, 4]),
    ]
    group = Group("x", [run_of("a", records), run_of("b", records[:1])])
    found = group.scores_of_clients("dev", "acc")
    assert (found["a"].xs, found["a"].mean, found["b"].mean) == ([1, 4], [0.25, 0.75], [0.5])
    assert group.scores_of_clients("test", "acc") == group.scores_of_clients("dev", "f1") == {}


def test_a_split_that_clients_share_is_told_with_their_number() -> None:
    shared = [evaluation(2, "final", client, [1.0, 4], shared=True) for client in "abc"]
    own = [evaluation(2, "final", client, [1.0, 4]) for client in "ab"]
    before = [evaluation(1, "final", client, [1.0, 4], shared=True) for client in "abcd"]
    assert Group("x", [run_of("a", own)]).shared_by("acc") == 0
    assert Group("x", [run_of("a", own), run_of("b", before + shared)]).shared_by("acc") == 3
    assert Group("x", [run_of("b", shared)]).shared_by("f1") == 0


def test_the_round_that_was_scored_is_that_of_each_run_that_chose_one() -> None:
    total = {"kind": "eval_total", "round": 5, "split": "dev", "label": "final", "weights_of": 3}
    chose = run_of("a", [evaluation(5, "final", "a", [1.0, 4], weights_of=3), total])
    assert Group("x", [chose, run_of("b", [evaluation(1, "training", "a", [1.0, 4])])]).chosen_rounds == [3]


def examples(name: str, **scores: list[float | None]) -> Run:
    records = [
        {"kind": "examples", "client": client, "metrics": {"mrr": values, "other": [1.0]}}
        for client, values in scores.items()
    ]
    return run_of(name, records)


def test_two_runs_are_compared_over_examples_that_count_in_both() -> None:
    ours = examples("a", x=[1.0, 0.5, None, 1.0], y=[1.0])
    theirs = examples("b", x=[0.5, 0.5, 1.0, None], y=[0.0])
    found = compare(ours, single_scores(ours, "mrr"), theirs, single_scores(theirs, "mrr"))
    assert {client: (test.count, test.mean_difference) for client, test in found.items()} == {
        "x": (2, 0.25),  # y has one example alone, of which nothing can be said
        "all": (3, 0.5),
    }
    fewer = examples("b", x=[0.5, 0.5, 1.0], y=[0.0])
    with pytest.raises(ConfigError, match="were not evaluated on the same examples"):
        compare(ours, single_scores(ours, "mrr"), fewer, single_scores(fewer, "mrr"))
    with pytest.raises(ConfigError, match="for the metric 'f1'; it has mrr, other"):
        single_scores(ours, "f1")


@pytest.mark.parametrize("words", [["--new", "a"], ["--base", "a"]])
def test_a_comparison_is_of_two(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(words)
    assert "the following arguments are required" in capsys.readouterr().err


def test_a_run_stands_beside_the_row_of_its_own_name_or_of_a_part_of_it() -> None:
    assert row_names("fedavg") == ("fedavg", "fedavg", "fedavg")
    assert row_names("fedavg+small") == ("fedavg+small", "fedavg", "fedavg+small")
    assert row_names("seed3-fedavg") == ("seed3-fedavg", "seed3-fedavg", "fedavg")

    def row(name: str, metric: str | None = None, wanted: str | None = None) -> str | None:
        run = Run(Path("runs/a"), {"run": {"name": name, "published": wanted}}, [], ("atis",))
        found = find_row(run, metric)
        return None if found is None else found[2]

    assert row("fedopt") == row("fedopt+small") == row("x", wanted="lorar/fedopt") == "lorar/fedopt"
    assert row("fedopt", "map") is row("x", wanted="fedmatch/fedopt") is row("nothing") is None


def test_a_row_that_no_table_has_is_named_with_three_that_are_near() -> None:
    def said(wanted: Any) -> str:
        return unknown_row(Run(Path("runs/a"), {"run": {"name": "a", "published": wanted}}, []))

    assert said(None) == said("lorar/fedopt") == said("fedopt") == said("fedmatch/fm_released") == ""
    near = said("lorar/fedopt_loar").partition("there are ")[2].split(", ")
    assert len(near) == 3 and near[0] == "lorar/fedopt_lorar"
    assert len(said("?").partition("there are ")[2].split(", ")) == 3  # the first ones, where none is near


DIGESTS = {
    "fedassistant": (DIALOG, "e8ade679a36dc8cf"),
    "fedparsing": ((PARSING, QUESTIONS), "1b563257dc71cf43"),
    "fewfedweight": ((ROWS, COSTS), "b5749195ac51545e"),
    "lorar and fedmatch": (PAPERS, "23f0be9ae1ce475e"),
}
"""Of tables as they were typed from the papers; whoever corrects a figure reads the paper and replaces the digest."""


@pytest.mark.parametrize("name", DIGESTS)
def test_figures_of_papers_are_those_that_were_typed_from_them(name: str) -> None:
    table, digest = DIGESTS[name]
    said = re.sub(r"\b[A-Z]\w*\(", "(", repr(table))  # the names of classes are no figures
    assert hashlib.sha256(said.encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize("row", PAPERS["lorar/exact_match"].rows.values(), ids=lambda row: row.title)
def test_averages_of_a_table_follow_from_its_figures(row: PublishedRow) -> None:
    sizes = PAPERS["lorar/exact_match"].sizes
    hits = sum(round(figure * size / 100) for figure, size in zip(row.percent, sizes, strict=True))
    assert hits == row.correct and sum(row.percent) / len(sizes) == pytest.approx(row.macro, abs=0.011)  # of two digits
    assert 100 * hits / sum(sizes) == pytest.approx(row.micro, abs=0.011)
