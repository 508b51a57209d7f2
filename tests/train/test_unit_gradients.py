"""Gradients of single units: five kinds of models, by vmap as one after the other; and by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from own_rows import ARCHITECTURES
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from fedtorch.core.weights import Partition
from fedtorch.models.padding import pad
from fedtorch.train.engine import Engine
from fedtorch.train.unit_gradients import UnitGradients, additive

CPU = torch.device("cpu")
BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "bert": (AutoModelForSequenceClassification, BERT),
    "distilbert": (AutoModelForTokenClassification, ARCHITECTURES["distilbert"]),
    "gpt2": (AutoModelForCausalLM, ARCHITECTURES["gpt2"]),
    "llama": (AutoModelForCausalLM, ARCHITECTURES["llama"]),
    "t5": (AutoModelForSeq2SeqLM, ARCHITECTURES["t5"]),
}


class Rows:
    """A task over lists of ids, padded by some places more than needed."""

    def __init__(self, kind: str, padding: int) -> None:
        self.kind, self.padding = kind, padding

    def collate(self, examples: Sequence[list[int]], train: bool) -> dict[str, Tensor]:
        more = [[*row, *[-1] * self.padding] for row in examples]
        ids = pad(more, -1)
        batch = {"input_ids": ids.clamp(min=0), "attention_mask": (ids >= 0).long()}
        labels = ids if self.kind != "bert" else torch.tensor([row[0] % 2 for row in examples])
        return {**batch, "labels": torch.where(labels < 0, -100, labels % 2 if self.kind == "distilbert" else labels)}

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor | int]:
        labels = batch["labels"]
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        more = {"labels": labels} if self.kind == "t5" else {}
        cached = {} if self.kind in ("bert", "distilbert") else {"use_cache": False}
        logits = model(**inputs, **more, **cached).logits
        if self.kind in ("gpt2", "llama"):
            logits, labels = logits[:, :-1], labels[:, 1:]
        total = nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=-100, reduction="sum"
        )
        return total, (labels != -100).sum()


ROWS = [[5, 6, 7], [8, 9, 10, 11, 12, 13], [14, 15], [16, 17, 18, 19], [20, 21, 22, 23, 24]]


def model_of(kind: str) -> nn.Module:
    torch.manual_seed(1)
    made, sizes = KINDS[kind]
    ends = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "decoder_start_token_id": 0}
    config = AutoConfig.for_model(kind, vocab_size=32, num_labels=2, **ends, **sizes)
    module: nn.Module = made.from_config(config)
    return module.float().eval()


def gradients(engine: Engine, task: Any, how: str, units: Sequence[Any], physical: int) -> Tensor:
    found = UnitGradients(engine, task, how, physical)
    flat = torch.cat([chunk for chunk, _ in found.chunks(units)])
    assert all(parameter.grad is None for parameter in engine.trained)
    return flat


@pytest.mark.long
@pytest.mark.parametrize("padding", [0, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_vmap_has_the_gradients_of_one_after_the_other(kind: str, padding: int) -> None:
    engine, task = Engine(model_of(kind), Partition(), CPU), Rows(kind, padding)
    engine.module.eval()
    units = [[row] for row in ROWS] + [ROWS[:3]]
    alone = gradients(engine, Rows(kind, 0), "loop", units, 1)
    assert alone.norm(dim=1).min() > 1e-3
    for physical in (1, 3, len(units)):
        together = gradients(engine, task, "vmap", units, physical)
        errors = (together.norm(dim=1) / alone.norm(dim=1) - 1).abs()
        assert errors.max() < 1e-6
        assert ((together - alone).norm(dim=1) < 1e-5 * alone.norm(dim=1)).all()


class Given:
    """A task whose loss is Σ upstream · output, so that gradients are known by hand; a row is (input, upstream)."""

    def collate(self, examples: Sequence[tuple[Any, Any]], train: bool) -> dict[str, Tensor]:
        return {"x": torch.tensor([x for x, _ in examples]), "up": torch.tensor([up for _, up in examples])}

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
        return (model(batch["x"]) * batch["up"]).sum(), 1


def squares(module: nn.Module, unit: Sequence[Any], *names: str, task: Any = None) -> list[float]:
    """The squared norm of each named parameter's gradient of a unit, the same by both ways."""
    engine = Engine(module, Partition(), CPU)
    found = []
    for how in ("loop", "vmap"):
        flat = gradients(engine, task or Given(), how, [unit, unit], 2)[0]
        parts = dict(zip(engine.trained_names, flat.split([p.numel() for p in engine.trained]), strict=True))
        found.append([float(parts[name].square().sum()) for name in names])
    assert found[0] == pytest.approx(found[1], rel=1e-6)
    return found[0]


A, B = [[1.0, 0.0], [2.0, 1.0]], [[1.0, -1.0], [0.0, 2.0]]
A2, B2 = [[0.0, 1.0], [0.0, 0.0]], [[2.0, 0.0], [0.0, 0.0]]  # one token, and one that nobody looks at


def test_two_tokens_of_a_linear_layer_are_one_gradient() -> None:
    whole = squares(nn.Linear(2, 2), [(A, B)], "weight", "bias")
    assert whole == pytest.approx([14.0, 2.0])
    assert squares(nn.Linear(2, 2), [(A2, B2)], "weight") == pytest.approx([4.0])
    (mean,) = squares(nn.Linear(2, 2), [(A, B), (A2, B2)], "weight")
    assert mean == pytest.approx(18.0 / 4) and mean**0.5 == pytest.approx(2.1213, abs=1e-4)


def test_a_token_that_comes_twice_is_one_row_of_a_table() -> None:
    table = nn.Embedding(8, 2)
    unit = [([3, 5, 3], [[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])]
    assert squares(table, unit, "weight") == pytest.approx([9.0])


class Tied(nn.Module):
    """A table that is the head too; the hidden state of the head is given."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 2)
        self.head = nn.Linear(2, 8, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        logits = self.head(torch.ones(ids.shape[0], 1, 2))
        return torch.cat([self.table(ids).flatten(1), logits.flatten(1)], dim=1)


@pytest.mark.parametrize(("table", "expected"), [(0.0, 1.0), (1.0, 11.0)])
def test_a_table_that_is_the_head_too_has_cross_terms(table: float, expected: float) -> None:
    logits = [0.0] * 8
    logits[3], logits[5] = 0.5, -0.5
    rows = [1.0, 0.0, 0.0, 2.0, 1.0, 1.0]
    unit = [([3, 5, 3], [table * number for number in rows] + logits)]
    assert squares(Tied(), unit, "table.weight") == pytest.approx([expected])


def test_norms_of_layers_have_a_gradient() -> None:
    x, up = [[1.0, 3.0], [2.0, 0.0]], [[1.0, 2.0], [-1.0, 1.0]]
    assert squares(nn.LayerNorm(2, eps=0.0), [(x, up)], "weight", "bias") == pytest.approx([5.0, 9.0])
    assert squares(nn.RMSNorm(2, eps=0.0), [(x, up)], "weight") == pytest.approx([8.1351], abs=1e-4)


class Factors(nn.Module):
    """s B A beside nothing: a product of rank 1."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[1.0, 2.0]]))
        self.b = nn.Parameter(torch.tensor([[1.0], [0.0]]))

    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * x @ self.a.T @ self.b.T


def test_factors_of_an_adapter() -> None:
    assert sum(squares(Factors(), [([1.0, 1.0], [3.0, -1.0])], "a", "b")) == pytest.approx(432.0)


class Raises(Given):
    """A task whose loss looks at a number, which vmap cannot."""

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
        assert batch["x"].sum().item() > -1e9
        return super().loss(model, batch)


class Wrong(Given):
    """A task that comes to other numbers inside vmap, in silence."""

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
        total, count = super().loss(model, batch)
        return total * (2.0 if torch._C._functorch.maybe_current_level() else 1.0), count


@pytest.mark.parametrize("task", [Raises(), Wrong()], ids=["raises", "is wrong"])
def test_what_vmap_cannot_do_goes_to_the_loop(task: Any) -> None:
    units = [[(A, B)], [(A2, B2)], [(A, B), (A2, B2)]]
    engine = Engine(nn.Linear(2, 2), Partition(), CPU)
    expected = gradients(engine, Given(), "loop", units, 1)
    assert torch.equal(gradients(engine, task, "auto", units, 3), expected)
    with pytest.raises(RuntimeError, match=r"privacy\.per_unit is vmap, which the model cannot do: .*; set it to loop"):
        gradients(engine, task, "vmap", units, 3)


def test_dropout_is_drawn_for_each_row_by_itself() -> None:
    engine = Engine(nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 1, bias=False)), Partition(), CPU)
    engine.module.train()
    rows = [[([1.0] * 64, [1.0])] for _ in range(4)]
    torch.manual_seed(0)
    found = gradients(engine, Given(), "vmap", rows, 4)
    assert len({tuple(row.tolist()) for row in found}) == 4
    assert set(found.unique().tolist()) == {0.0, 2.0}


def test_an_additive_mask_hides_what_the_mask_hides() -> None:
    found = additive(torch.tensor([[1, 1, 0]]))
    assert found.shape == (1, 1, 1, 3) and found.flatten()[:2].tolist() == [0.0, 0.0] and found[..., 2] < -1e38


def test_losses_come_with_the_gradients() -> None:
    engine = Engine(nn.Linear(2, 2), Partition(), CPU)
    units: list[list[Any]] = [[(A, B)], [(A, B), (A2, B2)]]
    ways: list[Callable[[], UnitGradients]] = [
        lambda: UnitGradients(engine, Given(), "loop"),
        lambda: UnitGradients(engine, Given(), "vmap"),
    ]
    alone, together = (torch.cat([losses for _, losses in way().chunks(units)]) for way in ways)
    assert torch.allclose(alone, together)
