"""Messages of numbers as bytes: a checked fixed-size header and a JSON payload. No text, no objects."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash
from torch import Tensor

from fedtorch.core.errors import PreflightError
from fedtorch.core.update import SCALARS, Report

Number = int | float

NO_CLIENT = -1  # `Packet.client` of a message about a rank or the whole federation
KINDS = ("report", "score", "decision", "numbers")
MAX_BYTES = 16 << 20  # of one message's payload

_MAGIC, _VERSION = b"FTMS", 1
_HEADER = struct.Struct("<4sBBxxqQiQQ")  # magic, version, kind, round, sequence, client, payload length, checksum
KEY = re.compile(r"[a-z][a-z0-9_./@-]{0,95}")  # of a number or list in a message
_STATUS = re.compile(r"[A-Za-z][A-Za-z0-9_:]{0,63}")
_EXTRA = "x."  # before the names of Report.extra, which could otherwise equal a field's


@dataclass(frozen=True)
class Packet:
    """Numbers that one client (or a rank) sends."""

    client: int
    """Index in the manifest; `NO_CLIENT` for a rank or the whole federation."""
    kind: str
    """One of `KINDS`."""
    status: str = "ok"
    """A word, e.g. `ok` or `failed:ValueError`."""
    numbers: dict[str, Number] = field(default_factory=dict)
    """Floats (NaN and infinities included) and integers of 64 bits; for the keys see `KEY`."""
    lists: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Of floats; for the keys see `KEY`."""


_DIGITS = 8


def as_numbers(digits: str) -> tuple[float, ...]:
    """Numbers of 32 bits for hexadecimal digits, eight for each: a digest or a signature, for a list of a message."""
    return tuple(float(int(digits[at : at + _DIGITS], 16)) for at in range(0, len(digits), _DIGITS))


def as_digits(numbers: Sequence[float]) -> str:
    """Turn such numbers back into digits."""
    return "".join(f"{int(number):0{_DIGITS}x}" for number in numbers)


def encode(message: Packet, *, round: int, sequence: int) -> bytes:
    """The bytes of `message`; floats are written so that they come back exactly.

    NaN and infinities are spelled `NaN`, `Infinity`, `-Infinity` as Python's JSON does.

    Raises:
        ValueError: the message breaks the rules of `Packet` (only a bug here or in an algorithm can do that).
    """
    if message.kind not in KINDS:
        raise ValueError(f"message kind {message.kind!r} is unknown; expected one of {', '.join(KINDS)}")
    lists = {key: list(values) for key, values in message.lists.items()}
    content = {"status": message.status, "numbers": message.numbers, "lists": lists}
    if problem := _problem(content):
        raise ValueError(f"{message.kind} message of client {message.client}: {problem}")
    content["lists"] = {key: list(map(float, values)) for key, values in lists.items()}
    payload = json.dumps(content, separators=(",", ":")).encode()
    if len(payload) > MAX_BYTES:
        raise ValueError(f"{message.kind} message of client {message.client} has {len(payload)} > {MAX_BYTES} bytes")
    return _head(KINDS.index(message.kind), round, sequence, message.client, payload) + payload


def decode(data: bytes, *, round: int, sequence: int, num_clients: int, max_bytes: int = MAX_BYTES) -> Packet:
    """The one message in `data`, which must have been encoded for this round and sequence number.

    Checked before anything is parsed: type, length, magic, version, round, sequence, client, checksum.

    Raises:
        PreflightError: anything is wrong with `data`; names what was found and what was expected.
    """
    message, end = _decode_at(data, 0, round, sequence, num_clients, max_bytes)
    if end != len(data):
        raise PreflightError(f"a message of {end} bytes is followed by {len(data) - end} bytes; expected its end")
    return message


def decode_all(data: bytes, *, round: int, sequence: int, num_clients: int, max_bytes: int = MAX_BYTES) -> list[Packet]:
    """The messages that lie end to end in `data`; as strict as `decode`, `max_bytes` is per message."""
    messages, start = [], 0
    while start < len(data):
        message, start = _decode_at(data, start, round, sequence, num_clients, max_bytes)
        messages.append(message)
    return messages


def _decode_at(
    data: bytes, start: int, round: int, sequence: int, num_clients: int, max_bytes: int
) -> tuple[Packet, int]:
    if not isinstance(data, bytes):
        raise PreflightError(f"a message is {type(data).__name__}; expected bytes")
    if len(data) - start < _HEADER.size:
        raise PreflightError(f"a message has {len(data) - start} bytes; expected at least {_HEADER.size}")
    magic, version, kind, its_round, its_sequence, client, length, _ = _HEADER.unpack_from(data, start)
    sender = f"a message of client {client}"
    if (magic, version) != (_MAGIC, _VERSION):
        raise PreflightError(f"a message starts with {magic!r} version {version}; expected {_MAGIC!r} {_VERSION}")
    if (its_round, its_sequence) != (round, sequence):
        raise PreflightError(
            f"{sender} is for round {its_round}, sequence {its_sequence}; this rank is at round {round}, "
            f"sequence {sequence}: the ranks do not run the same steps"
        )
    if kind >= len(KINDS):
        raise PreflightError(f"{sender} is of kind {kind}; expected 0 to {len(KINDS) - 1}")
    if not NO_CLIENT <= client < num_clients:
        raise PreflightError(f"{sender} came; expected clients 0 to {num_clients - 1}")
    body = start + _HEADER.size
    if length > max_bytes:
        raise PreflightError(f"{sender} announces {length} bytes; the limit is {max_bytes}")
    if length > len(data) - body:
        raise PreflightError(f"{sender} announces {length} bytes; {len(data) - body} came")
    payload = data[body : body + length]
    if _head(kind, its_round, its_sequence, client, payload) != data[start:body]:
        raise PreflightError(f"{sender} has a wrong checksum: it was damaged on the way")
    content = _parse(payload, sender)
    lists = {key: tuple(map(float, values)) for key, values in content["lists"].items()}
    return Packet(client, KINDS[kind], content["status"], content["numbers"], lists), body + length


def read_any(data: bytes, num_clients: int) -> list[Packet]:
    """The messages that lie end to end in `data`, of whatever round and meeting, for who looks at them on their way.

    Raises:
        PreflightError: there is anything else in it, or one is not written as `encode` writes it.
    """
    messages, start = [], 0
    while start < len(data):
        if len(data) - start < _HEADER.size:
            raise PreflightError(f"{len(data) - start} bytes follow the last message; expected none")
        _, _, _, round, sequence, *_ = _HEADER.unpack_from(data, start)
        message, end = _decode_at(data, start, round, sequence, num_clients, MAX_BYTES)
        if encode(message, round=round, sequence=sequence) != data[start:end]:
            raise PreflightError(f"a message of client {message.client} is not written as this package writes it")
        messages.append(message)
        start = end
    return messages


def to_tensor(data: bytes) -> Tensor:
    """The bytes as a tensor of its own."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)


def bounded(num_bytes: int, rank: int) -> int:
    """A length that another rank announced, if memory for it may be taken."""
    limit = 16 * MAX_BYTES
    if not 0 <= num_bytes <= limit:
        raise PreflightError(f"rank {rank} announces {num_bytes} bytes of messages; the limit is {limit}")
    return num_bytes


def _head(kind: int, round: int, sequence: int, client: int, payload: bytes) -> bytes:
    """The header; its checksum covers the header's other fields too."""
    fixed = (_MAGIC, _VERSION, kind, round, sequence, client, len(payload))
    return _HEADER.pack(*fixed, xxhash.xxh3_64_intdigest(_HEADER.pack(*fixed, 0) + payload))


def _parse(payload: bytes, sender: str) -> dict[str, Any]:
    try:
        content = json.loads(payload.decode("utf-8"), object_pairs_hook=_distinct, parse_int=_bounded_int)
    except (ValueError, RecursionError) as error:
        raise PreflightError(f"{sender} is not valid JSON of numbers ({type(error).__name__})") from None
    if problem := _problem(content):
        raise PreflightError(f"{sender}: {problem}")
    return content


def _problem(content: Any) -> str:
    """Say what is wrong with a payload; empty if nothing is. At most 80 characters of its text are quoted."""
    if not isinstance(content, dict) or set(content) != {"status", "numbers", "lists"}:
        return "expected exactly `status`, `numbers` and `lists`"
    status, numbers, lists = content["status"], content["numbers"], content["lists"]
    if not isinstance(status, str) or not _STATUS.fullmatch(status):
        return f"status {status!r:.80} does not match {_STATUS.pattern}"
    if not isinstance(numbers, dict) or not isinstance(lists, dict):
        return "`numbers` and `lists` must be objects"
    for key in (*numbers, *lists):
        if not isinstance(key, str) or not KEY.fullmatch(key):
            return f"key {key!r:.80} does not match {KEY.pattern}"
    for key, value in numbers.items():
        if not _is_number(value):
            return f"`{key}` is {value!r:.80}; expected a float, or an integer of 64 bits"
    for key, values in lists.items():
        if not isinstance(values, list) or not all(map(_is_number, values)):
            return f"`{key}` is not a list of numbers"
    return ""


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return True
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63


def _bounded_int(text: str) -> int:
    if len(text) > 20:  # a sign and 19 digits; longer ones would be converted at quadratic cost
        raise ValueError("integer of more than 64 bits")
    return int(text)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key occurs twice")
    return content


def report_problem(report: Report) -> str:
    """Why this report cannot travel, such as a name in `extra` that is not allowed; empty if it can."""
    message = report_to_packet(report, 0)
    lists = {key: list(values) for key, values in message.lists.items()}
    return _problem({"status": message.status, "numbers": message.numbers, "lists": lists})


def report_to_packet(report: Report, index: int) -> Packet:
    """The report of the client with this place in the manifest; `packet_to_report` gives back all but `draws`."""
    numbers: dict[str, Number] = {name: getattr(report, name) for name in SCALARS}
    numbers |= {_EXTRA + name: value for name, value in report.extra.items()}
    return Packet(index, "report", report.status, numbers, {"curve": report.curve})


def packet_to_report(message: Packet, names: Sequence[str]) -> Report:
    """The report in `message`; `names` are the clients in manifest order.

    Raises:
        PreflightError: the message is not a report, or its fields are not those of Report.
    """
    scalars = {key: value for key, value in message.numbers.items() if not key.startswith(_EXTRA)}
    extra = {key[len(_EXTRA) :]: value for key, value in message.numbers.items() if key.startswith(_EXTRA)}
    is_complete = scalars.keys() == set(SCALARS) and message.lists.keys() == {"curve"}
    if message.kind != "report" or not 0 <= message.client < len(names) or not is_complete:
        raise PreflightError(
            f"a {message.kind} message of client {message.client} has fields {sorted(scalars)} and lists "
            f"{sorted(message.lists)}; expected a report of one of {len(names)} clients with {sorted(SCALARS)}"
        )
    values: dict[str, Any] = dict(scalars)
    values |= {"curve": message.lists["curve"], "extra": extra}
    return Report(names[message.client], message.status, **values)
