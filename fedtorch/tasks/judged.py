"""Rows with judged answers: a chosen and a rejected one, or one that is desirable or not; texts or messages.

B rows or texts, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

from torch import Tensor, nn

from fedtorch.core.errors import DataError
from fedtorch.models.padding import pad
from fedtorch.tasks.continued import Continued, Tokens
from fedtorch.tasks.messages import listed, texts_of, tools_of
from fedtorch.tasks.text_generation import IGNORED
from fedtorch.text.chat import ASSISTANT, asked, supervised
from fedtorch.text.templates import check_strings

_FLAGS: dict[Any, bool] = {"true": True, "false": False, "1": True, "0": False, 1: True, 0: False}
Said = str | list[dict[str, Any]]
"""A text, or messages."""


@dataclass(frozen=True)
class Judged:
    """A tokenised row: two texts and what the reference makes of them."""

    first: Continued
    """the prompt with the chosen answer, or with the one that is judged; its answer is what is learned"""
    second: Continued
    """the prompt with the rejected answer, or with that to another prompt"""
    is_desirable: bool = True
    """is the first answer to become likelier?"""
    has_other: bool = True
    """False: no other row has an answer, so the second text is the first"""
    reference: tuple[float, float] | None = None
    """log-likelihoods of both answers by the reference; None: not computed yet"""


class Likelihoods(NamedTuple):
    """Output of a model for a row."""

    first: float
    """log-likelihood of the chosen answer, or of the one that is judged"""
    second: float
    """of the rejected one, or of that to another prompt"""


@dataclass(frozen=True)
class Pairs:
    """Form of a row with a chosen and a rejected answer to a prompt, or two conversations that begin alike."""

    required: Sequence[str] = ("chosen", "rejected")
    """roles of the columns that a row has to have"""
    optional: Sequence[str] = ("prompt", "tools")
    """roles of columns that are used where the source has them; texts need a prompt"""

    def convert(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """prompt, chosen and rejected: three texts, or three lists of messages, with tools if there are any."""
        both, prompt = [values["chosen"], values["rejected"]], values.get("prompt")
        if any(isinstance(one, list) for one in both):
            before = [] if prompt is None else listed(prompt)
            whole = [[*before, *listed(one)] for one in both]
            alike = _common(*whole)
            if not alike:
                raise ValueError("the conversations `chosen` and `rejected` have no common beginning, the prompt")
            answers = [_answer(messages[alike:]) for messages in whole]
            return {"prompt": whole[0][:alike], "chosen": answers[0], "rejected": answers[1], **_tools(values)}
        if prompt is None:
            raise ValueError("`chosen` and `rejected` are texts, which need a `prompt`")
        check_strings({"prompt": prompt, "chosen": both[0], "rejected": both[1]})
        if both[0] == both[1]:
            raise ValueError("`chosen` and `rejected` are the same, so nothing is preferred")
        return {"prompt": prompt, "chosen": both[0], "rejected": both[1]}

    def texts(self, row: Mapping[str, Any]) -> Iterable[str]:
        """All of them."""
        return [text for name in ("prompt", "chosen", "rejected") for text in _texts(row[name])] + _of_tools(row)


@dataclass(frozen=True)
class Verdicts:
    """Form of a row with a prompt, an answer to it, and whether that is desirable."""

    required: Sequence[str] = ("prompt", "completion", "label")
    """roles of the columns that a row has to have; without a label in a row that is new to a model"""
    optional: Sequence[str] = ("tools",)
    """roles of columns that are used where the source has them"""

    def convert(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """prompt and completion: two texts, or two lists of messages with tools if there are any; label: a bool."""
        prompt, answer = values["prompt"], values["completion"]
        label = {"label": _flag(values["label"])} if "label" in self.required else {}
        if isinstance(prompt, list) or isinstance(answer, list):
            return {"prompt": listed(prompt), "completion": _answer(listed(answer)), **label, **_tools(values)}
        check_strings({"prompt": prompt, "completion": answer})
        return {"prompt": prompt, "completion": answer, **label}

    def texts(self, row: Mapping[str, Any]) -> Iterable[str]:
        """Both."""
        return [text for name in ("prompt", "completion") for text in _texts(row[name])] + _of_tools(row)


def answered(tokens: Tokens, row: Mapping[str, Any], answer: Said, where: str) -> Continued:
    """Tokens of a row's prompt with an answer, be it that of another row; the answer's are those learned.

    Raises:
        DataError: one of them is a text and the other messages, or the chat template cannot do it.
    """
    prompt = row["prompt"]
    if isinstance(prompt, list) != isinstance(answer, list):
        raise DataError(f"{where} has rows of texts and rows of messages; write all of them in one form")
    if not isinstance(prompt, list):
        return tokens.part(*tokens.split(prompt, str(answer)), "", where)
    assert isinstance(answer, list)
    vocabulary, tools = tokens.task.vocabulary, row.get("tools")
    ids, mask = supervised(vocabulary, [*prompt, *answer], tools, where=where)[-1]
    before = len(asked(vocabulary, prompt, tools))  # with which `supervised` has found that they begin
    return tokens.part(ids, [place >= before and learned for place, learned in enumerate(mask)], "", where)


def both_texts(examples: Sequence[Judged], pad_id: int) -> dict[str, Tensor]:
    """input_ids, attention_mask, labels (B, 2, T), int64; the label of what is not an answer's is -100."""
    texts = [text for example in examples for text in (example.first, example.second)]
    labels = [
        [token if learned else IGNORED for token, learned in zip(text.ids, text.is_learned, strict=True)]
        for text in texts
    ]
    found = {
        "input_ids": pad([text.ids for text in texts], pad_id),
        "attention_mask": pad([[1] * len(text.ids) for text in texts], 0),
        "labels": pad(labels, IGNORED),
    }
    return {name: tensor.view(len(examples), 2, -1) for name, tensor in found.items()}


def answer_likelihoods(model: Any, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
    """Sum of log p over the tokens of each text (B, T) whose label is not -100; fp32, shape (B,)."""
    logits = model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits[:, :-1].float()
    each = nn.functional.cross_entropy(logits.transpose(1, 2), labels[:, 1:], ignore_index=IGNORED, reduction="none")
    return -each.sum(1)


def _common(chosen: Sequence[Any], rejected: Sequence[Any]) -> int:
    """How many messages two conversations have in common at their beginnings."""
    both = zip(chosen, rejected, strict=False)  # of unlike length
    return len(list(takewhile(lambda pair: pair[0] == pair[1], both)))


def _answer(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One message of the assistant.

    Raises:
        ValueError: there is something else.
    """
    if len(messages) != 1 or messages[0]["role"] != ASSISTANT:
        raise ValueError(
            f"after the prompt come {len(messages)} messages, expected one of the assistant in each conversation"
        )
    return messages


def _flag(value: Any) -> bool:
    """True or false, as a number or a text too.

    Raises:
        ValueError: it is neither.
    """
    key = value.strip().lower() if isinstance(value, str) else value
    found = _FLAGS.get(key) if isinstance(key, str | bool | int | float) else None
    if found is None:
        raise ValueError("`label` is neither true nor false (1 and 0 are the same)")
    return found


def _texts(said: Said) -> list[str]:
    return list(texts_of(said)) if isinstance(said, list) else [said]


def _tools(values: Mapping[str, Any]) -> dict[str, Any]:
    found = tools_of(values.get("tools"))
    return {"tools": found} if found else {}


def _of_tools(row: Mapping[str, Any]) -> list[str]:
    return list(texts_of((), row.get("tools", ())))
