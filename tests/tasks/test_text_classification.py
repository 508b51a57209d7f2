"""Texts with labels: equal to a plain loop, to scikit-learn and to what transformers makes of the saved model."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from harness import make_config, make_runner
from own_rows import ARCHITECTURES, BERT, ONE, OPTIMIZERS, classifier, trained, weather, write_rows
from plain_loop import Rows, assert_same_bits, plain_loop, random_model, rows_and_tokenizer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from fedtorch.config.load import load
from fedtorch.config.schema import ClientConfig, EvalConfig
from fedtorch.core.errors import ConfigError, DataError
from fedtorch.main import main
from fedtorch.tasks.text_classification import Example, TextClassification
from fedtorch.text.byte_bpe import train_subwords

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True, scope="module")
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Rows are prepared below the working folder, once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("texts"))
        write_rows(Path("rows.jsonl"), weather())
        train_subwords([row["text"] for row in weather()], Path("words"), size=270)
        tokenizer = AutoTokenizer.from_pretrained("words")
        tokenizer.pad_token = tokenizer.eos_token
        tokenizer.save_pretrained("pad_is_end")
        yield


@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 0.1), ("adamw", 1e-2)])
def test_one_client_equals_a_plain_loop(optimizer: str, lr: float, tmp_path: Path) -> None:
    task = classifier("rows.jsonl", data={"clients": ONE})
    runner = trained(tmp_path, task, rounds=2, every=0, optimizer=optimizer, lr=lr)
    rows, tokenizer = rows_and_tokenizer(task)
    model = random_model(AutoModelForSequenceClassification, BERT, tokenizer, num_labels=2)

    def loss(batch: Rows) -> torch.Tensor:
        inputs = tokenizer([row["text"] for row in batch], padding=True, return_tensors="pt")
        labels = torch.tensor([["bad", "good"].index(row["label"]) for row in batch])
        found: torch.Tensor = model(**inputs, labels=labels).loss
        return found

    expected = plain_loop(model, rows, loss, OPTIMIZERS[optimizer], lr, rounds=2)
    assert_same_bits(runner.context.server.weights, expected)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_any_architecture_trains_a_round(kind: str, tmp_path: Path) -> None:
    """None of them but two is named in a config of the repository; half of them are no encoders."""
    runner = trained(tmp_path, classifier("rows.jsonl", model={"random": kind, **ARCHITECTURES[kind]}))
    model = runner.components.engine.module
    assert type(model).__name__.endswith("ForSequenceClassification")
    assert runner.context.server.weights.isfinite().all() and model.config.id2label == {0: "bad", 1: "good"}


@pytest.mark.parametrize("kind", ["bert", *ARCHITECTURES])
def test_a_row_has_the_same_logits_alone_and_in_a_batch(kind: str) -> None:
    sizes = BERT if kind == "bert" else {"random": kind, **ARCHITECTURES[kind]}
    task = classifier("rows.jsonl", model=sizes)
    model = task.build_model(0).eval()
    examples = task.load("north", "train")
    assert len({len(example.ids) for example in examples}) > 2
    with torch.no_grad():
        together = task.logits(model, task.collate(examples, False))
        alone = torch.cat([task.logits(model, task.collate([example], False)) for example in examples])
    assert (together - alone).abs().max() < 1e-6 and together.std() > 1e-6


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_text_that_ends_like_padding_is_evaluated_at_its_end(kind: str) -> None:
    """transformers itself takes the last token that is no padding, here a word before the end of the text."""
    task = classifier("rows.jsonl", model={"random": kind, **ARCHITECTURES[kind]}, tokenizer="pad_is_end")
    end = task.vocabulary.eos_token_id
    model: Any = task.build_model(0).eval()
    assert task.vocabulary.pad_token_id == model.config.pad_token_id == end
    texts = [[5, 6, 7, end, end], [5, 6], [9, end]]
    batch = task.collate([Example(ids, None, 0) for ids in texts], False)
    with torch.no_grad():
        found = task.logits(model, batch)
        for row, ids in enumerate(texts):
            states = model.base_model(torch.tensor([ids])).last_hidden_state
            assert (found[row] - model.score(states[0, -1])).abs().max() < 1e-6
        theirs = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    assert (found[0] - theirs[0]).abs().max() > 1e-6  # and that is why


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_a_text_that_quotes_the_end_token_is_evaluated_at_its_end(kind: str) -> None:
    task = classifier("rows.jsonl", model={"random": kind, **ARCHITECTURES[kind]}, tokenizer="words")
    model = task.build_model(0).eval()
    texts = ["so </s> it ends", "rain", "</s></s>"]
    examples = [Example(task.vocabulary(text).input_ids, None, 0) for text in texts]
    with torch.no_grad():
        together = task.logits(model, task.collate(examples, False))
        alone = torch.cat([task.logits(model, task.collate([example], False)) for example in examples])
    assert (together - alone).abs().max() < 1e-6 and together.std() > 1e-6


def split_scores(task: TextClassification, targets: list[Any], predictions: list[Any], parts: int) -> dict[str, Any]:
    """The summary of rows that are dealt to clients."""
    scores = {}
    for part in range(parts):
        examples = [Example([], None, target) for target in targets[part::parts]]
        scores[f"c{part}"] = task.score(examples, predictions[part::parts])
    return task.summary(scores)["pooled"]


@pytest.mark.parametrize("parts", [1, 3, 20])
def test_figures_of_one_label_equal_scikit_learns(parts: int) -> None:
    from sklearn.metrics import f1_score, matthews_corrcoef

    task = labelled("a", "b", "c", "d", "e")  # of which e never occurs and d is never predicted
    draw = torch.Generator().manual_seed(0)
    true = torch.randint(0, 4, (101,), generator=draw).tolist()
    found = [t if i % 3 else (t + i) % 3 for i, t in enumerate(true)]
    pooled = split_scores(task, true, found, parts)
    assert pooled["f1_macro"] == pytest.approx(f1_score(true, found, average="macro"), abs=1e-12)
    assert pooled["f1_micro"] == pytest.approx(f1_score(true, found, average="micro"), abs=1e-12)
    assert pooled["matthews"] == pytest.approx(matthews_corrcoef(true, found), abs=1e-12)


@pytest.mark.parametrize("parts", [1, 3, 20])
def test_figures_of_several_labels_equal_scikit_learns(parts: int) -> None:
    from sklearn.metrics import accuracy_score, f1_score

    task = labelled("a", "b", "c", "d", problem="multi_label")
    draw = torch.Generator().manual_seed(0)
    true = torch.rand(60, 4, generator=draw) > 0.6
    found = true ^ (torch.rand(60, 4, generator=draw) > 0.8)
    true[:, 3] = found[:, 3] = False
    lists = [[row.nonzero()[:, 0].tolist() for row in table] for table in (true, found)]
    pooled = split_scores(task, *lists, parts)
    for average in ("macro", "micro"):
        expected = f1_score(true, found, average=average, zero_division=0)
        assert pooled[f"f1_{average}"] == pytest.approx(expected, abs=1e-12)
    hits, count = task.score([Example([], None, row) for row in lists[0]], lists[1])["accuracy"]
    assert hits / count == accuracy_score(true, found)


@pytest.mark.parametrize("parts", [1, 3, 20])
def test_the_correlation_of_numbers_equals_scipys(parts: int) -> None:
    from scipy.stats import pearsonr

    task = labelled(problem="regression")
    draw = torch.Generator().manual_seed(0)
    true = (torch.randn(60, generator=draw) + 5).tolist()
    found = [value / 3 + i % 5 for i, value in enumerate(true)]
    pooled = split_scores(task, true, found, parts)
    assert pooled["pearson"] == pytest.approx(pearsonr(true, found).statistic, abs=1e-12)


def labelled(*labels: str, problem: Any = "single_label") -> TextClassification:
    """A task whose data are not looked at."""
    return classifier("rows.jsonl", data={"labels": labels}, problem=problem)


def test_clients_without_rows_or_with_one_label_have_figures() -> None:
    task = labelled("a", "b")
    scores = {"empty": task.score([], []), "one": task.score([Example([], None, 1)] * 3, [1, 1, 1])}
    summary = task.summary(scores)
    assert summary["clients"]["empty"] == {"f1_macro": 0.0, "f1_micro": 0.0, "matthews": 0.0}
    assert summary["clients"]["one"] == {"f1_macro": 1.0, "f1_micro": 1.0, "matthews": 0.0}


def test_several_labels_are_trained_and_found(tmp_path: Path) -> None:
    write_rows(
        Path("several.jsonl"), [{**row, "label": [row["label"], "any"][: i % 3]} for i, row in enumerate(weather())]
    )
    task = classifier("several.jsonl", problem="multi_label")
    runner = trained(tmp_path, task, rounds=6)
    assert task.labels == ("any", "bad", "good")
    model = runner.components.engine.module.eval()
    with torch.no_grad():
        found = task.predict(model, task.load("north", "train"), 4)
    assert all(isinstance(row, list) for row in found)
    losses = runner.components.task.loss(model, task.collate(task.load("north", "train"), False))
    assert losses[1] == 3 * len(found)  # a term a row and label


def test_numbers_are_trained_found_and_chosen_by(tmp_path: Path) -> None:
    write_rows(Path("numbers.jsonl"), [{**row, "label": float(row["label"] == "good") * 4 - 1} for row in weather()])
    task = classifier("numbers.jsonl", problem="regression")
    assert task.main_metric == "negative_squared_error" and task.metrics() == ("negative_squared_error",)
    result = make_runner(
        make_config(tmp_path, task, rounds=8, client=ClientConfig(lr=2e-2, batch_size=4), eval=EvalConfig(every=1))
    ).run()
    assert task.summary(result.scores)["pooled"]["pearson"] > 0.5
    assert result.best_round is not None


def test_rows_count_in_the_loss_what_their_label_weighs() -> None:
    plain = classifier("rows.jsonl")
    model = plain.build_model(0).eval()
    batch = plain.collate(plain.load("north", "train"), False)
    one = torch.nn.functional.cross_entropy(plain.logits(model, batch), batch["targets"], reduction="none")
    weighted = classifier("rows.jsonl", class_weights={"good": 3.0})
    with torch.no_grad():
        total, count = weighted.loss(model, batch)
    expected = (one * torch.where(batch["targets"] == 1, 3.0, 1.0)).sum()
    assert count == len(one) and torch.allclose(total, expected)
    with torch.no_grad():
        total, count = classifier("rows.jsonl", class_weights={"good": 0.0, "bad": 0.0}).loss(model, batch)
    assert (float(total), count) == (0.0, len(one))  # a number, where a mean by weight would have none


def test_balanced_weights_are_scikit_learns() -> None:
    from sklearn.utils.class_weight import compute_class_weight

    rows = [row for i, row in enumerate(weather(60)) if row["label"] == "bad" or i % 4 == 0]
    write_rows(Path("uneven.jsonl"), rows)
    task = classifier("uneven.jsonl", class_weights="balanced")
    true = [label for client in task.manifest() for label in (row["label"] for row in task.rows(client, "train"))]
    weights = compute_class_weight(
        "balanced", classes=torch.tensor([0, 1]).numpy(), y=[task.numbers[one] for one in true]
    )
    assert task.label_weights is not None and task.label_weights.tolist() == pytest.approx(weights.tolist())


def test_two_texts_are_read_together() -> None:
    write_rows(Path("pairs.jsonl"), [{**row, "text_pair": "and then"} for row in weather()])
    task = classifier("pairs.jsonl")
    single, pair = classifier("rows.jsonl").load("north", "train")[0], task.load("north", "train")[0]
    expected = task.vocabulary(task.rows("north", "train")[0]["text"], "and then").input_ids
    assert pair.ids == expected and len(pair.ids) > len(single.ids)


@pytest.mark.parametrize(("side", "kept"), [("right", [1, 2, 3]), ("left", [7, 8, 9])])
def test_long_texts_are_cut_where_the_config_says(side: Any, kept: list[int]) -> None:
    write_rows(Path("long.jsonl"), [{"text": "123456789", "label": "a", "home": "x"}] * 8)
    task = classifier("long.jsonl", tokenizer="words", max_length=5, truncate=side)
    ids = task.load("x", "train")[0].ids
    assert task.vocabulary.decode(ids[1:-1]) == "".join(map(str, kept)) and len(ids) == 5
    with pytest.raises(DataError, match="train of client x has a row of 11 tokens, task.max_length leaves 5"):
        classifier("long.jsonl", tokenizer="words", max_length=5, truncate="refuse").load("x", "train")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class_weights": {"bad": 1.0}, "problem": "regression"}, "class_weights is for task.problem single_label"),
        ({"model": {}}, "task.model has neither path nor random"),
        ({"model": {"random": "brt"}}, "task.model.random is 'brt', .*did you mean bert"),
        ({"model": {**BERT, "hidden_sze": 3}}, "task.model.hidden_sze: .*did you mean `hidden_size`"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(changes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        classifier("rows.jsonl", **changes)


def test_a_weight_for_an_unknown_label_is_refused() -> None:
    with pytest.raises(ConfigError, match="task.class_weights has 'god', which is no label: bad, good"):
        _ = classifier("rows.jsonl", class_weights={"god": 2.0}).label_weights


def test_more_tokens_than_the_model_has_places_for_are_refused() -> None:
    with pytest.raises(ConfigError, match="task.max_length is 64 but random bert has 32 positions"):
        classifier("rows.jsonl", model={**BERT, "max_position_embeddings": 32}).build_model(0)


SPLITS = {"dev": 0.2, "test": 0.4}
CONFIG: dict[str, Any] = {
    "rounds": 1,
    "run": {"name": "texts"},
    "task": {
        "name": "text_classification",
        "model": BERT,
        "data": {"source": "rows.jsonl", "clients": {"by": "home"}, "tokenizer_size": 270, "splits": SPLITS},
        "max_length": 64,
    },
    "client": {"optimizer": "adamw", "lr": 0.01, "batch_size": 4, "epochs": 2},
    "track": {"tensorboard": False},
}  # fmt: skip


def run(*changes: str, model: Mapping[str, Any] = BERT) -> int:
    Path("texts.yaml").write_text(yaml.safe_dump(CONFIG | {"task": CONFIG["task"] | {"model": model}}))
    return main(["--config", "texts.yaml", "--resume", "never", "--set", "track.progress=lines", *changes])


def test_a_config_is_all_that_a_file_needs() -> None:
    Path("texts.yaml").write_text(yaml.safe_dump(CONFIG))
    task = load(Path("texts.yaml")).task
    assert isinstance(task, TextClassification) and task.data.clients.by == "home" and task.data.splits.test == 0.4


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ("task.data.columns={txt: text}", 2, ["task.data.columns has `txt`", "did you mean `text`"]),
        ("task.data.columns={text: txt}", 2, ["task.data.columns.text", "no column `txt`", "did you mean `text`"]),
        ("task.data.clients={by: hme}", 2, ["task.data.clients.by", "no column `hme`", "did you mean `home`"]),
        ("task.data.labels=[good]", 3, ["rows.jsonl:1", "the label 'bad' is none of task.data.labels: good"]),
        ("task.data.source=nothing.jsonl", 2, ["task.data.source names 'nothing.jsonl'"]),
        ("task.data.splits={dev: 0.5, test: 0.5}", 2, ["dev and test take 1"]),
        ("task.model={random: null, path: ./rows.jsonl}", 2, ["task.model.path", "rows.jsonl"]),
        ("task.problem=regression", 3, ["rows.jsonl:1", "expected a finite number"]),
        ("task.data.clients={by: null, iid: 1000}", 2, ["task.data.clients.iid is 1000 but there are 36 rows"]),
    ],
)
def test_bad_input_ends_a_run_before_it_begins(
    change: str, code: int, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(change) == code
    said = capsys.readouterr()
    assert not [word for word in words if word not in said.err.replace("\n", " ")], said.err
    assert "Traceback" not in said.err


PLAIN = """
import json, sys
from transformers import pipeline
classify = pipeline("text-classification", model=sys.argv[1])
rows = [json.loads(line) for line in open(sys.argv[2])]
found = [answer["label"] for answer in classify([row["text"] for row in rows])]
assert "fedtorch" not in sys.modules
print(sum(label == row["label"] for label, row in zip(found, rows)) / len(rows))
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    "kind", ["bert", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("gpt2", "llama", "t5", "bart"))]
)
def test_plain_transformers_evaluates_the_saved_model_alike(kind: str) -> None:
    model = BERT if kind == "bert" else {"random": kind, **ARCHITECTURES[kind]}
    assert run("rounds=2", f"run.name={kind}", model=model) == 0
    accuracy = json.loads((Path("runs") / kind / "results.json").read_text())["averages"]["accuracy"]
    task = load(Path("texts.yaml")).task
    assert isinstance(task, TextClassification)
    rows = [row for client in task.manifest() for row in task.rows(client, "test")]
    write_rows(Path("test.jsonl"), rows)
    script = [sys.executable, "-c", PLAIN, f"runs/{kind}/model", "test.jsonl"]
    said = subprocess.run(script, capture_output=True, text=True, timeout=240, check=True).stdout
    assert accuracy["count"] == len(rows) and math.isclose(float(said), accuracy["micro"])
