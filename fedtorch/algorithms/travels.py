"""Vectors of a round that travel between server and clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fedtorch.core.direction_model import FollowingWeights
from fedtorch.core.weights import Layout


@dataclass(frozen=True)
class Travels:
    """Flat vectors that travel each round, and how the model's weights follow from them."""

    vectors: tuple[str, ...] = ("weights",)
    """names under which they go down, and up as their pseudo-gradients, all over one layout and laid end to end. Empty:
    nothing is sent. The server keeps one tensor of each name in `ServerState.tensors`; `weights` are the model's,
    others start at zero"""
    layout: Layout | None = None
    """of each of these vectors, with its dtype; None: that of the shared weights. With another one the weights are no
    vector that travels, and `model` makes them"""
    model: Callable[[], FollowingWeights] | None = None
    """makes the rule by which the weights follow from the first vector, which then starts at zero; called once on each
    rank. Jobs then have the weights as `received["weights"]` too, and the server writes a line of each round's changes
    into RUN/scalars.jsonl. None: the weights are that vector"""
    update_dtype: torch.dtype | None = None
    """of what clients send; None: that of the vectors. Their sum has the vectors' dtype in any case"""
    varying: tuple[str, ...] = ()
    """further flat vectors of the server, of the shared layout's dtype and of a length that its step may change, which
    go down beside those above: what was added to an adapter's base. In `ServerState.tensors`; one that is missing is
    empty. `server_update` replaces them; of one that only grew, what is new travels"""

    def laid_out(self, shared: Layout) -> Layout:
        """The layout of each of the vectors. shared: that of the shared weights."""
        return shared if self.layout is None else self.layout

    def rule(self) -> FollowingWeights | None:
        """Rule that makes the weights of the first vector; None: they are that vector."""
        return None if self.model is None else self.model()
