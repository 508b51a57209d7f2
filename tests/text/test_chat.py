"""Which tokens of a conversation are learned, counted by hand for templates of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from fedtorch.core.errors import DataError
from fedtorch.text.byte_bpe import load_subwords, train_subwords
from fedtorch.text.chat import supervised

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<assistant>{% endif %}"
MARKED = (  # with transformers' own block, which must make no difference
    "{% for m in messages %}{% if m.role == 'assistant' %}<assistant>{% generation %}{{ m.content }}</s>"
    "{% endgeneration %}{% else %}<{{ m.role }}>{{ m.content }}</s>{% endif %}{% endfor %}"
)
STRIPPING = (  # drops what earlier answers thought, as templates of reasoning models do
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and not loop.last and '#' in m.content %}"
    "{{ m.content.split('#')[1] }}{% else %}{{ m.content }}{% endif %}</s>{% endfor %}"
)
DATED = "{{ messages | length }}!" + PLAIN  # what stands first depends on what follows
TRIMMING = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</s>{% endfor %}"

ONE = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c d"}]
TWO = [*ONE, {"role": "user", "content": "e"}, {"role": "assistant", "content": "f"}]
GREETED = [{"role": "assistant", "content": "g"}, *ONE]
TOOL = [ONE[0], {"role": "tool", "content": "42"}, {"role": "assistant", "content": "c d"}]
THOUGHT = [ONE[0], {"role": "assistant", "content": "x#c"}, {"role": "user", "content": "e"}, ONE[1]]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    """Bytes alone, so that a token is a character."""
    folder = tmp_path_factory.mktemp("bytes")
    train_subwords(["a"], folder, size=261)
    return load_subwords(folder)


def learned(tokenizer: Any, template: str, messages: list[dict[str, str]]) -> list[str]:
    """What of each sample is learned, as text."""
    tokenizer.chat_template = template + PROMPT
    samples = supervised(tokenizer, messages)
    return [
        "".join(tokenizer.decode([i]) if kept else "." for i, kept in zip(*sample, strict=True)) for sample in samples
    ]


@pytest.mark.parametrize(
    ("template", "messages", "expected"),
    [
        (PLAIN, ONE, ["<user>a b</s><assistant>|c d</s>"]),
        (MARKED, ONE, ["<user>a b</s><assistant>|c d</s>"]),
        (PLAIN, TWO, ["<user>a b</s><assistant>|c d</s>|<user>e</s><assistant>|f</s>"]),
        (PLAIN, TOOL, ["<user>a b</s><tool>42</s><assistant>|c d</s>"]),
        (PLAIN, GREETED, ["<assistant>|g</s>|<user>a b</s><assistant>|c d</s>"]),
        ("0" + PLAIN, GREETED, ["0<assistant>|g</s>|<user>a b</s><assistant>|c d</s>"]),
        (TRIMMING, [ONE[0], {"role": "assistant", "content": "  "}], ["<user>a b</s><assistant>|</s>"]),
        (
            STRIPPING,
            THOUGHT,
            ["<user>a b</s><assistant>|x#c</s>", "<user>a b</s><assistant>c</s><user>e</s><assistant>|c d</s>"],
        ),
    ],
    ids=[
        "one",
        "generation block",
        "two turns",
        "tool",
        "begun by the assistant",
        "and by a first token",
        "empty answer",
        "stripped reasoning",
    ],
)
def test_what_the_assistant_says_is_learned_with_its_end(
    tokenizer: Any, template: str, messages: list[dict[str, str]], expected: list[str]
) -> None:
    def dots(text: str) -> str:
        shown = ""
        for place, part in enumerate(text.split("|")):
            shown += part if place % 2 else "." * len(tokenizer(part, add_special_tokens=False).input_ids)
        return shown

    assert learned(tokenizer, template, messages) == [dots(text) for text in expected]


def test_a_template_that_changes_what_came_before_is_refused(tokenizer: Any) -> None:
    tokenizer.chat_template = DATED + PROMPT
    with pytest.raises(DataError, match="chat template does not begin an answer as it asks for one"):
        supervised(tokenizer, ONE)


def test_a_conversation_without_an_answer_has_no_sample(tokenizer: Any) -> None:
    tokenizer.chat_template = PLAIN + PROMPT
    assert supervised(tokenizer, ONE[:1]) == []


def test_the_mask_of_transformers_is_silently_empty_without_its_block(tokenizer: Any, tmp_path: Path) -> None:
    """The reason for our own: if this fails, the library has changed."""
    tokenizer.chat_template = PLAIN + PROMPT
    found = tokenizer.apply_chat_template(ONE, return_dict=True, return_assistant_tokens_mask=True)
    assert not any(found["assistant_masks"])
