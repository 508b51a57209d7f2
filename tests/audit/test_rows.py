"""Embedding rows where all of them change: tied tables and weights that decay give their tokens away too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import fedtorch
from fedtorch.audit.embedding_rows import _auc, apart, distances
from fedtorch.audit.result import WARNING

pytestmark = pytest.mark.long


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("steps", [1, 5])
def test_rows_of_tied_embeddings_are_ranked_by_their_distance_from_the_median_row(optimizer: str, steps: int) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=32, n_embd=32, n_layer=1, n_head=2, **options))
    tokens = torch.randint(1000, (4, 16), generator=torch.Generator().manual_seed(1))
    start = model.transformer.wte.weight.detach().clone()
    kinds = {"sgd": torch.optim.SGD(model.parameters(), lr=0.1), "adamw": torch.optim.AdamW(model.parameters(), 1e-3)}
    for _ in range(steps):
        kinds[optimizer].zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        kinds[optimizer].step()
    update = start - model.transformer.wte.weight.detach()
    truth = set(tokens.flatten().tolist())
    assert int(update.ne(0).any(1).sum()) > 2 * len(truth)  # so that "those that change" tells nothing
    away = distances(update)
    found = _auc(away, truth)
    assert found is not None and found > 0.99
    named = set(apart(away).nonzero().flatten().tolist())
    assert len(named & truth) >= 0.95 * len(named) and len(named & truth) >= 0.9 * len(truth)


def test_rows_that_alone_change_are_named_whatever_their_length() -> None:
    table = torch.zeros(10, 2)
    table[3], table[7] = torch.tensor([1e-9, 0.0]), torch.tensor([5.0, 1.0])
    assert apart(distances(table)).nonzero().flatten().tolist() == [3, 7]


def test_no_word_of_an_audit_says_that_an_attack_failed() -> None:
    assert "failed" not in WARNING
    folder = Path(fedtorch.__file__).parent / "audit"
    assert not [path.name for path in folder.glob("*.py") if re.search(r"attack failed|FAILED", path.read_text())]
