"""Our greedy decoding against transformers', and energies worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration

from fedtorch.core.errors import ConfigError
from fedtorch.models.encoder_decoder import EncoderDecoder
from fedtorch.models.generation import decode_greedily, token_energies
from fedtorch.models.t5 import save_pretrained
from fedtorch.text.sentencepiece import load_tokenizer

SOURCES = [[5 + (7 * i + j) % 60 for j in range(1 + (5 * i) % 9)] + [1] for i in range(13)]
LOGITS = [[5, 3, 1, 0, -2, -4], [2, 1.9, 1.8, 0.5, 0.1, 0], [9, 0, -1, -1.5, -3, 2], [1, 0.5, 0.25, 0, -0.5, 0.75]]


def small(name: str, tiny_data: Path) -> Any:
    """A random model whose answers to SOURCES differ in length; most random ones never end."""
    shape = EncoderDecoder(name, d_model=16, d_ff=32, num_heads=2, num_layers=1, max_positions=32)
    model: Any = shape.build(0, load_tokenizer(tiny_data / "tokenizer")).eval()
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = 2  # not the end's: no echo
    for seed in range(50):
        torch.manual_seed(seed)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.data.normal_(0.0, 0.6)
        model.get_input_embeddings().weight.data[1] *= 3.0  # the end token's, tied to the output
        if len({len(row.tokens) for row in decode_greedily(model, SOURCES, batch_size=13, max_length=9)}) > 3:
            return model
    raise AssertionError("no seed gives answers of different lengths")


@pytest.mark.parametrize("name", ["bart-random", "t5-random"])
@pytest.mark.parametrize("forced", [False, True])
def test_decoding_equals_transformers_greedy_generate(name: str, forced: bool, tiny_data: Path) -> None:
    model = small(name, tiny_data)
    if forced:
        model.generation_config.forced_bos_token_id, model.generation_config.forced_eos_token_id = 7, 1
    found = decode_greedily(model, SOURCES, batch_size=5, max_length=9)
    assert len({len(row.tokens) for row in found}) > 1
    for source, row in zip(SOURCES, found):
        ids = torch.tensor([source])
        expected = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=9, num_beams=1, do_sample=False
        )
        assert row.tokens == expected[0, 1:].tolist()
        assert math.isnan(row.energies[0]) == forced
        assert math.isnan(row.energies[-1]) == (forced and len(row.tokens) == 9)


@pytest.mark.parametrize("name", ["bart-random", "t5-random"])
def test_generation_batched_equals_one_by_one(name: str, tiny_data: Path) -> None:
    model = small(name, tiny_data)
    settings = {"max_length": 9, "top_k": 3, "temperature": 2.0}
    single = decode_greedily(model, SOURCES, batch_size=1, **settings)
    for size in (4, 13):
        batched = decode_greedily(model, SOURCES, batch_size=size, **settings)
        assert [row.tokens for row in batched] == [row.tokens for row in single]
        for one, other in zip(single, batched):
            assert one.energies == pytest.approx(other.energies, abs=1e-4)  # padding changes the order of sums


@pytest.mark.parametrize("name", ["bart-random", "t5-random"])
def test_energies_are_those_of_a_teacher_forced_pass(name: str, tiny_data: Path) -> None:
    model = small(name, tiny_data)
    for source, row in zip(SOURCES, decode_greedily(model, SOURCES, batch_size=4, max_length=9, top_k=3)):
        logits = model(input_ids=torch.tensor([source]), labels=torch.tensor([row.tokens])).logits
        assert row.energies == pytest.approx(token_energies(logits, 3, 1.0)[0].tolist(), abs=1e-4)
        assert row.energies_all == pytest.approx((-logits[0].exp().sum(-1).log()).tolist(), abs=1e-4)


def test_a_model_that_ends_at_once_gives_an_empty_output_of_length_one(tiny_data: Path) -> None:
    model = small("bart-random", tiny_data)
    model.final_logits_bias[0, 1] = 1e4
    (row,) = decode_greedily(model, [[5, 1]], batch_size=4, max_length=9)
    assert row.tokens == [1] and row.is_empty
    model.generation_config.forced_bos_token_id = 7
    (row,) = decode_greedily(model, [[5, 1]], batch_size=4, max_length=9)
    assert row.tokens == [7, 1] and row.is_empty
    assert decode_greedily(model, [], batch_size=4, max_length=9) == []


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [
        (1.0, [-5.14293163, -3.00194285, -9.00103476, -1.86933808]),
        (2.0, [-5.81521193, -4.09889090, -9.08095212, -2.95762771]),
    ],
)
def test_energies_of_the_specification(temperature: float, expected: list[float]) -> None:
    logits = torch.tensor(LOGITS, dtype=torch.float64)
    assert token_energies(logits, 3, temperature).tolist() == pytest.approx(expected, abs=1e-6)
    assert token_energies(logits[:, :2], 3, temperature).shape == (4,)


def test_bart_base_has_the_papers_number_of_parameters() -> None:
    with torch.device("meta"):
        model = BartForConditionalGeneration(
            BartConfig(
                d_model=768,
                encoder_layers=6,
                decoder_layers=6,
                encoder_attention_heads=12,
                decoder_attention_heads=12,
                encoder_ffn_dim=3072,
                decoder_ffn_dim=3072,
            )
        )
    assert sum(parameter.numel() for parameter in model.parameters()) == 139_420_416


@pytest.mark.parametrize("name", ["bart-random", "t5-random"])
def test_a_saved_model_is_loaded_with_its_tokenizer_and_the_asked_dropout(
    name: str, tiny_data: Path, tmp_path: Path
) -> None:
    model = small(name, tiny_data)
    save_pretrained(model, load_tokenizer(tiny_data / "tokenizer"), tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    again: Any = EncoderDecoder(str(tmp_path), dropout=0.25).build(0, tokenizer)
    assert (again.config.dropout if name == "bart-random" else again.config.dropout_rate) == 0.25
    assert {m.p for m in again.modules() if isinstance(m, torch.nn.Dropout)} <= {0.25}
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_what_is_no_encoder_decoder_is_refused(tiny_data: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny_data / "tokenizer")
    for name, said in [
        (
            "facebook/bart-base",
            "task.model.name: 'facebook/bart-base' is not a folder here, and could not be had from the hub",
        ),
        (str(tmp_path), "task.model.name is .* from which no encoder-decoder could be loaded"),
    ]:
        with pytest.raises(ConfigError, match=said):
            EncoderDecoder(name).build(0, tokenizer)
    with pytest.raises(ValueError, match="task.model.init is copying but task.model.name is bart-random"):
        EncoderDecoder(init="copying")
