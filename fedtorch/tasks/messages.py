"""Messages of a conversation as a row has them: who speaks, what is said, which tools are called."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

TEXTS = ("content", "reasoning_content", "name", "tool_call_id")
"""What of a message is a text, beside its role."""
KEPT = ("role", *TEXTS, "tool_calls")
"""What of a message a chat template is told; a message with anything else is refused, for it would be lost."""


def listed(value: Any) -> list[dict[str, Any]]:
    """The messages, each with the keys of `KEPT` that it has; those that are null are left out but for `content`.

    Arguments of a tool call become a mapping, as templates expect them, where they are JSON in a text; in a mapping
    entries that are null are left out: columnar files give every call the arguments of all others, as nulls.

    Raises:
        ValueError: which message is wrong and how, without its text.
    """
    if not isinstance(value, list):
        raise ValueError(f"`messages` is a {type(value).__name__}, expected a list of {{role, content}}")
    return [_message(message, place) for place, message in enumerate(value, 1)]


def tools_of(value: Any) -> list[Any]:
    """The tools that a conversation may call: a list, or JSON of one; empty where there are none.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(value, str) and value:
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError("`tools` is a text that is no JSON, expected a list of tools") from None
    if value is None or value == "":
        return []
    if not isinstance(value, list):
        raise ValueError(f"`tools` is a {type(value).__name__}, expected a list of tools, or JSON of one")
    return [_without_nulls(tool) for tool in value]


def texts_of(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = ()) -> Iterable[str]:
    """All that is said in messages, calls and tools as JSON."""
    for message in messages:
        yield message.get("content") or ""
        if message.get("reasoning_content"):
            yield message["reasoning_content"]
        if message.get("tool_calls"):
            yield json.dumps(message["tool_calls"], ensure_ascii=False)
    if tools:
        yield json.dumps(tools, ensure_ascii=False)


def _message(message: Any, place: int) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ValueError(f"message {place} has no role and content that are strings")
    if strange := [key for key, found in message.items() if key not in KEPT and found is not None]:
        raise ValueError(
            f"message {place} has `{str(strange[0])[:40]}`, which would be lost: chat templates are told "
            f"{', '.join(KEPT)}; rename it or leave it out"
        )
    found: dict[str, Any] = {"role": message["role"]}
    for key in TEXTS:
        if message.get(key) is not None:
            if not isinstance(message[key], str):
                raise ValueError(f"message {place} has a {type(message[key]).__name__} as {key}, expected a string")
            found[key] = message[key]
    if calls := message.get("tool_calls"):
        found["tool_calls"] = _calls(calls, place)
    if "content" not in found:
        if not calls:
            raise ValueError(f"message {place} has no content and calls no tool")
        found["content"] = None
    return found


def _calls(calls: Any, place: int) -> list[Any]:
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise ValueError(f"message {place} has tool_calls that are no list of mappings")
    return [_call(call) for call in calls]


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call, which may lie under `function`, with its arguments as a mapping."""
    found = {key: value for key, value in call.items() if value is not None}
    if isinstance(found.get("function"), Mapping):
        found["function"] = _call(found["function"])
    if isinstance(found.get("arguments"), str):
        try:
            parsed = json.loads(found["arguments"])
        except ValueError:
            return found
        return {**found, "arguments": parsed} if isinstance(parsed, dict) else found
    return {**found, "arguments": _without_nulls(found["arguments"])} if "arguments" in found else found


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value
