"""A dev or test file for all clients counts once: in sums, averages, figures, records and tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from own_rows import BERT, CLIENTS, GPT2, classifier, completer, names, weather, write_rows

from fedtorch.cli.__main__ import main
from fedtorch.core.scores import SHARED, means_of, once
from fedtorch.data.own.keys import SplitRule
from fedtorch.tasks.own_overview import overview
from fedtorch.tracking.run_folder import read_run
from launchers.status_table import read_row


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(task: dict[str, Any], **more: Any) -> dict[str, Any]:
    """results.json of a run of two rounds whose dev and test rows are files."""
    config = {
        "rounds": 2,
        "task": {"max_length": 32, **task},
        "client": {"lr": 0.01, "batch_size": 4},
        "track": {"tensorboard": False, "progress": "lines"},
        **more,
    }
    Path("own.yaml").write_text(yaml.safe_dump(config))
    assert main(["run", "--config", "own.yaml"]) == 0
    found: dict[str, Any] = json.loads(Path("runs/own/results.json").read_text())
    return found


def data(rows: list[dict[str, Any]], number: int, **splits: Any) -> dict[str, Any]:
    """Keys of data whose last `number` rows are a test file without clients."""
    write_rows(Path("train.jsonl"), rows[:-number])
    write_rows(Path("test.jsonl"), [{k: v for k, v in row.items() if k != "home"} for row in rows[-number:]])
    rule = {"dev": 0.2, "test": "test.jsonl", **splits}
    return {"source": "train.jsonl", "clients": {"by": "home"}, "splits": rule, "tokenizer_size": 270}


def test_one_model_has_one_score_which_is_that_of_the_rows_once(capsys: pytest.CaptureFixture[str]) -> None:
    found = run({"name": "text_classification", "model": BERT, "data": data(weather(41), 11, dev="test.jsonl")})
    each = {client: tuple(entry["scores"]["accuracy"]) for client, entry in found["clients"].items()}
    assert len(each) == 3 and len(set(each.values())) == 1
    ((hits, count),) = set(each.values())
    average = found["averages"]["accuracy"]
    assert (count, average) == (11, {"macro": pytest.approx(hits / 11), "micro": hits / 11, "count": 11})
    assert found["shared"] is True and all(entry["shared"] for entry in found["clients"].values())
    assert found["summary"]["pooled"] == found["summary"]["clients"]["north"]
    out = capsys.readouterr().out
    assert "of 11" in out and "of 33" not in out
    assert "test: the same rows, shared by all clients; they count once in micro" in out
    read = read_run(Path("runs/own"))
    for evaluation in read.all_evaluations():
        assert evaluation.shared == set(CLIENTS) and evaluation.average("accuracy")["count"] == 11
    totals = [record for record in read.records if record["kind"] == "eval_total"]
    assert totals and all(record["shared"] is True for record in totals)
    assert read_row(Path("runs/own")).count == 11
    answers = Path("answers.jsonl")  # and it is the model's score on the file
    assert main(["predict", "runs/own", "test.jsonl", "--out", str(answers)]) == 0
    gold = [json.loads(line)["label"] for line in Path("test.jsonl").read_text().splitlines()]
    said = [json.loads(line)["label"] for line in answers.read_text().splitlines()]
    assert sum(a == b for a, b in zip(gold, said, strict=True)) == hits


@pytest.mark.parametrize("more", [{"paradigm": "local"}, {"algorithm": {"name": "ditto", "lam": 0.1}},
                                  {"partition": {"private": ["classifier.*"]}}])  # fmt: skip
def test_models_of_clients_own_are_each_scored_on_it_and_their_mean_counts(more: dict[str, Any]) -> None:
    found = run({"name": "text_classification", "model": BERT, "data": data(weather(41), 11)}, **more)
    each = [entry["scores"]["accuracy"] for entry in found["clients"].values()]
    assert [count for _, count in each] == [11, 11, 11]
    average = found["averages"]["accuracy"]
    assert average["count"] == 11
    assert average["macro"] == pytest.approx(sum(total for total, _ in each) / 33) == pytest.approx(average["micro"])


def test_figures_that_are_no_means_have_the_rows_once() -> None:
    rows = [{"prompt": row["text"], "completion": row["label"], "home": row["home"]} for row in weather(41)]
    found = run({"name": "causal_lm", "model": GPT2, "data": data(rows, 11), "max_length": 64})
    assert found["summary"]["pooled"] == pytest.approx(found["summary"]["clients"]["west"])


def test_spans_of_shared_rows_are_counted_once() -> None:
    rows = names(41)
    found = run({"name": "token_classification", "model": BERT, "data": data(rows, 11)}, eval={"metrics": ["span_f1"]})
    kinds = [tag for row in rows[-11:] for tag in row["tags"] if tag.startswith("B-")]
    told = {kind: entry["spans"] for kind, entry in found["summary"]["labels"].items()}
    assert told == {kind: kinds.count(f"B-{kind}") for kind in ("LOC", "PER")}
    assert found["averages"]["span_f1"]["micro"] == found["summary"]["pooled"]["f1"]


def test_a_held_out_client_keeps_its_own_rows_beside_a_file_for_the_others() -> None:
    found = run({"name": "text_classification", "model": BERT, "data": data(weather(41), 11, held_out=["west"])})
    counts = {client: entry["scores"]["accuracy"][1] for client, entry in found["clients"].items()}
    assert counts == {"north": 11, "south": 11, "west": 10}
    average = found["averages"]["accuracy"]
    totals = {client: entry["scores"]["accuracy"][0] for client, entry in found["clients"].items()}
    assert average["count"] == 21 and average["micro"] == (totals["north"] + totals["west"]) / 21
    assert "shared" not in found
    assert [client for client, entry in found["clients"].items() if entry.get("shared")] == ["north", "south"]


def test_a_file_that_is_dealt_is_shared_by_nobody() -> None:
    write_rows(Path("train.jsonl"), weather(30))
    write_rows(Path("test.jsonl"), weather(41)[30:])
    task = classifier("train.jsonl", data={"splits": SplitRule(0.2, "test.jsonl")})
    assert not task.sharing("test") and not task.sharing("dev") and not task.sharing("train")
    assert sum(sizes["test"] for sizes in task.manifest().values()) == 11


def test_of_fewer_rows_all_clients_have_the_same() -> None:
    task = classifier("train.jsonl", data=changed(data(weather(41), 11)), max_test=4)
    picked = [task.rows(client, "test") for client in CLIENTS]
    assert len(picked[0]) == 4 and picked[0] == picked[1] == picked[2]


def changed(keys: dict[str, Any]) -> dict[str, Any]:
    return {"splits": SplitRule(**keys["splits"])}


def test_data_check_says_that_they_are_shared(capsys: pytest.CaptureFixture[str]) -> None:
    task = {"name": "text_classification", "model": BERT, "data": data(weather(41), 11, held_out=["west"])}
    Path("own.yaml").write_text(yaml.safe_dump({"task": {"max_length": 32, **task}}))
    assert main(["data", "check", "own.yaml"]) == 0
    out = capsys.readouterr().out
    assert "test (shared)" in out and "test: the same 11 rows, shared by 2 clients; they count once" in out
    found = overview(classifier("train.jsonl", data=changed(task["data"]))).total()
    assert found.rows["test"] == 21 and len(found.tokens) == 41


def test_the_best_round_is_chosen_by_the_rows_once() -> None:
    """A file for two of three clients weighs as much as its rows, not twice."""
    scores = {"a": {"x": (3.0, 4)}, "b": {"x": (1.0, 4)}, "c": {"x": (0.0, 2)}}
    assert once(scores, {"a", "b"}) == {"c": {"x": (0.0, 2)}, SHARED: {"x": (2.0, 4)}}
    macro, micro, count = means_of(scores, "x", {"a", "b"})
    assert (macro, micro, count) == (pytest.approx((0.75 + 0.25) / 3), 2 / 6, 6)
    assert means_of(scores, "x") == (macro, 0.4, 10)
    counts = {"a": {"count/0/predicted": (4.0, 4)}, "b": {}}  # what is 0 is not told
    assert once(counts, {"a", "b"}) == {SHARED: {"count/0/predicted": (2.0, 2)}}


def test_perplexity_of_a_shared_file_is_the_models() -> None:
    rows = [{"prompt": row["text"], "completion": row["label"], "home": row["home"]} for row in weather(41)]
    data(rows, 11)
    task = completer("train.jsonl", data={"splits": SplitRule(0.2, "test.jsonl")})
    scores: Any = {client: {"count/nll": (8.0, 4), "count/tokens": (4.0, 4)} for client in CLIENTS}
    assert task.summary(once(scores, task.sharing("test")))["pooled"] == task.summary({"a": scores["north"]})["pooled"]


def test_rows_of_one_client_are_shared_with_nobody() -> None:
    rule = {"splits": SplitRule(0.25, "test.jsonl")}
    for rows, shared in ((weather(24, ("north",)), set()), (weather(24), set(CLIENTS))):
        write_rows(Path("train.jsonl"), rows)
        write_rows(Path("test.jsonl"), [{"text": "sun", "label": "good"}])
        assert classifier("train.jsonl", data=rule).sharing("test") == shared
