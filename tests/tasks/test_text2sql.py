"""Text-to-SQL: what a batch's loss is over, and the ways in which a query is scored."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration

from fedtorch.tasks.text2sql import Example, Text2SQL

EXAMPLES = [
    Example([5, 9, 1], [7, 8, 6, 1], "SELECT 1"),
    Example([5, 9, 11, 12, 13, 1], [7, 1], "SELECT 2"),
    Example([4, 1], [7, 8, 6, 10, 11, 12, 1], "SELECT 3"),
]


def task(**keys: bool) -> Text2SQL:
    """Without a vocabulary but for the number of its padding."""
    made = Text2SQL(**keys)
    object.__setattr__(made, "vocabulary", SimpleNamespace(pad_token_id=0))
    return made


@pytest.fixture(scope="module")
def model() -> T5ForConditionalGeneration:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=20, d_model=16, d_ff=24, d_kv=8, num_heads=2, num_layers=1, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config).eval()


def summed(model: nn.Module, example: Example) -> Tensor:
    """The cross entropy of one example by hand, without any padding."""
    source = torch.tensor([example.source])
    shifted = torch.tensor([[0, *example.target[:-1]]])
    with torch.no_grad():
        logits = model(input_ids=source, decoder_input_ids=shifted, use_cache=False).logits[0]
    chosen = logits.log_softmax(-1)[torch.arange(len(example.target)), torch.tensor(example.target)]
    return -chosen.sum()


def test_padding_is_neither_predicted_nor_counted(model: T5ForConditionalGeneration) -> None:
    made = task()
    with torch.no_grad():
        total, count = made.loss(model, made.collate(EXAMPLES, True))
    assert count == 4 + 2 + 7
    by_hand = sum(float(summed(model, example)) for example in EXAMPLES)
    assert float(total) == pytest.approx(by_hand, rel=1e-5)  # fp32, other shapes of the same products


def test_a_query_is_scored_in_three_ways_where_strings_are_asked_for() -> None:
    gold = 'SELECT T.NAME FROM CITY AS T WHERE T.STATE = "texas" ;'
    trained = 'select t.name from city as t where t.state = "texas" ;'
    examples = [Example([1], [1], gold)] * 4
    predictions = [gold, trained, "select t.name from city as t where t.state = 'texas'", "select 1"]
    assert task().score(examples, predictions) == {"exact_match": (3.0, 4)}
    found = task(em_strings=True).score(examples, predictions)
    assert found == {"exact_match": (3.0, 4), "exact_match_string": (1.0, 4), "exact_match_target": (1.0, 4)}
    assert tuple(found) == task(em_strings=True).metrics()
    bare = task(em_normalise=False, em_strings=True).score(examples, predictions)
    assert bare == {name: (1.0, 4) for name in found}
