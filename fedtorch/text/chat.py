"""Which tokens of a conversation are the assistant's, whatever the chat template is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from fedtorch.core.errors import DataError

ASSISTANT = "assistant"


def supervised(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]]
) -> list[tuple[list[int], list[bool]]]:
    """(tokens, which of them the assistant says) of a conversation; several samples where one template cannot do it.

    What the assistant says is what messages[:i + 1] has beyond messages[:i] with the prompt for an answer, with its end
    token. `return_assistant_tokens_mask` of transformers is of no use: it is all zeros, without an error, where the
    template has no `{% generation %}` block, which the stock templates lack. Where rendering a longer conversation
    changes earlier turns (templates that drop earlier reasoning), every assistant's turn becomes a sample of its own.

    Raises:
        DataError: even so the prompt is no beginning of the turn, in tokens: a template that adds dates, say.
    """
    turns = [i for i, message in enumerate(messages) if message.get("role") == ASSISTANT]
    if not turns:
        return []
    whole = _render(tokenizer, messages)
    spans = []
    for i in turns:
        until = _render(tokenizer, messages[: i + 1])
        before = _render(tokenizer, messages[:i], prompt=True) if i else _first_prompt(tokenizer, until)
        if until[: len(before)] != before:
            raise DataError(
                "the tokenizer's chat template does not begin an answer as it asks for one (it may add dates, or leave "
                "something out); give another with task.chat_template"
            )
        spans.append((before, until))
    if all(whole[: len(until)] == until for _, until in spans):
        mask = [False] * len(whole)
        for before, until in spans:
            mask[len(before) : len(until)] = [True] * (len(until) - len(before))
        return [(whole, mask)]
    return [(until, [False] * len(before) + [True] * (len(until) - len(before))) for before, until in spans]


def _first_prompt(tokenizer: PreTrainedTokenizerBase, turn: Sequence[int]) -> list[int]:
    """What stands before the answer in a conversation that begins with one; transformers renders no empty one.

    Up to the prompt for an answer as it stands after some user's turn, and all of it where it is not to be found.
    """
    some = [{"role": "user", "content": "a"}]
    before, asked = _render(tokenizer, some), _render(tokenizer, some, prompt=True)
    prompt = asked[len(before) :]
    for start in range(len(turn) - len(prompt) + 1):
        if list(turn[start : start + len(prompt)]) == prompt:
            return list(turn[: start + len(prompt)])
    return asked


def asked(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Tokens of a conversation up to where the assistant is to speak."""
    return _render(tokenizer, messages, prompt=True)


def _render(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]], *, prompt: bool = False
) -> list[int]:
    found = tokenizer.apply_chat_template(
        [dict(message) for message in messages], tokenize=True, add_generation_prompt=prompt, return_dict=False
    )
    return list(found)
