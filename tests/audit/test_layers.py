"""What a text meets first in models that look tokens up in several tables, or in several places."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration

from fedtorch.audit.layers import FirstLayers
from fedtorch.core.weights import Layout

pytestmark = pytest.mark.long

SIZES: dict[str, int] = {
    "d_model": 8,
    "d_kv": 4,
    "d_ff": 8,
    "num_layers": 1,
    "num_heads": 2,
    "decoder_start_token_id": 0,
}


class TwoTables(nn.Module):
    """A side that is kept and one that is sent, each with a table; the second one speaks twice."""

    def __init__(self) -> None:
        super().__init__()
        self.kept, self.sent = nn.Embedding(9, 4), nn.Embedding(9, 4)
        self.first = nn.Linear(4, 4)

    def forward(self, *turns: Tensor) -> Tensor:
        """Turns by the two sides in turn."""
        tables = (self.kept, self.sent) * 2
        return torch.stack([self.first(table(turn)) for table, turn in zip(tables, turns, strict=False)])


def test_the_table_is_one_that_is_sent_and_tokens_are_those_of_all_its_turns() -> None:
    model = TwoTables()
    shared = Layout.of({name: part for name, part in model.named_parameters() if not name.startswith("kept")})
    turns = [torch.tensor([[token, token + 1]]) for token in (0, 2, 4, 6)]
    layers = FirstLayers.of(model, shared, lambda: model(*turns))
    assert isinstance(layers, FirstLayers)
    assert (layers.embedding, layers.embedding_weight, layers.first_weight) == ("sent", "sent.weight", "first.weight")
    assert layers.looked_up(lambda: model(*turns)) == {2, 3, 6, 7}
    assert layers.tokens(lambda: model(*turns)).tolist() == [[2, 3]]  # of the first text alone, with its places
    nothing = FirstLayers.of(model, Layout.of({"first.weight": model.first.weight}), lambda: model(*turns))
    assert isinstance(nothing, FirstLayers) and nothing.embedding_weight == ""


def test_a_table_of_places_is_not_taken_for_that_of_tokens_where_the_latter_is_not_sent() -> None:
    """A T5's encoder looks tokens up in a module of its own, with the weight of `shared`; places have a table too."""
    model = T5ForConditionalGeneration(T5Config(vocab_size=16, **SIZES))
    ids = torch.tensor([[3, 4, 5]])
    weights = {name: weight for name, weight in model.named_parameters() if name != "shared.weight"}
    layers = FirstLayers.of(model, Layout.of(weights), lambda: model(input_ids=ids, labels=ids))
    assert isinstance(layers, FirstLayers)
    assert layers.embedding_weight == "" and layers.vocabulary == 16


def test_tokens_of_all_modules_that_share_the_table_are_counted() -> None:
    model = T5ForConditionalGeneration(T5Config(vocab_size=16, **SIZES))
    ids, labels = torch.tensor([[3, 4, 5]]), torch.tensor([[7, 8, 1]])
    layers = FirstLayers.of(
        model, Layout.of(dict(model.named_parameters())), lambda: model(input_ids=ids, labels=labels)
    )
    assert isinstance(layers, FirstLayers)
    found = layers.looked_up(lambda: model(input_ids=ids, labels=labels))
    assert found == {3, 4, 5} | {0, 7, 8}  # the decoder begins with 0 and does not read the last one
