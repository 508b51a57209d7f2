"""Words with tags: which piece of a word counts, what is refused, and figures as the seqeval library's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from own_rows import ARCHITECTURES, BERT, ONE, OPTIMIZERS, names, tagger, trained, write_rows
from plain_loop import Rows, assert_same_bits, plain_loop, random_model, rows_and_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForTokenClassification,
    BertTokenizer,
    ByT5Tokenizer,
    PreTrainedTokenizerFast,
)

from fedtorch.config.schema import ClientConfig, EvalConfig
from fedtorch.core.errors import ConfigError, DataError
from fedtorch.tasks.tagged_words import TaggedWords, words_of
from fedtorch.tasks.word_tokens import Example, first_pieces
from fedtorch.text.byte_bpe import train_subwords
from fedtorch.tracking.run_folder import read_run
from fedtorch.tracking.settings import TrackConfig
from fedtorch.tracking.tracker import Tracker

pytestmark = pytest.mark.long

TAGGERS = [kind for kind in ARCHITECTURES if kind != "bart"]  # transformers has no head for it


@pytest.fixture(autouse=True, scope="module")
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Rows are prepared below the working folder, once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("tags"))
        write_rows(Path("rows.jsonl"), names())
        texts = [" ".join(row["tokens"]) for row in names()]
        train_subwords(texts, Path("bytes"), size=262)  # bytes and hardly a merge: every word has many pieces
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz0123456789.,"]
        pieces += [f"##{piece}" for piece in pieces[5:]]
        BertTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}).save_pretrained("wordpieces")
        unigram = Tokenizer(
            models.Unigram(
                [("<pad>", 0.0), ("</s>", 0.0), ("\u2581", -1.0), *((c, -2.0) for c in pieces[5:43])], unk_id=1
            )
        )
        unigram.pre_tokenizer, unigram.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        PreTrainedTokenizerFast(tokenizer_object=unigram, pad_token="<pad>", eos_token="</s>").save_pretrained(
            "metaspace"
        )
        ByT5Tokenizer().save_pretrained("slow")
        Path("slow/vocab.txt").write_text("a file that a tokenizer's folder has\n")
        yield


@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 0.1), ("adamw", 1e-2)])
def test_one_client_equals_a_plain_loop(optimizer: str, lr: float, tmp_path: Path) -> None:
    task = tagger("rows.jsonl", data={"clients": ONE})
    runner = trained(tmp_path, task, every=0, optimizer=optimizer, lr=lr)
    rows, tokenizer = rows_and_tokenizer(task, add_prefix_space=False)
    model = random_model(AutoModelForTokenClassification, BERT, tokenizer, num_labels=5)

    def loss(batch: Rows) -> torch.Tensor:
        inputs = tokenizer([row["text"] for row in batch], padding=True, return_tensors="pt")
        labels = torch.full_like(inputs.input_ids, -100)
        for i, row in enumerate(batch):
            for start, tag in zip(row["starts"], row["tags"]):
                labels[i, inputs.char_to_token(i, start)] = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"].index(tag)
        found: torch.Tensor = model(**inputs, labels=labels).loss
        return found

    expected = plain_loop(model, rows, loss, OPTIMIZERS[optimizer], lr, rounds=1)
    assert_same_bits(runner.context.server.weights, expected)


@pytest.mark.parametrize("kind", TAGGERS)
def test_any_architecture_trains_a_round(kind: str, tmp_path: Path) -> None:
    runner = trained(tmp_path, tagger("rows.jsonl", model={"random": kind, **ARCHITECTURES[kind]}))
    assert type(runner.components.engine.module).__name__.endswith("ForTokenClassification")
    assert runner.context.server.weights.isfinite().all()


def test_an_architecture_without_the_head_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="task.model is a random bart, of which AutoModelForTokenClassification makes"
    ):
        tagger("rows.jsonl", model={"random": "bart"}).build_model(0)


@pytest.mark.parametrize("kind", ["bert", *TAGGERS])
def test_a_row_has_the_same_logits_alone_and_in_a_batch(kind: str) -> None:
    task = tagger("rows.jsonl", model=BERT if kind == "bert" else {"random": kind, **ARCHITECTURES[kind]})
    model = task.build_model(0).eval()
    examples = task.load("north", "train")
    assert len({len(example.ids) for example in examples}) > 2
    with torch.no_grad():
        together = task.logits(model, task.collate(examples, False))
        for row, example in zip(together, examples):
            alone = task.logits(model, task.collate([example], False))[0]
            assert (row[: len(alone)] - alone).abs().max() < (1e-5 if kind == "t5" else 1e-6)  # logits of about 5
        single, batch = task.predict(model, examples, 1), task.predict(model, examples, 64)
    assert single == batch


@pytest.mark.parametrize("tokenizer", ["bytes", "wordpieces", "metaspace"])
def test_the_first_piece_of_every_word_has_its_tag(tokenizer: str) -> None:
    """Whether words begin with a space, a mark, or have continuations marked; GPT-2's kind needs no space before."""
    task = tagger("rows.jsonl", tokenizer=tokenizer)
    row, example = task.rows("north", "train")[0], task.load("north", "train")[0]
    words = row["text"].split(" ")
    assert [task.tags[tag] for _, tag in example.labelled] == row["tags"]
    ends = [*example.pieces[1:], len(example.ids)]
    for word, start, end in zip(words, example.pieces, ends):
        assert task.vocabulary.decode(example.ids[start:end], skip_special_tokens=True).replace(" ", "") == word
    targets = task.collate([example], True)["targets"]
    assert (targets >= 0).sum() == len(words) and targets.shape == (1, len(example.ids))


def test_words_that_share_a_token_go_on_with_the_span_of_the_first() -> None:
    assert first_pieces([(0, 1), (1, 2), (3, 4)], [(0, 0), (0, 2), (2, 4), (0, 0)]) == [1, 1, 2]
    example = Example([0, 9, 9, 1], [1, 1, 2], [1, 2, 0])
    assert example.labelled == [(1, 1), (2, 0)]
    task = tagger("rows.jsonl")
    fixed: Any = torch.zeros(1, 4, 5)
    fixed[0, 1, 3] = 1.0  # B-PER

    class Fixed(torch.nn.Linear):
        pass

    object.__setattr__(task, "logits", lambda model, batch: fixed)
    assert task.predict(Fixed(1, 1), [example], 1) == [[3, 4, 0]]


@pytest.mark.parametrize(("side", "kept"), [("right", [0, 1]), ("left", [1, 2])])
def test_words_that_are_cut_away_count_as_not_found(side: Any, kept: list[int]) -> None:
    row = {"tokens": ["ab", "cd", "ef"], "tags": ["B-X", "O", "B-X"], "home": "a"}
    write_rows(Path("long.jsonl"), [row | {"tokens": ["ab", "cd", f"e{i}"]} for i in range(4)])
    task = tagger("long.jsonl", tokenizer="wordpieces", max_length=6, truncate=side)
    example = task.load("a", "train")[0]
    assert [i for i, piece in enumerate(example.pieces) if piece >= 0] == kept
    assert task.check("a") == "4 of 12 words lie beyond task.max_length 6; they count as predicted O"
    assert tagger("long.jsonl", tokenizer="wordpieces").check("a") is None
    scores = task.score([example], [[1 if piece >= 0 else 0 for piece in example.pieces]])
    assert (scores["count/0/true"][0], scores["count/0/hits"][0], scores["accuracy"]) == (2.0, 1.0, (1.0, 3))
    with pytest.raises(DataError, match="train of client a has a row of 8 tokens, task.max_length leaves 6"):
        tagger("long.jsonl", tokenizer="wordpieces", max_length=6, truncate="refuse").load("a", "train")


@pytest.mark.parametrize("parts", [1, 3, 20])
def test_figures_equal_seqevals_on_pooled_predictions(parts: int) -> None:
    from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score

    task = tagger("rows.jsonl")
    rows = names(60)
    true = [[task.numbers[tag] for tag in row["tags"]] for row in rows]
    draw = torch.Generator().manual_seed(0)
    noise = [torch.randint(0, 15, (len(tags),), generator=draw).tolist() for tags in true]
    found = [[n if n < 5 else tag for n, tag in zip(*pair)] for pair in zip(noise, true)]
    examples = [Example([], [], tags) for tags in true]
    scores = {f"c{i}": task.score(examples[i::parts], found[i::parts]) for i in range(parts)}
    words = [[[task.tags[tag] for tag in tags] for tags in side] for side in (true, found)]
    pooled = task.summary(scores)["pooled"]
    assert 0 < pooled["f1"] < 1
    for name, figure in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
        assert pooled[name] == pytest.approx(figure(*words), abs=1e-12)
    assert pooled["f1_macro"] == pytest.approx(f1_score(*words, average="macro"), abs=1e-12)
    doubled, spans = zip(*(score["f1"] for score in scores.values()))  # what a best model can be chosen by
    assert sum(doubled) / sum(spans) == pytest.approx(f1_score(*words), abs=1e-12)
    hits, counts = zip(*(score["accuracy"] for score in scores.values()))
    assert sum(hits) / sum(counts) == pytest.approx(accuracy_score(*words), abs=1e-12)


def test_f1_of_spans_chooses_the_best_round_for_words_that_are_mostly_no_span_are_soon_right() -> None:
    task = tagger("rows.jsonl")
    assert task.chooses_by() == "f1" and set(task.metrics()) == {"f1", "accuracy"}
    assert list(task.score([], []))[:2] == ["f1", "accuracy"]


def test_the_best_round_can_be_chosen_by_f1(tmp_path: Path) -> None:
    settings = {"rounds": 4, "client": ClientConfig(lr=1e-2, batch_size=4, epochs=2)}
    evaluation = EvalConfig(every=1, select_by="f1")
    result = make_runner(make_config(tmp_path, tagger("rows.jsonl"), eval=evaluation, **settings)).run()
    assert result.best_round in range(1, 5)
    summary = tagger("rows.jsonl").summary(result.scores)["clients"]
    for client, scores in result.scores.items():
        total, spans = scores["f1"]
        assert total / spans == summary[client]["f1"] > 0.5


def test_a_client_without_spans_has_figures() -> None:
    task = tagger("rows.jsonl")
    summary = task.summary({"empty": task.score([], []), "none": task.score([Example([], [], [0])], [[0]])})
    assert summary["clients"]["none"] == summary["clients"]["empty"] == dict.fromkeys(
        ("f1", "precision", "recall", "f1_macro"), 0.0)  # fmt: skip


def convert(form: TaggedWords, **values: Any) -> dict[str, Any]:
    return form.convert(values)


WORDS, SPANS = TaggedWords("words", ("PER", "LOC")), TaggedWords("spans", ("PER", "LOC"))


@pytest.mark.parametrize(
    ("tokens", "tags", "message"),
    [
        ("a b", ["O"], "`tokens` is a str, expected a list"),
        (["a"], "O", "`tags` is a str, expected a list"),
        ([], [], "`tokens` is empty"),
        (["a", "b"], ["O"], "2 tokens but 1 tags"),
        (["a", " "], ["O", "O"], "token 2 is empty"),
        (["a", 7], ["O", "O"], "token 2 is a int"),
        (["a"], [3], "tag 1 is a int, expected a string such as O or B-PER"),
        (["a"], ["NOUN"], "tag 1 is 'NOUN', expected O, B-KIND or I-KIND"),
        (["a"], ["B-"], "tag 1 is 'B-', expected"),
        (["a"], ["I-PER"], "tag 1 is 'I-PER' after 'O'; in IOB2 a span begins with B-"),
        (["a", "b"], ["B-LOC", "I-PER"], "tag 2 is 'I-PER' after 'B-LOC'"),
        (["a"], ["B-ORG"], "the label 'ORG' is none of task.data.labels: PER, LOC"),
    ],
)
def test_tags_that_are_no_iob2_are_refused(tokens: Any, tags: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert(WORDS, tokens=tokens, tags=tags)


def span(start: Any, end: Any, label: Any = "PER") -> dict[str, Any]:
    return {"start": start, "end": end, "label": label}


@pytest.mark.parametrize(
    ("text", "spans", "words", "tags"),
    [
        ("Anna met Bert.", [span(9, 13), span(0, 4)], ["Anna", "met", "Bert", "."], ["B-PER", "O", "B-PER", "O"]),
        ("in New York now", [span(3, 12, "LOC")], ["in", "New", "York", "now"], ["O", "B-LOC", "I-LOC", "O"]),
        ("10mg (of) x", [span(0, 2)], ["10", "mg", "(", "of", ")", "x"], ["B-PER", "O", "O", "O", "O", "O"]),
        ("Zoé née", [span(0, 3)], ["Zoé", "née"], ["B-PER", "O"]),
        ("Zoe\u0301 né", [span(0, 4)], ["Zoe\u0301", "né"], ["B-PER", "O"]),
        ("\u5317\u4eac", [span(0, 2, "LOC")], ["\u5317", "\u4eac"], ["B-LOC", "I-LOC"]),
        ("नमस्ते \u200b दुनिया", [], ["नमस्ते", "दुनिया"], ["O", "O"]),
        ("a b ", {"start": [2], "end": [4], "label": ["LOC"]}, ["a", "b"], ["O", "B-LOC"]),
    ],
)  # fmt: skip
def test_spans_of_a_text_become_tags_of_its_words(text: str, spans: Any, words: list[str], tags: list[str]) -> None:
    row = convert(SPANS, text=text, spans=spans)
    assert [text[start:end] for start, end in zip(row["starts"], row["ends"])] == words
    assert row["tags"] == tags and row["text"] == text


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ("PER", "`spans` is a str, expected a list of {start, end, label}"),
        ([[0, 4]], "span 1 is no object with start, end and label"),
        ([{"start": 0, "end": 4}], "span 1 is no object with"),
        ([span("0", 4)], "span 1: start and end should be whole numbers"),
        ([span(0, 4, 1)], "span 1: its label is a int"),
        ([span(5, 99)], "span 1 is characters 5 to 99 of a text of 14"),
        ([span(4, 4)], "span 1 is characters 4 to 4"),
        ([span(0, 8), span(5, 8)], "span 2 .* overlaps"),
        ([span(0, 3)], "span 1 .* begins or ends within a word"),
        ([span(4, 5)], "span 1 .* has no word in it"),
        ([span(0, 4, "ORG")], "the label 'ORG' is none of task.data.labels"),
    ],
)
def test_spans_that_cannot_be_are_refused(spans: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert(SPANS, text="Anna met Bert.", spans=spans)


def test_a_text_without_words_is_refused() -> None:
    with pytest.raises(ValueError, match="the text has no word"):
        convert(SPANS, text=" \n", spans=[])
    assert list(words_of("é")) == [(0, 1)] and not list(words_of("\u00a0"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"labels": ("O", "B-PER")}}, r"task.data.labels has 'O'; name the kinds of spans, as \[PER, LOC\]"),
        ({"data": {"columns": {"text": "body"}}}, "task.data.columns has `text`, which is for task.annotation: spans"),
        ({"annotation": "spans", "data": {"columns": {"tags": "t"}}}, "which is for task.annotation: words"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tagger("rows.jsonl", **changes)


def test_a_tokenizer_that_does_not_know_where_its_tokens_stand_is_refused() -> None:
    with pytest.raises(ConfigError, match="ByT5Tokenizer does not say where in a text its tokens stand"):
        _ = tagger("rows.jsonl", tokenizer="slow").vocabulary


def test_rows_without_any_span_are_an_error() -> None:
    write_rows(Path("none.jsonl"), [{"tokens": ["a"], "tags": ["O"], "home": "x"}])
    with pytest.raises(DataError, match="no row of none.jsonl has a span"):
        _ = tagger("none.jsonl").labels


PLAIN = """
import json, sys
from seqeval.metrics import f1_score
from transformers import pipeline
find = pipeline("token-classification", model=sys.argv[1], aggregation_strategy="first")
true, found = [], []
for line in open(sys.argv[2]):
    row = json.loads(line)
    groups = find(row["text"])
    true.append(row["tags"])
    found.append(["O"] * len(row["tags"]))
    for group in groups:
        inside = [i for i, start in enumerate(row["starts"]) if group["start"] <= start < group["end"]]
        for i in inside:
            found[-1][i] = ("B-" if i == inside[0] else "I-") + group["entity_group"]
assert "fedtorch" not in sys.modules
print(f1_score(true, found))
"""


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_plain_transformers_evaluates_the_saved_model_alike(kind: str, tmp_path: Path) -> None:
    """Of word pieces, and of bytes where a space and the letter after it are one token; else a pipeline sees two."""
    if kind == "bert":
        task = tagger("rows.jsonl", tokenizer="wordpieces")
    else:
        task = tagger("rows.jsonl", model={"random": kind, **ARCHITECTURES[kind]}, data={"tokenizer_size": 600})
    runner = make_runner(
        make_config(tmp_path, task, rounds=8, client=ClientConfig(lr=2e-2, batch_size=4), eval=EvalConfig(every=1))
    )
    pooled = task.summary(runner.run().scores)["pooled"]
    engine = runner.components.engine
    for parameter, value in zip(engine.module.parameters(), engine.shared_views(runner.context.server.weights)):
        parameter.data.copy_(value)
    task.save_model(engine.module, tmp_path / "model")
    write_rows(tmp_path / "test.jsonl", [row for client in task.manifest() for row in task.rows(client, "test")])
    script = [sys.executable, "-c", PLAIN, str(tmp_path / "model"), str(tmp_path / "test.jsonl")]
    said = subprocess.run(script, capture_output=True, text=True, timeout=240, check=True).stdout
    assert 0.3 < pooled["f1"] == pytest.approx(float(said))


@pytest.mark.parametrize(
    ("scheme", "tags", "iob2"),
    [
        ("iob1", "O I-PER I-PER B-PER I-LOC O I-LOC", "O B-PER I-PER B-PER B-LOC O B-LOC"),
        ("bioes", "S-PER B-LOC I-LOC E-LOC O U-PER B-LOC L-LOC", "B-PER B-LOC I-LOC I-LOC O B-PER B-LOC I-LOC"),
        ("iob2", "O B-PER I-PER B-LOC", "O B-PER I-PER B-LOC"),
    ],
)
def test_tags_of_other_schemes_are_read_as_iob2(scheme: Any, tags: str, iob2: str) -> None:
    words = {"tokens": ["w"] * len(tags.split()), "tags": tags.split()}
    assert TaggedWords("words", (), scheme=scheme).convert(words)["tags"] == iob2.split()


@pytest.mark.parametrize("tags", ["O E-PER", "B-LOC S-PER I-LOC"])
def test_an_end_without_a_beginning_is_refused(tags: str) -> None:
    with pytest.raises(ValueError, match="tag . is 'I-(PER|LOC)' after"):
        TaggedWords("words", (), scheme="bioes").convert({"tokens": ["w"] * len(tags.split()), "tags": tags.split()})


@pytest.mark.parametrize(
    "spans",
    [
        [{"start": 5, "end": 9, "label": "PER"}],
        [{"start": 5, "end": 9, "type": "PER"}],
        [[5, 9, "PER"]],
        '[{"start": 5, "end": 9, "entity": "PER"}]',
        {"start": [5], "end": [9], "label": ["PER"]},
    ],
)
def test_spans_come_in_several_forms(spans: Any) -> None:
    assert TaggedWords("spans", ()).convert({"text": "with Anna", "spans": spans})["tags"] == ["O", "B-PER"]


def test_spans_have_no_scheme() -> None:
    with pytest.raises(ConfigError, match=r"task\.scheme is iob1, but task\.annotation is spans"):
        tagger("x.jsonl", annotation="spans", scheme="iob1")


def test_f1_of_spans_is_of_the_true_spans_wherever_it_is_shown(tmp_path: Path) -> None:
    """Of 3 true spans 1 is found, and 2 others are predicted: F1 2·1 / (3 + 3), of 3 spans and not of 6."""
    task = tagger("rows.jsonl").with_metrics({"span_precision": "precision"})
    kind = task.labels[0]
    begin = task.numbers[f"B-{kind}"]
    true, found = [begin, begin, begin, 0, 0], [begin, 0, 0, begin, begin]
    scores = task.score([Example([], [], true)], [found])
    scores |= task.client_scores("a", scores, [Example([], [], true)], [found])
    behind = task.behind(scores)
    assert scores["f1"] == (2.0, 6) and behind == {"f1": 3, "span_precision": 3}
    track = Tracker(tmp_path, clients=["a", "none"], rounds=1, settings=TrackConfig(tensorboard=False, progress="off"))
    none = task.score([Example([], [], [0, 0])], [[begin, 0]])
    told = track.evaluation(
        0, "test", {"a": scores, "none": none}, "final", behind={"a": behind, "none": task.behind(none)}
    )
    track.close()
    # the false span of the client without any counts in the mean of all spans together, 2 / 7, and as 0 in macro
    assert told["f1"] == {"macro": pytest.approx(1 / 6), "micro": pytest.approx(2 / 7), "count": 3}
    (final,) = read_run(tmp_path).last_evaluations()
    assert final.of("f1") == {"a": (pytest.approx(1.0), 3)} and final.average("f1")["count"] == 3
    assert final.of("span_precision")["a"] == (pytest.approx(1.0), 3)
