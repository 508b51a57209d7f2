"""A tokenizer from counted words: that of the pooled text, nothing unknown, and its protection in the card."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from record_rows import config
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from fedtorch.config.load import load
from fedtorch.core.errors import ConfigError, DataError
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.record import nothing_public_is_made_of_rows
from fedtorch.stats import tokenizer as made_tokenizer
from fedtorch.stats.table import Stats, Table
from fedtorch.stats.tokenizer import MOST_ENTRIES, train, train_from, words_of
from fedtorch.text.byte_bpe import Kind, least_size, load_subwords
from fedtorch.text.wordpieces import load_wordpieces

TEXTS = [
    "fever and cough, fever",
    "no fever but a cough; naïve café",
    "cough syrup (cough) 37.9 °C ☃",
    "a fever a day",
] * 3
WORDS = Counter(word for text in TEXTS for word in text.split())
HARD = ["", "FEVER\x00\t\n", "a##b ## #x", "☃" * 30, "x" * 500, "[MASKED] <s", "\ud7ff￿🎈"]


def by_library(texts: list[str], folder: Path) -> None:
    """RoBERTa's byte-level BPE, written down once more with nothing but the library."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    named = Tokenizer(models.BPE())
    named.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    named.decoder = decoders.ByteLevel()
    named.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=True)
    special: Any = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    named.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=400, min_frequency=2, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    roles = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>", "cls": "<s>", "sep": "</s>"}
    tokens = {f"{role}_token": token for role, token in roles.items()}
    PreTrainedTokenizerFast(tokenizer_object=named, **tokens).save_pretrained(folder)


@pytest.mark.parametrize("times", [3, 2])  # how often each text is there; what occurs twice is joined
def test_from_exact_counts_it_is_the_file_that_the_library_trains_on_the_pooled_text(
    times: int, tmp_path: Path
) -> None:
    texts = TEXTS[: len(TEXTS) // 3] * times
    by_library(texts, tmp_path / "text")
    train(Counter(word for text in texts for word in text.split()), tmp_path / "words", kind="bpe", size=400)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "words" / name).read_bytes() == (tmp_path / "text" / name).read_bytes()


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_nothing_is_unknown_and_every_text_comes_back(tmp_path: Path, kind: Kind) -> None:
    train(WORDS, tmp_path, kind=kind)
    loaded: Any = (load_subwords if kind == "bpe" else load_wordpieces)(tmp_path)
    assert loaded(" fever").input_ids[1:-1] == loaded("fever").input_ids[1:-1]  # one piece, wherever it stands
    assert len(loaded("fever and cough", add_special_tokens=False).input_ids) == 3
    for text in HARD:
        ids = loaded(text, add_special_tokens=False).input_ids
        assert loaded.unk_token_id not in ids
        assert loaded.decode(ids).removeprefix(" ") == text


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_order_and_noise_below_a_half_change_no_byte(tmp_path: Path, kind: Kind) -> None:
    train(WORDS, tmp_path / "a", kind=kind)
    noised = {word: count + 0.4 * (-1) ** place for place, (word, count) in enumerate(reversed(WORDS.items()))}
    train({**noised, "secret": 0.4, "other": -7.0}, tmp_path / "b", kind=kind)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_without_a_size_pieces_are_joined_until_each_word_is_one(tmp_path: Path) -> None:
    made = train({"abcdefgh": 9.0, "abc": 3.0, "once": 1.0}, tmp_path, kind="bpe")
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.tokenize("abcdefgh abc") == ["Ġabcdefgh", "Ġabc"] and len(loaded.tokenize("once")) == 5
    assert (made.entries, made.size) == (len(loaded), MOST_ENTRIES) and made.entries == least_size() + 8
    small = train({"abcdefgh": 9.0, "abc": 3.0}, tmp_path / "small", kind="bpe", size=least_size() + 2)
    assert small.entries == least_size() + 2


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_words_without_capitals_are_those_of_texts_with_them(tmp_path: Path, kind: Kind) -> None:
    train({"fever": 9.0, "élan": 5.0}, tmp_path / "low", kind=kind, lower=True)
    train({"fever": 9.0, "élan": 5.0}, tmp_path / "as_is", kind=kind)
    low, as_is = (AutoTokenizer.from_pretrained(tmp_path / name) for name in ("low", "as_is"))
    assert low("FEVER Élan").input_ids == low("fever élan").input_ids == as_is("fever élan").input_ids
    assert len(as_is("FEVER").input_ids) > len(low("FEVER").input_ids) == 3


def test_counts_of_more_words_than_are_read_are_all_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_tokenizer, "MOST_READ", 100)
    made = train({"fever": 3000.0, "cough": 1000.0, "rare": 5.0}, tmp_path / "many", kind="bpe")
    assert made.occurrences == 4005 and made.divided_by == 40.05
    train({"fever": 75.0, "cough": 25.0, "rare": 1.0}, tmp_path / "few", kind="bpe")
    assert (tmp_path / "many/tokenizer.json").read_bytes() == (tmp_path / "few/tokenizer.json").read_bytes()


def a_run(**changed: Any) -> Stats:
    table = Table(
        "words", "words", "found", ("fever", "cough", "x|y"), (), 8, False, (90.2, None, 41.0), 3.0, threshold=9.0
    )
    privacy = {"epsilon": 2.5, "delta": 1e-5, "noise_at": "local", "unit": "row"}
    return Stats(
        **({"unit": "row", "silos": ("a", "b"), "tables": (table,), "min_count": None, "privacy": privacy} | changed)
    )


def test_card_and_file_say_how_it_was_made_and_no_word(tmp_path: Path) -> None:
    made = train_from(a_run(), tmp_path)
    facts = json.loads((tmp_path / "made_of.json").read_text())
    assert (facts["words"], facts["occurrences"], facts["entries"]) == (2, 131, made.entries)
    assert facts["about"]["privacy"]["epsilon"] == 2.5
    card = (tmp_path / "README.md").read_text()
    assert "epsilon 2.5 at delta 1e-05" in card and "standard deviation 3" in card and "2 silos" in card
    assert "fever" not in card + json.dumps(facts)
    assert words_of(a_run().tables[0]) == {"fever": 90.2, "x|y": 41.0}
    assert "more than 9 times" in card
    few = replace(a_run().tables[0], threshold=None)
    train_from(a_run(privacy={}, tables=(few,)), tmp_path)
    assert "| at all |" in (tmp_path / "README.md").read_text()
    exact = replace(few, threshold=5.0, deviation=0.0)
    train_from(a_run(privacy={}, tables=(exact,), min_count=5, task="causal_lm"), tmp_path)
    assert "5 times or more" in (tmp_path / "README.md").read_text()
    assert json.loads((tmp_path / "made_of.json").read_text())["kind"] == "bpe"
    assert "none: the numbers are exact" in (tmp_path / "README.md").read_text()


def test_capitals_stay_unless_they_are_not_wanted(tmp_path: Path) -> None:
    table = replace(a_run().tables[0], cells=("Fever", "cough", "x|y"))
    sizes = []
    for name, lower in (("as_is", {}), ("low", {"lower": True})):
        train_from(a_run(tables=(table,)), tmp_path / name, **lower)
        found = AutoTokenizer.from_pretrained(tmp_path / name)
        sizes.append((len(found("Fever").input_ids), len(found("fever").input_ids)))
    assert sizes[0][0] == 3 < sizes[0][1] and sizes[1] == (3, 3)


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no word was counted"):
        train({"rare": 0.3}, tmp_path)
    with pytest.raises(DataError, match="counted no words"):
        train_from(a_run(tables=()), tmp_path)
    with pytest.raises(ConfigError, match="size 300 was asked for; its bytes alone need 517"):
        train(WORDS, tmp_path, size=300)
    assert not list(tmp_path.iterdir())


def test_a_config_names_it_and_privacy_takes_it_for_public(tmp_path: Path) -> None:
    train(WORDS, tmp_path / "tokenizer")
    named = load([config(tmp_path)], [f"task.tokenizer={tmp_path / 'tokenizer'}"])
    nothing_public_is_made_of_rows(Plan.of(named, 1))
    task: Any = named.task
    assert len(task.vocabulary) == json.loads((tmp_path / "tokenizer/made_of.json").read_text())["entries"]
    with pytest.raises(ConfigError, match="a vocabulary would be made of silos' rows"):
        nothing_public_is_made_of_rows(Plan.of(load([config(tmp_path)], ["task.tokenizer=null"]), 1))
