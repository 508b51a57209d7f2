"""Names what is in a silo's mail, for its gate: each number of each message belongs to a kind that a policy allows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fedtorch.comm.wire import NO_CLIENT, Packet, read_any
from fedtorch.rounds.membership import STOP
from fedtorch.trust.merkle import leaves_in
from fedtorch.trust.policy.asked import Asked
from fedtorch.trust.policy.gate import Leaving
from fedtorch.trust.policy.kinds import EXAMPLE_SCORES, REPORTS, SCORES

_OF_START = {"rank", "word", "disk", "round", "clients", "other", "newest", "given_up"}
"""Numbers about a rank's disks and checkpoints, by which ranks begin together."""
_BY_FIELD = {name: kind.name for kind in REPORTS for name in kind.fields}
_EXTRA = "x."
_REPORTS = "may_leave.reports"
_SIZES = re.compile(r"[a-z0-9_.@-]+/(examples|characters|rows|positives|sha256|[a-z_]+)")
_WORDS = (8, 16)  # numbers of 32 bits in a digest, and in a signature
_STATE = re.compile("words|entry[0-9]{1,6}")


def in_mail(mail: bytes, asked: Asked, names: Sequence[str]) -> Iterator[Leaving]:
    """Everything in a mail that a policy has to allow. names: of all clients, by index.

    Raises:
        PreflightError: it is no mail of this package.
    """
    for message in read_any(mail, len(names)):
        yield from _in_message(message, asked, names)


def _in_message(message: Packet, asked: Asked, names: Sequence[str]) -> Iterator[Leaving]:
    if message.kind == "report" and message.client != NO_CLIENT:
        yield from _in_report(message, asked, names[message.client])
    elif message.kind == "score" and message.client != NO_CLIENT:
        yield Leaving(SCORES.line, SCORES.name)
    elif message.kind == "numbers":
        yield from _in_numbers(message, asked)
    elif message != Packet(NO_CLIENT, "decision", STOP):  # a wish to stop
        yield Leaving("", f"a message of the kind {message.kind}")


def _in_report(message: Packet, asked: Asked, name: str) -> Iterator[Leaving]:
    """Kinds of all fields that say something; `draws` does not travel."""
    numbers = tuple(map(float, message.numbers.values()))
    yield Leaving(_REPORTS, "status", name if message.status == "ok" and asked.parameters else "", numbers)
    if message.numbers.get("steps"):
        yield Leaving(_REPORTS, "steps")
    fields = {**message.numbers, **message.lists}
    for field, value in fields.items():
        if not value or field == "steps" or (field == "examples" and value in asked.declared):
            continue
        if field.startswith(_EXTRA):
            if field.removeprefix(_EXTRA) not in asked.figures:
                yield Leaving(_REPORTS, "figures")
        else:
            yield Leaving(_REPORTS if field in _BY_FIELD else "", _BY_FIELD.get(field, "a number that no report has"))


def _is_of_chain(field: str, value: object, asked: Asked) -> bool:
    """Is it a digest or a signature of the chain of records, or the leaves that are to be opened?"""
    if not isinstance(value, tuple) or any(number != int(number) or not 0 <= number < 1 << 32 for number in value):
        return False
    leaves = leaves_in(sum(count for _, count in asked.parameters) * asked.vectors)
    is_places = field == "leaves" and list(value) == sorted({*value}) and all(number < leaves for number in value)
    return is_places or (field == "words" and len(value) in _WORDS)


def _in_numbers(message: Packet, asked: Asked) -> Iterator[Leaving]:
    fields = {**message.numbers, **message.lists}
    for field, value in fields.items():
        if field in _OF_START and not isinstance(value, tuple):
            continue
        if message.client == NO_CLIENT and _is_of_chain(field, value, asked):
            continue
        if message.client == NO_CLIENT:
            yield Leaving("", "a number about no client")
        elif _STATE.fullmatch(field):
            yield Leaving(_REPORTS, "states")
        elif _SIZES.fullmatch(field):
            if not (field.endswith("/examples") and value in asked.declared):
                yield Leaving(_REPORTS, "examples")
        else:
            yield Leaving("", EXAMPLE_SCORES.name)
