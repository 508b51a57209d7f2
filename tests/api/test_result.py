"""`RunResult`: what is in a run's folder, for Python."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from supervisor import toy_config

import fedtorch
from fedtorch import RunResult
from fedtorch.core import extras


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Three rounds of four clients."""
    return fedtorch.run(toy_config(tmp_path_factory.mktemp("toy")))


def test_scores_are_those_of_results_json_as_means_with_their_examples(result: RunResult) -> None:
    written = json.loads(result.paths.results.read_text())
    scores = result.scores
    assert (scores.split, scores.metric, set(scores.clients)) == ("test", "nearness", set("abcd"))
    for client, entry in written["clients"].items():
        total, count = entry["scores"]["nearness"]
        assert scores.clients[client]["nearness"] == (total / count, count)
    assert scores.overall["nearness"].examples == sum(own["nearness"].examples for own in scores.clients.values()) == 12
    assert scores.overall["nearness"].micro == written["averages"]["nearness"]["micro"]
    assert result.digest == written["digest"]


def test_a_score_that_is_not_finite_is_nan_and_sums_of_counts_are_no_scores() -> None:
    from fedtorch.api.scores import RunScores

    made = RunScores.of(
        {
            "split": "test",
            "best_round": None,
            "summary": {"pooled": {"f1": 0.5}},
            "clients": {"a": {"scores": {"loss": [None, 2], "count/x": [3.0, 1], "acc": [0.0, 0]}}},
            "averages": {"loss": {"macro": None, "micro": None, "count": 2}},
        },
        None,
    )
    assert list(made.clients["a"]) == ["loss"] and math.isnan(made.clients["a"]["loss"].value)
    assert math.isnan(made.overall["loss"].macro) and made.main == "test loss micro nan macro nan of 2"


def test_records_are_a_frame_with_a_row_each(result: RunResult) -> None:
    frame = result.records
    lines = [json.loads(line) for line in result.paths.records.read_text().splitlines()]
    assert len(frame) == len(lines) - 1 and "result" not in set(frame["kind"])
    final = frame.query("kind == 'eval' and label == 'final'").set_index("client")
    for client, scores in result.scores.clients.items():
        assert final.loc[client, "metrics.nearness.mean"] == scores["nearness"].value
        assert final.loc[client, "metrics.nearness.examples"] == scores["nearness"].examples
    assert frame.query("kind == 'round'")["round"].tolist() == [1, 2, 3]


def test_without_pandas_the_error_names_the_extra(result: RunResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(fedtorch.ConfigError, match=r"needs pandas, .* pip install 'fedtorch-nlp\[notebook\]'"):
        print(result.records)


def test_paths_are_there_and_outlive_a_change_of_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = fedtorch.run({"base": str(toy_config(tmp_path)), "run": {"dir": None, "name": "here"}})
    assert repr(made).startswith("RunResult('runs/here', 3 of 3 rounds, test nearness micro -")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    there = {name for name, path in vars(made.paths).items() if path.exists()}
    assert there == {"folder", "config", "records", "results", "status", "checkpoints", "log"}
    assert made.paths.folder == tmp_path / "runs" / "here" and f"{tmp_path}/runs/here" in repr(made)


def test_what_a_run_came_to_stays_though_its_folder_is_used_again(tmp_path: Path) -> None:
    config = toy_config(tmp_path)
    first = fedtorch.run(config, {"rounds": 1})
    digest, scores = first.digest, first.scores
    second = fedtorch.run(config, {"rounds": 2}, resume="never")
    assert first.digest == digest != second.digest and fedtorch.open_run(tmp_path / "run").digest == second.digest
    assert first.scores == scores != second.scores


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fedtorch.ConfigError, match="metrics.jsonl does not exist; name the folder of a run"):
        fedtorch.open_run(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "title", "lines"),
    [
        (None, "nearness on dev", 4),
        ("nearness", "nearness on dev", 4),
        ("loss_steps", "training loss", 4),
        ("weights", "weight in the combined update", 4),
    ],
)
def test_a_chart_is_what_report_draws(what: str | None, title: str, lines: int, result: RunResult) -> None:
    figure: Any = result.plot(what)
    (axes,) = figure.axes
    assert axes.get_title() == f"toy: {title}" and len(axes.lines) >= lines
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_a_chart_that_is_not_there_is_named(result: RunResult) -> None:
    with pytest.raises(fedtorch.ConfigError, match="no chart accuracy; there are loss_steps, loss_rounds, weights"):
        result.plot("accuracy")


def test_a_notebook_shows_the_table(result: RunResult) -> None:
    page = result._repr_html_()
    assert page.startswith("<pre") and "toy: 3 rounds" in page and "of 12" in page and "tensorboard" not in page


def test_a_run_without_a_model_says_so(result: RunResult) -> None:
    with pytest.raises(fedtorch.ConfigError, match="has no model for all clients; name a client with client if"):
        result.load_model()
    with pytest.raises(fedtorch.ConfigError, match="client is e, of whom .* has no model; there are a, b, c, d"):
        result.load_model("e")


def test_models_of_all_and_of_one_client_are_loaded(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    config = BertConfig(vocab_size=4, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4)
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0, "?": 1}, unk_token="?")))
    made = RunResult.open(fedtorch.run(toy_config(tmp_path)).paths.folder)
    for folder in ("a", "b"):
        model = BertForSequenceClassification(config)
        model.save_pretrained(made.paths.model / folder)
        words.save_pretrained(made.paths.model / folder)
    loaded, tokenizer = made.load_model("b")
    assert type(loaded) is BertForSequenceClassification and not loaded.training
    assert all(torch.equal(own, loaded.state_dict()[name]) for name, own in model.state_dict().items())
    assert tokenizer("a").input_ids == [0]
    with pytest.raises(fedtorch.ConfigError, match="client is c, of whom"):
        made.load_model("c")
    with pytest.raises(fedtorch.ConfigError, match="name a client with client"):
        made.load_model()
    (made.paths.model / "b" / "config.json").write_text('{"architectures": ["MyOwnNet"], "model_type": "bert"}')
    with pytest.raises(fedtorch.ConfigError, match="holds a MyOwnNet, which transformers lacks"):
        made.load_model("b")
