"""Whole words: the vocabulary's file, and vectors from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedtorch.core.errors import DataError
from fedtorch.text.words import Words, read_vectors, read_words

WORDS = Words(("what", "is", "water", "policy", "covers"))


def test_ids_follow_the_lines_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("what\nis\nwater\npolicy\ncovers\n")
    words = read_words(tmp_path)
    assert words == WORDS and len(words) == 7
    assert words.ids == {"what": 2, "is": 3, "water": 4, "policy": 5, "covers": 6}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "words.txt is empty"),
        ("a\n\nb\n", "words.txt:2 is not one lower-cased word"),
        ("a\nB\n", "words.txt:2 is not one lower-cased word"),
        ("a b\n", "words.txt:1 is not one lower-cased word"),
        ("a\nb\na\n", "words.txt:3 repeats the word of line 1"),
    ],
)
def test_a_broken_word_list_is_an_error(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text(text)
    with pytest.raises(DataError, match=problem):
        read_words(tmp_path)


def test_a_missing_word_list_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"words.txt cannot be read \(FileNotFoundError\); expected one lower-cased"):
        read_words(tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("400000 300\nis 1 2 3\n", r"vectors.txt:1 has 1 numbers after the word; expected task.model.embedding = 3"),
        ("the 1 2 3\nis 1 2\n", "vectors.txt:2 has 2 numbers after the word"),
        ("the 1 2 3\nwhat 1 2 3\nis 1 x 3\n", "vectors.txt:3 has something else than 3 finite numbers"),
        ("is 1 nan 3\n", "vectors.txt:1 has something else than 3 finite numbers"),
        ("the 1 2 3\n", "vectors.txt has a vector for none of the 5 words"),
        ("", "has a vector for none of the 5 words"),
    ],
)
def test_a_broken_file_of_vectors_is_an_error(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=problem):
        read_vectors(str(path), 3, WORDS)
