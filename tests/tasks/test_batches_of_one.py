"""A batch of n is n batches of one, for every task, whichever side is padded and whatever the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from own_rows import BERT, GPT2, LLAMA, T5, classifier, completer, names, tagger, translator, weather, write_rows
from transformers import AutoTokenizer

from fedtorch.core.errors import ConfigError
from fedtorch.tasks.text_generation import Generation

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
QWEN = {"random": "qwen3", **SMALL, "intermediate_size": 16, "num_key_value_heads": 1, "head_dim": 8}
XLNET = {"random": "xlnet", "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 16}
BART = {"random": "bart", "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}  # fmt: skip
OTHERS = (
    {"random": "roberta", **SMALL, "intermediate_size": 16, "max_position_embeddings": 80},
    {"random": "electra", **SMALL, "intermediate_size": 16, "embedding_size": 16},
    {"random": "albert", **SMALL, "intermediate_size": 16, "embedding_size": 16},
    {"random": "deberta-v2", **SMALL, "intermediate_size": 16},
    {"random": "modernbert", **SMALL, "intermediate_size": 16},
)
either_side = pytest.mark.parametrize("side", ["left", "right"])


def each_of(*models: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("model", models, ids=lambda model: model["random"])


@pytest.fixture(autouse=True, scope="module")
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("one"))
        write_rows(Path("rows.jsonl"), weather())
        write_rows(Path("names.jsonl"), names())
        rows = [
            {"prompt": f"say {i}: " * (1 + i % 3), "completion": "blue " * (1 + 5 * i % 11), "home": "n"}
            for i in range(16)
        ]
        write_rows(Path("answers.jsonl"), rows)
        write_rows(Path("pairs.jsonl"), [{"source": r["completion"], "target": r["prompt"], "home": "n"} for r in rows])
        yield


def padding_on(task: Any, side: str) -> Any:
    """The same task with a tokenizer that pads on this side, as those of many decoders do."""
    folder = Path(f"{task.task_kind}-{side}")
    if not folder.exists():
        tokenizer = AutoTokenizer.from_pretrained(task.folder / "tokenizer", padding_side=side)
        tokenizer.save_pretrained(folder)
    return replace(task, tokenizer=str(folder))


@either_side
@each_of(BERT, GPT2, LLAMA, BART, XLNET, *OTHERS)
def test_classified_texts(model: dict[str, Any], side: str) -> None:
    task = padding_on(classifier("rows.jsonl", model=model), side)
    examples, net = task.load("north", "train"), task.build_model(0).eval()
    with torch.no_grad():
        together = task.logits(net, task.collate(examples, False))
        alone = torch.cat([task.logits(net, task.collate([example], False)) for example in examples])
    assert (together - alone).abs().max() < 1e-6 and together.std() > 1e-6
    assert len({len(example.ids) for example in examples}) > 2


@either_side
@each_of(BERT, GPT2, LLAMA, XLNET, *OTHERS)
def test_tagged_words(model: dict[str, Any], side: str) -> None:
    task = padding_on(tagger("names.jsonl", model=model), side)
    examples, net = task.load("north", "train"), task.build_model(0).eval()
    with torch.no_grad():
        together = task.logits(net, task.collate(examples, False))
        for row, example in zip(together, examples, strict=True):
            alone = task.logits(net, task.collate([example], False))[0]
            assert (row[: len(example.ids)] - alone).abs().max() < 1e-6


@either_side
@each_of(T5, BART)
def test_texts_from_texts(model: dict[str, Any], side: str) -> None:
    task = padding_on(translator("pairs.jsonl", model=model), side)
    examples, net = task.load("n", "train"), task.build_model(0).eval()
    with torch.no_grad():
        total, count = task.loss(net, task.collate(examples, False))
        alone = [task.loss(net, task.collate([example], False)) for example in examples]
    assert int(count) == sum(int(number) for _, number in alone)
    assert float(total) / int(count) == pytest.approx(sum(float(value) for value, _ in alone) / int(count), abs=1e-6)
    assert task.predict(net, examples, len(examples)) == task.predict(net, examples, 1)


@pytest.mark.long
@either_side
@each_of(GPT2, LLAMA, QWEN)
def test_continued_texts(model: dict[str, Any], side: str) -> None:
    """What is generated is padded on the left, whose positions have to begin at the text.

    Some prompts have no room for 56 further tokens in 64 places: they are read from later on, each for itself.
    """
    measures = ("exact_match",)
    task = completer("answers.jsonl", model=model, measures=measures, generate=Generation(max_new_tokens=56))
    task = padding_on(task, side)
    examples, net = task.load("n", "train"), task.build_model(0).eval()
    together, alone = (task.predict(net, examples, size) for size in (len(examples), 1))
    for one, other in zip(together, alone, strict=True):
        assert one.log_likelihood / one.tokens == pytest.approx(other.log_likelihood / other.tokens, abs=1e-6)
        assert one.text == other.text
    assert len({one.text for one in alone}) > 1


@pytest.mark.parametrize("make", [classifier, tagger])
def test_a_model_whose_batches_are_not_its_rows_is_refused(make: Any) -> None:
    """It mixes all places of a row, padding too."""
    fnet = {"random": "fnet", "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16}
    with pytest.raises(ConfigError, match="task.model is random fnet, which takes no attention mask|padding changes"):
        make("rows.jsonl" if make is classifier else "names.jsonl", model=fnet).build_model(0)


def test_answers_that_no_place_is_left_for_are_refused() -> None:
    """It was an IndexError in the first evaluation."""
    task = completer("answers.jsonl", measures=("exact_match",), generate=Generation(max_new_tokens=64))
    with pytest.raises(ConfigError, match="task.generate.max_new_tokens is 64 but random gpt2 has 64 positions"):
        task.build_model(0)
