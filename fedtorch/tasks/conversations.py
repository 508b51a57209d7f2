"""What a row has to have that is continued: a conversation, a prompt and what follows it, or a text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedtorch.text.chat import ASSISTANT


@dataclass(frozen=True)
class Conversations:
    """What a row has to have: `messages`, or columns that are filled into a prompt, and `completion`, or `text`."""

    required: Sequence[str]
    template: str | None
    optional: Sequence[str] = ()

    def convert(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """messages; or prompt and completion; or text."""
        if "messages" in self.required:
            return {"messages": _messages(values["messages"])}
        for name in self.required:
            if not isinstance(values[name], str):
                raise ValueError(f"`{name}` is a {type(values[name]).__name__}, expected a string")
        if self.required == ("text",):
            return {"text": values["text"]}
        prompt = values["prompt"] if self.template is None else self.template.format(**values)
        return {"prompt": prompt, "completion": values[self.required[-1]]}

    def texts(self, row: Mapping[str, Any]) -> Iterable[str]:
        """All of them."""
        if "messages" in row:
            return [message["content"] for message in row["messages"]]
        return list(row.values())


@dataclass(frozen=True)
class Unanswered:
    """What a row has to have: `messages`, whose next one is asked for."""

    required: Sequence[str] = ("messages",)
    optional: Sequence[str] = ()

    def convert(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """conversation: the messages up to where the assistant is to speak; an answer that is there is left out."""
        found = _listed(values["messages"])
        while found and found[-1]["role"] == ASSISTANT:
            found.pop()
        if not found:
            raise ValueError("no message is anybody's but the assistant's, so there is nothing to answer")
        return {"conversation": found}

    def texts(self, row: Mapping[str, Any]) -> Iterable[str]:
        """What was said."""
        return [message["content"] for message in row["conversation"]]


def _messages(value: Any) -> list[dict[str, str]]:
    found = _listed(value)
    if not any(message["role"] == ASSISTANT for message in found):
        raise ValueError("no message is the assistant's, so there is nothing to learn")
    return found


def _listed(value: Any) -> list[dict[str, str]]:
    if not isinstance(value, list):
        raise ValueError(f"`messages` is a {type(value).__name__}, expected a list of {{role, content}}")
    found = []
    for place, message in enumerate(value):
        if not isinstance(message, Mapping) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise ValueError(f"message {place + 1} has no role and content that are strings")
        found.append({"role": message["role"], "content": message["content"]})
    return found
