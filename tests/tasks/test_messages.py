"""Conversations with tools: nothing of a row is lost between the file and the tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedtorch.cli.__main__ import main
from fedtorch.core.errors import DataError
from fedtorch.tasks.conversations import Conversations, Unanswered
from fedtorch.tasks.messages import listed, texts_of, tools_of
from fedtorch.text.byte_bpe import load_subwords, train_subwords
from fedtorch.text.chat import supervised

CALL = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}]}  # fmt: skip
ASKED = {"role": "user", "content": "weather in Rome?"}
ANSWERED = {"role": "tool", "tool_call_id": "1", "name": "weather", "content": "sunny"}
SAID = {"role": "assistant", "content": "It is sunny."}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
TEMPLATE = (
    "{% if tools %}[{{ tools | length }}]{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.function.arguments.city }}){% endfor %}</s>"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Bytes alone, so that a token is a character."""
    folder = tmp_path_factory.mktemp("bytes")
    train_subwords(["a"], folder, size=261)
    return load_subwords(folder)


def test_calls_names_and_reasoning_are_kept_and_arguments_become_a_mapping() -> None:
    thought = {**SAID, "reasoning_content": "the tool says so", "tool_calls": None}
    found = listed([ASKED, CALL, ANSWERED, thought])
    assert found[0] == ASKED and found[2] == ANSWERED
    assert found[1]["content"] is None
    assert found[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Rome"}}
    assert found[3] == {**SAID, "reasoning_content": "the tool says so"}
    assert list(texts_of(found, TOOLS)) == [
        "weather in Rome?", "", json.dumps(found[1]["tool_calls"]), "sunny", "It is sunny.", "the tool says so",
        json.dumps(TOOLS)]  # fmt: skip


def test_nulls_of_columnar_files_are_no_arguments() -> None:
    call = {"function": {"name": "a", "arguments": {"city": None, "day": 1}}, "id": None}
    (found,) = listed([{"role": "assistant", "content": "", "tool_calls": [call]}])
    assert found["tool_calls"] == [{"function": {"name": "a", "arguments": {"day": 1}}}]
    assert tools_of(json.dumps(TOOLS)) == tools_of([{**TOOLS[0], "strict": None}]) == TOOLS
    assert tools_of(None) == tools_of("") == []


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"role": "assistant", "content": None}, "message 1 has no content and calls no tool"),
        ({"role": "user", "content": "a", "audio": "x"}, "message 1 has `audio`, which would be lost"),
        ({"role": "user", "content": ["a"]}, "message 1 has a list as content, expected a string"),
        ({"content": "a"}, "message 1 has no role"),
        ({"role": "assistant", "content": "a", "tool_calls": "b"}, "tool_calls that are no list"),
    ],
)
def test_a_message_that_would_lose_something_is_refused(message: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Conversations(("messages",), None).convert({"messages": [message, SAID]})


def test_a_call_is_learned_as_the_template_writes_it(tokenizer: Any) -> None:
    tokenizer.chat_template = TEMPLATE
    row = Conversations(("messages",), None, ("tools",)).convert(
        {"messages": [ASKED, CALL, ANSWERED, SAID], "tools": TOOLS}
    )
    ((ids, mask),) = supervised(tokenizer, row["messages"], row["tools"])
    shown = "".join(tokenizer.decode([i]) if learned else "." for i, learned in zip(ids, mask, strict=True))
    assert [text for text in shown.split(".") if text] == ["(weather Rome)</s>", "It is sunny", "</s>"]
    assert tokenizer.decode(ids).startswith("[1]<user>")


@pytest.mark.parametrize("key", ["tool_calls", "tools", "reasoning_content"])
def test_a_template_that_writes_nothing_of_them_is_refused(key: str, tokenizer: Any) -> None:
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}</s>{% endfor %}"
    tokenizer.chat_template += "{% if add_generation_prompt %}<assistant>{% endif %}"
    calls = {"tool_calls": CALL["tool_calls"]} if key == "tool_calls" else {}
    thought = {"reasoning_content": "so"} if key == "reasoning_content" else {}
    with pytest.raises(DataError, match=f"rows.jsonl:3 has `{key}`, of which the tokenizer's chat template writes"):
        supervised(
            tokenizer, [ASKED, {**SAID, **calls, **thought}], TOOLS if key == "tools" else None, where="rows.jsonl:3"
        )


def test_a_prompt_that_ends_in_a_blank_is_refused_for_that(tmp_path: Path) -> None:
    train_subwords(["a: hello world hello world"] * 50, tmp_path, size=300)
    tokenizer = load_subwords(tmp_path)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    with pytest.raises(DataError, match="a prompt that ends in a blank does that"):
        supervised(tokenizer, [ASKED, {"role": "assistant", "content": "hello world"}])


def test_new_rows_are_asked_with_their_tools() -> None:
    found = Unanswered().convert({"messages": [ASKED, CALL, ANSWERED, SAID], "tools": TOOLS})
    assert found["tools"] == TOOLS and [message["role"] for message in found["conversation"]] == [
        "user", "assistant", "tool"]  # fmt: skip


@pytest.mark.long
def test_a_chat_with_tools_goes_from_a_file_to_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cities, rows = ["Rome", "Oslo", "Lima", "Cairo"], []
    for number in range(48):
        call = json.loads(json.dumps(CALL).replace("Rome", cities[number % 4]))
        asked = {"role": "user", "content": f"weather in {cities[number % 4]}? {number}"}
        rows.append({"messages": [asked, call, ANSWERED, SAID] if number % 2 else [asked, call], "tools": TOOLS})
    Path("chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["init", "chats.jsonl"]) == 0
    assert main(["data", "check", "chats.yaml"]) == 0
    shrunk = ["rounds=1", "client.epochs=1", "track.tensorboard=false"]
    assert main(["run", "--config", "chats.yaml", "--set", *shrunk]) == 0
    (folder,) = Path("data/own").glob("causal_lm-*")
    kept = [json.loads(line) for file in folder.rglob("train.jsonl") for line in file.read_text().splitlines()]
    assert kept and all(row["tools"] == TOOLS and row["messages"][1]["tool_calls"] for row in kept)
    Path("new.jsonl").write_text(json.dumps({"messages": [rows[0]["messages"][0]], "tools": TOOLS}) + "\n")
    capsys.readouterr()
    assert main(["predict", "runs/chats", "new.jsonl"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"row", "text"}
