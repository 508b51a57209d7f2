"""Which tokens of a conversation are the assistant's, whatever the chat template is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from fedtorch.core.errors import ConfigError, DataError

ASSISTANT = "assistant"


Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Any] | None


def supervised(
    tokenizer: PreTrainedTokenizerBase, messages: Messages, tools: Tools = None, *, where: str = "a row"
) -> list[tuple[list[int], list[bool]]]:
    """(tokens, which of them the assistant says) of a conversation; several samples where one template cannot do it.

    What the assistant says is what messages[:i + 1] has beyond messages[:i] with the prompt for an answer, with its end
    token; calls of tools among it. `return_assistant_tokens_mask` of transformers is of no use: it is all zeros,
    without an error, where the template has no `{% generation %}` block, which the stock templates lack. Where
    rendering a longer conversation changes earlier turns (templates that drop earlier reasoning), every assistant's
    turn becomes a sample of its own.

    tools: what may be called, as JSON schemas. where: the row, for messages.

    Raises:
        DataError: even so the prompt is no beginning of the turn, in tokens: a template that adds dates, say; or the
            template leaves calls, tools or reasoning out.
    """
    turns = [i for i, message in enumerate(messages) if message.get("role") == ASSISTANT]
    if not turns:
        return []
    whole = _render(tokenizer, messages, tools)
    _refuse_losses(tokenizer, messages, tools, whole, where)
    spans = []
    for i in turns:
        until = _render(tokenizer, messages[: i + 1], tools)
        before = _render(tokenizer, messages[:i], tools, prompt=True) if i else _first_prompt(tokenizer, until, tools)
        if until[: len(before)] != before:
            raise DataError(_why_no_beginning(tokenizer, messages, tools, i))
        spans.append((before, until))
    if all(whole[: len(until)] == until for _, until in spans):
        mask = [False] * len(whole)
        for before, until in spans:
            mask[len(before) : len(until)] = [True] * (len(until) - len(before))
        return [(whole, mask)]
    return [(until, [False] * len(before) + [True] * (len(until) - len(before))) for before, until in spans]


def _why_no_beginning(tokenizer: PreTrainedTokenizerBase, messages: Messages, tools: Tools, turn: int) -> str:
    """Why the prompt for an answer is no beginning of message `turn`, in tokens."""
    if turn:
        asked_for = str(_apply(tokenizer, messages[:turn], tools, prompt=True, tokenize=False))
        answered = str(_apply(tokenizer, messages[: turn + 1], tools, prompt=False, tokenize=False))
        if answered.startswith(asked_for):
            return (
                "the tokenizer joins the end of the prompt for an answer with the beginning of the answer, so that the "
                "border between both is inside of a token (a prompt that ends in a blank does that); take the blank "
                "away with task.chat_template"
            )
    return (
        "the tokenizer's chat template does not begin an answer as it asks for one (it may add dates, or leave "
        "something out); give another with task.chat_template"
    )


def _refuse_losses(
    tokenizer: PreTrainedTokenizerBase, messages: Messages, tools: Tools, whole: list[int], where: str
) -> None:
    """Check that calls, reasoning and tools are among the tokens: a template may know nothing of them."""
    for key in ("tool_calls", "reasoning_content"):
        if any(message.get(key) for message in messages):
            without = [{name: value for name, value in message.items() if name != key} for message in messages]
            if _render(tokenizer, without, tools) == whole:
                raise DataError(_lost(where, key))
    if tools and _render(tokenizer, messages, None) == whole:
        raise DataError(_lost(where, "tools"))


def _lost(where: str, key: str) -> str:
    return (
        f"{where} has `{key}`, of which the tokenizer's chat template writes nothing, so it would be lost; give a "
        f"template that knows it with task.chat_template, or leave `{key}` out of the rows"
    )


def _first_prompt(tokenizer: PreTrainedTokenizerBase, turn: Sequence[int], tools: Tools) -> list[int]:
    """Tokens before the answer in a conversation that begins with one; transformers renders no empty one.

    Up to the prompt for an answer as it stands after some user's turn, and all of it where it is not to be found.
    """
    some = [{"role": "user", "content": "a"}]
    before, asked = _render(tokenizer, some, tools), _render(tokenizer, some, tools, prompt=True)
    prompt = asked[len(before) :]
    for start in range(len(turn) - len(prompt) + 1):
        if list(turn[start : start + len(prompt)]) == prompt:
            return list(turn[: start + len(prompt)])
    return asked


def take_template(tokenizer: PreTrainedTokenizerBase, file: Path) -> None:
    """Give a tokenizer the chat template in a file, in place of its own.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        tokenizer.chat_template = Path(file).read_text()
    except OSError as error:
        raise ConfigError(f"task.chat_template: {file} cannot be read ({error})") from None


def asked(tokenizer: PreTrainedTokenizerBase, messages: Messages, tools: Tools = None) -> list[int]:
    """Tokens of a conversation up to where the assistant is to speak."""
    return _render(tokenizer, messages, tools, prompt=True)


def _render(
    tokenizer: PreTrainedTokenizerBase, messages: Messages, tools: Tools = None, *, prompt: bool = False
) -> list[int]:
    return list(_apply(tokenizer, messages, tools, prompt=prompt, tokenize=True))


def _apply(
    tokenizer: PreTrainedTokenizerBase, messages: Messages, tools: Tools, *, prompt: bool, tokenize: bool
) -> Any:
    """Write a conversation by the template.

    Raises:
        DataError: it refuses it; the template's own words may quote the text, so they are not shown.
    """
    try:
        return tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=list(tools) if tools else None,
            tokenize=tokenize,
            add_generation_prompt=prompt,
            return_dict=False,
        )
    except TemplateError as error:
        raise DataError(
            f"the tokenizer's chat template refuses a row's messages ({type(error).__name__}): most take turns of user "
            "and assistant and no other roles; change the row, or give another template with task.chat_template"
        ) from None
