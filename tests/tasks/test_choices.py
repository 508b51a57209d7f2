"""Answers to choose from: the likeliest by hand, learned from a file, and rows that cannot be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from own_rows import GPT2, LLAMA, completer, write_rows

from fedtorch.config.load import load
from fedtorch.config.schema import ClientConfig
from fedtorch.core.errors import DataError
from fedtorch.main import main
from fedtorch.setup.data_check import main as check_main
from fedtorch.setup.init import write
from fedtorch.tasks.continued import Prediction

NUMBERS = ["one", "two", "three"]


def row(number: int) -> dict[str, Any]:
    """The right one is given as a text, or by its number."""
    right = NUMBERS[number % 3]
    choices = NUMBERS[number % 2 :] + NUMBERS[: number % 2]
    answer: Any = right if number % 5 else choices.index(right)
    return {"prompt": f"{number % 3 + 1} is ", "choices": choices, "completion": answer, "home": "nsw"[number // 3 % 3]}


@pytest.fixture(autouse=True, scope="module")
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("choices"))
        write_rows(Path("rows.jsonl"), map(row, range(60)))
        write_rows(Path("texts.jsonl"), [row(number) for number in range(75) if number % 5])
        yield


def chooser(**changes: Any) -> Any:
    return completer("rows.jsonl", **{"rows_are": "choices", **changes})


@pytest.mark.parametrize("model", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_the_likeliest_choice_is_that_of_a_bare_loop(model: dict[str, Any]) -> None:
    task = chooser(model=model)
    net, rows = task.build_model(1).eval(), task.rows("n", "train")
    examples = task.load("n", "train")
    found = task.predict(net, examples, 4)
    for one, example, row in zip(found, examples, rows, strict=True):
        each = []
        for choice in row["choices"]:
            ids = task.vocabulary(row["prompt"] + choice, add_special_tokens=False).input_ids
            ids.append(task.vocabulary.eos_token_id)
            start = len(task.vocabulary(row["prompt"], add_special_tokens=False).input_ids)
            with torch.no_grad():
                logs = net(torch.tensor([ids])).logits[0].double().log_softmax(-1)
            each.append(sum(float(logs[place - 1, ids[place]]) for place in range(start, len(ids))))
        assert one.choice == max(range(3), key=each.__getitem__)
        assert row["choices"][example.right] == row["completion"] == example.gold
        assert one.log_likelihood == pytest.approx(each[example.right], rel=1e-5)
    assert [one.choice for one in task.predict(net, examples, 1)] == [one.choice for one in found]


def test_accuracy_counts_rows_and_chooses_the_best_round(tmp_path: Path) -> None:
    task = chooser()
    assert task.main_metric == "accuracy" and task.metrics()[:2] == ("accuracy", "log_likelihood")
    examples = task.load("n", "train")[:3]
    predictions = [Prediction(-2.0, 4, example.right) for example in examples[:2]]
    predictions.append(Prediction(-1.0, 2, 1 - examples[2].right % 2))
    scores = task.score(examples, predictions)
    assert scores["accuracy"] == (2.0, 3) and scores["log_likelihood"] == (-5.0, 10)
    assert "accuracy" not in completer("rows.jsonl").metrics()
    runner = make_runner(make_config(tmp_path, task, client=ClientConfig(lr=3e-2, batch_size=4, epochs=4), rounds=6))
    result = runner.run()
    assert sum(found["accuracy"][0] for found in result.scores.values()) == 15


@pytest.mark.long
def test_init_and_check_know_the_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = write("texts.jsonl", tmp_path / "rows.yaml")
    assert "column `choices` holds answers to choose `completion` from" in told
    task: Any = load(tmp_path / "rows.yaml").task
    assert task.rows_are == "choices" and task.load(next(iter(task.manifest())), "train")[0].choices
    assert check_main([str(tmp_path / "rows.yaml")]) == 0
    assert "nothing to learn" in capsys.readouterr().out
    settings = [f"run.dir={tmp_path}", "rounds=1", "track.tensorboard=false", "client.epochs=1"]
    assert main(["--config", str(tmp_path / "rows.yaml"), "--set", *settings]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert "accuracy" in json.dumps(results)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"choices": "one"}, "`choices` is a str, expected a list of texts"),
        ({"choices": ["one"]}, "there are 1 choices, 1 of them different"),
        ({"choices": ["one", "one"]}, "there are 2 choices, 1 of them different"),
        ({"choices": ["one", 2]}, "choice 2 is a int, expected a text"),
        ({"completion": "four"}, "the completion is none of the 3 choices"),
        ({"completion": 3}, "the completion is choice 3 of 3; they are counted from 0"),
        ({"completion": True}, "the completion is none of the 3 choices"),
        ({"choices": None}, "`choices` is missing or empty"),
    ],
)
def test_rows_that_cannot_be_are_named_with_file_and_line(changes: dict[str, Any], message: str) -> None:
    write_rows(Path("bad.jsonl"), [row(1), {**row(2), "completion": "three", **changes}, row(4)])
    with pytest.raises(DataError, match=f"bad.jsonl:2: {message}"):
        completer("bad.jsonl", rows_are="choices").manifest()


def test_a_choice_that_would_be_cut_is_refused() -> None:
    """Without its last tokens it would look likely."""
    for prompt, right in (("word " * 9, "one"), ("1 is ", "many " * 9)):
        long = {"prompt": prompt, "choices": [right, "two"], "completion": right, "home": "n"}
        write_rows(Path("long.jsonl"), [long] * 8)
        settings: dict[str, Any] = {"rows_are": "choices", "max_length": 20, "data": {"tokenizer_size": 261}}
        with pytest.raises(DataError, match="train of client n has a row of .* tokens with one of its choices"):
            completer("long.jsonl", **settings).load("n", "train")
        left = completer("long.jsonl", truncate="left", **settings)
        if right == "one":
            assert all(len(choice.ids) == 20 and choice.learned == 4 for choice in left.load("n", "train")[0].choices)
        else:
            with pytest.raises(DataError, match="with one of its choices"):
                left.load("n", "train")


def test_rows_whose_answers_are_cut_away_are_counted() -> None:
    """And no longer said to have something to learn; more than one in a hundred of them is an error."""
    rows = [{"prompt": "word " * (40 if i < 4 else 1), "completion": "yes", "home": "n"} for i in range(40)]
    write_rows(Path("cut.jsonl"), rows)
    task = completer("cut.jsonl", data={"tokenizer_size": 261})
    kept = task.rows("n", "train")
    assert task.unsupervised(task.examples(kept, "train")) == sum(len(row["prompt"]) > 100 for row in kept) > 0
    with pytest.raises(DataError, match="rows have no token to learn within task.max_length = 64"):
        task.load("n", "train")
