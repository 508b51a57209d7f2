"""Notes that a silo signs, as the gate knows them: what stands in each, and nothing else.

A text in such a note can still be chosen by whoever made it, within its form; docs/trust.md says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

_MOST = 1 << 16
_HEX = re.compile("[0-9a-f]{32}|[0-9a-f]{64}")
_DIGEST = "[0-9a-f]{64}"
_NUMBER = re.compile("[0-9]{1,12}")
_WORD = re.compile(r"[A-Za-z0-9_ .:-]{0,80}")
_SWORN = re.compile("[0-9a-f]{64}( [0-9a-f]{64})?")
_OF_SUM = re.compile(r'[0-9a-fx"{}\[\],: ]*')
_KEYS = re.compile(
    r"(?P<kind>hello|joined/[0-9a-z]{1,64}|bye|gone|heard|knocks?|heartbeat|meeting[0-9]{1,9}|transcript)"
    r"/(?P<rank>[0-9]{1,9})"
)
_OATH = re.compile(r"oath/(?P<phase>[a-z_ ]{1,40})/[0-9]{1,9}/(?P<rank>[0-9]{1,9})")
_SUM = re.compile(r"secure sum/[0-9]{1,9}\.[0-9]{1,12}/(?P<kind>keys|shares|survivors|answer)/(?P<rank>[0-9]{1,9})")
_HEARTBEAT = {"phase": str, "round": int, "client": str, "step": int, "count": int, "left": str, "failed": bool}
_PROCESS = {"machine": str, "pid": int, "started": str}
_BARRIER = {"phase": str, "round": int, "then": str, "stop": bool, "ok": bool}
_ADDRESS = ("network", "host", "address", "port", "problem", "phase")
_FACTS = ("facts", "gpu", "gpu_problem", "gpu_versions", "machine", "nonce")
_REFUSAL = {"refuses": str, "code": int}


@dataclass(frozen=True)
class Note:
    """A note that the gate knows."""

    kind: str
    """The first word of its key."""
    phase: str = ""
    """Phase of the meeting that it is for, where it is for one."""
    round: int | None = None
    """Round of that."""
    oath: str = ""
    """Root of the weights that are sworn to, and where the server is checked the digest of its last record; of a note
    of a secure sum its text, and of a receipt the digest of what was sent."""
    own: tuple[float, ...] = ()
    """Numbers of reports that are said once more."""


def text_of(federation: str, scope: str, key: str, value: str) -> bytes:
    """Text of a note that its party signs. scope: job and meeting that it is good for."""
    return "\0".join((federation, scope, key, value)).encode("utf-8", "surrogatepass")


def read_note(key: str, value: str, *, rank: int, clients: Collection[str]) -> Note | None:
    """Which note that is; None: none that this side may sign.

    rank: of this side. clients: those that live here, which alone a sign of life may name.
    """
    for pattern in (_KEYS, _OATH, _SUM):
        if (found := pattern.fullmatch(key)) is not None and int(found["rank"]) == rank and len(value) <= _MOST:
            break
    else:
        return Note("nccl") if (key, value) == ("nccl/failed", f"rank {rank}") else None
    if pattern is _OATH:
        return Note("oath", found["phase"], oath=value) if _SWORN.fullmatch(value) else None
    if pattern is _SUM:
        return Note("sum", found["kind"], oath=value) if _OF_SUM.fullmatch(value) else None
    kind = found["kind"].partition("/")[0].rstrip("0123456789")
    if kind == "meeting":
        return _meeting(value)
    if kind == "heartbeat":
        return _heartbeat(value, clients)
    return Note(kind, oath=value if kind == "transcript" else "") if _PLAIN[kind](value) else None


_COMMON = {
    "federation": ".*",
    "kind": ".*",
    "party": ".*",
    "members": _DIGEST,
    "meeting": _DIGEST,
    "run": "[0-9a-f]{16}",
}
_TEXTS = {
    "acknowledgement": {"record": _DIGEST},
    "receipt": {"attempt": r"[0-9a-f]{16}\.[0-9]{1,9}\.[0-9]{1,12}", "sent": _DIGEST, "weights": _DIGEST},
}


def read_text(text: str, *, federation: str, party: str) -> Note | None:
    """Which text about a round it is, as `trust.receipts` writes it; None: none that this side may sign."""
    about = _mapping(text, separators=(",", ":"), sort_keys=True)
    if about is None or (about.get("federation"), about.get("party")) != (federation, party):
        return None
    kind = str(about.get("kind"))
    words = {**_COMMON, **_TEXTS[kind]} if kind in _TEXTS else None
    own, round = about.pop("own", {}), about.pop("round", None)
    if words is None or about.keys() != words.keys() or (kind == "receipt") != (type(round) is int):
        return None
    if not all(isinstance(about[name], str) and re.fullmatch(form, about[name]) for name, form in words.items()):
        return None
    try:
        numbers = tuple(float.fromhex(number) for numbers in own.values() for number in numbers)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None
    return Note(kind, round=round, oath=str(about.get("sent", "")), own=numbers)


def _is_empty(value: str) -> bool:
    return not value


def _is_hex(value: str) -> bool:
    return _HEX.fullmatch(value) is not None


_PLAIN: dict[str, Callable[[str], bool]] = {
    "hello": _is_hex,
    "transcript": _is_hex,
    "joined": _is_empty,
    "bye": _is_empty,
    "gone": _is_empty,
    "heard": _is_empty,
    "knock": lambda value: _HEX.fullmatch(value) is not None,
    "knocks": lambda value: _NUMBER.fullmatch(value) is not None,
}


def _heartbeat(value: str, clients: Collection[str]) -> Note | None:
    beat = _mapping(value)
    if beat is None or not _has(beat, {**_HEARTBEAT, **(_PROCESS if "machine" in beat else {})}):
        return None
    words = all(_WORD.fullmatch(beat[name]) for name in ("phase", "left"))
    return Note("heartbeat", beat["phase"], beat["round"]) if words and beat["client"] in ("", *clients) else None


def _meeting(value: str) -> Note | None:
    note = _mapping(value)
    if note is None:
        return None
    if "refuses" in note:
        return Note("refusal") if _has(note, _REFUSAL) else None
    if "facts" in note or "network" in note:
        return Note("start") if note.keys() <= {*_FACTS, *_ADDRESS} and _is_text(note) else None
    if not _has(note, _BARRIER) or not _WORD.fullmatch(note["phase"]):
        return None
    return Note("meeting", note["phase"], note["round"])


def _mapping(value: str, **written: Any) -> dict[str, Any] | None:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    # written in one way alone, so that nothing is hidden in blanks or in keys that stand there twice
    return found if isinstance(found, dict) and json.dumps(found, **written) == value else None


def _has(note: dict[str, Any], fields: dict[str, type]) -> bool:
    return note.keys() == fields.keys() and all(type(note[name]) is kind for name, kind in fields.items())


def _is_text(note: dict[str, Any]) -> bool:
    """Is there nothing but texts, and mappings of texts?"""
    inner = [each for value in note.values() for each in (value.values() if isinstance(value, dict) else [value])]
    return all(isinstance(each, str) for each in inner)
