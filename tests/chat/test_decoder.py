"""`fedtorch chat` with one decoder: it says what `predict` says, remembers a conversation, and begins anew in time."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from own_rows import GPT2, T5, write_rows

from fedtorch.chat.decoder import open_decoder
from fedtorch.chat.user import talk
from fedtorch.cli.__main__ import main
from fedtorch.core.errors import ConfigError
from fedtorch.tracking.run_folder import read_run

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}<assistant>{% endif %}"
COLOURS = ("red", "blue")
LINES = [f"sign {i}" for i in range(5)]
LORA = {"kind": "lora", "r": 2}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("chat.jinja").write_text(TEMPLATE)


def trained(rows: list[dict[str, Any]], task: dict[str, Any], **more: Any) -> None:
    write_rows(Path("rows.jsonl"), [{**row, "home": "ab"[i % 2]} for i, row in enumerate(rows)])
    data = {"source": "rows.jsonl", "clients": {"by": "home"}, "tokenizer_size": 300}
    config = {
        "task": {"name": "causal_lm", "model": GPT2, "max_length": 48, "generate": {"max_new_tokens": 6}, **task},
        "rounds": 1,
        "client": {"lr": 1e-4, "batch_size": 4},  # one that has learned says nothing where an answer ends at once
        "track": {"tensorboard": False, "progress": "off"},
        **more,
    }
    config["task"] = {"data": data, **config["task"]}
    Path("own.yaml").write_text(yaml.safe_dump(config))
    assert main(["run", "--config", "own.yaml"]) == 0


PROMPTS = [{"prompt": f"sign {i}", "completion": f" {COLOURS[i % 2]}"} for i in range(30)]
CHATS = [
    {"messages": [{"role": "user", "content": f"sign {i}"}, {"role": "assistant", "content": COLOURS[i % 2]}]}
    for i in range(30)
]
KINDS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], Any]] = {
    "prompts": (PROMPTS, {}, lambda line: {"prompt": line}),
    "template": (PROMPTS, {"template": "What is {prompt}?"}, lambda line: {"prompt": line}),
    "adapter": (PROMPTS, {"model": {**GPT2, "adapter": LORA}}, lambda line: {"prompt": line}),
    "messages": (
        CHATS,
        {"rows_are": "messages", "chat_template": "chat.jinja"},
        lambda line: {"messages": [{"role": "user", "content": line}]},
    ),
}


def answered(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().out.splitlines()
    return [line.removeprefix("assistant:").strip() for line in lines if line.startswith("assistant:")]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_first_turn_is_answered_as_predict_answers_it(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows, task, row = KINDS[kind]
    trained(rows, task)
    write_rows(Path("new.jsonl"), [row(line) for line in LINES])
    assert main(["predict", "runs/own", "new.jsonl", "--out", "answers.jsonl"]) == 0
    expected = [json.loads(line)["text"].strip() for line in Path("answers.jsonl").read_text().splitlines()]
    assert len(set(expected)) > 1 or all(expected)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for command in (["chat", "../runs/own"], ["chat", "--run", "../runs/own", "--client", "a"]):
        capsys.readouterr()
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n/new\n" for line in LINES)))
        assert main(command) == 0
        assert answered(capsys) == expected


def test_a_conversation_is_remembered_until_there_is_no_room(capsys: pytest.CaptureFixture[str]) -> None:
    trained(CHATS, {"rows_are": "messages", "chat_template": "chat.jinja", "max_length": 64})
    decoder = open_decoder(read_run(Path("runs/own")), None, max_new=2, temperature=0.0, seed=0)
    first = decoder.size("sign 1")
    decoder.reply("sign 1")
    assert [message["role"] for message in decoder.said] == ["user", "assistant"]
    assert len(decoder._read(decoder.said, "sign 2")) > first
    out = io.StringIO()
    talk(decoder, ["sign 3"] * 6 + ["", "sign " * 60, "/new"], out)
    said = out.getvalue()
    assert said.count("assistant:") == 6 and "(no position is left; a new dialog begins)" in said
    assert "(too long: " in said and "the model has 64 positions)" in said and not decoder.said


def test_a_prompt_stands_alone() -> None:
    trained(PROMPTS, {})
    decoder = open_decoder(read_run(Path("runs/own")), None, max_new=None, temperature=0.0, seed=0)
    assert decoder.reply("sign 1") == decoder.reply("sign 1") and not decoder.said and decoder.max_new == 6


def test_with_a_temperature_answers_are_drawn_from_the_seed() -> None:
    trained(PROMPTS, {})
    run = read_run(Path("runs/own"))
    drawn = [
        [open_decoder(run, None, max_new=6, temperature=3.0, seed=seed).reply(line) for line in LINES]
        for seed in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_clients_with_models_of_their_own_are_named(monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    trained(PROMPTS, {}, paradigm="local")
    assert main(["chat", "runs/own"]) == 2
    assert "name a client with --client" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO("sign 1\n"))
    assert main(["chat", "runs/own", "--client", "b"]) == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--show-wire"], "--show-wire is given, but runs/own has one model, so nothing crosses"),
        (["--reply", "keys"], "--reply is given"),
        (["--max-new", "64"], "--max-new is 64 but the model has 64 positions"),
        (["--run", "runs/own"], "name the folder of one run"),
    ],
)
def test_options_that_do_nothing_are_refused(options: list[str], said: str, capsys: Any) -> None:
    trained(PROMPTS, {})
    assert main(["chat", "runs/own", *options]) == 2
    assert said in capsys.readouterr().err


def test_prompts_of_several_columns_and_other_tasks_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"place": "sea", "prompt": f"sign {i}", "completion": " red"} for i in range(30)]
    trained(rows, {"template": "{place}: {prompt}"})
    with pytest.raises(ConfigError, match=r"prompts of the columns place, prompt \(task.template\), and what is typed"):
        open_decoder(read_run(Path("runs/own")), None, max_new=None, temperature=0.0, seed=0)
    pairs = [{"source": f"sign {i}", "target": "red"} for i in range(30)]
    trained(pairs, {"name": "seq2seq", "model": T5}, run={"name": "texts"})
    assert main(["chat", "runs/texts"]) == 2
    assert "task.name seq2seq, whose model does not talk; name a run of causal_lm or dialog" in capsys.readouterr().err


def test_one_model_of_both_sides_of_a_dialog_talks(monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["run.name=own", "rounds=1", "run.dir=runs/own"]
    assert main(["run", "--config", "smoke/gpt_all", "--set", *settings]) == 0
    decoder = open_decoder(read_run(Path("runs/own")), None, max_new=3, temperature=0.0, seed=0)
    end, words = decoder.vocabulary.eos_token_id, decoder.vocabulary("hello").input_ids
    assert decoder._read([], "hello") == [end, *words, end]
    decoder.reply("hello")
    assert decoder._read(decoder.said, "hello")[: len(words) + 2] == [end, *words, end]
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nand now\n"))
    capsys.readouterr()
    assert main(["chat", "runs/own", "--max-new", "4"]) == 0
    assert capsys.readouterr().out.count("assistant:") == 2
