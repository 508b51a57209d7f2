"""Texts read in windows: their logits by hand, short texts as without, each word where it has most text about it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from own_rows import BERT, classifier, names, tagger, weather, write_rows

from fedtorch.config.schema import ClientConfig
from fedtorch.core.errors import ConfigError, DataError
from fedtorch.tasks.long_texts import Window, best_windows
from fedtorch.text.byte_bpe import train_subwords

GPT2 = {"random": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2}


@pytest.fixture(autouse=True, scope="module")
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("windows"))
        train_subwords(["nothing"], Path("letters"), size=261)  # a token a letter
        texts = ["123456789", "12", "1234567"]
        write_rows(
            Path("long.jsonl"), [{"text": text, "label": "ab"[i % 2], "home": "x"} for i, text in enumerate(texts * 6)]
        )
        words = [{"tokens": list("abcdefghi"), "tags": ["B-X", "I-X", "O"] * 3, "home": "x"}] * 8
        write_rows(Path("words.jsonl"), words)
        write_rows(Path("rows.jsonl"), weather())
        write_rows(Path("names.jsonl"), names())
        yield


def windowed(**changes: Any) -> Any:
    settings = {"tokenizer": "letters", "max_length": 5, "long": "windows", "stride": 1, **changes}
    return classifier("long.jsonl", **settings)


@pytest.mark.parametrize("model", [BERT, GPT2])
def test_a_long_text_has_the_mean_of_its_windows_logits(model: dict[str, Any]) -> None:
    """123456789 in windows of three letters, of which they share one: 123, 345, 567, 789."""
    task = windowed(model=model)
    examples = task.load("x", "train")
    shown = {tuple(task.vocabulary.decode(window.ids[1:-1]) for window in example.windows) for example in examples}
    assert shown == {("123", "345", "567", "789"), ("12",), ("123", "345", "567")}
    net = task.build_model(0).eval()
    with torch.no_grad():
        found = task.logits(net, task.collate(examples, False))
        for row, example in zip(found, examples, strict=True):
            each = [net(torch.tensor([window.ids])).logits[0] for window in example.windows]
            assert (row - sum(each) / len(each)).abs().max() < 1e-6
    assert task.predict(net, examples, 2) == found.argmax(1).tolist()
    assert [length for (length,) in task.example_lengths(examples)] == [
        5 * len(e.windows) if e.more else len(e.ids) for e in examples
    ]


@pytest.mark.parametrize(("max_length", "shared"), [(12, 3), (10, 2), (7, 1), (6, 1)])
def test_windows_share_a_quarter_of_what_a_model_reads_unless_said_otherwise(max_length: int, shared: int) -> None:
    """As long as the task's own `stride` is null; rounded down."""
    task = windowed(max_length=max_length, stride=None)
    text = "abcdefghijklmnopqrstuvwxyz"
    (windows,) = task.encoded([text], where=["a row"])
    shown = [task.vocabulary.decode(window.ids[1:-1]) for window in windows]
    assert all(len(window.ids) <= max_length for window in windows)
    assert [one[-shared:] == other[:shared] for one, other in pairwise(shown)] == [True] * (len(shown) - 1)
    assert len(shown) > 2 and shown[0] + "".join(window[shared:] for window in shown[1:]) == text


def test_long_texts_are_learned_and_evaluated_by_all_their_windows(tmp_path: Path) -> None:
    """What says which it is lies beyond the first window."""
    rows = [{"text": f"{i:07}{'ab'[i % 2] * 3}", "label": "ab"[i % 2], "home": "x"} for i in range(48)]
    source = write_rows(tmp_path / "late.jsonl", rows)
    scores = {}
    for long in ("truncate", "windows"):
        task = classifier(source, tokenizer="letters", max_length=8, long=long)
        hp = ClientConfig(lr=2e-2, batch_size=8, epochs=4)
        scores[long] = (
            make_runner(make_config(tmp_path / long, task, client=hp, rounds=3)).run().scores["x"]["accuracy"]
        )
    assert scores["windows"][0] == scores["windows"][1] > scores["truncate"][0]


@pytest.mark.parametrize("make", [classifier, tagger])
def test_short_texts_have_the_bits_of_a_run_without_windows(make: Any, tmp_path: Path) -> None:
    source = "rows.jsonl" if make is classifier else "names.jsonl"
    digests = {
        make_runner(make_config(tmp_path / long, make(source, long=long), client=ClientConfig(batch_size=4)))
        .run()
        .digest
        for long in ("truncate", "windows")
    }
    assert len(digests) == 1


def test_a_word_is_read_where_it_has_most_text_about_it() -> None:
    """Windows of six letters and spaces, of which they share three: a b c, then b c d and so on."""
    task = tagger("words.jsonl", tokenizer="letters", max_length=8, long="windows", stride=3)
    example = task.load("x", "train")[0]
    text = [task.vocabulary.decode(window) for window in example.windows]
    flat = [token for window in example.windows for token in window]
    assert task.vocabulary.decode([flat[piece] for piece in example.pieces]).replace(" ", "") == "abcdefghi"
    starts = [sum(map(len, example.windows[:number])) for number in range(len(text) + 1)]
    for piece in example.pieces:
        own = next(number for number, start in enumerate(starts[1:]) if piece < start)
        context = {
            n: min(w.index(flat[piece]), len(w) - 1 - w.index(flat[piece]))
            for n, w in enumerate(example.windows)
            if flat[piece] in w
        }
        assert context[own] == max(context.values()), text
    batch = task.collate([example], True)
    assert (batch["targets"] >= 0).sum() == task.terms(batch) == task.supervised(example) == 9


def test_the_window_with_most_context_is_chosen_by_hand() -> None:
    windows = [Window(list(range(6))), Window(list(range(6))), Window(list(range(4)))]
    pieces = [[0, 3, 5, -1], [-1, 1, 3, 5], [-1, -1, 1, 3]]
    # contexts 0 | 2, 1 | 0, 2, 1 | 0, 0: the first of equal ones
    assert best_windows(pieces, windows) == [0, 3, 9, 11]
    assert best_windows([[-1]], [Window([1])]) == [-1]


def test_tags_of_windows_go_back_to_their_words() -> None:
    task = tagger("words.jsonl", tokenizer="letters", max_length=8, long="windows")
    examples = task.load("x", "train")
    net = task.build_model(0).eval()
    with torch.no_grad():
        found = task.predict(net, examples, 3)
        best = [net(torch.tensor([window])).logits[0].argmax(-1).tolist() for window in examples[0].windows]
    flat = [tag for row in best for tag in row]
    assert found[0] == [flat[piece] for piece in examples[0].pieces] and len(found[0]) == 9
    cut = tagger("words.jsonl", tokenizer="letters", max_length=8)
    assert -1 in cut.load("x", "train")[0].pieces  # and that is why
    assert task.check("x") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stride": 3}, "task.stride is 3 but windows of task.max_length 5 have 3 tokens"),
        ({"long": "truncate"}, "task.stride is 1, which is for task.long: windows"),
        ({"truncate": "left"}, "task.truncate is left but task.long is windows"),
    ],
)
def test_windows_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        windowed(**changes).load("x", "train")


def test_pairs_have_no_windows() -> None:
    write_rows(Path("pairs.jsonl"), [{**row, "text_pair": "and then"} for row in weather()])
    with pytest.raises(DataError, match="task.long is windows, but rows have two texts"):
        classifier("pairs.jsonl", long="windows").load("north", "train")
