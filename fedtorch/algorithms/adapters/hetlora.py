"""HetLoRA (Cho et al. 2024, arXiv 2401.06432): unlike ranks, padded with zeros, and clients that give up ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from fedtorch.algorithms.adapters.factors import norm_of_product, pairs_of, rank_places
from fedtorch.algorithms.adapters.ranks import NORM, UnlikeRanks
from fedtorch.algorithms.kept import Kept
from fedtorch.algorithms.limits import Limits, trains_as
from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import NotNegative
from fedtorch.core.update import Report
from fedtorch.core.weights import Layout
from fedtorch.train.engine import Engine, GradientHook
from fedtorch.train.job import ClientJob
from fedtorch.train.settings import ClientConfig

RANK = "adapter/rank"
"""In the state of a client that has given up ranks: how many it has left; and in its reports."""


@dataclass(frozen=True)
class HetLoRA(UnlikeRanks):
    """Factors padded with zeros are averaged; a client weighs by ‖B_i A_i‖_F over all layers.

    The latter is the paper's sparsity-weighted aggregation; where all are 0, as `weights` says. With `rank_decay` γ a
    client may give up ranks: the loss it minimises has the term λ Σ ‖B'‖_F ‖A'‖_F over the layers, with the columns B'
    and rows A' of its rank from γ·r_i on, and if Σ ‖B' A'‖_F is smaller after its training than before it, these are 0
    from then on and its rank is γ·r_i. The paper has one layer; that a client has one rank for all of them, that the
    sum decides, and that γ·r_i is rounded down, to 1 at least, is our reading. So is it that what was given up is
    never taken up again. What a client has given up travels as zeros: who sends what is computed, never told.
    """

    rank_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """γ, the part of its rank that a client keeps when it gives up the rest; null: ranks stay as they are"""
    rank_penalty: NotNegative = 0.0
    """λ, how much the last ranks, those that may be given up, cost in the loss"""

    def __post_init__(self) -> None:
        if self.rank_penalty and self.rank_decay is None:
            raise ConfigError(
                f"algorithm.rank_penalty is {self.rank_penalty} but algorithm.rank_decay is null, so that no ranks are "
                "the last ones; set it (0.5, say), or remove algorithm.rank_penalty"
            )

    def kept(self, layout: Layout, private: Layout) -> Kept:
        """A client that may give up ranks keeps how many it has left."""
        kept = super().kept(layout, private)
        return kept if self.rank_decay is None else replace(kept, by_clients=True)

    @property
    def limits(self) -> Limits:
        """It weighs by what clients have learned."""
        found = super().limits
        # norms are of noised factors, where steps are noised
        why_not = "" if trains_as(type(self), HetLoRA) else None
        return replace(found, weighting=NORM, why_not_record=why_not, public_numbers=(NORM, RANK))

    def weigh(self, reports: Sequence[Report]) -> list[float]:
        """‖B_i A_i‖_F / Σ_j ‖B_j A_j‖_F; by the norm that is measured of what came, none is above ‖(A_i, B_i)‖²/2."""
        norms = [min(report.extra.get(NORM, 0.0), report.norm**2 / 2) for report in reports]
        total = math.fsum(norms)
        return [norm / total for norm in norms] if total else super().weigh(reports)

    def check(self, hp: ClientConfig, task: Any) -> None:
        """Refuses what moves ranks that were given up."""
        super().check(hp, task)
        if self.rank_decay is not None and hp.optimizer_state == "keep":
            raise ConfigError(
                "algorithm.rank_decay is set but client.optimizer_state is keep, whose moments would move ranks that "
                "a client has given up; set it to reset"
            )

    def present_rank(self, job: ClientJob) -> int:
        """Rank that the client has left."""
        whole = super().present_rank(job)
        return whole if self.rank_decay is None else int(job.state.numbers.get(RANK, whole))

    def lasting(self, rank: int) -> int:
        """The ranks that a client of `rank` may not give up."""
        assert self.rank_decay is not None
        return max(1, int(self.rank_decay * rank))

    def correction(self, job: ClientJob) -> GradientHook | None:
        """Adds the gradient of λ Σ ‖B'‖ ‖A'‖; of a factor that is 0 it is 0."""
        if not self.rank_penalty:
            return super().correction(job)
        rank = self.present_rank(job)
        shared = set(job.engine.shared.names)
        names = [name for name in job.engine.trained_names if name in shared]
        pairs = [(names.index(pair.a), names.index(pair.b)) for pair in pairs_of(job.engine.shared)]
        last, weight = slice(self.lasting(rank), rank), self.rank_penalty

        @torch.no_grad()
        def penalise(engine: Engine) -> Tensor:
            gradients, parameters = engine.shared_gradients(), [p.detach() for p in engine.trained_shared()]
            total = torch.zeros((), device=engine.device)
            for a, b in pairs:
                rows, columns = parameters[a][last], parameters[b][:, last]
                of_rows, of_columns = rows.norm(), columns.norm()
                gradients[a][last] += weight * of_columns * _direction(rows, of_rows)
                gradients[b][:, last] += weight * of_rows * _direction(columns, of_columns)
                total = total + weight * of_rows * of_columns
            return total

        return penalise

    def after_training(self, job: ClientJob, rank: int, begun: Tensor, trained: Tensor) -> Mapping[str, float]:
        """Gives up the last ranks where they have become smaller."""
        if self.rank_decay is None:
            return {}
        layout, kept = job.engine.shared, self.lasting(rank)
        if kept < rank and last_norm(layout, trained, kept) < last_norm(layout, begun, kept):
            places = rank_places(layout, kept)
            trained.copy_(places.spread(places.take(trained)))
            job.state.numbers[RANK] = rank = kept
        return {RANK: float(rank)}


def last_norm(layout: Layout, flat: Tensor, kept: int) -> float:
    """Σ ‖B' A'‖_F over the layers, of the columns and rows from `kept` on."""
    views = layout.view(flat)
    return math.fsum(norm_of_product(views[pair.b][:, kept:], views[pair.a][kept:]) for pair in pairs_of(layout))


def _direction(part: Tensor, norm: Tensor) -> Tensor:
    return torch.where(norm > 0, part / norm, torch.zeros_like(part))
