"""Bytes from elsewhere: everything valid comes back exactly, everything else is a PreflightError."""

from __future__ import annotations

import json
import math
import struct
import tracemalloc

import pytest
from fuzzing import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtorch.comm.wire import KINDS, NO_CLIENT, Packet, decode, decode_all, encode, packet_to_report, report_to_packet
from fedtorch.core.errors import PreflightError
from fedtorch.core.update import Report

CLIENTS, ROUND, SEQUENCE = 5, 7, 42
HEADER_BYTES = struct.calcsize("<4sBBxxqQiQQ")

keys = st.from_regex(r"[a-z][a-z0-9_./@-]{0,20}", fullmatch=True)
floats = st.floats(allow_nan=True, allow_infinity=True)
messages = st.builds(
    Packet,
    client=st.integers(NO_CLIENT, CLIENTS - 1),
    kind=st.sampled_from(KINDS),
    status=st.from_regex(r"[A-Za-z][A-Za-z0-9_:]{0,20}", fullmatch=True),
    numbers=st.dictionaries(keys, st.one_of(floats, st.integers(-(2**63), 2**63 - 1)), max_size=5),
    lists=st.dictionaries(keys, st.lists(floats, max_size=5).map(tuple), max_size=3),
)


def sent(message: Packet) -> bytes:
    return encode(message, round=ROUND, sequence=SEQUENCE)


def received(data: bytes, **changed: int) -> Packet:
    return decode(data, **{"round": ROUND, "sequence": SEQUENCE, "num_clients": CLIENTS, **changed})


@pytest.mark.long
@examples(40)
@given(messages)
def test_a_message_comes_back_exactly(message: Packet) -> None:
    found = received(sent(message))
    assert repr(found) == repr(message)  # repr: NaN equals NaN, 1 is not 1.0, −0.0 is not 0.0


@pytest.mark.long
@examples(30)
@given(st.lists(messages, max_size=5))
def test_messages_lie_end_to_end(several: list[Packet]) -> None:
    data = b"".join(map(sent, several))
    found = decode_all(data, round=ROUND, sequence=SEQUENCE, num_clients=CLIENTS)
    assert repr(found) == repr(several)


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(PreflightError):
        received(data)


@examples(40)
@given(messages, st.data())
def test_truncated_and_extended_messages_are_refused(message: Packet, data: st.DataObject) -> None:
    whole = sent(message)
    with pytest.raises(PreflightError):
        received(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(PreflightError):
        received(whole + data.draw(st.binary(min_size=1, max_size=60)))


@pytest.mark.long
@examples(100)
@given(messages, st.data())
def test_every_flipped_bit_is_noticed(message: Packet, data: st.DataObject) -> None:
    damaged = bytearray(sent(message))
    bit = data.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(PreflightError):
        received(bytes(damaged))


def test_the_longest_names_of_scores_travel() -> None:
    name = "received/blimp-determiner_noun_agreement_with_adj_irregular_1/acc"  # 65 characters
    lists = {name: (1.0, 2.0), "a" * 96: ()}
    assert received(sent(Packet(0, "score", lists=lists))).lists == lists


def test_wrong_round_sequence_and_client_name_both_sides() -> None:
    data = sent(Packet(3, "score"))
    with pytest.raises(PreflightError, match=r"client 3 is for round 7, sequence 42; this rank is at round 8"):
        received(data, round=8)
    with pytest.raises(PreflightError, match=r"sequence 42; this rank is at round 7, sequence 41"):
        received(data, sequence=41)
    with pytest.raises(PreflightError, match=r"client 3 came; expected clients 0 to 1"):
        received(data, num_clients=2)


@pytest.mark.parametrize("length", [2**24 + 1, 2**40, 2**63, 2**64 - 1])
def test_a_huge_length_allocates_nothing(length: int) -> None:
    data = bytearray(sent(Packet(3, "score")))
    struct.pack_into("<Q", data, HEADER_BYTES - 16, length)
    tracemalloc.start()
    with pytest.raises(PreflightError, match=f"announces {length} bytes; the limit is"):
        received(bytes(data))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_the_limit_is_configurable() -> None:
    data = sent(Packet(3, "score", numbers={"f1": 0.5}))
    with pytest.raises(PreflightError, match="the limit is 10"):
        received(data, max_bytes=10)


@pytest.mark.parametrize("data", [None, "text", bytearray(b"x"), 7])
def test_only_bytes_are_decoded(data: object) -> None:
    with pytest.raises(PreflightError, match="expected bytes"):
        received(data)  # type: ignore[arg-type]


def forged(payload: bytes) -> bytes:
    """A message whose header is right for any payload."""
    from fedtorch.comm import wire

    return wire._head(1, ROUND, SEQUENCE, 3, payload) + payload


@pytest.mark.parametrize(
    ("status", "numbers", "lists"),
    [
        ("two words", {}, {}),
        ("", {}, {}),
        ("x" * 65, {}, {}),
        (1, {}, {}),
        ("ok", {"a": True}, {}),
        ("ok", {"a": "text"}, {}),
        ("ok", {"a": None}, {}),
        ("ok", {"a": [1.0]}, {}),
        ("ok", {"a": 2**63}, {}),
        ("ok", {"A": 1.0}, {}),
        ("ok", {"": 1.0}, {}),
        ("ok", {"a" * 97: 1.0}, {}),
        ("ok", {"a\n": 1.0}, {}),
        ("ok", {}, {"a": 1.0}),
        ("ok", {}, {"a": ["1.0"]}),
        ("ok", {}, {"a": [False]}),
        ("ok", {}, {"a": [[1.0]]}),
        ("ok", [], {}),
        ("ok", {}, None),
    ],
)
def test_content_other_than_numbers_is_refused_on_both_sides(status: object, numbers: object, lists: object) -> None:
    payload = json.dumps({"status": status, "numbers": numbers, "lists": lists}).encode()
    with pytest.raises(PreflightError, match="client 3"):
        received(forged(payload))
    if isinstance(numbers, dict) and isinstance(lists, dict) and all(isinstance(v, list) for v in lists.values()):
        with pytest.raises(ValueError, match="client 3"):
            sent(Packet(3, "score", status, numbers, lists))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b"1" * 10_000,
        b'{"status":"ok","numbers":{"a":1,"a":2},"lists":{}}',
        b'{"status":"ok","numbers":{"a":' + b"9" * 5000 + b'},"lists":{}}',
        b'{"status":"ok","numbers":{}}',
        b'{"status":"ok","numbers":{},"lists":{},"text":"secret"}',
    ],
)
def test_json_of_another_shape_is_refused(payload: bytes) -> None:
    with pytest.raises(PreflightError):
        received(forged(payload))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="kind 'gossip' is unknown"):
        sent(Packet(3, "gossip"))


reports = st.builds(
    Report,
    client=st.sampled_from(["atis", "größe", "a b/c"]),
    status=st.sampled_from(["ok", "failed:OutOfMemoryError"]),
    examples=st.integers(0, 10**9),
    steps=st.integers(0, 10**6),
    loss_max=floats,
    loss_mean=floats,
    norm=floats,
    max_abs=floats,
    seconds=st.floats(0, 1e6),
    curve=st.lists(floats, max_size=20).map(tuple),
    extra=st.dictionaries(st.sampled_from(["loss_reduction", "norm", "x.y", "kl"]), floats | st.integers(-9, 9)),
)


@given(reports)
def test_a_report_comes_back_exactly(report: Report) -> None:
    names = ["atis", "größe", "a b/c"]
    message = report_to_packet(report, names.index(report.client))
    assert repr(packet_to_report(received(sent(message)), names)) == repr(report)
    assert "größe".encode() not in sent(message)  # a name is not a number


@pytest.mark.parametrize(
    "message",
    [
        Packet(0, "score", numbers=report_to_packet(Report("a"), 0).numbers, lists={"curve": ()}),
        Packet(0, "report", numbers={"examples": 1}, lists={"curve": ()}),
        Packet(0, "report", numbers={**report_to_packet(Report("a"), 0).numbers, "more": 1}, lists={"curve": ()}),
        Packet(0, "report", numbers=report_to_packet(Report("a"), 0).numbers),
        Packet(NO_CLIENT, "report", numbers=report_to_packet(Report("a"), 0).numbers, lists={"curve": ()}),
        Packet(1, "report", numbers=report_to_packet(Report("a"), 0).numbers, lists={"curve": ()}),
    ],
)
def test_what_is_not_a_report_is_refused(message: Packet) -> None:
    with pytest.raises(PreflightError, match="expected a report"):
        packet_to_report(message, ["a"])


def test_special_values_survive() -> None:
    values = {"nan": math.nan, "inf": math.inf, "minus-inf": -math.inf, "tiny": 5e-324, "minus-zero": -0.0}
    assert repr(received(sent(Packet(0, "score", numbers=dict(values)))).numbers) == repr(values)
