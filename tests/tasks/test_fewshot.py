"""The few-shot task: what the model sees, how a row is weighed, and how tasks are evaluated."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.token_weights import token_weights
from fedtorch.config.schema import ClientConfig, EvalConfig
from fedtorch.core.errors import ConfigError
from fedtorch.data.synthetic.gym import prepare
from fedtorch.metrics.generation import cannot_tell
from fedtorch.models.encoder_decoder import EncoderDecoder
from fedtorch.models.generation import Generated
from fedtorch.setup.plan import Plan
from fedtorch.setup.remarks import about_metrics
from fedtorch.setup.rules.evaluation import single_examples_have_scores
from fedtorch.tasks.fewshot import Example, FewShotTasks
from fedtorch.text.sentencepiece import decode

MODEL = EncoderDecoder(d_model=16, d_ff=32, num_heads=2, num_layers=1, max_positions=64, dropout=0.0)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> FewShotTasks:
    folder = tmp_path_factory.mktemp("gym") / "data"
    prepare(folder)
    return FewShotTasks(data=str(folder), model=MODEL, max_test=4)


def example(task: str, *golds: str) -> Example:
    return Example(task, [5, 1], [[5 + i, 6, 1] for i in range(len(golds))], list(golds))


def test_what_encoder_and_decoder_see(task: FewShotTasks) -> None:
    (first, *_), vocabulary = task.load("client1", "train"), task.vocabulary
    assert decode(vocabulary, first.source).startswith("made-colour: which colour has the ")
    assert [decode(vocabulary, target) for target in first.targets] == first.golds
    assert first.source[-1] == first.targets[0][-1] == vocabulary.eos_token_id
    crossfit = FewShotTasks(data=task.data, template="crossfit")
    assert crossfit.source_text("piqa", "why ? [SEP] so") == " [piqa] why ? [SEP] so"


def test_one_of_several_answers_is_drawn_in_training_and_the_first_elsewhere(task: FewShotTasks) -> None:
    rows = [example("made-where", "a", "b", "c")] * 60
    torch.manual_seed(0)
    drawn = task.collate(rows, True)["labels"][:, 0].tolist()
    torch.manual_seed(0)
    assert task.collate(rows, True)["labels"][:, 0].tolist() == drawn and set(drawn) == {5, 6, 7}
    assert set(task.collate(rows, False)["labels"][:, 0].tolist()) == {5}
    state = torch.get_rng_state()
    task.collate([example("made-where", "a")], True)
    assert torch.equal(torch.get_rng_state(), state)


def test_row_losses_are_weighted_sums_and_means_where_no_weights_are_given(task: FewShotTasks) -> None:
    model: Any = task.build_model(0).eval()
    plain = example("made-mood", "a")
    longer = task.relabelled(plain, [7, 8, 9, 9, 1], [0.5, 0.0, 0.25, 0.25, 0.0])
    batch = task.collate([plain, longer], True)
    assert batch["is_pseudo"].tolist() == [False, True] and batch["weights"].sum(1).tolist() == [1.0, 1.0]
    losses = task.row_losses(model, batch)
    total, count = task.loss(model, batch)
    assert count == 2 and total.item() == pytest.approx(losses.sum().item())
    alone = [
        model(input_ids=torch.tensor([[5, 1]]), labels=torch.tensor([target])).logits[0].log_softmax(-1)
        for target in (plain.targets[0], longer.targets[0])
    ]
    nll = [[-float(row[token]) for row, token in zip(rows, t.targets[0])] for rows, t in zip(alone, (plain, longer))]
    assert losses[0].item() == pytest.approx(sum(nll[0]) / 3, abs=1e-5)
    assert losses[1].item() == pytest.approx(0.5 * nll[1][0] + 0.25 * (nll[1][2] + nll[1][3]), abs=1e-5)
    model.train()
    assert model(**{k: batch[k] for k in ("input_ids", "labels")}).loss.isfinite()


def test_an_empty_pseudo_label_is_one_token_that_counts_fully(task: FewShotTasks) -> None:
    weights, _ = token_weights([[-3.0]], "clamp")
    row = task.relabelled(example("made-mood", "a"), [1], weights[0])
    batch = task.collate([row], True)
    assert batch["labels"].tolist() == [[1]] and batch["weights"].tolist() == [[1.0]]
    assert Generated([1], [-3.0]).is_empty and not Generated([5, 1], [-3.0, -2.0]).is_empty


def test_tasks_are_evaluated_whole_each_by_its_metric(task: FewShotTasks) -> None:
    rows = [example("made-mood", "positive"), example("made-mood", "negative"), example("made-stars", "1")]
    parts = list(task.eval_batches([*rows, example("made-stars", "3")], 1))
    assert [[row.task for row in part] for part in parts] == [["made-mood"] * 2, ["made-stars"] * 2]
    scores = task.score(parts[0], ["positive", "positive"])
    assert scores["made-mood/f1"] == (pytest.approx(2 / 3), 2) and scores["tasks_mean"] == (pytest.approx(1 / 3), 1)
    assert task.score(parts[1], ["2", "9"]) == {"tasks_mean": (1.0, 1), "made-stars/pearson": (2.0, 2)}
    assert task.score(parts[1], ["2", "x"])["made-stars/undefined"] == (1.0, 1)
    assert task.score([], []) == {"tasks_mean": (0.0, 0)}
    assert "made-stars/pearson" in task.metrics() and task.metrics()[0] == task.main_metric == "tasks_mean"


def test_single_examples_are_scored_by_means_only(
    task: FewShotTasks, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(
        tmp_path, task, FedAvg(), rounds=1, client=ClientConfig(lr=0.1), eval=EvalConfig(every=0, per_example=True)
    )
    runner = make_runner(config)
    each = runner.run().each
    names = {name for values in each.values() for name in values}
    assert names == {"made-colour/em", "made-headline/rouge_l", "made-number/acc", "made-same/acc", "made-where/qa_f1"}
    assert [len(values) for values in each["client1"].values()] == [4]
    (remark,) = about_metrics(Plan.of(config, 1))
    assert remark.startswith("eval.per_example: 4 of 9 metrics are no means over examples: tasks_mean, made-kind/f1")


@dataclass(frozen=True)
class OnlyF1(FewShotTasks):
    def single_metrics(self) -> tuple[str, ...]:
        return ()


def test_a_task_without_scores_of_single_examples_is_refused(task: FewShotTasks, tmp_path: Path) -> None:
    scores = EvalConfig(every=0, per_example=True)
    config = make_config(tmp_path, OnlyF1(data=task.data), task_name="f1", eval=scores)
    with pytest.raises(ConfigError, match="no metric of the task `f1` is a mean over examples; set it to false"):
        single_examples_have_scores(Plan.of(config, 1))


def test_accuracy_is_stripped_unless_the_config_says_crossfits_way(task: FewShotTasks) -> None:
    rows = [example("made-same", "no")]
    assert task.score(rows, ["No "])["made-same/acc"] == (1.0, 1)
    assert FewShotTasks(data=task.data, strip=False).score(rows, ["No "])["made-same/acc"] == (0.0, 1)


def test_sizes_costs_and_facts(task: FewShotTasks) -> None:
    assert task.manifest()["client3"]["test"] == 8 == len(task.load("client3", "test"))
    assert task.cost("client1") > 10 and task.facts() == FewShotTasks(data=task.data).facts()
    for client in task.manifest():
        task.check(client)


def test_the_made_up_gym_is_prepared_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert list(FewShotTasks().manifest()) == ["client1", "client2", "client3", "client4"]
    assert (tmp_path / "data" / "synthetic_gym" / "manifest.json").is_file()


def test_matthews_of_answers_that_are_never_acceptable_warns(task: FewShotTasks, tmp_path: Path) -> None:
    """CrossFit's compares `acceptable` with all else, so of good and bad it is 0 whatever is predicted."""
    shutil.copytree(task.data, tmp_path / "gym")
    manifest = json.loads((tmp_path / "gym" / "manifest.json").read_text())
    manifest["record"]["tasks"]["made-mood"]["metric"] = "Matthew-Correlation"
    (tmp_path / "gym" / "manifest.json").write_text(json.dumps(manifest))
    changed = FewShotTasks(data=str(tmp_path / "gym"), model=MODEL)
    (client,) = {name for name in task.manifest() if any(row.task == "made-mood" for row in task.load(name, "train"))}
    said = changed.check(client)
    assert said is not None and said.startswith("made-mood: no answer is `acceptable`, against which Matthew-Corr")
    assert task.check(client) is None


@pytest.mark.parametrize(
    ("answers", "told"),
    [(["good", "bad"], True), (["acceptable", "bad"], False), (["unacceptable"], False), ([" acceptable"], False)],
)
def test_matthews_cannot_tell_where_nothing_is_acceptable(answers: list[str], told: bool) -> None:
    assert cannot_tell("Matthew-Correlation", [[answer] for answer in answers]) is told
    assert not cannot_tell("ACC", [[answer] for answer in answers])
