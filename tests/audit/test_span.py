"""Tokens in the space of a first matrix's update: all below its width, most through AdamW and adapters too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from fedtorch.audit.layers import FirstLayers
from fedtorch.audit.span import check, pursued
from fedtorch.core.weights import Layout

pytestmark = pytest.mark.long

LENGTH = 16


def model_of(vocabulary: int, width: int) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    options: dict[str, Any] = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "tie_word_embeddings": False}
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=vocabulary, n_positions=32, n_embd=width, n_layer=2, n_head=4, **options)
    )
    for table in (model.transformer.wte, model.transformer.wpe):
        table.weight.requires_grad_(False)
    return model.eval()


def recovered(rows: int, *, steps: int = 1, adamw: bool = False, rank: int | None = None,
              vocabulary: int = 600, width: int = 64, scale: float = 0.1) -> tuple[int, int, int]:  # fmt: skip
    """(found, false hits, all) of the pairs in `rows` texts after so many steps over all of them."""
    model = model_of(vocabulary, width)
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    if rank is not None:
        start |= with_factors(model, rank, width)
    tokens = torch.randint(vocabulary, (rows, LENGTH), generator=torch.Generator().manual_seed(1))
    shared = Layout.of({n: p for n, p in model.named_parameters() if p.requires_grad})
    layers = FirstLayers.of(model, shared, lambda: model(input_ids=tokens[:1]))
    assert isinstance(layers, FirstLayers)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer: Any = torch.optim.AdamW(trained, lr=1e-3) if adamw else torch.optim.SGD(trained, lr=scale)
    for _ in range(steps):
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    weight = dict(model.named_parameters())[layers.first_weight].detach()
    update = start[layers.first_weight] - weight
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(start[name])
    found = check(update, start[layers.first_weight], inputs=layers.inputs, vocabulary=vocabulary, places=LENGTH,
                  width=width)  # fmt: skip
    truth = {(int(token), place) for row in tokens for place, token in enumerate(row)}
    return len(found.pairs & truth), len(found.pairs - truth), len(truth)


class Factors(nn.Module):
    """A frozen matrix with factors beside it, as LoRA has them; B is not 0, as after a first step."""

    def __init__(self, base: nn.Module, rank: int, width: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, 3 * width, bias=False)

    def forward(self, x: Tensor) -> Any:
        """The sum of both."""
        return self.base(x) + self.up(self.down(x))


def with_factors(model: GPT2LMHeadModel, rank: int, width: int) -> dict[str, Tensor]:
    model.requires_grad_(False)
    attention = model.transformer.h[0].attn
    attention.c_attn = Factors(attention.c_attn, rank, width)
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def test_one_step_on_one_text_gives_all_of_it_but_its_last_token() -> None:
    assert recovered(1) == (LENGTH - 1, 0, LENGTH)


def test_no_token_is_told_where_there_are_more_than_the_layer_is_wide() -> None:
    assert recovered(8)[:2] == (0, 0)


@pytest.mark.parametrize("steps", [5, 20])
def test_steps_of_adamw_leave_tokens_in_the_leading_directions(steps: int) -> None:
    """All of two texts but their last tokens, which nothing is learned from."""
    found, false, everything = recovered(2, steps=steps, adamw=True, vocabulary=2000, width=128)
    assert found >= 28 and everything == 32
    assert false <= 2


@pytest.mark.parametrize(("rank", "least"), [(4, 12), (8, 14), (16, LENGTH - 1)])
def test_factors_of_fewer_ranks_than_tokens_hide_none_of_one_text(rank: int, least: int) -> None:
    found, false, _ = recovered(1, rank=rank, scale=10.0)
    assert found >= least and false <= 1


def test_nothing_is_named_where_candidates_do_not_explain_the_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    strangers = torch.randn(500, 32, generator=generator, dtype=torch.float64)
    basis, _ = torch.linalg.qr(torch.randn(32, 4, generator=generator, dtype=torch.float64))
    assert pursued(basis, strangers, most=16) == []
    mixed, _ = torch.linalg.qr((torch.randn(4, 9, generator=generator, dtype=torch.float64) @ strangers[:9]).T)
    assert sorted(pursued(mixed, strangers, most=16)) == list(range(9))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "steps", "adamw", "rank", "least", "most"),
    [
        (1, 1, False, None, 15, 15),
        (4, 1, False, None, 60, 60),
        (2, 5, False, None, 28, 30),
        (2, 5, True, None, 28, 30),
        (2, 20, True, None, 28, 30),
        (1, 1, False, 4, 12, 16),
        (1, 1, False, 8, 14, 16),
        (1, 1, False, 16, 15, 15),
    ],
)
def test_the_law_at_full_size(rows: int, steps: int, adamw: bool, rank: int | None, least: int, most: int) -> None:
    found, false, all_of_them = recovered(
        rows, steps=steps, adamw=adamw, rank=rank, vocabulary=2000, width=128, scale=10.0 if rank else 0.1
    )
    print(rows, steps, adamw, rank, found, false, all_of_them)
    assert least <= found <= most
    assert false == 0
