"""T5 from a size, from a folder, and greedy generation in batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedtorch.core.errors import ConfigError
from fedtorch.models.padding import pad
from fedtorch.models.t5 import T5Model, generate_greedily, save_pretrained
from fedtorch.text.sentencepiece import load_tokenizer

SMALL = T5Model(d_model=16, d_ff=32, d_kv=8, num_heads=3, num_layers=1, dropout=0.0)


@pytest.fixture
def tokenizer(tiny_data: Path) -> Any:
    return load_tokenizer(tiny_data / "tokenizer")


def test_the_same_seed_builds_the_same_weights(tokenizer: Any) -> None:
    one, same, other = (SMALL.build(seed, tokenizer) for seed in (1, 1, 2))
    pairs = list(zip(one.parameters(), same.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs) and not all(torch.equal(a, c) for a, _, c in pairs)


def test_generating_in_batches_equals_one_by_one(tokenizer: Any) -> None:
    model: Any = SMALL.build(0, tokenizer).eval()
    generator = torch.Generator().manual_seed(3)
    sources = [torch.randint(3, len(tokenizer), (n,), generator=generator).tolist() for n in (4, 9, 1, 7, 9, 2)]
    together = generate_greedily(model, sources, batch_size=4, max_length=7)
    alone = [generate_greedily(model, [source], batch_size=1, max_length=7)[0] for source in sources]
    assert together == alone and all(len(ids) <= 7 for ids in together)


def test_a_saved_model_comes_back_to_the_bit_with_its_ties(tokenizer: Any, tmp_path: Path) -> None:
    from fedtorch.core.weights import Partition
    from fedtorch.train.engine import Engine

    model = Engine(SMALL.build(0, tokenizer), Partition(), torch.device("cpu")).module
    save_pretrained(model, tokenizer, tmp_path)
    back = T5Model(name=str(tmp_path), dropout=0.0).build(7, tokenizer)
    for (name, one), (_, other) in zip(model.named_parameters(), back.named_parameters(), strict=True):
        assert torch.equal(one, other), name


def test_added_tokens_get_rows_in_a_pretrained_embedding(tokenizer: Any, tiny_data: Path, tmp_path: Path) -> None:
    save_pretrained(SMALL.build(0, tokenizer), tokenizer, tmp_path)
    larger = load_tokenizer(tiny_data / "tokenizer", [" <<", " >>"])
    model: Any = T5Model(name=str(tmp_path)).build(0, larger)
    assert model.get_input_embeddings().num_embeddings == len(larger) == len(tokenizer) + 2


def test_a_folder_without_a_model_is_an_error_that_says_what_to_do(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="task.model.name is .* of a T5 that save_pretrained wrote .with model.safe"):
        T5Model(name=str(tmp_path)).build(0, tokenizer)


def test_the_copying_start_makes_cross_attention_symmetric_and_positions_sharp(tokenizer: Any) -> None:
    plain: Any = SMALL.build(0, tokenizer)
    model: Any = replace(SMALL, init="copying").build(0, tokenizer)
    attention = model.decoder.block[0].layer[1].EncDecAttention
    assert torch.equal(attention.o.weight, attention.v.weight.T)
    biases = [[p for n, p in m.named_parameters() if "relative_attention_bias" in n] for m in (plain, model)]
    assert biases[1][0].std() > 10 * biases[0][0].std()
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in model.parameters())


def test_padding_is_on_the_right() -> None:
    assert pad([[1, 2, 3], [4]], 0).tolist() == [[1, 2, 3], [4, 0, 0]]


def test_weights_in_a_pickle_are_not_read(tokenizer: Any, tmp_path: Path) -> None:
    model: Any = SMALL.build(0, tokenizer)
    save_pretrained(model, tokenizer, tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="from which no T5 could be loaded"):
        T5Model(name=str(tmp_path)).build(0, tokenizer)
