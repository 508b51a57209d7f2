"""Rows that a decoder continues: a text, a prompt with its completion or choices, or messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Continued:
    """A tokenised row."""

    ids: list[int]
    is_learned: list[bool]
    """by token"""
    prompt: list[int]
    """what the last answer is generated from; empty where nothing is generated"""
    gold: str
    """the answer"""

    more: Sequence[Continued] = ()
    """of a conversation that its template cannot render as one text: those that end with an earlier answer"""
    choices: Sequence[Continued] = ()
    """the answers to choose from, where there are some"""
    right: int = 0
    """which of them it is"""

    @cached_property
    def learned(self) -> int:
        """tokens with a loss, those of `more` among them; a text's first one has none"""
        return sum(self.is_learned[1:]) + sum(other.learned for other in self.more)


class Prediction(NamedTuple):
    """What a model makes of a row."""

    log_likelihood: float
    """summed over its learned tokens"""
    tokens: int
    """their number"""
    choice: int = 0
    """which of its choices is the likeliest"""
    text: str = ""
    """what was generated"""


@dataclass(frozen=True)
class Conversations:
    """What a row has to have: `messages`, or `text`, or columns that are filled into a prompt, and `completion`; with
    `choices` that is one of them, or the number of one."""

    required: Sequence[str]
    template: str | None
    optional: Sequence[str] = ()

    def convert(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """messages; or prompt, completion and choices if there are any; or text."""
        if "messages" in self.required:
            return {"messages": _messages(values["messages"])}
        if "choices" in self.required:
            choices, right = _choices(values["choices"], values[self.required[-1]])
            found = replace(self, required=tuple(name for name in self.required if name != "choices"))
            return {**found.convert({**values, self.required[-1]: right}), "choices": choices}
        for name in self.required:
            if not isinstance(values[name], str):
                raise ValueError(f"`{name}` is a {type(values[name]).__name__}, expected a string")
        if self.required == ("text",):
            return {"text": values["text"]}
        prompt = (
            values["prompt"]
            if self.template is None
            else self.template.format(**{k: v for k, v in values.items() if k != "choices"})
        )
        return {"prompt": prompt, "completion": values[self.required[-1]]}

    def texts(self, row: Mapping[str, Any]) -> Iterable[str]:
        """All of them."""
        if "messages" in row:
            return [message["content"] for message in row["messages"]]
        others = [choice for choice in row.get("choices", ()) if choice != row["completion"]]
        return [*(text for name, text in row.items() if name != "choices"), *others]


def _choices(choices: Any, right: Any) -> tuple[list[str], str]:
    """The choices and the right one."""
    if not isinstance(choices, list):
        raise ValueError(f"`choices` is a {type(choices).__name__}, expected a list of texts")
    for number, choice in enumerate(choices, start=1):
        if not isinstance(choice, str) or not choice:
            what = "empty" if isinstance(choice, str) else f"a {type(choice).__name__}"
            raise ValueError(f"choice {number} is {what}, expected a text")
    if len(set(choices)) != len(choices) or len(choices) < 2:
        raise ValueError(
            f"there are {len(choices)} choices, {len(set(choices))} of them different, expected two or more"
        )
    if isinstance(right, int) and not isinstance(right, bool):
        if not 0 <= right < len(choices):
            raise ValueError(f"the completion is choice {right} of {len(choices)}; they are counted from 0")
        return choices, choices[right]
    if right not in choices:
        raise ValueError(f"the completion is none of the {len(choices)} choices; give its text, or its number from 0")
    return choices, right


def _messages(value: Any) -> list[dict[str, str]]:
    if not isinstance(value, list):
        raise ValueError(f"`messages` is a {type(value).__name__}, expected a list of {{role, content}}")
    found = []
    for place, message in enumerate(value):
        if not isinstance(message, Mapping) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise ValueError(f"message {place + 1} has no role and content that are strings")
        found.append({"role": message["role"], "content": message["content"]})
    if not any(message["role"] == "assistant" for message in found):
        raise ValueError("no message is the assistant's, so there is nothing to learn")
    return found
