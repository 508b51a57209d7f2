"""Rows that a decoder continues: a text, a prompt with its completion or choices, or messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedtorch.data.own.text_form import list_in_text
from fedtorch.tasks.messages import listed, texts_of, tools_of
from fedtorch.text.chat import ASSISTANT
from fedtorch.text.templates import check_strings, filled


@dataclass(frozen=True)
class Conversations:
    """Form of a row with `messages`, or `text`, or columns that are filled into a prompt, and `completion`; with
    `choices` that is one of them, or the number of one."""

    required: Sequence[str]
    """`messages`, `text`, or what the template takes; the completion comes last"""
    template: str | None
    """a prompt with `{ROLE}` for each column; None: the one column before the answer is read as it is"""
    optional: Sequence[str] = ()
    """roles of columns that are used where the source has them"""

    def convert(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """messages, with tools if there are any; or prompt, completion and choices if there are any; or text."""
        if "messages" in self.required:
            return {"messages": _messages(values["messages"]), **_tools(values)}
        if "choices" in self.required:
            choices = _choices(list_in_text(values["choices"]))
            right = _right(choices, values[self.required[-1]])
            found = replace(self, required=tuple(name for name in self.required if name != "choices"))
            return {**found.convert({**values, self.required[-1]: right}), "choices": choices}
        check_strings({name: values[name] for name in self.required})
        if self.required == ("text",):
            return {"text": values["text"]}
        return {"prompt": filled(self.template, values, "prompt"), "completion": values[self.required[-1]]}

    def texts(self, row: Mapping[str, Any]) -> Iterable[str]:
        """All of them."""
        if "messages" in row:
            return texts_of(row["messages"], row.get("tools", ()))
        others = [choice for choice in row.get("choices", ()) if choice != row["completion"]]
        return [*(text for name, text in row.items() if name != "choices"), *others]


@dataclass(frozen=True)
class Unanswered:
    """Form of a row with `messages`, whose next one is asked for."""

    required: Sequence[str] = ("messages",)
    """roles of the columns that a row has to have"""
    optional: Sequence[str] = ("tools",)
    """roles of columns that are used where the source has them"""

    def convert(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """conversation: the messages up to where the assistant is to speak; an answer that is there is left out.

        tools: those that it may call, if there are any.
        """
        found = listed(values["messages"])
        while found and found[-1]["role"] == ASSISTANT:
            found.pop()
        if not found:
            raise ValueError("no message is anybody's but the assistant's, so there is nothing to answer")
        return {"conversation": found, **_tools(values)}

    def texts(self, row: Mapping[str, Any]) -> Iterable[str]:
        """Texts that were said."""
        return texts_of(row["conversation"], row.get("tools", ()))


@dataclass(frozen=True)
class Unchosen:
    """Form of a row with columns that are filled into a prompt, and `choices`, of which one is asked for."""

    required: Sequence[str]
    """what the template takes, or the prompt; `choices` comes last"""
    template: str | None
    """a prompt with `{ROLE}` for each column; None: the first column is read as it is"""
    optional: Sequence[str] = ()
    """roles of columns that are used where the source has them"""

    def convert(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """prompt and choices."""
        choices = _choices(list_in_text(values["choices"]))
        texts = {name: value for name, value in values.items() if name != "choices"}
        check_strings(texts)
        return {"prompt": filled(self.template, texts, "prompt"), "choices": choices}

    def texts(self, row: Mapping[str, Any]) -> Iterable[str]:
        """All of them."""
        return [row["prompt"], *row["choices"]]


def _choices(choices: Any) -> list[str]:
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
    return choices


def _right(choices: Sequence[str], right: Any) -> str:
    """The right one, which may be given by its number."""
    if isinstance(right, int) and not isinstance(right, bool):
        if not 0 <= right < len(choices):
            raise ValueError(f"the completion is choice {right} of {len(choices)}; they are counted from 0")
        return choices[right]
    if not isinstance(right, str) or right not in choices:
        raise ValueError(f"the completion is none of the {len(choices)} choices; give its text, or its number from 0")
    return right


def _messages(value: Any) -> list[dict[str, Any]]:
    found = listed(value)
    if not any(message["role"] == ASSISTANT for message in found):
        raise ValueError("no message is the assistant's, so there is nothing to learn")
    return found


def _tools(values: Mapping[str, Any]) -> dict[str, Any]:
    found = tools_of(values.get("tools"))
    return {"tools": found} if found else {}
