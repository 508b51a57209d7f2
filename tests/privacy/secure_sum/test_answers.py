"""A party helps to unmask one sum of a round, also after a restart; and what all have sworn to is in the masks."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedtorch.core.errors import CheckpointError, TrustError
from fedtorch.privacy.secure_sum.answers import Answers
from fedtorch.privacy.secure_sum.collector import Collector
from fedtorch.privacy.secure_sum.party import Party
from fedtorch.privacy.secure_sum.terms import SumTerms

ABOUT = {"weights": "w", "parties": "[1, 2, 3]", "part": "ab"}


def test_the_same_is_answered_again_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "trust/north/answers.jsonl"
    for _ in range(2):  # the second time after a restart
        answers = Answers(path)
        answers.give(0, ABOUT)
        answers.give(0, ABOUT)
        for name in ABOUT:
            with pytest.raises(TrustError, match=f"round 1 with another `{name}`"):
                answers.give(0, {**ABOUT, name: "other"})
        answers.give(1, {**ABOUT, "part": "cd"})
    assert len(path.read_text().splitlines()) == 2
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_line_in_which_the_party_died_was_never_answered(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    Answers(path).give(0, ABOUT)
    with path.open("a") as file:
        file.write('{"round": 1, "wei')
    Answers(path).give(1, {**ABOUT, "part": "cd"})
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize("content", ["{}\n", "[]\n", '{"round": "x"}\n', "\xff\n"])
def test_a_file_that_is_none_is_not_taken_for_an_empty_one(content: str, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(content)
    with pytest.raises(CheckpointError, match="what this party has answered"):
        Answers(path)


@pytest.mark.skipif(os.geteuid() != 0 and not Path("/dev/full").exists(), reason="needs a disk that is full")
def test_a_disk_that_refuses_keeps_the_party_silent(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.symlink_to("/dev/full")
    answers = Answers(tmp_path / "none" / "answers.jsonl")
    answers.path = path
    with pytest.raises(CheckpointError, match="helps to unmask nothing"):
        answers.give(0, ABOUT)


def summed(common: tuple[str, str, str]) -> np.ndarray:
    """The sum as the server gets it of parts 1, 2 and 4, by parties that have sworn to these words."""
    terms = SumTerms("run", 0, "1.1", (1, 2, 3), 3)
    parties = [Party(rank, replace(terms, common=word)) for rank, word in zip((1, 2, 3), common, strict=True)]
    server = Collector(replace(terms, common=common[0]))
    server.keys.update({party.number: party.keys() for party in parties})
    server.boxes.update({party.number: party.share(server.roster()) for party in parties})
    total = np.zeros(4, np.uint64)
    for party, number in zip(parties, (1, 2, 4), strict=True):
        party.open_shares(server.boxes_for(party.number))
        part = np.full(4, number, np.uint64)
        party.mask(part)
        total += part
    arrived = server.close((1, 2, 3))
    for party in parties:
        server.take(party.number, party.reveal(arrived))
    server.prepare()
    server.unmask(total)
    return total


def test_masks_of_parties_with_other_weights_do_not_cancel() -> None:
    pytest.importorskip("cryptography")
    assert summed(("w", "w", "w")).tolist() == [7] * 4
    for common in (("w", "w", "v"), ("w", "v", "w")):
        try:
            assert 7 not in summed(common).tolist()
        except ValueError as error:  # what a party seals for one with other words cannot be opened
            assert "sealed" in str(error)
        except Exception as error:
            assert type(error).__name__ == "BrokenProtocolError"
