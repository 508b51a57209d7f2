"""What a step and a client count: sums over supervised tokens, however a batch is cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from own_rows import classifier, completer, names, tagger, translator, weather, write_rows

from fedtorch.config.schema import ClientConfig
from fedtorch.core.client import Client
from fedtorch.core.errors import ConfigError
from fedtorch.core.update import Report
from fedtorch.core.weights import Partition
from fedtorch.data.own.client_rule import ClientRule
from fedtorch.data.own.keys import SplitRule
from fedtorch.rounds.report_checks import impossible
from fedtorch.train.engine import Engine
from fedtorch.train.loop import Step, train

ONE: dict[str, Any] = {"clients": ClientRule(iid=1)}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture(autouse=True, scope="module")
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("sums"))
        write_rows(Path("rows.jsonl"), weather())
        write_rows(Path("names.jsonl"), names())
        homes = [row["home"] for row in weather()]
        words = ["blue " * (1 + 5 * i % 11) for i in range(len(homes))]
        rows = [{"prompt": f"say {i}: ", "completion": w, "home": h} for i, (w, h) in enumerate(zip(words, homes))]
        write_rows(Path("answers.jsonl"), rows)
        rows = [{"source": row["prompt"], "target": row["completion"], "home": row["home"]} for row in rows]
        write_rows(Path("pairs.jsonl"), rows)
        yield


def task_of(name: str, **changes: Any) -> Any:
    if name == "causal_lm":
        return completer("answers.jsonl", **changes)
    if name == "seq2seq":
        return translator("pairs.jsonl", **changes)
    bert = classifier("rows.jsonl").model
    changes = {"model": {**bert, **STILL}, **changes}
    return tagger("names.jsonl", **changes) if name == "token_classification" else classifier("rows.jsonl", **changes)


TASKS = ["text_classification", "token_classification", "seq2seq", "causal_lm"]


def update(task: Any, folder: Path, **client: Any) -> tuple[torch.Tensor, Any]:
    """What one round of plain SGD changes, and the client's report."""
    settings = ClientConfig(optimizer="sgd", lr=0.1, **client)
    runner = make_runner(make_config(folder, task, client=settings, rounds=1))
    trainer, reports = runner.trainer, list[Any]()
    run = trainer._run
    trainer._run = lambda job: reports.append(run(job)) or reports[-1]  # type: ignore[method-assign, func-returns-value]
    start = runner.components.engine.initial_shared
    runner.run()
    return runner.context.server.weights - start, reports[0]


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("cut", [{"batch_size": 3, "accumulation": 6}, {"batch_size": 5, "accumulation": 4}])
def test_a_batch_has_the_step_of_its_micro_batches(name: str, cut: dict[str, int], tmp_path: Path) -> None:
    """18 rows whose tokens to learn differ, in one batch or in several; a mean of means is another step."""
    task = task_of(name, data=ONE)
    whole, one = update(task, tmp_path / "1", batch_size=18)
    parts, several = update(task, tmp_path / "2", **cut)
    assert one.steps == several.steps == 1
    assert several.loss_mean == pytest.approx(one.loss_mean, rel=1e-5)
    assert (whole - parts).norm() < 1e-4 * whole.norm()  # fp32; means of means are 1e-3 to 3e-1 away


def test_a_micro_batch_with_nothing_to_learn_counts_nothing() -> None:
    """Its mean would be 0 / 0."""
    task = completer("answers.jsonl")
    examples = task.load("north", "train")[:3]
    batches = [task.collate([example], True) for example in examples]
    empty = task.collate([replace(examples[0], is_learned=[False] * len(examples[0].ids))], True)
    assert task.terms(empty) == 0
    weights = []
    for micro in (batches, [empty, *batches]):
        engine = Engine(task.build_model(0), Partition(), torch.device("cpu"))
        engine.start(engine.initial_shared, None, ClientConfig(optimizer="sgd", lr=0.1), steps=1, seed=0)
        train(engine, [Step(micro, len(micro), 0, terms=sum(map(task.terms, micro)))], task.loss)
        weights.append(engine.snapshot())
    assert torch.equal(*weights) and not torch.equal(weights[0], engine.initial_shared)


WEIGHED = {
    "causal_lm": [("ab", 3), ("abcdefg", 1)],
    "seq2seq": [("ab", 3), ("abcdefg", 1)],
    "token_classification": [("a b", 3), ("a b c d e f g", 1)],
}


@pytest.mark.parametrize("name", WEIGHED)
@pytest.mark.parametrize("weight", ["examples", "tokens"])
def test_clients_weigh_by_rows_or_by_tokens(name: str, weight: str, tmp_path: Path) -> None:
    """Three rows of two letters or words to learn at the one client, one of seven at the other."""
    rows = []
    for (text, count), home in zip(WEIGHED[name], ("few", "many"), strict=True):
        words = {"tokens": text.split(), "tags": ["B-X"] * len(text.split())}
        answer = words if name == "token_classification" else {"source": "x", "target": text}
        answer |= {"prompt": "x", "completion": text}
        rows += [{**answer, "home": home, "split": "train"}] * count + [{**answer, "home": home, "split": "test"}]
    source = write_rows(tmp_path / f"{name}.jsonl", rows)
    make = {"causal_lm": completer, "seq2seq": translator, "token_classification": tagger}[name]
    task = make(source, data={"splits": SplitRule(column="split"), "tokenizer_size": 261}, client_weight=weight)
    runner = make_runner(make_config(tmp_path, task, client=ClientConfig(lr=0.01), rounds=1))
    reports = {report.client: report for report in runner.trainer.train_cohort()}
    more = {"causal_lm": 1, "seq2seq": 2, "token_classification": 0}[name]  # an end token, and a first one
    tokens = {"few": 3 * (2 + more), "many": 7 + more}
    assert {client: report.extra["tokens"] for client, report in reports.items()} == tokens
    assert {client: report.examples for client, report in reports.items()} == {"few": 3, "many": 1}
    weights = dict(zip(reports, runner.context.algorithm.weigh(list(reports.values())), strict=True))
    share = tokens["few"] / (tokens["few"] + tokens["many"])
    assert weights["few"] == pytest.approx(0.75 if weight == "examples" else share, abs=1e-12)


def test_a_client_that_reports_more_tokens_than_its_rows_can_have_is_left_out(tmp_path: Path) -> None:
    task = completer("answers.jsonl", client_weight="tokens")
    client = Client("north", 0, {"train": 4})
    for size, found in ((4 * 64, ""), (4 * 64 + 1, "it reports a size of 257, but 4 examples come to 256 at most")):
        report = Report("north", examples=4, extra={"tokens": size, "size": size})
        assert impossible(report, client, 0, task.largest_size(4)) == found


def test_texts_with_one_label_have_no_tokens_to_weigh_by() -> None:
    with pytest.raises(ConfigError, match="task.client_weight is tokens, but a text has one label"):
        classifier("rows.jsonl", client_weight="tokens")
