"""Where a pretrained model is looked for, and that nobody is asked who was not named."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from fedtorch.core.errors import ConfigError
from fedtorch.models.bert import BertEncoder
from fedtorch.models.encoder import EncoderModel
from fedtorch.models.encoder_decoder import EncoderDecoder
from fedtorch.models.gpt2 import GPT2Model
from fedtorch.models.t5 import T5Model
from fedtorch.tasks.dialog import Dialog
from fedtorch.tasks.fewshot import FewShotTasks
from fedtorch.tasks.qa import QA
from fedtorch.tasks.text2sql import Text2SQL
from fedtorch.tasks.wikisql import WikiSQL
from fedtorch.text.pretrained import located


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """The hub may be asked, as where nobody set HF_HUB_OFFLINE; the addresses that are looked up or connected to."""
    attempts: list[str] = []

    def refuse(*address: Any, **_: Any) -> None:
        attempts.append(str(address))
        raise OSError("there is no network")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.chdir(tmp_path)
    yield attempts


TASKS: dict[str, tuple[Callable[[str], Any], str]] = {
    "t5": (lambda name: Text2SQL(model=T5Model(name=name)).vocabulary, "task.model.name"),
    "a tokenizer of its own": (lambda name: Text2SQL(tokenizer=name).vocabulary, "task.tokenizer"),
    "bart": (lambda name: FewShotTasks(model=EncoderDecoder(name=name)).vocabulary, "task.model.name"),
    "gpt2": (lambda name: Dialog(model=GPT2Model(name=name)).vocabulary, "task.model.name"),
    "bert": (lambda name: QA(model=BertEncoder(name=name)).vocabulary, "task.model.name"),
    "bert's configuration": (lambda name: BertEncoder(name=name).longest(1, 1), "task.model.name"),
    "roberta": (lambda name: WikiSQL(encoder=EncoderModel(name=name)).vocabulary, "task.encoder.name"),
    "roberta's weights": (
        lambda name: EncoderModel(name=name).build(0, vocab_size=9, max_length=9, pad_id=1),
        "task.encoder.name",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "name", ["no-such-model", "./models/bart-base", "models/of/mine", "./model", "/no/such/folder", "a\0b", "x" * 5000]
)
def test_missing_weights_name_the_key_and_ask_no_hub(task: str, name: str, asked: list[str]) -> None:
    load, key = TASKS[task]
    with pytest.raises(ConfigError) as caught:
        load(name)
    assert str(caught.value).startswith(f"{key}: ") and len(str(caught.value)) < 700
    assert asked == []


def test_a_missing_model_says_how_to_download_it_and_a_path_does_not(asked: list[str]) -> None:
    with pytest.raises(
        ConfigError, match="'t5-base' is not a folder and not in the local hub cache.* `hub:t5-base` to"
    ):
        located("t5-base")
    with pytest.raises(ConfigError) as caught:
        located("models/of/mine")
    assert "hub" not in str(caught.value) and asked == []


def test_the_hub_is_asked_where_it_is_named(asked: list[str]) -> None:
    with pytest.raises(ConfigError, match="task.model.name: 'no-such-model' could not be had from the hub"):
        located("hub:no-such-model", key="task.model.name")
    assert asked
    with pytest.raises(ConfigError, match="could not be had from the hub"):
        located("hub:../x")


@pytest.mark.parametrize("task", TASKS)
def test_a_name_of_the_hubs_form_asks_the_hub_and_says_what_to_do_without_a_network(
    task: str, asked: list[str]
) -> None:
    load, key = TASKS[task]
    with pytest.raises(ConfigError) as caught:
        load("some/tiny")
    said = str(caught.value)
    assert said.startswith(f"{key}: 'some/tiny' is not a folder here, and could not be had from the hub (")
    assert "download it where there is a network (`hf download some/tiny`) and give its folder" in said
    assert asked and len(said) < 700


def test_a_name_whose_first_part_is_a_folder_is_a_path(asked: list[str]) -> None:
    Path("models").mkdir()
    with pytest.raises(ConfigError, match="'models/tiny' is not a folder; expected"):
        located("models/tiny")
    assert asked == []


def test_a_model_in_the_local_cache_is_found_by_its_name(asked: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "models--me--tiny"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0123")
    (folder / "snapshots" / "0123").mkdir(parents=True)
    (folder / "snapshots" / "0123" / "config.json").write_text("{}")
    assert located("me/tiny") == str(folder / "snapshots" / "0123")
    assert asked == []
