"""Clients of unlike rank: each trains and sends the first rows of A and columns of B, as many as its rank.

The model has factors of the largest rank r and the scale s. A client of rank r_i starts from the server's factors with
the rest set to 0, where gradients are 0 too, so it stays 0. It trains at the scale of its own rank, s_i, with B·s/s_i,
which is the same product, and sends its factors, not a difference, B in the server's units again: B_i·s_i/s. So the
server knows of no scales.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from fedtorch.algorithms.adapters.factors import Pair, norm_of_product, pairs_of, rank_places, stacked
from fedtorch.algorithms.base import Updates, Way
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.limits import Limits, trains_as, why_not_weighed
from fedtorch.core.errors import ConfigError
from fedtorch.core.places import Places
from fedtorch.core.ranges import Count
from fedtorch.core.scores import AGGREGATION_ERROR
from fedtorch.core.server import ServerState
from fedtorch.core.settings import ServerConfig
from fedtorch.core.update import Report
from fedtorch.core.weights import Layout, Weights
from fedtorch.train.engine import Engine, GradientHook
from fedtorch.train.job import ClientJob
from fedtorch.train.settings import ClientConfig

NORM = "product_norm"
"""‖B_i A_i‖ over all layers, a number of a client's report."""


class HasScale(Protocol):
    """A task whose adapters have scales."""

    def scale_adapter(self, model: nn.Module, rank: int | None) -> float: ...


@dataclass(frozen=True)
class UnlikeRanks(FedAvg):
    """Clients with ranks of their own: the common part of HetLoRA and FlexLoRA."""

    ranks: Mapping[str, Count] = field(default_factory=dict)
    """client -> its rank; the others have that of `task.model.adapter.r`"""

    @property
    def limits(self) -> Limits:
        """Scales are set in the module, which DeepSpeed takes apart; clients send factors of unlike places."""
        return replace(
            super().limits,
            why_not_record=why_not_weighed(self.weights) if trains_as(type(self), UnlikeRanks) else None,
            public_numbers=(NORM,),
            engines=("torch",),
            why_not_deepspeed="sets ranks and scales in the module for every client",
            why_not_robust="has clients of unlike rank, which send different numbers",
            why_not_rounded="has clients that send their factors, and not what they changed of them",
        )

    def check_server(self, server: ServerConfig) -> None:
        """Refuse an optimiser of the server: factors are sent, along which none steps."""
        if server.optimizer != "none":
            raise ConfigError(
                f"server.optimizer is {server.optimizer} but clients of unlike rank send their factors, which take the "
                "place of the server's; set server.optimizer to none"
            )

    def places(self, way: Way, layout: Layout, client: str, round: int) -> Places | None:
        """The first rows and columns of the client's rank, and whatever is no factor, in both directions."""
        return None if way == "broadcast" else rank_places(layout, self.rank_of(layout, client))

    def rank_of(self, layout: Layout, client: str) -> int:
        """Rank of this client.

        Raises:
            ConfigError: one in `ranks` is larger than the model's, or nothing has a rank.
        """
        pairs = pairs_of(layout)
        if not pairs or any(not pair.a or not pair.b for pair in pairs):
            raise ConfigError(
                "algorithm.ranks is about layers both of whose factors are shared; set task.model.adapter, and take "
                "them out of partition.private and partition.frozen"
            )
        largest = min(layout.shapes[layout.names.index(pair.a)][0] for pair in pairs)
        if above := [name for name, rank in self.ranks.items() if rank > largest]:
            raise ConfigError(
                f"algorithm.ranks.{above[0]} is {self.ranks[above[0]]} but task.model.adapter.r is {largest}; raise "
                "the latter to the largest rank"
            )
        return self.ranks.get(client, largest)

    def check(self, hp: ClientConfig, task: Any) -> None:
        """Refuses ranks of clients that are not there."""
        known = list(task.manifest())
        if unknown := [name for name in self.ranks if name not in known]:
            raise ConfigError(
                f"algorithm.ranks names {unknown[0]!r}, who is no client; there are {', '.join(known[:10])}"
            )

    def client_update(self, job: ClientJob) -> Report:
        """Train factors of the client's rank and send them."""
        layout, received, task = job.engine.shared, job.received["weights"], cast(HasScale, job.task)
        rank = self.present_rank(job)
        places = rank_places(layout, rank)
        begun = places.spread(places.take(self.start_of(job, received)))
        scale = task.scale_adapter(job.engine.module, None)
        try:
            own = task.scale_adapter(job.engine.module, rank)
            rescale(layout, begun, scale / own)
            curve = job.train(begun, before_step=_within(job, rank, self.correction(job)))
        finally:
            task.scale_adapter(job.engine.module, None)
        trained = job.engine.snapshot()
        told = self.after_training(job, rank, begun, trained)
        norm = product_norm(layout, trained)
        job.send("weights", rescale(layout, trained, own / scale))
        return self.report(job, curve, **{NORM: norm}, **told)

    def present_rank(self, job: ClientJob) -> int:
        """That which the client trains in this round, at most the one in `ranks`."""
        return self.rank_of(job.engine.shared, job.client.name)

    def after_training(self, job: ClientJob, rank: int, begun: Tensor, trained: Tensor) -> Mapping[str, float]:
        """May change `trained`, in place, before it is sent; numbers for the report.

        begun, trained: factors of `rank` before and after, in the scale of that rank.
        """
        return {}

    def start_of(self, job: ClientJob, received: Tensor) -> Tensor:
        """Weights that a round's training starts from, before they are cut to the client's rank."""
        return received

    def server_update(self, server: ServerState, grad: Tensor) -> None:
        """The combined factors take the place of the server's."""
        server.weights.copy_(grad)

    def measure(self, server: ServerState, updates: Updates, weights: Sequence[float]) -> Mapping[str, float]:
        """‖Σ p_i B_i A_i − B A‖ of the server's new factors, in its scale, / norm of the product's true change."""
        assert server.layout is not None
        layout, new = server.layout, server.layout.view(self.aggregate(updates, weights))
        old, products = layout.view(server.weights), stacked_factors(layout, updates, weights)
        lost, changed = (
            math.hypot(
                *(
                    norm_of_product(*stacked([left, -other[pair.b]], [right, other[pair.a]]))
                    for pair, (left, right) in products.items()
                ),
                0.0,
            )
            for other in (new, old)
        )
        return {AGGREGATION_ERROR: lost / changed if changed else 0.0}


def rescale(layout: Layout, flat: Tensor, factor: float) -> Tensor:
    """Every B times `factor`, in place; `flat`."""
    views = layout.view(flat)
    for pair in pairs_of(layout) if factor != 1 else ():
        views[pair.b].mul_(factor)
    return flat


def product_norm(layout: Layout, flat: Tensor) -> float:
    """‖B A‖_F over all layers."""
    views = layout.view(flat)
    return math.hypot(*(norm_of_product(views[pair.b], views[pair.a]) for pair in pairs_of(layout)), 0.0)


def stacked_factors(
    layout: Layout, updates: Iterable[Tensor], weights: Sequence[float]
) -> dict[Pair, tuple[Tensor, Tensor]]:
    """Factors of every layer, (d_out, Σ r_i) and (Σ r_i, d_in) in float64, whose product is Σ p_i B_i A_i.

    Only the ranks that a client has: columns of B that are 0 are left out together with their rows of A.
    """
    total = math.fsum(weights)
    found: dict[Pair, tuple[list[Tensor], list[Tensor]]] = {pair: ([], []) for pair in pairs_of(layout)}
    for update, weight in zip(updates, weights, strict=True):
        views: Weights = layout.view(update.clone())
        for pair, (left, right) in found.items():
            b, a = views[pair.b].double() * (weight / total), views[pair.a].double()
            there = b.any(0)
            left.append(b[:, there])
            right.append(a[there])
    return {pair: (torch.cat(left, 1), torch.cat(right, 0)) for pair, (left, right) in found.items()}


@dataclass(frozen=True)
class FlexLoRA(UnlikeRanks):
    """FlexLoRA (Bai et al. 2024, arXiv 2402.11505): the mean of the products is decomposed, and cut to each rank.

    Σ p_i B_i A_i = U S Vᵀ by QR of the stacked factors and an SVD of their small core; no matrix of a layer's size is
    made. The server's factors are B = U S and A = Vᵀ, the largest singular values first, so that a client's first r_i
    are the best of its rank (Eckart–Young). Where there are fewer singular values than ranks, A goes on with an
    orthonormal complement and B with 0, for rows of 0 in both would never learn. What is no factor is averaged.
    """

    def aggregate(self, updates: Updates, weights: Sequence[float]) -> Tensor:
        """The new factors, in the layout of what was sent."""
        flat = updates.weighted_sum(weights)
        layout = updates.layout
        assert layout is not None
        views = layout.view(flat)
        for pair, (left, right) in stacked_factors(layout, updates, weights).items():
            b, a = truncated(left, right, views[pair.a].shape[0])
            views[pair.b].copy_(b)
            views[pair.a].copy_(a)
        return flat


def decomposed(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """(U S, Vᵀ) of left · right by QR of both and an SVD of their core; as many columns and rows as that has."""
    outer, upper = torch.linalg.qr(left)
    inner, lower = torch.linalg.qr(right.T)
    u, s, vt = torch.linalg.svd(upper @ lower.T, full_matrices=False)
    return outer @ u * s, vt @ inner.T


def truncated(left: Tensor, right: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """(U S, Vᵀ) of left · right cut to `rank`, shapes (d_out, rank) and (rank, d_in); float64 in and out."""
    whole_b, whole_a = decomposed(left, right)
    count = min(rank, len(whole_a))
    b, a = torch.zeros(len(left), rank, dtype=left.dtype), torch.zeros(rank, right.shape[1], dtype=right.dtype)
    b[:, :count] = whole_b[:, :count]
    rows = whole_a[:count]
    if count < rank <= right.shape[1]:
        whole = torch.linalg.qr(rows.T, mode="complete").Q.T if count else torch.eye(right.shape[1], dtype=right.dtype)
        a[count:] = whole[count:rank]
    a[:count] = rows
    return b, a


def _within(job: ClientJob, rank: int, hook: GradientHook | None) -> GradientHook | None:
    """The hook; where steps are noised also a limit to the client's rank, beyond which factors have to stay 0."""
    pairs = pairs_of(job.engine.shared)
    if job.silo is None or all(job.engine.shared.shapes[job.engine.shared.names.index(p.a)][0] <= rank for p in pairs):
        return hook
    names = [name for name in job.engine.trained_names if name in set(job.engine.shared.names)]
    places = [(names.index(pair.a), names.index(pair.b)) for pair in pairs]

    @torch.no_grad()
    def within(engine: Engine) -> Tensor | None:
        penalty = hook(engine) if hook is not None else None
        gradients = engine.shared_gradients()
        for a, b in places:
            gradients[a][rank:].zero_()
            gradients[b][:, rank:].zero_()
        return penalty

    return within
