"""A model's folder is read with its own regular files, and no code of it is run."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, BertConfig, BertModel

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.models.saved import load_saved
from fedtorch.text.model_files import check_folder, load_from
from fedtorch.text.pretrained import load_tokenizer_as


def saved(folder: Path) -> BertModel:
    """A model in several files."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertModel(BertConfig(vocab_size=40, **sizes))  # type: ignore[arg-type]
    model.save_pretrained(folder, max_shard_size="4KB")
    return model


def index_of(folder: Path) -> Any:
    return json.loads((folder / "model.safetensors.index.json").read_text())


def with_part(folder: Path, name: str) -> None:
    """The index names another file for its first tensor."""
    index = index_of(folder)
    index["weight_map"][next(iter(index["weight_map"]))] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_a_model_in_several_files_is_loaded_as_it_was(tmp_path: Path) -> None:
    model = saved(tmp_path)
    assert len(set(index_of(tmp_path)["weight_map"].values())) > 1
    loaded = load_from(AutoModel, tmp_path, dtype=torch.float32)
    assert all(tensor.equal(loaded.state_dict()[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    "name", ["../other/model.safetensors", "/etc/passwd", "sub/model.safetensors", "a\0b", "..", ""]
)
def test_an_index_that_names_files_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    saved(tmp_path / "model")
    saved(tmp_path / "other")
    with_part(tmp_path / "model", name)
    with pytest.raises(ConfigError, match="names the file .*which is not in its folder"):
        load_from(AutoModel, tmp_path / "model")


def test_a_part_that_is_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "model")
    saved(tmp_path / "other")
    name = sorted(set(index_of(tmp_path / "model")["weight_map"].values()))[0]
    (tmp_path / "model" / name).unlink()
    (tmp_path / "model" / name).symlink_to(tmp_path / "other" / name)
    with pytest.raises(ConfigError, match="is a link that leads out of its folder"):
        load_from(AutoModel, tmp_path / "model")


def test_links_of_the_hubs_cache_are_followed(tmp_path: Path) -> None:
    folder = tmp_path / "models--a--b" / "snapshots" / "0123"
    model = saved(folder)
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir()
    for file in list(folder.iterdir()):
        file.rename(blobs / file.name)
        file.symlink_to(Path("../../blobs") / file.name)
    loaded = load_from(AutoModel, folder, dtype=torch.float32)
    assert loaded.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("content", ["{}", "[1]", '{"weight_map": ["a"]}', "\x00", "[" * 100_000])
def test_an_index_without_a_map_is_refused(content: str, tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ConfigError, match="has no weight_map"):
        check_folder(tmp_path)


def code_in(name: str, at: Callable[[Any], Any]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / name
        config = json.loads(file.read_text()) if file.exists() else {}
        at(config)["auto_map"] = {"AutoConfig": "canary.Config", "AutoTokenizer": ["canary.Words", None]}
        file.write_text(json.dumps(config))

    return change


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "processor_config.json"])
@pytest.mark.parametrize("at", [lambda config: config, lambda config: config.setdefault("text_config", {})])
def test_code_is_refused_wherever_it_is_named(name: str, at: Any, tmp_path: Path) -> None:
    saved(tmp_path)
    code_in(name, at)(tmp_path)
    (tmp_path / "canary.py").write_text("raise SystemExit('run')")
    with pytest.raises(ConfigError, match=r"has an auto_map, by which canary\.py would be run"):
        load_from(AutoConfig, tmp_path)
    check_folder(tmp_path, allows_code=True)


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(os.path.relpath(path))


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [a_fifo, a_socket, a_device])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "tokenizer_config.json"])
def test_what_is_no_regular_file_is_refused_without_waiting(
    name: str, make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "model")
    (tmp_path / "model" / name).unlink(missing_ok=True)
    make(tmp_path / "model" / name)
    for load in (lambda: load_saved(tmp_path / "model"), lambda: load_tokenizer_as("any", tmp_path / "model", str)):
        with pytest.raises(DataError, match="not a regular file"):
            load()


@pytest.mark.parametrize("name", ["a\0b", "\0", "package:a\0b/c", "hub:a\0b", "./a\0"])
def test_nul_in_a_name_is_an_error_of_the_config(name: str) -> None:
    with pytest.raises(ConfigError):
        load_tokenizer_as("any", name, str, key="task.tokenizer")


@pytest.mark.long
@pytest.mark.parametrize("name", ["pipeline", "AutoModel", "Trainer", "__name__", {"a": 1}, ["x"] * 2, 3])
def test_a_class_that_is_no_model_of_transformers_is_refused(name: Any, tmp_path: Path) -> None:
    saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": [name]}))
    with pytest.raises(ConfigError, match="which transformers lacks"):
        load_saved(tmp_path)
