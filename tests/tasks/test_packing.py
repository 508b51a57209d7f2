"""Texts that share a row: the loss and gradients of texts alone, or a refusal before anything is trained."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from hypothesis import given
from hypothesis import strategies as st
from own_rows import GPT2, LLAMA, completer, write_rows

from fedtorch.config.schema import ClientConfig
from fedtorch.core.errors import ConfigError
from fedtorch.models.packing import PADDING, bins, looks_ahead, packed, packed_logits, shared_rows, why_not_packed

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
HEADS = {**SMALL, "intermediate_size": 32, "num_key_value_heads": 1}


@pytest.fixture(autouse=True, scope="module")
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("packed"))
        draw = random.Random(0)
        rows = [
            {"prompt": f"{i}: ", "completion": "blue " * draw.randint(1, 12), "home": "ns"[i % 2]} for i in range(24)
        ]
        write_rows(Path("rows.jsonl"), rows)
        yield


@pytest.mark.parametrize("model", [GPT2, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize("loss_on", ["answer", "all"])
def test_packed_texts_have_the_loss_and_gradients_of_texts_alone(model: dict[str, Any], loss_on: Any) -> None:
    plain, packing = (completer("rows.jsonl", model=model, loss_on=loss_on, pack=pack) for pack in (False, True))
    examples, found = plain.load("n", "train"), []
    for task in (plain, packing):
        net = task.build_model(0)
        assert net.training
        batch = task.collate(examples, True)
        total, count = task.loss(net, batch)
        (total / count).backward()
        gradients = torch.cat([part.grad.flatten() for part in net.parameters() if part.grad is not None])
        found.append((batch["input_ids"].numel(), int(count), float(total), gradients))
        assert task.terms(batch) == count
    assert found[1][0] < 0.8 * found[0][0]  # and that is what it is for
    assert found[0][1] == found[1][1] and found[0][2] == pytest.approx(found[1][2], rel=1e-5)
    assert (found[0][3] - found[1][3]).abs().max() < 1e-5 * found[0][3].abs().max()
    assert "segments" not in packing.collate(examples, False)  # what is evaluated is as it was


def test_a_text_sees_no_other_one_of_its_row() -> None:
    """Alone the loss would not tell: a later text is changed, and an earlier and a later one's logits are not."""
    task = completer("rows.jsonl", pack=True)
    net = task.build_model(0).eval()
    with torch.no_grad():
        one = packed_logits(net, packed([[5, 6, 7], [8, 9], [10, 11, 12]], [[0, 1, 2]], 0))
        other = packed_logits(net, packed([[5, 6, 7], [20, 21], [10, 11, 12]], [[0, 1, 2]], 0))
    changed = (one - other).abs().amax(2)[0]
    assert (changed[[0, 1, 2, 5, 6, 7]] == 0).all() and (changed[[3, 4]] > 0).all()


def test_positions_begin_anew_and_padding_belongs_to_nobody() -> None:
    batch = packed([[5, 6, 7], [8, 9], [10, 11, 12, 13]], [[0, 1], [2]], 1)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9], [10, 11, 12, 13, 1]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1], [0, 1, 2, 3, 0]]
    assert batch["segments"].tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 0, PADDING]]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=30), st.integers(20, 60))
def test_every_text_has_one_place_in_rows_that_are_not_too_long(lengths: list[int], most: int) -> None:
    rows = bins(lengths, most)
    assert sorted(text for row in rows for text in row) == list(range(len(lengths)))
    assert all(sum(lengths[text] for text in row) <= most for row in rows)
    if shared := shared_rows(lengths, most):
        assert len(shared) * max(sum(lengths[t] for t in row) for row in shared) < len(lengths) * max(lengths)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ({"random": "bloom", "hidden_size": 16, "n_layer": 1, "n_head": 2}, "it takes no mask of blocks"),
        ({"random": "mamba", "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}, "it takes no mask|differ by"),
        ({"random": "mistral", **HEADS, "sliding_window": 40}, "texts that share a row differ by"),
    ],
    ids=["alibi", "no attention", "window"],
)
def test_an_architecture_that_cannot_is_refused_before_training(model: dict[str, Any], why: str) -> None:
    """The window of the last one is shorter than a row; a mask of blocks would lift it."""
    completer("rows.jsonl", model=model).build_model(0)
    with pytest.raises(ConfigError, match=f"task.pack is true but task.model is random {model['random']}: ({why})"):
        completer("rows.jsonl", model=model, pack=True).build_model(0)


@pytest.mark.parametrize("kind", [{"random": "qwen3", **HEADS, "head_dim": 8}, {"random": "gpt_neox", **SMALL}])
def test_other_decoders_can(kind: dict[str, Any]) -> None:
    net = completer("rows.jsonl", model=kind, max_length=48).build_model(0)
    assert why_not_packed(net, 48) == "" and not looks_ahead(net)


@pytest.mark.parametrize("model", [
    {"random": "bert", **SMALL, "intermediate_size": 16},
    {"random": "xlnet", "d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 16},
], ids=["bert", "xlnet"])  # fmt: skip
def test_a_model_that_sees_what_it_is_to_foretell_is_refused(model: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="whose attention looks ahead .* task.model.is_decoder to true"):
        completer("rows.jsonl", model=model).build_model(0)
    if model["random"] == "bert":
        completer("rows.jsonl", model={**model, "is_decoder": True}).build_model(0)


def test_a_run_that_packs_is_the_run_that_does_not(tmp_path: Path) -> None:
    weights = []
    for pack in (False, True):
        client = ClientConfig(optimizer="sgd", lr=0.1, batch_size=6, accumulation=2)
        runner = make_runner(make_config(tmp_path / str(pack), completer("rows.jsonl", pack=pack), client=client))
        start = runner.components.engine.initial_shared
        runner.run()
        weights.append(runner.context.server.weights)
    moved = (weights[0] - start).norm()
    assert 0 < (weights[0] - weights[1]).norm() < 1e-5 * moved
