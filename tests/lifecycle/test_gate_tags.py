"""The key of tags in a gate: silos agree on it, and the process that trains gets nothing by which the server could."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtorch.core.errors import PolicyError, PreflightError, TrustError
from fedtorch.core.prime import P, Words, added
from fedtorch.lifecycle.gate import Answers
from fedtorch.privacy.secure_sum.keys import new_pair
from fedtorch.trust.kept import KeptFiles
from fedtorch.trust.keys import PrivateKey, new_key
from fedtorch.trust.merkle import LEAF
from fedtorch.trust.policy.asked import Asked
from fedtorch.trust.policy.file import read_policy
from fedtorch.trust.policy.gate import Side
from fedtorch.trust.policy.notes import text_of
from fedtorch.trust.policy.remote import VARIABLE, GateKey, RemoteMeeting, ask, serve
from fedtorch.trust.receipts import Signed
from fedtorch.trust.silo_tags import OwnMeeting, OwnTags

pytest.importorskip("cryptography")

pytestmark = pytest.mark.long

RANKS = {0: "hub", 1: "north", 2: "south", 3: "west"}
SIZE = LEAF + 900
UPDATE = np.linspace(-1, 1, SIZE, dtype=np.float32)
EXPONENT, SCOPE = 20, "job/0"
NAME = "run/0/attempt/weights"


class South:
    """A silo whose gate is a thread of the test, and the keys of all parties."""

    def __init__(self, folder: Path, connection: socket.socket) -> None:
        self.folder, self.connection = folder, connection
        self.keys: dict[int, PrivateKey] = {rank: new_key(folder / f"{name}.key") for rank, name in RANKS.items()}
        self.public = {rank: key.public for rank, key in self.keys.items()}
        told = tuple((rank, key.hex()) for rank, key in self.public.items())
        side = Side("test", "south", 2, ("south",), tuple(RANKS.values())[1:], told)
        asked = Asked((("weight", SIZE),), 1, ("status", "steps"), 3, 8 * SIZE)
        ask(connection, {"ask": "key", "path": str(folder / "south.key")})
        about = {"side": asdict(side), "asked": asdict(asked), "folder": str(folder), "is_new": False}
        ask(connection, {"ask": "begin", **about})
        found = GateKey.of({VARIABLE: str(connection.fileno())})
        assert found is not None
        self.gate = found
        self.meeting = self.gate.meet()

    def others(self) -> dict[int, OwnMeeting]:
        return {rank: OwnMeeting("test", rank, self.public) for rank in RANKS if rank != 2}

    def agreed(self, words: dict[int, str]) -> tuple[str, dict[int, str]]:
        """A text with these words, and the notes of all parties that sign it."""
        text = json.dumps({"nonces": {str(rank): word for rank, word in words.items()}})
        digest = hashlib.sha256(text.encode()).hexdigest()
        notes = {rank: text_of("test", SCOPE, f"transcript/{rank}", digest) for rank in words}
        return text, {rank: f"{self.keys[rank].sign(note).hex()} {digest}" for rank, note in notes.items()}

    def met(self) -> tuple[RemoteMeeting, dict[int, OwnMeeting]]:
        others = self.others()
        words = {2: self.meeting.word, **{rank: other.word for rank, other in others.items()}}
        text, signed = self.agreed(words)
        for side in (self.meeting, *others.values()):
            side.agree(text, SCOPE, signed)
        return self.meeting, others

    def with_key(self) -> OwnTags:
        """The key as north has it, which has drawn it and sealed it for the others."""
        meeting, others = self.met()
        meeting.open(1, others[1].draw()[2])
        found = others[1].tags
        assert found is not None
        return found

    def part(self, exchange: str = NAME, round: int = 0, way: str = "sum") -> Words:
        self.gate.pass_update("south", round, UPDATE)
        self.gate.begin_part(way, round, [("south", 1.0)], EXPONENT, exchange)
        self.gate.leave(UPDATE[:LEAF])
        self.gate.leave(UPDATE[LEAF:])
        return self.gate.finish_part(2)[2]

    def record(self, **changes: Any) -> Signed:
        return Signed.by(self.keys[0], "record", "hub", {"run": "r", "round": 0, "attempt": "a", **changes})


@pytest.fixture
def south(tmp_path: Path) -> Iterator[South]:
    policy = {"may_leave": {"parameters": ["*"], "reports": ["status", "steps"]}}
    (tmp_path / "policy.yaml").write_text(json.dumps(policy))
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    thread = threading.Thread(target=serve, args=(there, Answers(read_policy(tmp_path / "policy.yaml"))))
    thread.start()
    made = South(tmp_path, here)
    yield made
    made.gate.socket.close()
    here.close()
    thread.join(10)
    there.close()


def whole() -> np.ndarray[Any, Any]:
    return np.rint(UPDATE.astype(np.float64) * 2.0**EXPONENT).astype(np.int64)


@pytest.mark.parametrize("way", ["sum", "updates"])
def test_the_gate_makes_the_tags_that_the_key_makes(south: South, way: str) -> None:
    key = south.with_key().of(NAME)
    expected = added([key.tags(whole()), key.pads("south", 2)], 2)
    assert np.array_equal(south.part(way=way), expected)


def test_of_a_sum_with_tags_one_update_leaves_as_it_is_and_no_two_do(south: South) -> None:
    south.with_key()
    south.gate.pass_update("south", 0, UPDATE)
    terms = [("south", 1.0), ("south", 1.0)]
    with pytest.raises(PolicyError, match="several updates leave as they are"):
        south.gate.begin_part("updates", 0, terms, EXPONENT, NAME)


def test_what_it_has_drawn_itself_the_others_open(south: South) -> None:
    meeting, others = south.met()
    boxes = meeting.draw()
    assert sorted(boxes) == [1, 3]  # not for the server
    for rank in (1, 3):
        others[rank].open(2, boxes[rank])
    north, west = others[1].tags, others[3].tags
    assert north is not None and west is not None and north.key == west.key
    assert np.array_equal(south.part(), added([north.of(NAME).tags(whole()), north.of(NAME).pads("south", 2)], 2))
    with pytest.raises(TrustError, match="have agreed on a key before"):
        meeting.draw()


def test_it_says_which_leaves_of_a_sum_are_wrong_and_no_tag(south: South) -> None:
    north = south.with_key()
    key, tags = north.of(NAME), south.part()
    more = np.arange(SIZE, dtype=np.int64)
    total, whole_tags = whole() + more, added([tags, key.tags(more), key.pads("north", 2)], 2)
    look = south.meeting.tags.wrong
    assert look(NAME, ["south", "north"], 2, total, whole_tags, None) == (0, 0)
    assert look(NAME, ["south", "north"], 2, total[LEAF:], whole_tags[1:], [1]) == (0, 0)
    total[LEAF] += 1
    for side in (south.meeting.tags, north):
        assert side.wrong(NAME, ["south", "north"], 2, total, whole_tags, None) == (1, 1)
        assert side.wrong(NAME, ["south"], 2, total, whole_tags, None) == (2, 0)
        assert side.wrong(NAME, ["south", "north"], 2, total[LEAF:], whole_tags[1:], [1]) == (1, 1)
    total[LEAF] += P - 1
    with pytest.raises(TrustError, match="could not be told from others"):
        look(NAME, ["south", "north"], 2, total, whole_tags, None)


def test_no_pad_is_on_two_parts(south: South) -> None:
    """Their difference would tell the server something of the factors."""
    south.with_key()
    south.part()
    with pytest.raises(PolicyError, match="the tags of one part in an exchange"):
        south.part()


@pytest.mark.parametrize("change", ["a word of somebody else", "not signed", "of another meeting", "without this one"])
def test_words_that_their_parties_have_not_signed_get_no_key(change: str, south: South) -> None:
    """Else the training process could name a key of the server's for another silo, and the gate would seal for it."""
    words = {2: south.meeting.word, **{rank: other.word for rank, other in south.others().items()}}
    text, signed = south.agreed(words)
    if change == "a word of somebody else":
        text = south.agreed({**words, 3: new_pair().public.hex()})[0]
    elif change == "not signed":
        del signed[3]
    elif change == "of another meeting":
        text, signed = south.agreed({**words, 2: new_pair().public.hex()})
    else:
        text, signed = south.agreed({rank: word for rank, word in words.items() if rank != 2})
    with pytest.raises(TrustError, match="has not signed the words|are of another meeting"):
        south.meeting.agree(text, SCOPE, signed)
    assert south.meeting.draw() == {}
    with pytest.raises(PreflightError, match="no silo of this meeting has sealed it"):
        south.gate.meet().open(1, "00")


def test_a_box_of_the_servers_is_none(south: South) -> None:
    meeting, others = south.met()
    with pytest.raises(PreflightError, match="no silo of this meeting has sealed it"):
        meeting.open(0, others[0].draw()[2])
    with pytest.raises(PreflightError, match="was not sealed for this party"):
        meeting.open(1, others[3].draw()[2])


def test_leaves_are_drawn_once_the_server_has_signed_and_of_one_record(south: South) -> None:
    north, record = south.with_key(), south.record()
    drawn = south.meeting.tags.drawn
    assert drawn(record, 100, 0.1) == north.drawn(record, 100, 0.1) == drawn(record, 100, 0.1)
    with pytest.raises(TrustError, match="two records of one exchange"):
        drawn(south.record(sum="another"), 100, 0.1)
    assert drawn(south.record(round=1), 100, 0.1)
    forged = Signed.by(south.keys[2], "record", "hub", {"run": "r", "round": 2, "attempt": "a"})
    for other in (forged, replace(record, text=record.text.replace('"a"', '"b"'))):
        with pytest.raises(PolicyError, match="for a record that the server has signed"):
            drawn(other, 100, 0.1)


def test_without_a_key_there_are_no_tags(south: South) -> None:
    south.met()
    with pytest.raises(PolicyError, match="has no key of tags yet"):
        south.part()


def test_the_key_is_kept_for_verify(south: South) -> None:
    north = south.with_key()
    files = KeptFiles(south.folder / "trust" / "south")
    south.meeting.tags.keep(files)
    assert files.key(north.meeting) == north.key
