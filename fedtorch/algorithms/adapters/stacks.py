"""Rules that lose nothing: what the factors' means are not, the server sends as further factors, which join the base.

A layer computes W0 x + s·(P + B A) x, with P the sum of all that was added so far. After a round the product is to be
Σ p_i B_i A_i, beside what stood there while clients trained; with the server's new factors B A, P grows by

    Σ p_i B_i A_i − B A,

a stack of the clients' factors and −B beside A. It is kept as factors and not as matrices, in the layout's dtype: the
base may be of 16 bits, in which small sums are lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from fedtorch.algorithms.adapters.factors import (
    A,
    B,
    Pair,
    from_rows,
    layer_of,
    norm_of_product,
    pairs_of,
    places_without,
    stacked,
    to_rows,
)
from fedtorch.algorithms.adapters.ranks import UnlikeRanks, decomposed, stacked_factors
from fedtorch.algorithms.base import Updates, Way
from fedtorch.algorithms.travels import Travels
from fedtorch.core import state_keys as keys
from fedtorch.core.places import Places
from fedtorch.core.ranges import Count
from fedtorch.core.scores import AGGREGATION_ERROR
from fedtorch.core.seeds import generator_for
from fedtorch.core.server import ServerState
from fedtorch.core.update import Report
from fedtorch.core.weights import Layout
from fedtorch.train.engine import Engine
from fedtorch.train.job import ClientJob

ADDED = "added"
"""The server's vector with P: the rows of `to_rows`, end to end."""
COMPRESSED = "adapter/compression_error"
"""In a round's record: the norm of what the cut of P has lost / that of P; 0 in rounds without a cut."""
RANK = "adapter/added_rank"
"""In a round's record: ranks of P after it."""


class HasBase(Protocol):
    """A task whose model has a base beside its adapters."""

    def add_to_base(self, model: nn.Module, factors: Mapping[str, tuple[Tensor, Tensor]]) -> None: ...


@dataclass(frozen=True)
class AddsToBase(UnlikeRanks):
    """Rules that add to the base: the common part of FLoRA and FedEx."""

    added_rank: Count = 256
    """to which what was added to the base is cut, by SVD, when it has come to more than twice as much"""

    @property
    def travels(self) -> Travels:
        """The factors, and down what was added to the base."""
        return replace(super().travels, varying=(ADDED,))

    def adopt(self, engine: Engine, task: Any, vectors: Mapping[str, Tensor]) -> None:
        """Put P beside the layers of this rank's model."""
        factors = from_rows(engine.shared, engine.placed(vectors[ADDED]))
        cast(HasBase, task).add_to_base(engine.module, {layer_of(pair): both for pair, both in factors.items()})

    def aggregate(self, updates: Updates, weights: Sequence[float]) -> Tensor:
        """The mean of what clients sent, then the stack of their factors."""
        assert updates.layout is not None
        return _combined(updates.layout, [update.clone() for update in updates], weights)

    def server_update(self, server: ServerState, grad: Tensor) -> None:
        """The server's weights take their step; P grows by what they lack, and is cut where it has grown too far."""
        layout = server.layout
        assert layout is not None
        self.take_mean(server.weights, grad[: layout.size], layout)
        rows = self._grown(server, server.weights, grad[layout.size :])
        server.tensors[ADDED] = compressed(layout, rows, self.added_rank)[0]

    def take_mean(self, weights: Tensor, mean: Tensor, layout: Layout) -> None:
        """The server's weights, in place, after a round of which clients sent `mean` on average."""
        weights.copy_(mean)

    def measure(self, server: ServerState, updates: Updates, weights: Sequence[float]) -> Mapping[str, float]:
        """How far P and the new factors are from Σ p_i B_i A_i (by rounding), what a cut of P loses, and its ranks."""
        layout = server.layout
        assert layout is not None
        kept = [update.clone() for update in updates]
        combined, products = _combined(layout, kept, weights), stacked_factors(layout, kept, weights)
        new = server.weights.clone()
        self.take_mean(new, combined[: layout.size], layout)
        grown = self._grown(server, new, combined[layout.size :])
        before = server.tensors.get(ADDED, grown[:0])
        gained, start, end = from_rows(layout, grown[len(before) :]), layout.view(server.weights), layout.view(new)
        lost = changed = 0.0
        for pair, (left, right) in products.items():
            b, a = gained[pair]
            lost = math.hypot(lost, norm_of_product(*stacked([left, -b, -end[pair.b]], [right, a, end[pair.a]])))
            changed = math.hypot(changed, norm_of_product(*stacked([left, -start[pair.b]], [right, start[pair.a]])))
        cut, loss = compressed(layout, grown, self.added_rank)
        ranks = from_rows(layout, cut)[next(iter(products))][1]
        return {AGGREGATION_ERROR: lost / changed if changed else 0.0, COMPRESSED: loss, RANK: float(len(ranks))}

    def _grown(self, server: ServerState, weights: Tensor, stack: Tensor) -> Tensor:
        """P with the stack and without the product of `weights`, flat."""
        assert server.layout is not None
        views = server.layout.view(weights)
        parts = [server.tensors.get(ADDED, stack[:0]), stack]
        if any(views[pair.b].any() for pair in pairs_of(server.layout)):
            own = {pair: (-views[pair.b], views[pair.a]) for pair in pairs_of(server.layout)}
            parts.append(to_rows(server.layout, own).flatten())
        return torch.cat(parts)


def _combined(layout: Layout, updates: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Σ p_i w_i, then the rows of the stack; in the layout's dtype, added in the order of the reports."""
    total, mean = math.fsum(weights), torch.zeros(layout.size, dtype=torch.float64)
    for update, weight in zip(updates, weights, strict=True):
        mean.add_(update.double(), alpha=weight / total)
    stack = to_rows(layout, stacked_factors(layout, updates, weights))
    return torch.cat([mean.to(layout.dtype), stack.flatten()])


def compressed(layout: Layout, flat: Tensor, rank: int) -> tuple[Tensor, float]:
    """(P of at most `rank` ranks, norm of what that loses / of P) where it has more than twice as many; else (P, 0).

    The best of that rank, layer by layer (Eckart–Young). A layer whose matrix has fewer ranks loses nothing.
    """
    factors = from_rows(layout, flat)
    if all(len(right) <= 2 * rank for _, right in factors.values()):
        return flat, 0.0
    cut: dict[Pair, tuple[Tensor, Tensor]] = {}
    lost = whole = 0.0
    for pair, (left, right) in factors.items():
        b, a = decomposed(left.double(), right.double())
        sizes = b.norm(dim=0)
        lost, whole = math.hypot(lost, float(sizes[rank:].norm())), math.hypot(whole, float(sizes.norm()))
        cut[pair] = (b[:, :rank], a[:rank])
    return to_rows(layout, cut).flatten(), lost / whole if whole else 0.0


@dataclass(frozen=True)
class FLoRA(AddsToBase):
    """FLoRA (Wang et al. 2024, arXiv 2409.05976): all of Σ p_i B_i A_i joins the base, and everyone begins anew.

    The server's factors stay as they were at the start, B = 0, and never travel: in every later round each client draws
    the same A from the run's seed and the round. Its optimiser's moments of the factors are dropped. Factors that a run
    was given to start from (`adapter.path`) are begun with in every round, and their product is taken off again.
    What is no factor is averaged.
    """

    def places(self, way: Way, layout: Layout, client: str, round: int) -> Places | None:
        """Down goes what is no factor; the stack comes beside."""
        return super().places(way, layout, client, round) if way == "sent" else places_without(layout, A, B)

    def start_of(self, job: ClientJob, received: Tensor) -> Tensor:
        """Join what was received to the round's A, drawn as peft does (±1/√d_in); the first round has its own."""
        layout = job.engine.shared
        views = layout.view(received)
        if not job.round or any(views[pair.b].any() for pair in pairs_of(layout)):
            return received
        started = received.clone()
        drawn, draw = layout.view(started), generator_for(job.run_seed, "adapter", job.round)
        for pair in pairs_of(layout):
            a = drawn[pair.a]
            a.copy_((2 * torch.rand(a.shape, generator=draw, dtype=a.dtype) - 1) / math.sqrt(a.shape[1]))
        return started

    def client_update(self, job: ClientJob) -> Report:
        """Train new factors, which no optimiser has met, and send them."""
        names = {name for pair in pairs_of(job.engine.shared) for name in pair}
        for kept in (job.state.tensors, job.state.numbers):
            for key in [key for key in kept if _is_moment_of(key, names)]:
                del kept[key]
        return super().client_update(job)

    def take_mean(self, weights: Tensor, mean: Tensor, layout: Layout) -> None:
        """Take the mean of what is no factor."""
        places = places_without(layout, A, B)
        places.put(places.take(mean), weights)


def _is_moment_of(key: str, names: set[str]) -> bool:
    """Is it what an optimiser keeps of one of these parameters?"""
    _, found, rest = key.partition(keys.OPTIMIZER)
    return bool(found) and rest.rpartition("/")[0] in names


@dataclass(frozen=True)
class FedEx(AddsToBase):
    """FedEx-LoRA (Singhal et al. 2024, arXiv 2410.09432): factors are averaged, and what that loses joins the base.

    The residual Σ p_i B_i A_i − B̄ Ā is taken of the means as they are rounded, so nothing is lost but the rounding of
    the factors in it. Clients of unlike rank, an extension, are padded with 0 for the means.
    """
