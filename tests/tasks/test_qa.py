"""The task `qa`: what is trained on and evaluated with, its sizes, and its messages."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from prepared_files import seal

from fedtorch.config.schema import ClientConfig, EvalConfig, PartitionConfig
from fedtorch.core.errors import ConfigError, DataError
from fedtorch.data.qa_folder import QARow, write_qa
from fedtorch.models.bert import BertEncoder
from fedtorch.models.esim import Esim
from fedtorch.models.patch import Patch
from fedtorch.models.re2 import Re2
from fedtorch.tasks.base import Merged
from fedtorch.tasks.qa import QA, QAEsim, QARe2
from fedtorch.tasks.qa_examples import Labelled, Triple

pytestmark = pytest.mark.long

TINY = BertEncoder(hidden=8, layers=1, heads=2, ffn=16, positions=64)


def row(question: str, *answers: tuple[str, int]) -> QARow:
    texts, labels = zip(*answers, strict=True)
    return QARow(question, list(texts), list(labels), [f"d{i}" for i in range(len(texts))])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clients; the first has questions with 1x2, 2x1 and 1x3 pairs."""
    root = tmp_path_factory.mktemp("qa") / "data"
    root.mkdir()
    red = [
        row("what is red", ("a red rose", 1), ("a blue lake", 0), ("the sky", 0)),
        row("what is round", ("a ball", 1), ("the moon", 1), ("a box", 0)),
        row("what is old", ("a stone wall", 1), ("a baby", 0), ("a new car", 0), ("the rain", 0)),
    ]
    blue = [row("who swims", ("a fish swims", 1), ("a bird flies", 0)), row("who flies", ("a bird", 1), ("a fish", 0))]
    held = [row("who runs", ("a dog runs", 1), ("a fish", 0)), row("who sleeps", ("a stone", 0), ("the sun", 0))]
    clients = {name: {"train": train, "dev": held, "test": held} for name, train in (("red", red), ("blue", blue))}
    pool = [f"{word} number {i}" for i in range(6) for word in ("where is the train", "how tall is the tower")]
    write_qa(root, "qa", clients, pool=pool, vocab_size=120, record={}, min_frequency=1)
    return root


def make(folder: Path, **changes: Any) -> QA:
    return QA(**{"data": str(folder), "model": TINY, "max_lengths": (12, 20), **changes})


@pytest.mark.parametrize(
    ("changes", "red", "blue"),
    [
        ({}, 2 + 2 + 3, 2),
        ({"pairs": "sampled"}, 1 + 2 + 1, 2),
        ({"max_positives": 1}, 2 + 1 + 3, 2),
        ({"objective": "ce", "model": replace(TINY, head="two_class")}, 3 + 3 + 4, 4),
        ({"objective": "ce", "model": replace(TINY, head="two_class"), "max_positives": 1}, 3 + 2 + 4, 4),
        ({"cover_queries": 2, "cover_clusters": 2}, 21, 6),
        ({"train_share": {"red": 0.3}}, None, 2),
        ({"max_train": 1}, None, 1),
    ],
    ids=["all", "sampled", "one", "ce", "ce-one", "cover", "share", "max_train"],
)
def test_the_manifest_says_how_many_examples_there_will_be(
    folder: Path, changes: dict[str, Any], red: int | None, blue: int
) -> None:
    task = make(folder, **changes)
    sizes = task.manifest()
    for client, expected in (("red", red), ("blue", blue)):
        assert sizes[client]["train"] == len(task.load(client, "train"))
        assert expected in (None, sizes[client]["train"])
        assert sizes[client]["dev"] == len(task.load(client, "dev")) == min(2, sizes[client]["dev"])
    assert len(Merged(task).load("all", "train")) == sizes["red"]["train"] + sizes["blue"]["train"]


def test_a_share_is_of_the_questions_that_the_cap_leaves(tmp_path: Path) -> None:
    """FedMatch's figure 8 under a cap: five shares are five sizes, each among the larger one's questions."""
    rows = [row(f"what is {i}", (f"a {i}", 1), (f"the {i + 1}", 0)) for i in range(40)]
    write_qa(tmp_path, "qa", {"red": {"train": rows}}, pool=[], vocab_size=120, record={}, min_frequency=1)
    picked = []
    for share in (0.2, 0.4, 0.6, 0.8, 1.0):
        task = make(tmp_path, max_train=10, train_share={"red": share})
        picked.append(set(task.picked("red", "train", 40)))
        assert task.manifest()["red"]["train"] == len(picked[-1]) == len(task.load("red", "train"))
    assert [len(places) for places in picked] == [2, 4, 6, 8, 10]
    assert all(less < more for less, more in zip(picked, picked[1:], strict=False))


def test_a_triple_is_scored_as_two_pairs_and_its_hinge_is_the_loss(folder: Path) -> None:
    task = make(folder)
    model = task.build_model(0).eval()
    triples = task.load("red", "train")
    loss, count = task.loss(model, task.collate(triples, train=True))
    by_hand = 0.0
    for triple in triples:
        assert isinstance(triple, Triple)
        batch = [
            task.model.collate(task.vocabulary, [(triple.question, a)]) for a in (triple.positive, triple.negatives[0])
        ]
        good, bad = (model.scores(model(**one)).item() for one in batch)  # type: ignore[operator]
        by_hand += max(0.0, 1 - good + bad)
    assert count == len(triples) and loss.item() == pytest.approx(by_hand, rel=1e-5)


def test_sampled_negatives_follow_the_engines_seed_and_change(folder: Path) -> None:
    task = make(folder, pairs="sampled")
    triples = task.load("red", "train")
    drawn = []
    for seed in (1, 1, *range(2, 10)):
        torch.manual_seed(seed)
        drawn.append(task.collate(triples, train=True)["pairs"]["input_ids"])
    assert torch.equal(drawn[0], drawn[1])
    assert any(drawn[0].shape != other.shape or not torch.equal(drawn[0], other) for other in drawn[2:])


def test_cross_entropy_is_taken_over_rows(folder: Path) -> None:
    task = make(folder, objective="ce", model=replace(TINY, head="two_class"))
    model = task.build_model(0).eval()
    rows = task.load("blue", "train")
    assert [example.label for example in rows if isinstance(example, Labelled)] == [1, 0, 1, 0]
    loss, count = task.loss(model, task.collate(rows, train=True))
    output = model(**task.collate(rows, train=True)["pairs"])
    expected = -output.log_softmax(-1)[torch.arange(4), torch.tensor([1, 0, 1, 0])].sum()
    assert count == 4 and torch.allclose(loss, expected)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_scores_do_not_depend_on_the_batch(folder: Path, batch_size: int) -> None:
    task = make(folder)
    model = task.build_model(0).eval()
    questions = task.load("red", "dev")
    with torch.inference_mode():
        found = task.predict(model, questions, batch_size)
        single = [[task.predict(model, [q._replace(answers=[a])], 1)[0][0] for a in q.answers] for q in questions]
    assert [len(scores) for scores in found] == [len(question.answers) for question in questions]
    assert sum(found, []) == pytest.approx(sum(single, []), abs=1e-6)


def test_a_model_that_diverged_ranks_last_instead_of_ending_the_run(folder: Path) -> None:
    task = make(folder)
    model = task.build_model(0).eval()
    for parameter in model.parameters():
        parameter.data.fill_(float("nan"))
    questions = task.load("red", "dev")
    with torch.inference_mode():
        scores = task.predict(model, questions, 8)
    assert task.score(questions, scores)["mrr"][1] == 2


@pytest.mark.parametrize(("cls", "model"), [(QARe2, Re2(hidden=8, embedding=8)), (QAEsim, Esim(hidden=8, embedding=8))])
def test_models_over_words_train_through_the_same_task(folder: Path, tmp_path: Path, cls: Any, model: Any) -> None:
    task = cls(data=str(folder), model=model, max_lengths=(12, 20))
    hp = ClientConfig(lr=0.01, batch_size=4, epochs=3)
    result = make_runner(make_config(tmp_path, task, client=hp, rounds=2, eval=EvalConfig())).run()
    assert result.scores["red"]["mrr"][1] == 2
    task.save_model(task.build_model(0), tmp_path / "model")
    assert any((tmp_path / "model").iterdir())


def test_a_patched_bert_learns_the_synthetic_clients(tmp_path: Path) -> None:
    from fedtorch.data.synthetic_qa import prepare

    prepare(tmp_path / "data")
    model = BertEncoder(
        hidden=24, layers=1, heads=2, ffn=48, positions=64, dropout=0.0, head_dropout=0.0,
        patch=Patch("horizontal", "lr", 8),
    )  # fmt: skip
    task = QA(data=str(tmp_path / "data"), model=model, max_lengths=(12, 20), max_train=80, max_dev=10, max_test=20)
    hp = ClientConfig(lr=1e-2, batch_size=32, epochs=4)
    settings = {"client": hp, "partition": PartitionConfig(private=("patch.*",)), "rounds": 6}
    result = make_runner(make_config(tmp_path, task, eval=EvalConfig(every=0), **settings)).run()
    pairs = [scores["mrr"] for scores in result.scores.values()]
    untrained = make_runner(make_config(tmp_path / "0", task, eval=EvalConfig(every=0), **{**settings, "rounds": 1}))
    before = [scores["mrr"][0] / scores["mrr"][1] for scores in untrained.evaluation.at_the_end().values()]
    after = [total / count for total, count in pairs]
    # With three seeds 0.31 to 0.39; with 40 rows 0.13 to 0.21, which last digits of a processor decide.
    assert sum(after) / 5 > sum(before) / 5 + 0.15, (before, after)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "ce"}, "task.objective is ce but task.model.head is scalar"),
        (
            {"objective": "ce", "model": replace(TINY, head="two_class"), "cover_queries": 1},
            "task.cover_queries is 1 but task.objective is ce",
        ),
    ],
)
def test_settings_that_contradict_each_other(folder: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(folder, **changes)


@pytest.mark.parametrize("key", ["client_lengths", "train_share"])
def test_an_unknown_client_is_named(folder: Path, key: str) -> None:
    value = {"green": (5, 5)} if key == "client_lengths" else {"green": 0.5}
    with pytest.raises(ConfigError, match=f"task.{key} names the client `green`.*its clients are red, blue"):
        make(folder, **{key: value}).manifest()


def test_pairs_that_do_not_fit_the_model_are_refused_before_training(folder: Path) -> None:
    with pytest.raises(ConfigError, match="need 73 positions, but the model 'bert-random' has 64"):
        make(folder, client_lengths={"red": (10, 60)}).check("red")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": [], "labels": [], "docids": []}, "train question 2: it has no answers"),
        ({"labels": [1, 1, 1]}, "train question 2: it has no negative answer"),
        ({"labels": [0, 0, 0]}, "train question 2: it has no positive answer"),
        ({"labels": [1, 2, 0]}, "a label is neither 0 nor 1"),
    ],
)
def test_bad_rows_are_found_before_training(folder: Path, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    import shutil

    copy = tmp_path / "data"
    shutil.copytree(folder, copy)
    (file,) = copy.glob("red*/train.jsonl")
    lines = file.read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), **change})
    file.write_text("\n".join(lines) + "\n")
    seal(copy)
    with pytest.raises(DataError, match=message):
        make(copy).check("red")


def test_cover_queries_without_a_public_pool_are_refused_before_training(folder: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "data"
    shutil.copytree(folder, copy)
    (copy / "public" / "questions.jsonl").write_text("")  # as of the authors' files
    make(copy).check("red")
    with pytest.raises(
        DataError, match=r"task\.cover_queries is 2 but .*questions\.jsonl has 0 questions; .*one .* a line"
    ):
        make(copy, cover_queries=2, cover_clusters=2).check("red")


def test_a_partition_that_leaves_nothing_shared_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="leaves no shared parameter.*set paradigm: local"):
        make_runner(make_config(tmp_path, make(folder), partition=PartitionConfig(private=("*",))))


def test_a_patch_size_that_heads_do_not_divide_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="128.*6"):
        make(folder, model=replace(TINY, patch=Patch("outer", "pal", 128))).build_model(0)
