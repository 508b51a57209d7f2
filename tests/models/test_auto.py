"""Any model of transformers with the head of a task: from a configuration, or from a folder that may lack the head."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerBase,
    T5Config,
    T5ForConditionalGeneration,
)

from fedtorch.core.errors import ConfigError
from fedtorch.models.auto import AnyModel, Head, longest_input
from fedtorch.models.padding import pad
from fedtorch.models.pretrained import save_model, save_tokenizer
from fedtorch.text.byte_bpe import train_subwords

BERT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
GPT2 = {"n_embd": 8, "n_layer": 1, "n_head": 2}
T5 = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
SEQUENCE: Head = "SequenceClassification"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreTrainedTokenizerBase]:
    folder = tmp_path_factory.mktemp("words")
    train_subwords(["one two three"], folder, size=262)
    yield AutoTokenizer.from_pretrained(folder)


def build(keys: dict[str, Any], tokenizer: PreTrainedTokenizerBase, head: Head = SEQUENCE, **settings: Any) -> Any:
    if head in ("SequenceClassification", "TokenClassification"):
        settings = {"num_labels": 3, **settings}
    return AnyModel.of(keys).build(head, 7, tokenizer, **settings)


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))


@pytest.mark.parametrize(
    ("kind", "sizes", "head"),
    [
        ("bert", BERT, "SequenceClassification"),
        ("bert", BERT, "TokenClassification"),
        ("gpt2", GPT2, "CausalLM"),
        ("t5", T5, "Seq2SeqLM"),
    ],
)
def test_random_weights_come_from_the_seed_and_fit_the_vocabulary(
    kind: str, sizes: dict[str, Any], head: Head, tokenizer: PreTrainedTokenizerBase
) -> None:
    keys = {"random": kind, **sizes}
    model = build(keys, tokenizer, head)
    assert type(model).__name__.lower().startswith(kind) and next(model.parameters()).dtype == torch.float32
    assert same(model, build(keys, tokenizer, head))
    assert not same(model, AnyModel.of(keys).build(head, 8, tokenizer))
    assert model.get_input_embeddings().num_embeddings == len(tokenizer)
    assert model.config.pad_token_id == tokenizer.pad_token_id and model.config.eos_token_id == tokenizer.eos_token_id
    if head == "Seq2SeqLM":
        assert model.config.decoder_start_token_id == tokenizer.pad_token_id


def test_a_model_that_was_saved_is_found_again(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    model = build({"random": "bert", **BERT}, tokenizer)
    save_model(model, tmp_path)
    save_tokenizer(tokenizer, tmp_path)
    assert same(model, build({"path": str(tmp_path)}, tokenizer))
    assert AutoTokenizer.from_pretrained(tmp_path)("one two").input_ids == tokenizer("one two").input_ids
    assert build({"path": str(tmp_path), "hidden_dropout_prob": 0.3}, tokenizer).config.hidden_dropout_prob == 0.3


@pytest.mark.parametrize("trained", ["masks", "other labels"])
def test_a_head_that_is_not_there_is_drawn_from_the_seed(
    trained: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    """Also BERT's pooler, which a model that was trained to fill masks has not."""
    config = BertConfig(vocab_size=len(tokenizer), num_labels=9, **BERT)
    source = (BertForMaskedLM if trained == "masks" else BertForSequenceClassification)(config)
    source.save_pretrained(tmp_path)
    model = build({"path": str(tmp_path)}, tokenizer)
    assert same(model, build({"path": str(tmp_path)}, tokenizer))
    assert torch.equal(model.bert.embeddings.word_embeddings.weight, source.bert.embeddings.word_embeddings.weight)
    assert model.classifier.weight.shape == (3, 8) and model.classifier.weight.std() > 0


def test_a_head_that_writes_is_not_drawn(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **BERT)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=f"task.model.path is '{tmp_path}', "):
        build({"path": str(tmp_path)}, tokenizer, "Seq2SeqLM")


def test_a_language_model_gets_a_head_to_classify_with(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    decoder = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_positions=32, **GPT2))
    decoder.save_pretrained(tmp_path / "gpt2")
    model = build({"path": str(tmp_path / "gpt2")}, tokenizer)
    assert torch.equal(model.transformer.wte.weight, decoder.transformer.wte.weight) and longest_input(model) == 32
    T5ForConditionalGeneration(T5Config(vocab_size=300, decoder_start_token_id=0, **T5)).save_pretrained(
        tmp_path / "t5"
    )
    assert longest_input(build({"path": str(tmp_path / "t5")}, tokenizer)) is None


def test_a_body_with_gaps_is_refused(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    small = BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), **BERT))
    small.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ConfigError, match=r"which lacks 16 tensors of a BertForSequenceClassification, such as `bert\."
    ):
        build({"path": str(tmp_path)}, tokenizer)


def test_a_larger_vocabulary_gets_rows_from_the_seed(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    source = BertForSequenceClassification(BertConfig(vocab_size=200, **BERT))
    source.save_pretrained(tmp_path)
    model, again = (build({"path": str(tmp_path)}, tokenizer) for _ in range(2))
    assert model.get_input_embeddings().num_embeddings == len(tokenizer) and same(model, again)
    assert torch.equal(model.get_input_embeddings().weight[:200], source.get_input_embeddings().weight)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "task.model has neither path nor random"),
        ({"path": "a", "random": "bert"}, "task.model has path and random"),
        ({"random": 3}, "task.model.random is 3 but should be a string"),
        ({"path": "a", "allow_code": "yes"}, "task.model.allow_code is 'yes' but should be true or false"),
        ({"random": "gtp2"}, "task.model.random is 'gtp2', .* did you mean "),
        ({"random": "bert", "layers": 2}, "task.model.layers: the configuration of bert has no such field"),
        ({"random": "gpt2", "n_layers": 2}, "has no such field; did you mean `n_layer`"),
        ({"random": "bert", "hidden_size": 10**9}, "task.model.hidden_size is 1000000000, which is beyond any model"),
    ],
)
def test_keys_that_name_no_model_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AnyModel.of(keys)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"random": "bert", "hidden_size": 10, "num_attention_heads": 4}, "of which AutoModelForSeq.* makes nothing"),
        ({"random": "clip"}, "of which AutoModelForSequenceClassification makes nothing"),
        ({"path": "./nothing"}, "task.model.path: './nothing' is not a folder"),
        ({"path": "no-such-model"}, "task.model.path: 'no-such-model' is not a folder and not in the local hub cache"),
    ],
)
def test_models_that_cannot_be_built_are_named(
    keys: dict[str, Any], message: str, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*address: Any, **_: Any) -> None:
        raise AssertionError(f"asked the network: {address}")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(ConfigError, match=message):
        build(keys, tokenizer)


def test_a_folder_with_pickled_weights_alone_is_refused(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    BertConfig(vocab_size=len(tokenizer), **BERT).save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"not looked at")
    with pytest.raises(ConfigError, match=r"makes nothing .*\(with model.safetensors\)"):
        build({"path": str(tmp_path)}, tokenizer)


def test_files_that_would_be_run_are_named_and_not_run(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    code = {"AutoConfig": "shape.ShapeConfig", "AutoModelForSequenceClassification": "shape.Shape"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "shape", "auto_map": code}))
    (tmp_path / "shape.py").write_text("raise SystemExit('run')")
    with pytest.raises(ConfigError, match=r"by which shape\.py would be run; read it, and set task.model.allow_code"):
        build({"path": str(tmp_path)}, tokenizer)


def test_rows_are_filled_up_on_either_side() -> None:
    assert pad([[1], [2, 3]], 0).tolist() == [[1, 0], [2, 3]]
    assert pad([[1], [2, 3]], 9, left=True).tolist() == [[9, 1], [2, 3]]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_attention_heads", -2),
        ("num_attention_heads", 0),
        ("hidden_size", -16),
        ("num_hidden_layers", -1),
        ("intermediate_size", 0),
        ("hidden_dropout_prob", -0.5),
        ("layer_norm_eps", float("nan")),
        ("max_position_embeddings", 2.5),
    ],
)
def test_a_size_that_no_model_can_have_is_refused_with_its_key(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"task.model.{key} is {value}; set it to"):
        AnyModel.of({"random": "bert", key: value})


def test_a_model_without_layers_is_one() -> None:
    assert AnyModel.of({"random": "bert", "num_hidden_layers": 0}).options == {"num_hidden_layers": 0}
