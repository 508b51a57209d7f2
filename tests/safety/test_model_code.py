"""No command runs code that a model's folder names, whoever answers "y" on stdin."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer, BertConfig, BertModel

from fedtorch.cli.__main__ import main
from fedtorch.text.byte_bpe import train_subwords

WORDS = "scan fever lung mass history report grave mild severe benign".split()
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


class Tty(io.StringIO):
    """Somebody at the terminal who says yes to everything."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean model, rows, a config, and a run of it."""
    folder = tmp_path_factory.mktemp("made")
    rows = [
        {"note": " ".join(WORDS[i * k % 10] for k in range(1, 2 + i % 7)), "label": "xyz"[i % 3]} for i in range(30)
    ]
    (folder / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train_subwords([str(row["note"]) for row in rows], folder / "net", size=300)
    tokenizer = AutoTokenizer.from_pretrained(folder / "net")
    BertModel(BertConfig(vocab_size=len(tokenizer), **SIZES)).save_pretrained(folder / "net")  # type: ignore[arg-type]
    (folder / "own.yaml").write_text(
        "run: {name: own}\nrounds: 1\ntrack: {tensorboard: false, progress: 'off'}\n"
        "client: {optimizer: sgd, lr: 0.1, batch_size: 4}\n"
        "task: {name: text_classification, problem: single_label, model: {path: net}, max_length: 8, "
        "data: {source: notes.jsonl, columns: {text: note}, clients: {iid: 2}}}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["run", "--config", "own.yaml"]) == 0
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    monkeypatch.setattr(sys, "stdin", Tty("y\n" * 99))
    return tmp_path / "copy"


def poison(folder: Path, name: str) -> Path:
    """The folder names code that writes a file; that file."""
    canary = folder.parent / "canary"
    config = json.loads((folder / name).read_text())
    names = {"AutoTokenizer": ["code.Words", "code.Words"], "AutoConfig": "code.Shape", "AutoModel": "code.Net"}
    names["AutoModelForSequenceClassification"] = "code.Net"
    config["auto_map"] = names
    if name == "tokenizer_config.json":
        config["tokenizer_class"] = "Words"
    else:
        config["model_type"] = "shape"
    (folder / name).write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(canary)!r}, 'w').close()\n")
    return canary


COMMANDS: dict[str, tuple[str, list[str]]] = {
    "run": ("net", ["run", "--config", "own.yaml", "--resume", "never"]),
    "predict": ("runs/own/model", ["predict", "runs/own", "notes.jsonl"]),
    "export": ("net", ["export", "runs/own", "--out", "out"]),
    "init": ("net", ["init", "notes.jsonl", "--model", "net", "--out", "new.yaml"]),
    "audit": ("net", ["audit", "runs/own"]),
    "audit of a config": ("net", ["audit", "--config", "own.yaml"]),
    "data check": ("net", ["data", "check", "own.yaml"]),
}


@pytest.mark.long
@pytest.mark.parametrize("name", ["tokenizer_config.json", "config.json"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_a_folder_with_code_and_asks_nobody(
    command: str, name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, words = COMMANDS[command]
    canary = poison(place / folder, name)
    assert main(words) == 2
    said = capsys.readouterr()
    assert not canary.exists()
    assert "has an auto_map, by which code.py would be run" in said.err
    assert "[y/N]" not in said.out + said.err and sys.stdin.tell() == 0


@pytest.fixture(scope="module")
def dialogs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    from fedtorch.data.synthetic.dialogs import prepare

    prepare(folder / "data")
    changes = [f"task.data={folder / 'data'}", f"run.dir={folder / 'run'}", "task.max_train=4", "rounds=1"]
    assert main(["run", "--config", "smoke/feda", "--set", *changes, "track.tensorboard=false"]) == 0
    return next(path.parent for path in folder.rglob("metrics.jsonl"))


@pytest.mark.parametrize("name", ["tokenizer_config.json", "config.json"])
def test_chat_refuses_it_too(
    name: str, dialogs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(dialogs, tmp_path / "run")
    monkeypatch.setattr(sys, "stdin", Tty("y\n" * 99))
    canary = poison(tmp_path / "run" / "model" / "pizza" / "user", name)
    assert main(["chat", "--run", str(tmp_path / "run"), "--client", "pizza"]) == 2
    assert not canary.exists() and "has an auto_map, by which code.py would be run" in capsys.readouterr().err


def test_the_same_commands_work_without_the_code(place: Path) -> None:
    for command in ("predict", "export", "data check"):
        assert main(COMMANDS[command][1]) == 0
