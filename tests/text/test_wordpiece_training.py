from __future__ import annotations

from pathlib import Path

import pytest
from transformers import BertTokenizer

from fedtorch.core.errors import ConfigError
from fedtorch.text.wordpiece_training import train_wordpiece
from fedtorch.text.wordpieces import load_wordpieces

TEXTS = ["is it a text of words ?", "the naïve reader reads the reading text", "numbers 1 12 123 are texts, too."] * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wordpiece") / "tokenizer"
    train_wordpiece(TEXTS, out, size=200)
    return out


def test_a_pair_is_encoded_as_bert_does(folder: Path) -> None:
    tokenizer = load_wordpieces(folder)
    assert isinstance(tokenizer, BertTokenizer)
    encoded = tokenizer("Is it ?", "THE naive text")
    assert tokenizer.convert_ids_to_tokens(encoded.input_ids)[:5] == ["[CLS]", "is", "it", "?", "[SEP]"]
    assert tokenizer.decode(encoded.input_ids) == "[CLS] is it? [SEP] the naive text [SEP]"
    assert encoded.token_type_ids[:5] == [0] * 5 and set(encoded.token_type_ids[5:]) == {1}
    assert tokenizer.convert_tokens_to_ids(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]) == [0, 1, 2, 3, 4]
    assert tokenizer.unk_token_id not in encoded.input_ids and len(tokenizer) <= 200
    assert "##?" not in tokenizer.get_vocab()  # punctuation never continues a word


def test_training_twice_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    # tokenizers' own trainer gives another vocabulary each time, in one process too
    for turn in "ab":
        train_wordpiece(TEXTS, tmp_path / turn, size=200)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            assert (tmp_path / turn / name).read_bytes() == (folder / name).read_bytes()


def test_a_toy_tokenizer_an_empty_folder_and_a_vocabulary_that_is_too_small_are_errors(tmp_path: Path) -> None:
    BertTokenizer(vocab={"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}).save_pretrained(tmp_path / "toy")
    with pytest.raises(ConfigError, match="not a usable .* .5 entries.: it does not know the letters"):
        load_wordpieces(tmp_path / "toy")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError):
        load_wordpieces(tmp_path / "empty")
    with pytest.raises(ConfigError, match="choose a larger size"):
        train_wordpiece(TEXTS, tmp_path / "small", size=10)


def test_a_tokenizer_without_a_separator_is_refused(tmp_path: Path) -> None:
    from fedtorch.text.sentencepiece import train_vocabulary

    train_vocabulary(TEXTS * 5, tmp_path / "t5", size=100)
    with pytest.raises(ConfigError, match="lacks a classification, separator or padding token"):
        load_wordpieces(tmp_path / "t5")
