"""A silo's gate: what it signs, what it measures, and what it lets nobody sign."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtorch.comm.wire import NO_CLIENT, Packet, encode, read_any, report_to_packet
from fedtorch.core.errors import CheckpointError, FedtorchError, PolicyError, PreflightError, TrustError
from fedtorch.core.update import Report
from fedtorch.lifecycle.gate import Answers
from fedtorch.lifecycle.gate_mail import in_mail
from fedtorch.privacy.record.silo import Silo, Step
from fedtorch.trust.keys import PrivateKey, is_signed, new_key
from fedtorch.trust.merkle import LEAF, root
from fedtorch.trust.policy.asked import Asked
from fedtorch.trust.policy.decisions import Decisions
from fedtorch.trust.policy.file import read_policy
from fedtorch.trust.policy.gate import Gate, Side, norm
from fedtorch.trust.policy.notes import read_note
from fedtorch.trust.policy.remote import VARIABLE, GateKey, ask, serve
from fedtorch.trust.policy.spent import Spent
from fedtorch.trust.receipts import Signed

pytest.importorskip("cryptography")

pytestmark = pytest.mark.long

A, B = ("a" * 64, "b" * 64)
NAMES = ("north", "south", "west")
POLICY: dict[str, Any] = {
    "may_leave": {"parameters": ["score.*"], "reports": ["status", "steps"], "scores": False},
    "require": {"clip": 1.0},
    "limits": {"rounds": 3, "bytes_per_round": 2000, "between": ["20:00", "06:00"]},
    "initial": f"sha256:{A}",
}
ASKED = Asked((("score.weight", 80), ("score.bias", 20)), 1, ("status", "steps"), 3, 800, clip=1.0, clips_updates=True)
ASKED = replace(ASKED, initial=f"sha256:{A}")
SIDE = Side("test", "south", 2, ("south",), NAMES)
NIGHT = datetime(2026, 11, 28, 23, 0)
UPDATE = np.full(100, 0.05, dtype=np.float32)
Make = Callable[..., Gate]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    key = new_key(tmp_path / "south.key")

    def gate(policy: dict[str, Any] | None = None, asked: Asked = ASKED) -> Gate:
        (tmp_path / "policy.yaml").write_text(json.dumps({**POLICY, **(policy or {})}, indent=1))
        found = read_policy(tmp_path / "policy.yaml")
        return Gate(key, found, SIDE, asked, Decisions(tmp_path), in_mail, now=lambda: NIGHT)

    return gate


def note(key: str, value: str) -> bytes:
    return "\0".join(("test", "job/0/abc", key, value)).encode()


def gathering(round: int, number: int = 7) -> bytes:
    about = {"phase": "gather", "round": round, "then": "", "stop": False, "ok": True}
    return note(f"meeting{number}/2", json.dumps(about))


def mail(*packets: Packet, round: int = 0) -> bytes:
    return b"".join(encode(packet, round=round, sequence=9) for packet in packets)


def report(**changes: Any) -> Packet:
    return report_to_packet(Report("south", steps=4, **changes), 1)


def decisions(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "policy.jsonl").read_text().splitlines()]


def test_a_round_within_the_policy_passes_and_is_written_down(make: Make, tmp_path: Path) -> None:
    gate = make()
    gate.begin()
    for number in range(3):
        found = gate.pass_update("south", number, UPDATE)
        assert found == root(UPDATE.view(np.uint8), 4 * LEAF).hex()
        oath = note(f"oath/gather/{number}/2", A)
        signature = gate.sign(oath)
        assert is_signed(oath, signature, gate.key.public)
        sent = f"{signature.hex()} {A}".encode() + b"\n" + mail(report(), round=number)
        assert is_signed(gathering(number), gate.sign(gathering(number), sent), gate.key.public, sent)
    lines = decisions(tmp_path)
    assert [(each["at"], each["line"]) for each in lines] == [
        (f"round {number}", line) for number in range(3) for line in ("may_leave.parameters", "may_leave.reports")
    ]
    assert {each["verdict"] for each in lines} == {"allowed"} and all("root" in each for each in lines[::2])


def longer(gate: Gate) -> None:
    gate.pass_update("south", 0, UPDATE * 3)


def endless(gate: Gate) -> None:
    gate.pass_update("south", 0, np.where(UPDATE > 0, np.nan, UPDATE))


def of_another_length(gate: Gate) -> None:
    gate.pass_update("south", 0, UPDATE[:99])


def of_others(gate: Gate) -> None:
    gate.pass_update("north", 0, UPDATE)


def of_a_round_too_many(gate: Gate) -> None:
    gate.pass_update("south", 3, UPDATE)


def of_a_round_before(gate: Gate) -> None:
    gate.pass_update("south", 1, UPDATE)
    gate.pass_update("south", 0, UPDATE)


def by_day(gate: Gate) -> None:
    gate.now = lambda: datetime(2026, 11, 28, 6, 0)
    gate.pass_update("south", 0, UPDATE)


def much_mail(gate: Gate) -> None:
    gate.pass_update("south", 0, UPDATE)
    gate.sign(gathering(0), mail(*[report()] * 8))


def a_byte_too_much(gate: Gate) -> None:
    gate.policy = replace(gate.policy, limits=replace(gate.policy.limits, bytes_per_round=799 + len(mail(report()))))
    gate.pass_update("south", 0, UPDATE)
    gate.sign(gathering(0), mail(report()))


def of_other_weights(gate: Gate) -> None:
    gate.pass_update("south", 0, UPDATE)
    gate.sign(note("oath/gather/3/2", B))


def without_update(gate: Gate) -> None:
    gate.sign(gathering(0), mail(report()))


def of_an_earlier_update(gate: Gate) -> None:
    gate.pass_update("south", 0, UPDATE)
    gate.sign(gathering(1), mail(report()))


def said(**changes: Any) -> Callable[[Gate], None]:
    def send(gate: Gate) -> None:
        gate.pass_update("south", 0, UPDATE)
        gate.sign(gathering(0), mail(report(**changes)))

    return send


def sent(*packets: Packet) -> Callable[[Gate], None]:
    return lambda gate: gate.sign(gathering(0), mail(*packets)) and None


@pytest.mark.parametrize(
    ("leave", "line"),
    [
        (longer, "require.clip"),
        (endless, "require.clip"),
        (of_another_length, "may_leave.parameters"),
        (of_others, ""),
        (of_a_round_too_many, "limits.rounds"),
        (of_a_round_before, "limits.rounds"),
        (by_day, "limits.between"),
        (much_mail, "limits.bytes_per_round"),
        (a_byte_too_much, "limits.bytes_per_round"),
        (of_other_weights, "initial"),
        (without_update, "may_leave.parameters"),
        (of_an_earlier_update, "may_leave.parameters"),
        (said(examples=7), "may_leave.reports"),
        (said(loss_mean=1.5), "may_leave.reports"),
        (said(curve=(1.0, 0.5)), "may_leave.reports"),
        (said(norm=1.0), "may_leave.reports"),
        (said(seconds=3.0), "may_leave.reports"),
        (said(extra={"hidden": 1.0}), "may_leave.reports"),
        (sent(Packet(1, "score", lists={"accuracy": (3.0, 4.0)})), "may_leave.scores"),
        (sent(Packet(1, "numbers", lists={"accuracy": (1.0, 0.0, 1.0)})), ""),
        (sent(Packet(1, "numbers", numbers={"train/examples": 7})), "may_leave.reports"),
        (sent(Packet(1, "numbers", lists={"words": (1.0,) * 8})), "may_leave.reports"),
        (sent(Packet(NO_CLIENT, "numbers", numbers={"age": 80})), ""),
        (sent(Packet(NO_CLIENT, "numbers", lists={"word": (1.0, 2.0)})), ""),
        (sent(Packet(NO_CLIENT, "decision", numbers={"round": 1})), ""),
    ],
)
def test_each_line_that_can_be_measured_holds(
    leave: Callable[[Gate], None], line: str, make: Make, tmp_path: Path
) -> None:
    gate = make()
    gate.begin()
    with pytest.raises(PolicyError) as caught:
        leave(gate)
    where = gate.policy.where(line) if line else str(gate.policy.path)
    assert f"the gate lets nothing out: {where}: {line or 'no line of it'}: " in str(caught.value)
    assert caught.value.exit_code == 11
    last = decisions(tmp_path)[-1]
    assert (last["verdict"], last["line"]) == ("refused", line)
    for after in (lambda: gate.pass_update("south", 2, UPDATE), lambda: gate.sign(gathering(2))):
        with pytest.raises(PolicyError, match="something that comes after a refusal"):
            after()
    refusal = note("meeting8/2", json.dumps({"refuses": "south refuses by its policy", "code": 11}))
    assert is_signed(refusal, gate.sign(refusal), gate.key.public)


def test_places_of_a_parameter_that_is_not_allowed_are_zero(make: Make) -> None:
    asked = replace(ASKED, parameters=(("score.weight", 80), ("bert.bias", 20)), vectors=2)
    update = np.zeros(200, dtype=np.float64)
    update[:80] = update[100:180] = 0.01
    make(asked=asked).pass_update("south", 0, update)
    for place in (80, 99, 180, 199):
        update[place] = 1e-30
        with pytest.raises(PolicyError, match=r"may_leave.parameters: an update of a parameter that no pattern allows"):
            make(asked=asked).pass_update("south", 0, update)
        update[place] = 0.0


def test_a_norm_is_measured_only_where_the_clip_is_that_of_updates(make: Make) -> None:
    make(asked=replace(ASKED, clips_updates=False)).pass_update("south", 0, UPDATE * 3)
    make({"require": {}}).pass_update("south", 0, UPDATE * 3)
    exact = np.zeros(100, dtype=np.float64)
    exact[0] = 1.0
    make().pass_update("south", 0, exact)


def test_norms_of_long_vectors_are_those_of_numpy() -> None:
    vector = np.random.default_rng(0).normal(size=(1 << 20) + 3).astype(np.float32)
    assert norm(vector) == pytest.approx(float(np.linalg.norm(vector.astype(np.float64))), rel=1e-12)
    assert norm(vector[:0]) == 0.0


def test_declared_numbers_tell_nothing(make: Make) -> None:
    gate = make(asked=replace(ASKED, declared=(12,), figures=("noised_steps",)))
    gate.pass_update("south", 0, UPDATE)
    gate.sign(gathering(0), mail(report(examples=12, extra={"noised_steps": 4.0})))
    gate.sign(gathering(0), mail(Packet(1, "numbers", numbers={"train/examples": 12})))
    with pytest.raises(PolicyError, match="may_leave.reports: examples"):
        gate.sign(gathering(0), mail(report(examples=13)))


def test_a_client_that_failed_has_no_update(make: Make) -> None:
    gate = make()
    gate.sign(gathering(0), mail(replace(report(), status="failed:ValueError")))


def test_another_attempt_may_begin_with_an_earlier_round(make: Make) -> None:
    gate = make()
    gate.pass_update("south", 2, UPDATE)
    gate.sign(note("hello/2", "0" * 32))
    gate.pass_update("south", 1, UPDATE)


def test_a_run_that_a_line_refuses_is_not_begun(make: Make) -> None:
    gate = make(asked=replace(ASKED, rounds=4))
    with pytest.raises(PolicyError, match="limits.rounds: 4 rounds, of at most 3"):
        gate.begin()
    gate.sign(note("hello/2", "0" * 32))
    gate.sign(note("meeting0/2", json.dumps({"facts": {"config": "abc"}, "gpu": "", "nonce": "0" * 32})))
    with pytest.raises(PolicyError, match="after a refusal"):
        gate.pass_update("south", 0, UPDATE)


BEAT = {"phase": "train", "round": 1, "client": "south", "step": 3, "count": 9, "left": "", "failed": False}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hello/1", "0" * 32),  # in another one's name
        ("verdict/2", "stop"),
        ("links", "4000 " + "0" * 32),
        ("hello/2", "the first row of all"),
        ("bye/2", "a row"),
        ("knocks/2", "a row"),
        ("transcript/2", "a row"),
        ("oath/gather/1/2", "a row"),
        ("heartbeat/2", json.dumps({**BEAT, "row": "a row"})),
        ("heartbeat/2", json.dumps({**BEAT, "client": "a row"})),
        ("heartbeat/2", json.dumps({**BEAT, "phase": "a row; another"})),
        ("heartbeat/2", json.dumps({**BEAT, "step": 0.5})),
        ("heartbeat/2", json.dumps(BEAT).replace(", ", ",  ")),
        ("heartbeat/2", json.dumps(BEAT)[:-1]),
        ("meeting3/2", json.dumps({"phase": "gather", "round": 1, "then": "", "stop": False})),
        ("meeting3/2", json.dumps({"facts": {"config": 5}})),
        ("meeting3/2", json.dumps({"facts": {}, "row": "a row"})),
        ("meeting3/2", json.dumps({"refuses": "no", "code": "11"})),
        ("meeting3/2", "[]"),
        ("secure sum/0.1/boxes/2", "{}"),
        ("secure sum/0.1/keys/2", '["a row"]'),
        ("meeting3/2", json.dumps({"facts": {"config": "x" * (1 << 16)}})),
    ],
)
def test_notes_of_another_form_are_not_signed(key: str, value: str, make: Make) -> None:
    with pytest.raises(PolicyError, match="a note that no line of the policy knows"):
        make().sign(note(key, value))


def test_notes_that_silos_write_are_known() -> None:
    for key, value, kind in [
        ("hello/2", "0" * 32, "hello"),
        ("joined/abc0/2", "", "joined"),
        ("bye/2", "", "bye"),
        ("gone/2", "", "gone"),
        ("heard/2", "", "heard"),
        ("knock/2", "0" * 32, "knock"),
        ("knocks/2", "17", "knocks"),
        ("heartbeat/2", json.dumps(BEAT), "heartbeat"),
        ("heartbeat/2", json.dumps({**BEAT, "machine": "a b", "pid": 4, "started": "17"}), "heartbeat"),
        ("transcript/2", "0" * 64, "transcript"),
        ("secure sum/0.12/answer/2", '[{"1": "0xff"}, {}]', "sum"),
        ("nccl/failed", "rank 2", "nccl"),
    ]:
        found = read_note(key, value, rank=2, clients=("south",))
        assert found is not None and found.kind == kind


@pytest.mark.parametrize("text", [b"", b"\xff", b"\0\0\0", note("hello/2", "0" * 32).replace(b"test", b"west")])
def test_texts_that_are_no_note_of_this_federation_are_not_signed(text: bytes, make: Make) -> None:
    with pytest.raises(PolicyError):
        make().sign(text)


def test_mail_is_written_in_one_way_alone() -> None:
    whole = mail(report(), report(), round=3)
    assert [packet.kind for packet in read_any(whole, 3)] == ["report", "report"]
    for other in (whole + b"row", whole[:-1], b"row" + whole, whole.replace(b'"status":"ok"', b'"status" :"ok"')):
        with pytest.raises(PreflightError):
            read_any(other, 3)


def test_a_mail_that_no_silo_writes_is_refused(make: Make) -> None:
    for other in (b"a row", mail(report()) + b"a row"):
        gate = make()
        gate.pass_update("south", 0, UPDATE)
        with pytest.raises(PolicyError, match="no line of it: a mail that no silo writes"):
            gate.sign(gathering(0), other)
        assert gate.is_closed


def test_bytes_beside_a_note_that_has_none_are_refused(make: Make) -> None:
    for text in (note("hello/2", "0" * 32), note("meeting0/2", json.dumps({"facts": {}}))):
        with pytest.raises(PolicyError, match="bytes beside a note that has none"):
            make().sign(text, b"a row")


RECEIPT: dict[str, Any] = {"attempt": f"{A[:16]}.0.3", "own": {}, "round": 0, "sent": B, "weights": A}
COMMON = {"federation": "test", "members": A, "meeting": B, "run": A[:16]}


def signed(kind: str, **about: Any) -> bytes:
    return Signed.unsigned(kind, "south", {**COMMON, **about}).text.encode()


def test_counts_go_on_over_attempts_and_starts(make: Make, tmp_path: Path) -> None:
    """Three rounds may leave; a server that has one of them done again and again gets no fourth update."""
    limits = {"limits": {"rounds": 3, "bytes_per_round": 1700}}
    for scale in (1.0, 0.9):
        gate = make(limits)
        gate.begin()
        gate.pass_update("south", 0, UPDATE * np.float32(scale))
        gate.pass_update("south", 0, UPDATE * np.float32(scale))  # the same again
        gate.sign(note("hello/2", "0" * 32))  # another attempt
    gate = make(limits)
    gate.begin()
    with pytest.raises(PolicyError, match=r"limits\.bytes_per_round: more bytes"):  # 800 for each of three
        gate.pass_update("south", 0, UPDATE * np.float32(0.8))
    assert make(limits).spent == Spent()
    more = {"limits": {"rounds": 3}}
    gate = make(more)
    gate.begin()
    with pytest.raises(PolicyError, match=r"limits\.rounds: an update of a round that is too many"):
        gate.pass_update("south", 1, UPDATE)
        gate.pass_update("south", 2, UPDATE)
    gate = make(more)
    gate.begin(is_new=True)  # by whoever starts `join`
    for round in range(3):
        gate.pass_update("south", round, UPDATE)


def test_counts_that_cannot_be_read_let_nothing_out(make: Make, tmp_path: Path) -> None:
    (tmp_path / "policy.jsonl").write_text('{"at": "round 0", "verdict": "allowed"}\n')
    with pytest.raises(CheckpointError, match="says how much has left this site, and cannot be read"):
        make().begin()


def test_texts_about_a_round_are_signed_with_numbers_of_the_report_alone(make: Make) -> None:
    gate = make({"may_leave": {**POLICY["may_leave"], "reports": ["status", "steps", "examples", "losses"]}})
    gate.pass_update("south", 0, UPDATE)
    gate.sign(gathering(0), mail(report(examples=7, loss_mean=0.5)))
    gate.sent = B
    for own in ({}, {"south": [(7.0).hex(), (3.5).hex()]}, {"south": [(1.0).hex(), (0.0).hex()]}):
        text = signed("receipt", **{**RECEIPT, "own": own})
        assert is_signed(text, gate.sign(text), gate.key.public)
    text = signed("acknowledgement", record=A)
    assert is_signed(text, gate.sign(text), gate.key.public)
    with pytest.raises(PolicyError, match="a receipt of another round"):
        gate.sign(signed("receipt", **{**RECEIPT, "round": 1}))


@pytest.mark.parametrize(
    "text",
    [
        signed("receipt", **{**RECEIPT, "own": {"south": [(0.123).hex()]}}),
        signed("receipt", **{**RECEIPT, "own": {"south": ["a row"]}}),
        signed("receipt", **{**RECEIPT, "sent": "a row"}),
        signed("receipt", **{**RECEIPT, "row": "a row"}),
        signed("receipt", **{**RECEIPT, "round": "0"}),
        signed("record", record=A),
        signed("acknowledgement", record=A, round=0),
        signed("acknowledgement", record=A, federation="west"),
        signed("acknowledgement", record=A).replace(b"south", b"north"),
        signed("acknowledgement", record=A).replace(b",", b", "),
        b"{}",
        b"{",
    ],
)
def test_texts_of_another_form_are_not_signed(text: bytes, make: Make) -> None:
    gate = make()
    gate.sent = B
    with pytest.raises(PolicyError, match="a note that no line of the policy knows"):
        gate.sign(text)


def test_sealed_keys_go_to_the_other_silos_and_nothing_beside_them(make: Make) -> None:
    meeting, gate = gathering(0).replace(b'"gather"', b'"key of tags"'), make()
    gate.sign(meeting, b"{}")
    gate.meet()
    assert gate.tags is not None
    gate.tags.boxes = json.dumps({"1": "ab" * 60, "3": "cd" * 60}).encode()
    gate.sign(meeting, gate.tags.boxes)
    for other in (b'{"1": "a row"}', json.dumps({"1": "ab" * 60}).encode()):
        with pytest.raises(PolicyError, match="a mail that no silo writes"):
            gate.sign(meeting, other)
        gate.is_closed = False


@pytest.mark.parametrize("numbers", [{"words": (5.0,) * 8}, {"words": (5.0,) * 16}, {"leaves": (0.0,)}])
def test_digests_of_the_chain_and_places_of_leaves_need_no_line(numbers: dict[str, Any], make: Make) -> None:
    make().sign(gathering(0), mail(Packet(NO_CLIENT, "numbers", numbers={"rank": 2}, lists=numbers)))


@pytest.mark.parametrize(
    "numbers", [{"words": (5.0,) * 9}, {"words": (0.5,) * 8}, {"words": (2.0**32,) * 8}, {"leaves": (1.0,)}]
)
def test_other_numbers_about_no_client_are_refused(numbers: dict[str, Any], make: Make) -> None:
    with pytest.raises(PolicyError, match="a number about no client"):
        make().sign(gathering(0), mail(Packet(NO_CLIENT, "numbers", lists=numbers)))


# --- over the socket


@pytest.fixture
def answers(tmp_path: Path, make: Make) -> Answers:
    return Answers(make().policy)


@pytest.fixture
def connection(answers: Answers) -> Iterator[socket.socket]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    thread = threading.Thread(target=serve, args=(there, answers))
    thread.start()
    yield here
    here.close()
    thread.join(10)
    there.close()
    assert not thread.is_alive()


def begun(connection: socket.socket, tmp_path: Path) -> GateKey:
    ask(connection, {"ask": "key", "path": str(tmp_path / "south.key")})
    about = {"side": asdict(SIDE), "asked": asdict(ASKED), "folder": str(tmp_path), "is_new": False}
    assert ask(connection, {"ask": "begin", **about})["is_refused"] is False
    found = GateKey.of({VARIABLE: str(connection.fileno())})
    assert found is not None
    return found


def noised(tmp_path: Path, exponent: int = 20) -> Asked:
    about = ("south", str(tmp_path / "silos" / "south"), "normal", exponent, (tuple(WHOLE),))
    return replace(ASKED, clip=None, clips_updates=False, noise=(about,))


def counted(tmp_path: Path) -> Asked:
    """Two rounds: in the first 98 cells and one further, beside a number that is public; in the second some of them."""
    rounds = (((0, 1, 0.0), (1, 99, 2.0**19), (99, 100, 2.0**20)), ((0, 1, 0.0), (1, 50, 2.0**19)))
    about = ("south", str(tmp_path / "silos" / "south"), "normal", 20, rounds)
    return replace(noised(tmp_path), noise=(about,))


UNSAFE = {"require": {}, "limits": {}, "may_leave": {**POLICY["may_leave"], "parameters": ["*"]}}
STEP = Step("south", 0, "train", 0, 0, "ab" * 32)
WHOLE = [(0, 100, 2.0**19)]


def test_a_gate_adds_the_noise_that_the_training_process_would_have_added(make: Make, tmp_path: Path) -> None:
    gate = make(UNSAFE, noised(tmp_path))
    gate.begin()
    total = np.round(np.linspace(-1e6, 1e6, 100))
    mine = total.copy()
    digest = gate.add_noise(STEP, mine, WHOLE)
    silo = Silo.open(tmp_path / "silos" / "south", "")
    others = total.copy()
    assert silo.add_noise(STEP, others, "normal", WHOLE) == digest and np.array_equal(mine, others)
    assert 0.5 < np.std(mine - total) / 2.0**19 < 1.5
    gate.pass_update("south", 0, mine * 2.0**-20)
    first, second = decisions(tmp_path)
    assert (first["line"], first["client"], first["noise"], first["deviation"]) == (
        "require.privacy",
        "south",
        "normal",
        0.5,
    )
    assert first["noised"] == second["root"]
    assert Spent.of(tmp_path).updates("south", second["root"], 0) == 1


def test_a_noise_that_is_chosen_among_many_counts_for_each(make: Make, tmp_path: Path) -> None:
    """A training process asks again with another sum, to send whichever of the parts it likes; a start brings none."""
    policy = {**UNSAFE, "limits": {"rounds": 3}}
    gate = make(policy, noised(tmp_path))
    gate.begin()
    total = np.zeros(100)
    for _ in range(3):  # after a restart the same training asks again, and gets the same
        mine = total.copy()
        gate.add_noise(STEP, mine, WHOLE)
    gate.add_noise(STEP, total + 1, WHOLE)
    gate = make(policy, noised(tmp_path))
    gate.begin()
    gate.add_noise(STEP, again := total.copy(), WHOLE)
    assert np.array_equal(again, mine)
    gate.add_noise(STEP, total + 2, WHOLE)
    another = total + 3
    with pytest.raises(PolicyError, match=r"limits.rounds: an update of a round that is too many"):
        gate.add_noise(STEP, another, WHOLE)
    assert np.array_equal(another, total + 3)  # nothing of the noise was shown


def test_one_noise_is_never_on_two_sums(make: Make, tmp_path: Path) -> None:
    """Whatever the training process says which step it is: else the difference of the two parts would have none."""
    gate = make(UNSAFE, noised(tmp_path))
    gate.begin()
    found = []
    for more in (0.0, 1.0):
        total = np.full(100, more)
        gate.add_noise(STEP, total, WHOLE)
        found.append(total - more)
    assert np.count_nonzero(found[0] == found[1]) < 5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda gate, total: None, "a part to which the gate has not added its noise"),
        (
            lambda gate, total: gate.add_noise(STEP, total.copy(), WHOLE),
            "a part to which the gate has not added its noise",
        ),
        (lambda gate, total: gate.add_noise(replace(STEP, round=1), total, WHOLE), "the gate has not added its noise"),
        (
            lambda gate, total: gate.add_noise(replace(STEP, client="north"), total, WHOLE),
            "noise that the run has not asked",
        ),
        (lambda gate, total: gate.add_noise(STEP, total + 0.5, WHOLE), "a sum that is not of whole numbers"),
        (lambda gate, total: gate.add_noise(STEP, total * 2.0**60, WHOLE), "a sum that is not of whole numbers"),
        (lambda gate, total: gate.add_noise(STEP, total * np.nan, WHOLE), "a sum that is not of whole numbers"),
        (lambda gate, total: gate.add_noise(STEP, total, []), "numbers to which no noise would be added"),
        (lambda gate, total: gate.add_noise(STEP, total, [(0, 100, 1.0)]), "numbers to which no noise would be added"),
        (lambda gate, total: gate.add_noise(STEP, total, WHOLE * 2), "numbers to which no noise would be added"),
    ],
)
def test_a_part_without_the_gates_noise_does_not_leave(
    change: Callable[[Gate, Any], Any], said: str, make: Make, tmp_path: Path
) -> None:
    gate = make(UNSAFE, noised(tmp_path))
    gate.begin()
    total = np.arange(100.0)
    with pytest.raises(PolicyError, match=f"require.privacy: .*{said}"):
        change(gate, total)
        gate.pass_update("south", 0, total * 2.0**-20)


ONE, FIRST, LAST = 2.0**20, (1, 99, 2.0**19), (99, 100, 2.0**20)


@pytest.mark.parametrize(("blocks", "filled"), [([FIRST, LAST], range(1, 100)), ([FIRST], range(1, 99)), ([], ())])
def test_of_counts_only_what_was_asked_for_has_noise(
    blocks: list[Any], filled: Sequence[int], make: Make, tmp_path: Path
) -> None:
    gate = make(UNSAFE, counted(tmp_path))
    gate.begin()
    total = np.zeros(100)
    for place in filled:
        total[place] = 3 * ONE
    total[0] = ONE
    before = total.copy()
    gate.add_noise(STEP, total, blocks)
    assert [*np.flatnonzero(total != before)] == [*filled]
    gate.pass_update("south", 0, total / ONE)


@pytest.mark.parametrize(
    ("round", "blocks", "bare"),
    [
        (0, [FIRST], {0: ONE, 99: ONE}),  # of a table that was not asked for
        (0, [FIRST, LAST], {0: 2 * ONE}),  # more than that the silo takes part
        (0, [FIRST, LAST], {0: 1.0}),
        (0, [(0, 1, 0.0), FIRST, LAST], {0: ONE}),
        (1, [FIRST], {0: ONE}),  # of another round
        (1, [(1, 50, 2.0**19)], {0: ONE, 60: ONE}),
        (0, [(1, 99, 2.0**18), LAST], {0: ONE}),  # less noise than was asked for
    ],
)
def test_a_count_without_its_noise_does_not_leave(
    round: int, blocks: list[Any], bare: dict[int, float], make: Make, tmp_path: Path
) -> None:
    gate = make(UNSAFE, counted(tmp_path))
    gate.begin()
    total = np.zeros(100)
    for place, number in bare.items():
        total[place] = number
    with pytest.raises(PolicyError, match=r"require.privacy: .*numbers to which no noise would be added"):
        gate.add_noise(replace(STEP, round=round), total, blocks)


def test_a_rank_signs_and_passes_updates_through_the_gate(
    connection: socket.socket, answers: Answers, tmp_path: Path
) -> None:
    key = begun(connection, tmp_path)
    assert answers.gate is not None
    answers.gate.now = lambda: NIGHT
    assert key.public == bytes.fromhex((tmp_path / "south.pub").read_text()) and key.path == tmp_path / "south.key"
    assert key.pass_update("south", 0, UPDATE) == root(UPDATE.view(np.uint8), 4 * LEAF).hex()
    said = mail(report())
    assert is_signed(gathering(0), key.sign(gathering(0), said), key.public, said)
    with pytest.raises(PolicyError, match="require.clip: an update that is longer"):
        key.pass_update("south", 0, UPDATE * 3)
    key.socket.close()


def test_questions_that_are_none_leave_the_gate_as_it_is(connection: socket.socket, tmp_path: Path) -> None:
    key = begun(connection, tmp_path)
    for question in (
        {"ask": "key", "path": "/etc/shadow"},
        {"ask": "begin", "side": {}, "asked": {}, "folder": ""},
        {"ask": "sign"},
        {"ask": "update", "client": "south", "round": 0, "dtype": "object"},
        {"ask": "update", "client": "south", "round": [], "dtype": "float32"},
        {},
    ):
        with pytest.raises(FedtorchError):
            ask(connection, question)
    connection.send(b"[]")
    connection.send(b"no json")
    assert ask(connection, {"ask": "who"})["public"] == key.public.hex()  # not the answers to those two
    key.socket.close()


def test_a_key_that_others_may_read_is_refused_by_the_gate_too(connection: socket.socket, tmp_path: Path) -> None:
    (tmp_path / "south.key").chmod(0o644)
    with pytest.raises(PreflightError, match="others than its owner may read"):
        ask(connection, {"ask": "key", "path": str(tmp_path / "south.key")})


def test_no_gate_is_none_and_a_wrong_number_is_an_error() -> None:
    assert GateKey.of({}) is None
    with pytest.raises(TrustError, match="leads to no gate"):
        GateKey.of({VARIABLE: "none"})


@pytest.mark.processes
def test_a_gate_that_was_killed_ends_its_side_clearly(make: Make, tmp_path: Path) -> None:
    make()
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "fedtorch.lifecycle.gate", "--policy", str(tmp_path / "policy.yaml")]
    process = subprocess.Popen([*command, "--socket", str(there.fileno())], pass_fds=[there.fileno()])
    there.close()
    key = begun(here, tmp_path)
    assert len(key.sign(note("hello/2", "0" * 32))) == 64
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    with pytest.raises(TrustError, match="this side's gate has ended .*; without it nothing leaves") as caught:
        key.sign(note("hello/2", "0" * 32))
    assert caught.value.exit_code == 11
    key.socket.close()
    here.close()


def test_a_policy_that_cannot_be_ends_the_gate_with_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fedtorch.lifecycle.gate import main

    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        assert main(["--policy", str(tmp_path / "none.yaml"), "--socket", str(os.dup(there.fileno()))]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_the_key_is_in_nothing_that_a_rank_gets(connection: socket.socket, tmp_path: Path) -> None:
    key, secret = begun(connection, tmp_path), (tmp_path / "south.key").read_text().strip()
    assert not isinstance(key, PrivateKey) and secret not in repr(vars(key))
    assert secret not in json.dumps(ask(connection, {"ask": "who"}))
    key.socket.close()
