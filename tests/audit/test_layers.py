"""What a text meets first in models that look tokens up in several tables, or in several places."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedtorch.audit.layers import FirstLayers
from fedtorch.core.weights import Layout


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
