"""`eval.metrics`: figures of each client and of all together, by name or from a file of one's own."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml
from own_rows import BERT, CLIENTS, names, weather, write_rows
from ranks import run_ranks

from fedtorch.config.load import digest, load, record_difference, to_dict
from fedtorch.core.errors import ConfigError
from fedtorch.main import main
from fedtorch.metrics.chosen import spearman
from fedtorch.setup.plan import Plan
from fedtorch.tracking.run_folder import read_run
from fedtorch.tracking.summary import show_results

pytestmark = pytest.mark.long

MINE = """
import math

def length(predictions, references):
    assert len(predictions) == len(references)
    return float(len(references))

def wrong(predictions, references):
    return -sum(found != true for found, true in zip(predictions, references)) / len(references)

def only_north(predictions, references):
    return 1.0 / (len(references) - 3)  # a client with 3 rows fails

class Recall:
    def sums(self, predictions, references):
        hits = sum(found == true == "good" for found, true in zip(predictions, references))
        return [hits, references.count("good")]

    def score(self, sums):
        return sums[0] / sums[1] if sums[1] else math.nan

class Error:
    higher_is_better = False

    def sums(self, predictions, references):
        import torch
        return torch.tensor([float(sum(f != t for f, t in zip(predictions, references))), len(references)])

    def score(self, sums):
        return sums[0] / sums[1]

class Uneven:
    def sums(self, predictions, references):
        return [1.0] * len(references)

    def score(self, sums):
        return 0.0

class Needy:
    def __init__(self, something): ...

def rmse(predictions, references):
    return -1.0

text = "neither"
"""
TASK: dict[str, Any] = {
    "name": "text_classification",
    "model": BERT,
    "data": {"source": "rows.jsonl", "clients": {"by": "home"}, "splits": {"dev": 0.25, "test": 0.25}},
    "max_length": 64,
}
TASK["data"]["tokenizer_size"] = 270


@pytest.fixture(autouse=True, scope="module")
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("metrics"))
        patch.syspath_prepend(".")
        homes = (*CLIENTS, "north")  # north has twice as many
        write_rows(Path("rows.jsonl"), weather(48, homes))
        write_rows(Path("names.jsonl"), names())
        Path("mine.py").write_text(MINE)
        yield


def written(metrics: Sequence[str], name: str = "x", task: dict[str, Any] = TASK, **changes: Any) -> Path:
    config = {"run": {"name": name}, "task": task, "rounds": 2, "eval": {"metrics": list(metrics)}}
    config |= {"client": {"lr": 1e-2, "batch_size": 4}, "track": {"tensorboard": False, "progress": "off"}}
    Path("x.yaml").write_text(yaml.safe_dump(config | changes))
    return Path("x.yaml")


def run(metrics: Sequence[str], name: str, **changes: Any) -> dict[str, Any]:
    assert main(["--config", str(written(metrics, name, **changes)), "--resume", "never"]) == 0
    found: dict[str, Any] = json.loads(Path("runs", name, "results.json").read_text())
    return found


def test_a_figure_that_is_no_mean_is_of_all_rows_together_and_its_macro_the_mean_of_the_clients() -> None:
    results = run(["accuracy", "macro_f1", "matthews", "mine:Recall", "mine:length"], "pooled")
    each = results["summary"]["clients"]
    averages, rows = results["averages"], {c: e["scores"]["accuracy"][1] for c, e in results["clients"].items()}
    for name, figure in (("macro_f1", "f1_macro"), ("matthews", "matthews")):
        assert averages[name]["micro"] == results["summary"]["pooled"][figure]
        assert averages[name]["macro"] == pytest.approx(fmean(found[figure] for found in each.values()), abs=1e-15)
        assert averages[name]["count"] == sum(rows.values())
    sums = [e["scores"].get(f"count/recall/{i}", [0])[0] for e in results["clients"].values() for i in (0, 1)]
    assert averages["recall"]["micro"] == sum(sums[::2]) / sum(sums[1::2]) and sum(sums[1::2]) > 0
    assert averages["length"]["macro"] == fmean(rows.values())
    assert averages["length"]["micro"] == pytest.approx(sum(n * n for n in rows.values()) / sum(rows.values()))
    assert len(set(rows.values())) > 1 and averages["length"]["macro"] != averages["length"]["micro"]


def test_tables_and_records_have_the_pooled_figure(capsys: pytest.CaptureFixture[str]) -> None:
    results = run(["mine:Recall"], "shown", eval={"metrics": ["mine:Recall"], "select_by": "recall"})
    pooled = results["averages"]["recall"]["micro"]
    (final,) = [e for e in read_run(Path("runs/shown")).all_evaluations() if e.label == "final"]
    assert final.average("recall")["micro"] == pooled
    capsys.readouterr()
    show_results(Path("runs/shown"), metric="recall")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("micro")]
    assert f"{pooled:.4f} of" in line


def test_the_best_round_is_chosen_by_the_pooled_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    results = run(["mine:Recall"], "best", rounds=4, eval={"metrics": ["mine:Recall"], "select_by": "recall"})
    found = [r for r in read_run(Path("runs/best")).of_kind("eval_total") if r["label"] == "training"]
    figures = [record["metrics"]["recall"]["micro"] for record in found]
    assert results["best_round"] == 1 + figures.index(max(figures)) and len(set(figures)) > 1


def test_of_received_models_too_only_scores_are_recorded_and_no_sums() -> None:
    run(["mine:Recall"], "received", eval={"metrics": ["mine:Recall"], "point": "trained", "also_received": True})
    names = {n for r in read_run(Path("runs/received")).of_kind("eval") for n in r["metrics"]}
    assert {"recall", "received/recall"} <= names and not [name for name in names if "count" in name]


def train_in(folder: str, path: str) -> int:
    os.chdir(folder)
    sys.path.insert(0, folder)
    return main(["--config", path, "--resume", "never"])


@pytest.mark.processes
def test_three_ranks_measure_the_same_bits() -> None:
    metrics = ["macro_f1", "micro_f1", "mine:Recall", "mine:wrong", "mine:Error"]
    alone = run(metrics, "alone")
    path = written(metrics, "ranks")
    assert run_ranks(train_in, 3, str(Path.cwd()), str(path), timeout=180) == [0, 0, 0]
    ranks = json.loads(Path("runs/ranks/results.json").read_text())
    for key in ("averages", "summary", "digest", "best_round"):
        assert ranks[key] == alone[key]
    assert [e["scores"] for e in ranks["clients"].values()] == [e["scores"] for e in alone["clients"].values()]


def test_a_metric_that_fails_at_a_client_costs_only_its_score_there(capsys: pytest.CaptureFixture[str]) -> None:
    results = run(["mine:only_north"], "fails")
    rows = {name: entry["scores"]["accuracy"][1] for name, entry in results["clients"].items()}
    assert rows == {"north": 6, "south": 3, "west": 3}
    assert [name for name, entry in results["clients"].items() if "only_north" in entry["scores"]] == ["north"]
    said = "the metric only_north failed for client south: ZeroDivisionError; it has no score there, training goes on"
    assert capsys.readouterr().err.count(said) == 1  # of three evaluations


def test_sums_of_different_length_end_the_run_with_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(written(["mine:Uneven"])), "--resume", "never"]) == 2
    assert "`uneven` of eval.metrics gave one client 3 sums and another 6" in capsys.readouterr().err


TAGGED = {**TASK, "name": "token_classification", "data": {**TASK["data"], "source": "names.jsonl"}}


def test_words_and_their_tags_are_compared_as_strings() -> None:
    results = run(["span_f1", "mine:wrong", "mine:length"], "tags", task=TAGGED)
    assert results["averages"]["span_f1"]["micro"] == results["summary"]["pooled"]["f1"]
    spans = sum(kind["spans"] for kind in results["summary"]["labels"].values())
    assert results["averages"]["f1"]["count"] == results["averages"]["span_f1"]["count"] == spans
    assert sum(entry["scores"]["f1"][1] for entry in results["clients"].values()) == spans
    for client, figures in results["summary"]["clients"].items():
        total, count = results["clients"][client]["scores"]["f1"]
        assert total / count == pytest.approx(figures["f1"])
    assert results["averages"]["length"]["macro"] == 3.0
    config = load(written(["mine:wrong"], task=TAGGED))
    task: Any = Plan.of(config, 1).task
    examples = task.load("north", "test")
    predictions, references = task.compared(examples, [example.tags for example in examples])
    assert references == predictions == [row["tags"] for row in task.rows("north", "test")]


BAD = [
    (["acuracy"], "eval.metrics has `acuracy` in x.yaml:6, of which the task `text_classification` knows nothing; "
     "did you mean `accuracy`?"),
    (["rouge_l"], "eval.metrics has `rouge_l` in x.yaml:6, which is for seq2seq and causal_lm; this task has accura"),
    (["span_f1"], "which is for token_classification; this task has accuracy, macro_f1, micro_f1, matthews"),
    (["spearman"], "which is for rows of another kind; with these settings there are accuracy, macro_f1"),
    (["accuracy", "accuracy"], "eval.metrics has `accuracy` twice in x.yaml:7"),
    (["mine:nothing"], "eval.metrics is `mine:nothing` in x.yaml:6 but importing `mine:nothing` failed: AttributeEr"),
    (["no_file:f"], "importing `no_file:f` failed: ModuleNotFoundError"),
    (["mine:accuracy"], "`mine:accuracy` in x.yaml:6, but `accuracy` is something that the task measures; give it a"),
    (["mine:größe"], "whose scores would be called 'größe'; rename it"),
    (["mine:Needy"], "making one failed: TypeError"),
    (["mine:text"], "`mine:text` in x.yaml:6, which is neither a function of predictions and references nor a class"),
    ([3], "eval.metrics.0 is 3 in x.yaml:6 but should be a string"),
]  # fmt: skip


@pytest.mark.parametrize(("metrics", "said"), BAD, ids=[str(metrics[-1]) for metrics, _ in BAD])
def test_what_cannot_be_measured_is_named_with_its_place(metrics: list[Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(metrics))
    assert said in str(caught.value)


def test_a_papers_task_measures_what_its_paper_does() -> None:
    with pytest.raises(ConfigError, match="is set in .* but the task `text2sql` measures what its paper does"):
        load(None, ["eval.metrics=[accuracy]"])


def test_nothing_is_chosen_by_a_figure_of_which_less_is_better(capsys: pytest.CaptureFixture[str]) -> None:
    path = written([], eval={"metrics": ["mine:Error", "mine:wrong"], "select_by": "error"})
    assert main(["--config", str(path), "--resume", "never"]) == 2
    assert (
        "eval.select_by is error but the task `text_classification` measures accuracy, wrong" in capsys.readouterr().err
    )


def test_a_config_without_metrics_has_the_digest_that_it_had() -> None:
    one, other = load(written([])), load(written(["macro_f1"]))
    assert digest(one) == digest(load(written([], eval={}))) != digest(other)
    assert record_difference(to_dict(one), to_dict(other)) == ['eval.metrics was [] and is now ["macro_f1"]']


def test_numbers_have_correlations_and_spearmans_is_scipys(tmp_path: Path) -> None:
    from scipy.stats import spearmanr

    true, found = [3.0, 1.0, 2.0, 2.0, 9.0, -1.0], [2.5, 2.5, 0.0, 1.0, 5.0, 0.0]
    assert spearman(found, true) == pytest.approx(spearmanr(found, true).statistic, abs=1e-12)
    assert spearman([], []) == spearman([1.0], [2.0]) == 0.0
    task = numbers()
    results = run(["pearson", "spearman"], "numbers", task=task)
    assert results["averages"]["pearson"]["micro"] == results["summary"]["pooled"]["pearson"]
    assert math.isfinite(results["averages"]["spearman"]["macro"])
    with pytest.raises(ConfigError, match="`matthews`.*rows of another kind"):
        load(written(["matthews"], task=task))


def numbers() -> dict[str, Any]:
    """A task over notes between −1 and 3."""
    write_rows(Path("numbers.jsonl"), [{**row, "label": float(row["label"] == "good") * 4 - 1} for row in weather()])
    return {**TASK, "problem": "regression", "data": {**TASK["data"], "source": "numbers.jsonl"}}


def test_of_numbers_errors_and_correlation_are_measured_and_shown_without_being_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = run([], "errors", task=numbers())
    averages, pooled = results["averages"], results["summary"]["pooled"]
    error = results["averages"]["negative_squared_error"]["micro"]
    assert pooled["rmse"] == pytest.approx(math.sqrt(-error)) and 0 < pooled["mae"] <= pooled["rmse"]
    for name in ("rmse", "mae", "r2", "pearson"):
        assert averages[name]["micro"] == pytest.approx(pooled[name], rel=1e-12) and averages[name]["count"] > 0
    final = [r for r in read_run(Path("runs/errors")).of_kind("eval_total") if r["label"] == "final"]
    assert {"rmse", "mae", "r2", "pearson"} <= set(final[-1]["metrics"])
    capsys.readouterr()
    show_results(Path("runs/errors"))
    shown = " ".join(capsys.readouterr().out.split())
    for name in ("rmse", "mae", "r2", "pearson"):
        assert f"test {name} micro {pooled[name]:.4f} macro {averages[name]['macro']:.4f} of" in shown


def test_a_best_round_may_be_chosen_by_r2_and_not_by_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    task = numbers()
    run([], "by_r2", task=task, eval={"select_by": "r2"})
    assert main(["--config", str(written([], task=task, eval={"select_by": "rmse"})), "--resume", "never"]) == 2
    assert "eval.select_by is rmse but the task `text_classification` measures negative_squa" in capsys.readouterr().err


def test_an_own_metric_called_rmse_takes_the_place_of_ours() -> None:
    assert run(["mine:rmse"], "own_rmse", task=numbers())["averages"]["rmse"]["micro"] == pytest.approx(-1.0)
