from __future__ import annotations

import string
from pathlib import Path

import pytest
import sentencepiece

from fedtorch.core.errors import ConfigError
from fedtorch.data.check import RoundTrip, count_parsed, round_trip
from fedtorch.text.sentencepiece import decode, load_tokenizer, train_vocabulary

TEXTS = [f"select name from city where population <= {n} and state = 'Zürich ½'" for n in range(100)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary") / "tokenizer"
    train_vocabulary(TEXTS, folder, size=200)
    return folder


def test_the_same_texts_give_the_same_bytes_wherever_they_are_written(folder: Path, tmp_path: Path) -> None:
    train_vocabulary(iter(TEXTS), tmp_path / "other" / "place", size=200)
    for name in ("spiece.model", "tokenizer_config.json"):
        assert (tmp_path / "other" / "place" / name).read_bytes() == (folder / name).read_bytes()


def test_ids_are_those_of_sentencepiece_with_t5_special_ids_and_no_sentinels(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    assert len(tokenizer) == pieces.get_piece_size() <= 200
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    assert tokenizer(TEXTS[7]).input_ids == [*pieces.encode(TEXTS[7]), 1]


def test_every_ascii_symbol_and_every_character_of_the_texts_survives(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    text = " ".join(string.punctuation + string.ascii_letters + string.digits) + ' Zürich ½ "a <= b" (<>) a,b .'
    assert decode(tokenizer, tokenizer(text).input_ids) == text


def test_a_line_longer_than_sentencepiece_would_read_is_not_dropped(tmp_path: Path) -> None:
    train_vocabulary([*TEXTS, "ж " * 5000], tmp_path, size=200)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.unk_token_id not in tokenizer("ж").input_ids


def test_too_small_a_size_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="choose a larger size"):
        train_vocabulary(TEXTS, tmp_path, size=20)


def test_added_tokens_get_ids_behind_the_vocabulary_and_survive(folder: Path) -> None:
    plain = load_tokenizer(folder)
    tokenizer = load_tokenizer(folder, [" <", " <=", " <>"])
    assert len(tokenizer) == len(plain) + 3
    ids = tokenizer("a <= 3 and b < 4").input_ids
    assert {len(plain), len(plain) + 1} <= set(ids)
    assert decode(tokenizer, ids) == "a <= 3 and b < 4"
    golds = ["SELECT A FROM B WHERE C <> 3 AND D < 4 ;"]
    assert round_trip(tokenizer, golds, max_length=50).matched == 1


def test_without_its_own_token_unequal_comes_back_with_a_space(folder: Path) -> None:
    """Why ` <>` is in the list above: Lorar's two tokens lose every query with `<>`."""
    result = round_trip(load_tokenizer(folder, [" <", " <="]), ["SELECT A FROM B WHERE C <> 3 ;"], max_length=50)
    assert result.misses["spaces"] == 1 and result.percent == 0.0


def test_a_saved_tokenizer_loads_with_its_added_tokens(folder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folder, [" <"])
    tokenizer.save_pretrained(tmp_path)
    again = load_tokenizer(tmp_path, [" <"])
    assert len(again) == len(tokenizer) and again("a < b").input_ids == tokenizer("a < b").input_ids


def test_folders_that_are_no_tokenizers_are_config_errors_that_name_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has none of tokenizer.json"):
        load_tokenizer(tmp_path)
    for path in (tmp_path / "none", str(tmp_path / "none"), "./none", "~/none-of-that-name", "a/b/c", "", "tests/none"):
        if path == "tests/none" and not Path("tests").exists():
            continue
        with pytest.raises(ConfigError, match="is not a folder"):
            load_tokenizer(path)
    (tmp_path / "spiece.model").write_bytes(b"junk")
    with pytest.raises(ConfigError, match=str(tmp_path)):
        load_tokenizer(tmp_path)


def test_a_hub_name_that_cannot_be_had_is_a_config_error_and_no_toy_tokenizer() -> None:
    with pytest.raises(ConfigError, match="no-such-model-anywhere"):
        load_tokenizer("no-such-model-anywhere")


def test_a_vocabulary_that_lacks_the_probe_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="does not know parts of 'ж'"):
        load_tokenizer(folder, probe="ж")


def test_each_miss_of_the_round_trip_has_its_reason(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    golds = [
        "SELECT NAME FROM CITY ;",
        "SELECT NAME FROM CITY WHERE NAME = 'ж' ;",
        "SELECT " + " , ".join(["NAME"] * 60) + " ;",
        "SELECT\tNAME FROM CITY ;",
    ]
    result = round_trip(tokenizer, golds, max_length=60)
    assert result.as_record() == {
        "total": 4,
        "matched": 1,
        "longest": result.longest,
        "misses": {"target": 1, "truncated": 1, "unknown": 1},
    }
    assert result.first == {"target": 3, "truncated": 2, "unknown": 1, "spaces": -1, "other": -1}
    assert result.percent == 25.0 and result.longest > 60
    assert RoundTrip().percent == 100.0 and round_trip(tokenizer, [], max_length=5).total == 0


def test_sqlglot_counts_different_queries() -> None:
    assert count_parsed(["SELECT A FROM B ;", "SELECT A FROM B ;", "SELECT FROM WHERE ("]) == (1, 2)
