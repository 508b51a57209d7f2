"""Readers of the notes that ranks leave each other in the store, which anybody may have written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Container, Mapping
from typing import Any

from fedtorch.core.errors import PreflightError

MAX_CHARACTERS = 1 << 20
"""Of a note; facts and GPUs take a few hundred, a verdict as many for every rank that was lost."""
MOST_TOLD = 200
"""Characters in which a rank says that it refuses the job."""
Field = type | Callable[[Any], bool]

_REFUSAL: Mapping[str, Field] = {
    "refuses": lambda value: isinstance(value, str) and 0 < len(value) <= MOST_TOLD,
    "code": lambda value: type(value) is int and 0 < value < 256,
}
_BARRIER: Mapping[str, Field] = {"phase": str, "round": int, "then": str, "stop": bool, "ok": bool}
_PREFLIGHT: Mapping[str, Field] = {
    "facts": lambda value: isinstance(value, dict) and all(isinstance(text, str) for text in value.values()),
    "gpu": str,
    "gpu_problem": str,
    "gpu_versions": lambda value: isinstance(value, dict) and all(isinstance(text, str) for text in value.values()),
    "machine": str,
}
_ADDRESS: Mapping[str, Field] = {
    "network": str,
    "host": str,
    "address": str,
    "port": str,
    "problem": str,
    "phase": lambda value: value in ("found", "chosen", "tried"),
}
_HEARTBEAT: Mapping[str, Field] = {
    "phase": str,
    "round": int,
    "client": str,
    "step": int,
    "count": int,
    "left": str,
    "failed": bool,
}
_PROCESS: Mapping[str, Field] = {"machine": str, "pid": int, "started": str}
_LOST: Mapping[str, Field] = {
    "lost": lambda value: isinstance(value, dict) and all(r.isdecimal() and isinstance(value[r], str) for r in value)
}
_ERROR: Mapping[str, Field] = {"error": str, "kind": str}
_REFUSED: Mapping[str, Field] = {"error": str, "code": lambda value: type(value) is int and 0 < value < 256}
_PLACES: Mapping[str, Field] = {
    "places": lambda value: isinstance(value, dict) and all(isinstance(place, str) for place in value.values()),
    "hosts": lambda value: isinstance(value, list) and all(isinstance(host, str) for host in value),
}
_PART: Mapping[str, Field] = {
    "clients": lambda value: isinstance(value, list) and len(value) > 0 and all(type(each) is int for each in value),
    "weights": lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
}
_AGREED: Mapping[str, Field] = {"stop": bool, "ok": bool}
_RETURNED: Mapping[str, Field] = {
    "returned": lambda value: isinstance(value, list) and all(type(rank) is int for rank in value)
}
_ENTRY: Mapping[str, Field] = {
    "number": lambda value: type(value) is int and 0 < value < 1 << 31,
    "lost": lambda value: isinstance(value, list) and all(type(rank) is int and rank > 0 for rank in value),
    "hosts": lambda value: isinstance(value, list) and all(isinstance(host, str) for host in value),
    "is_over": bool,
}
_BACKEND: Mapping[str, Field] = {
    "backend": lambda value: value in ("gloo", "nccl"),
    "shared": lambda value: isinstance(value, list) and all(type(rank) is int for rank in value),
}


def read_note(text: str, rank: int) -> dict[str, Any]:
    """Read why a rank came: to compare facts or addresses, to end a phase, or to refuse the job.

    Raises:
        PreflightError: names the rank, and what is wrong with its note.
    """
    note = _mapping(text, f"the note of {name(rank)}")
    if "refuses" in note:
        return _checked(note, _REFUSAL, f"the note of {name(rank)}")
    fields = _PREFLIGHT if "facts" in note else _ADDRESS if "network" in note else _BARRIER
    return _checked(note, fields, f"the note of {name(rank)}")


def read_verdict(text: str) -> dict[str, Any]:
    """The server's answer to all notes.

    Raises:
        PreflightError: it is not such an answer.
    """
    sender = f"the verdict of {name(0)}"
    verdict = _mapping(text, sender)
    if "lost" in verdict:
        _checked(verdict, _LOST, sender)
    if "code" in verdict:
        _checked(verdict, _REFUSED, sender)
    if "returned" in verdict:
        _checked(verdict, _RETURNED, sender)
    kinds = {"error": _ERROR, "backend": _BACKEND, "places": _PLACES}
    fields = next((fields for key, fields in kinds.items() if key in verdict), _AGREED)
    return _checked(verdict, fields, sender)


def read_entry(text: str) -> dict[str, Any]:
    """The server's answer to a rank that has come back.

    Raises:
        PreflightError: it is not such an answer.
    """
    sender = f"the answer of {name(0)} at the door"
    return _checked(_mapping(text, sender), _ENTRY, sender)


def read_part(text: str, rank: int, own: Container[int]) -> dict[int, float]:
    """A part of a sum that a rank sends early: client, by its index in the manifest, -> its weight, in this order.

    own: the clients of that rank in this round that it has not sent yet.

    Raises:
        PreflightError: names the rank, and what is wrong with its note.
    """
    sender = f"the note of {name(rank)} of a part that it sends early"
    note = _checked(_mapping(text, sender), _PART, sender)
    clients, written = note["clients"], note["weights"]
    if len(clients) != len(written) or len(set(clients)) != len(clients):
        raise PreflightError(
            f"{sender} has {len(clients)} clients, {len(set(clients))} of them different, and "
            f"{len(written)} weights; expected as many of each"
        )
    if foreign := [client for client in clients if client not in own]:
        raise PreflightError(
            f"{sender} has client {foreign[0]}, which is no client of that rank in this round, or was sent already"
        )
    return dict(zip(clients, (_weight(each, sender) for each in written), strict=True))


def _weight(written: str, sender: str) -> float:
    """Raises PreflightError: it is no finite number other than 0, in hexadecimal."""
    try:
        weight = float.fromhex(written)
    except (ValueError, OverflowError):
        weight = math.nan
    if not math.isfinite(weight) or weight == 0:
        raise PreflightError(f"{sender} has the weight {written[:40]!r}, expected a finite number other than 0")
    return weight


def read_heartbeat(text: str, rank: int) -> dict[str, Any]:
    """Read what a rank is doing; `machine`, `pid` and `started` where they are known.

    Raises:
        PreflightError: names the rank, and what is wrong with its heartbeat.
    """
    sender = f"the heartbeat of {name(rank)}"
    beat = _checked(_mapping(text, sender), _HEARTBEAT, sender)
    return _checked(beat, _PROCESS, sender) if "machine" in beat else beat


def name(rank: int) -> str:
    """As messages call it."""
    return f"rank {rank}" + (" (the server)" if rank == 0 else "")


def _mapping(text: str, sender: str) -> dict[str, Any]:
    if len(text) > MAX_CHARACTERS:
        raise PreflightError(f"{sender} has {len(text)} characters, at most {MAX_CHARACTERS} are expected")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PreflightError(f"{sender} cannot be read ({type(error).__name__}): {text[:80]!r}") from None
    if not isinstance(found, dict):
        raise PreflightError(f"{sender} is {text[:80]!r}, expected a mapping")
    return found


def _checked(found: dict[str, Any], fields: Mapping[str, Field], sender: str) -> dict[str, Any]:
    for field, kind in fields.items():
        if field not in found:
            raise PreflightError(f"{sender} has no `{field}`")
        value = found[field]
        if not (type(value) is kind if isinstance(kind, type) else kind(value)):
            raise PreflightError(f"{sender} has `{field}` = {json.dumps(value)[:80]}, which cannot be")
    return found
