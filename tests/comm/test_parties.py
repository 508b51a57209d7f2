"""Parties with keys of their own: nobody writes in another one's name, and all sign what they agree on."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedtorch.comm.job.oaths import Oath
from fedtorch.comm.job.parties import Identity, PartySignature, signature_of
from fedtorch.comm.job.rendezvous import Rendezvous
from fedtorch.comm.job.signing import Signature
from fedtorch.comm.job.store import Store
from fedtorch.comm.job.transcript import Transcript, nonces_in
from fedtorch.comm.sums.masked import Notes
from fedtorch.core.errors import ForgedNoteError, PreflightError, TrustError
from fedtorch.privacy.secure_sum.keys import pair_of
from fedtorch.privacy.secure_sum.party import PublicKeys
from fedtorch.privacy.secure_sum.terms import BrokenProtocolError
from fedtorch.trust.keys import PrivateKey
from fedtorch.trust.members import Member, Members
from fedtorch.trust.silo_tags import OwnMeeting

pytest.importorskip("cryptography")

PARTIES = {0: "hub", 1: "north", 2: "south"}
KEYS = {name: PrivateKey(Path(name), hashlib.sha256(name.encode()).digest()) for name in (*PARTIES.values(), "thief")}
MEMBERS = Members(
    Path("members.yaml"),
    "test",
    tuple(Member(name, "silo" if rank else "server", KEYS[name].public) for rank, name in PARTIES.items()),
    frozenset(),
    "0" * 64,
)
PUBLIC = {rank: KEYS[name].public for rank, name in PARTIES.items()}
FACTS = {"config": "abc", "seed": "0"}


def signer(name: str, scope: str = "job/0", members: Members = MEMBERS) -> PartySignature:
    found = signature_of(Identity(KEYS[name], members, PARTIES), scope)
    assert isinstance(found, PartySignature)
    return found


def test_a_note_is_read_as_its_writers_alone() -> None:
    hub, north, south = map(signer, PARTIES.values())
    text = north.sign("heartbeat/1", "here")
    assert hub.check("heartbeat/1", text, 1) == south.check("heartbeat/1", text, 1) == "here"
    assert south.check("heartbeat/1", text, None) == "here"
    for reader, key, written, by in [
        (hub, "heartbeat/2", north.sign("heartbeat/2", "here"), 2),  # in south's name
        (south, "verdict", north.sign("verdict", "stop"), 0),  # in the server's
        (hub, "heartbeat/1", signer("thief").sign("heartbeat/1", "here"), 1),
        (hub, "heartbeat/1", text.replace("here", "gone"), 1),
        (hub, "heartbeat/3", text, 1),
        (signer("hub", "job/1"), "heartbeat/1", text, 1),
        (signer("hub", members=replace(MEMBERS, federation="other")), "heartbeat/1", text, 1),
        (hub, "heartbeat/1", "here", 1),
        (hub, "heartbeat/1", "z" * 128 + " here", 1),
        (hub, "heartbeat/1", "", None),
        (hub, "heartbeat/7", text, 7),
    ]:
        with pytest.raises(ForgedNoteError, match=f"`{key}` was not signed by"):
            reader.check(key, written, by)


def test_with_one_secret_a_silo_can_write_in_another_ones_name() -> None:
    """What keys of their own change."""
    common = Signature("0123456789abcdef", "job/0")
    assert common.check("heartbeat/2", common.sign("heartbeat/2", "written by north"), 2) == "written by north"


class Meeting:
    """Passes on what parties say, as the server does, or something else."""

    def __init__(self, change: Callable[[dict[str, str]], Any] = lambda signed: signed) -> None:
        self.change, self.mails = change, dict[int, bytes]()

    def barrier(self, phase: str, round: int, *, mail: bytes, answer: Callable[[Mapping[int, bytes]], bytes]) -> Any:
        return {}, json.dumps(self.change(json.loads(answer({**self.mails})))).encode()


def papers() -> dict[int, Transcript]:
    return {
        rank: Transcript(
            cast(Store, SimpleNamespace(bind=lambda _: None)),
            rank,
            signer(name),
            OwnMeeting("test", rank, PUBLIC, pair_of(bytes(31) + bytes([rank + 1]))),
        )
        for rank, name in PARTIES.items()
    }


def signed_by(paper: Transcript, meeting: Meeting, verdict: Mapping[str, Any], lost: tuple[int, ...] = ()) -> None:
    paper.sign(cast(Rendezvous, meeting), FACTS, verdict, lost)


def met(facts: Mapping[int, Mapping[str, str]], lost: tuple[int, ...] = ()) -> tuple[Meeting, dict[str, Any]]:
    """A meeting in which each party has signed what it was told, and the verdict of the server."""
    found = {rank: paper for rank, paper in papers().items() if rank not in lost}
    verdict = nonces_in({rank: paper.note for rank, paper in found.items()})
    meeting = Meeting()
    for rank, paper in found.items():
        agreed = paper.digest(facts[rank], verdict["nonces"])
        meeting.mails[rank] = paper.signature.sign(f"transcript/{rank}", agreed).encode()
    return meeting, verdict


def test_all_sign_the_same_and_notes_are_then_good_for_this_meeting_alone() -> None:
    meeting, verdict = met(dict.fromkeys(PARTIES, FACTS))
    scopes = set()
    for rank, paper in papers().items():
        store = object.__new__(Store)
        store.signature = paper.signature
        signed_by(replace(paper, store=store), meeting, verdict)
        assert isinstance(store.signature, PartySignature)
        scopes.add(store.signature.scope)
        with pytest.raises(ForgedNoteError):
            store.signature.check("keys", paper.signature.sign("keys", "of before"), rank)
    (scope,) = scopes
    assert scope.startswith("job/0/") and len(scope) == len("job/0/") + 64


def test_who_is_away_signs_nothing() -> None:
    meeting, verdict = met(dict.fromkeys(PARTIES, FACTS), lost=(1,))
    signed_by(papers()[2], meeting, verdict, lost=(1,))
    with pytest.raises(PreflightError, match="what all parties .hub, north, south. have drawn"):
        signed_by(papers()[2], meeting, verdict)


def test_a_server_that_tells_parties_different_things_is_found() -> None:
    meeting, verdict = met({0: FACTS, 1: {**FACTS, "config": "another"}, 2: FACTS})
    with pytest.raises(PreflightError, match="`north` has signed something else"):
        signed_by(papers()[2], meeting, verdict)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda signed: {r: t for r, t in signed.items() if r != "1"}, PreflightError, "no signature of `north`"),
        (lambda signed: {**signed, "1": signed["0"]}, ForgedNoteError, "not signed by `north`"),
        (lambda signed: {**signed, "1": 7}, PreflightError, "no signature of `north`"),
        (lambda signed: ["x"], PreflightError, "no signature of `hub`"),
    ],
)
def test_a_server_that_passes_on_something_else_is_found(
    change: Callable[[dict[str, str]], Any], error: type[Exception], said: str
) -> None:
    meeting, verdict = met(dict.fromkeys(PARTIES, FACTS))
    meeting.change = change
    with pytest.raises(error, match=said):
        signed_by(papers()[2], meeting, verdict)


def test_a_server_that_repeats_an_old_meeting_is_found() -> None:
    meeting, verdict = met(dict.fromkeys(PARTIES, FACTS))
    paper = replace(papers()[2], meeting=OwnMeeting("test", 2, PUBLIC))
    with pytest.raises(PreflightError, match="another word of this party than it has drawn"):
        signed_by(paper, meeting, verdict)
    for told in (None, {"0": "a"}, {**verdict["nonces"], "3": "x"}, {**verdict["nonces"], "1": 7}):
        with pytest.raises(PreflightError, match="does not say what all parties"):
            signed_by(papers()[2], meeting, {"nonces": told})


def notes_of(what: str, said: Mapping[int, Any]) -> Notes:
    """South's view of notes that the other parties have left and signed."""
    south, written = signer("south"), dict[str, str]()
    for rank, value in said.items():
        key = f"secure sum/1.1/{what}/{rank}"
        written[key] = signer(PARTIES[rank]).sign(key, json.dumps(value))

    def get_all(keys: Mapping[str, int]) -> list[str]:
        return [south.check(key, written[key], by) for key, by in keys.items()]

    found = object.__new__(Notes)
    store = SimpleNamespace(signature=south, get_all=get_all, signed_texts=lambda keys: [written[key] for key in keys])
    found.group, found.attempt = cast(Any, SimpleNamespace(store=store)), "1.1"
    return found


def test_a_server_cannot_name_other_keys_for_a_party_of_a_secure_sum() -> None:
    found = notes_of("keys", {rank: [f"{rank}" * 64, f"{rank}" * 64] for rank in (1, 2)})
    keys = {rank: PublicKeys(*(bytes.fromhex(f"{rank}" * 64),) * 2) for rank in (1, 2)}
    assert found.check_roster(keys).keys() == keys.keys()
    with pytest.raises(BrokenProtocolError, match="other keys for the party 1"):
        found.check_roster({**keys, 1: keys[2]})
    found.group.store.signature = Signature("0123456789abcdef", "")
    found.check_roster({**keys, 1: keys[2]})  # with one secret for all there is nothing to compare with


def test_a_server_cannot_name_different_survivors_to_parties_of_a_secure_sum() -> None:
    found = notes_of("survivors", {0: [0, 1, 2], 1: [0, 1], 2: [0, 1, 2]})
    found.check_survivors([0, 1, 2], [0, 1, 2], 2)
    for arrived, signed, threshold in (([0, 1, 2], [0, 1, 2], 3), ([0, 1], [0, 1, 2], 2), ([0, 1, 2], [0, 1], 2)):
        with pytest.raises(BrokenProtocolError, match="names different ones to others"):
            found.check_survivors(arrived, signed, threshold)


def sworn(texts: Mapping[int, str]) -> tuple[dict[int, Oath], bytes]:
    """Each party's side of a meeting, and what the server passes on with its answer."""
    oaths = {
        rank: Oath(signer(name), rank, "oath/gather/7", texts[rank], "the weights") for rank, name in PARTIES.items()
    }
    mails = oaths[0].taken_from({rank: oath.with_mail(b"mail\nof %d" % rank) for rank, oath in oaths.items()})
    assert mails == {rank: b"mail\nof %d" % rank for rank in PARTIES}
    return oaths, oaths[0].with_answer(b"answer\nof all")


def test_all_swear_to_the_same() -> None:
    oaths, answered = sworn(dict.fromkeys(PARTIES, "ab"))
    assert all(oath.checked(answered) == b"answer\nof all" for oath in oaths.values())


def test_a_party_that_got_something_else_is_found_by_all() -> None:
    oaths, answered = sworn({0: "ab", 1: "cd", 2: "ab"})
    for rank, named in ((0, "north"), (1, "hub"), (2, "north")):
        with pytest.raises(TrustError, match=f"`{named}` has signed another digest of the weights") as caught:
            oaths[rank].checked(answered)
        assert caught.value.exit_code == 11


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda signed: {"0": signed["0"], "2": signed["2"]}, "passes on nothing that `north` has signed"),
        (lambda signed: {**signed, "1": signed["0"]}, "passes on what `north` has not signed"),
        (lambda signed: {**signed, "1": signed["1"][:-2] + "ab"}, "passes on what `north` has not signed"),
        (lambda signed: 7, "passes on nothing that `hub` has signed"),
    ],
)
def test_a_server_cannot_say_what_others_have(change: Callable[[dict[str, str]], Any], said: str) -> None:
    """It has sent north other weights, and would hide it from south."""
    oaths, answered = sworn({0: "ab", 1: "cd", 2: "ab"})
    signed, _, answer = answered.partition(b"\n")
    forged = json.dumps(change(json.loads(signed))).encode() + b"\n" + answer
    with pytest.raises(TrustError, match=said):
        oaths[2].checked(forged)
    with pytest.raises(TrustError, match="passes on nothing that `hub` has signed"):
        oaths[2].checked(b"nothing")


def test_who_is_away_swears_nothing() -> None:
    oaths, answered = sworn({0: "ab", 1: "cd", 2: "ab"})
    assert oaths[2].checked(answered, away=[1]) == b"answer\nof all"


def test_an_oath_is_good_for_its_meeting_alone() -> None:
    oaths, _ = sworn(dict.fromkeys(PARTIES, "ab"))
    later = {rank: replace(oath, key="oath/gather/8", _signed={}) for rank, oath in oaths.items()}
    later[0].taken_from({rank: oaths[rank].with_mail(b"") for rank in PARTIES})
    with pytest.raises(TrustError, match="has not signed"):
        later[2].checked(later[0].with_answer(b""))


def test_a_copy_of_the_store_signs_as_before() -> None:
    store = object.__new__(Store)
    store.signature = signer("north")
    before = copy.copy(store)
    store.bind("ab")
    assert before.signature.scope == "job/0" and store.signature.scope == "job/0/ab"
