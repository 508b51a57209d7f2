"""FedKSeed (Qin et al. 2024, arXiv 2312.06353): a billion parameters, and a number for each of K seeds a round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedtorch.algorithms.base import Updates, Way
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.kept import Kept
from fedtorch.algorithms.limits import Limits
from fedtorch.algorithms.robust.base import kept_counts
from fedtorch.algorithms.run_facts import RunFacts
from fedtorch.algorithms.seeds import history
from fedtorch.algorithms.seeds.draws import Candidates, drawn
from fedtorch.algorithms.seeds.local_steps import LocalSteps
from fedtorch.algorithms.travels import Travels
from fedtorch.core.direction_model import EXACT, DirectionModel
from fedtorch.core.directions import LARGEST, Kind
from fedtorch.core.errors import ConfigError, NonFiniteError
from fedtorch.core.places import Places
from fedtorch.core.ranges import Count, Positive
from fedtorch.core.server import ServerState
from fedtorch.core.settings import ServerConfig
from fedtorch.core.update import Report
from fedtorch.core.weights import Layout
from fedtorch.train.job import ClientJob
from fedtorch.train.settings import ClientConfig

SUMS, CHANCES = "sums", "chances"
FINER = 8
"""Bits that the server's sums are finer by than a client's numbers."""


@dataclass(frozen=True)
class FedKSeed(FedAvg):
    """Steps without gradients along the directions of K seeds; w^t = w^0 − η Σ_j A_j z_j, in whole numbers.

    Client: ĝ = (L(w + εz_j) − L(w − εz_j)) / 2ε, rounded to q = round(ĝ 2^bits); w ← w − η q 2^-bits z_j; q is added
    to a_j. Server: A_j ← A_j + round(2^8 Σ p_i a_ij), so A is in steps of 2^-(bits + 8). Which seed a step takes
    follows from run seed, client and round (with `pro` also from the chances that went down), so no seed travels: up
    go the a_j of the seeds that were drawn, 4 bytes each, down all A_j, 8 bytes each. η is `client.lr`; where a step
    has another rate η_t, q has the factor η_t / η.
    """

    shares_seeds: ClassVar[bool] = False
    """do all clients of a round take the same seeds?"""
    weights: Literal["size", "equal", "declared"] = "size"
    """what a client's weight is proportional to, as in FedAvg"""
    seeds: Count | Literal["round"] = 4096
    """K: how many directions the model of all rounds is made of; `round`: new ones for every step of every round, the
    same for all clients of a round"""
    perturbations: Count = 1
    """directions of a step, whose numbers are averaged"""
    eps: Positive = 5e-4
    """ε: how far from the weights a loss is measured; below 1e-4 it is rounding that is measured"""
    estimate: Literal["two_sided", "one_sided"] = "two_sided"
    """two_sided: losses at w + εz and w − εz; one_sided: at w + εz and w, which costs a step one pass more than it has
    perturbations"""
    z: Kind = "sign"
    """what directions are of: sign: −1 and +1; bytes: sums of four random bytes, near normal; normal: torch's normal
    numbers, which other kinds of machine may draw otherwise"""
    bits: Annotated[int, Field(ge=0, le=24)] = 16
    """of a number after the binary point; numbers of 2^(24 - bits) and more are cut"""
    grad_clip: Positive | None = None
    """a step whose losses differ by more is left out, as is one with NaN; null: no limit"""
    pro: bool = False
    """FedKSeed-Pro: seeds whose numbers were large are drawn more often, e times as often at most"""

    @property
    def travels(self) -> Travels:
        """A, in float64, which has all whole numbers up to 2^53; clients' numbers have fewer places.

        With `pro` also the chances of the seeds, under whose name the clients' |ĝ| go up.
        """
        vectors = (SUMS, CHANCES) if self.pro else (SUMS,)
        # outside of a run, where only names are asked for, new seeds for every round have no number
        layout = Layout((SUMS,), ((self.length,),), torch.float64) if self.of_run else None
        return Travels(vectors, layout, self.model, torch.float32)

    @property
    def limits(self) -> Limits:
        """Forward passes alone, in the package's own engine; private where no chance follows from what was measured."""
        why_not = (
            ""
            if self.weights in ("equal", "declared")
            else (f"weighs clients by {self.weights}, which depends on their data; set algorithm.weights to equal")
        )
        if self.pro:
            why_not = "draws seeds by what clients measured, which tells on them; set algorithm.pro to false"
        return replace(
            super().limits,
            engines=("torch",),
            why_not_deepspeed="runs forward passes alone, in a module that it changes by itself",
            precisions=("fp32", "bf16"),
            steps_with_optimizer=False,
            reads_initial=True,
            reads_num_rounds=self.seeds == "round",
            why_not_record="measures losses of its rows, without noise",
            why_not_saved="takes steps without gradients, which begin again from the server's sums",
            why_not_private=why_not,
            why_not_rounded="sends whole numbers, of which the model is made exactly",
        )

    # --- what seeds there are

    @property
    def run(self) -> RunFacts:
        """Facts of the run that it is in."""
        assert self.of_run is not None, "an algorithm that depends on its run is made by `run_facts.in_run`"
        return self.of_run

    @property
    def base_rate(self) -> float:
        """η of the model: `client.lr`, whatever rate a step has."""
        return self.run.client.lr

    @property
    def length(self) -> int:
        """Directions of the whole run."""
        return self.run.rounds * self._per_round if self.seeds == "round" else self.seeds

    @property
    def _per_round(self) -> int:
        return self.perturbations * (self.run.client.steps or 1)

    def seed(self, candidate: int) -> int:
        """The seed of a direction, by its place in A; two places have two seeds."""
        return candidate

    def drawn(self, client: str, round: int, chances: Tensor | None = None) -> Candidates:
        """Places in A of the directions that a client takes in a round, step by step, with repetitions.

        chances: of each place, as they went down; None, or all 0: equal ones.
        """
        hp = self.run.settings(client) if client else self.run.client
        count = self.perturbations * (hp.steps or 1)
        if self.seeds == "round":
            return np.arange(count) + round * self._per_round
        whom = "" if self.shares_seeds else client
        known = None if chances is None or not bool(chances.any()) else chances.double().numpy()
        return drawn(self.run.run_seed, whom, round, count=count, of=self.seeds, chances=known)

    def model(self) -> DirectionModel:
        """w^0 − η 2^-(bits + 8) Σ_j A_j z_j."""
        step = math.ldexp(self.base_rate, -self.bits - FINER)
        return DirectionModel(self.z, [self.seed(place) for place in range(self.length)], step)

    def places(self, way: Way, layout: Layout, client: str, round: int) -> Places | None:
        """Up: of the seeds that the client has drawn, or all where updates must look alike. Down: all; new seeds once.

        With `pro` whole vectors go up, as what was drawn follows from chances and not from this alone.
        """
        if self.seeds == "round":
            if way == "received":
                return None
            own = torch.arange(self._per_round) + round * self._per_round
            return Places(own, layout.size * len(self.travels.vectors))
        if way != "sent" or self.pro or self.robust is not None or self.run.same_places:
            return None
        return Places(torch.from_numpy(np.unique(self.drawn(client, round))), layout.size)

    # --- what is refused

    def check(self, hp: ClientConfig, task: Any) -> None:
        """Refuse what has no meaning without gradients, more steps than seeds, and a loss that draws at random."""
        known: dict[str, tuple[Any, str]] = {
            "optimizer": ("sgd", "there are no gradients: a step goes along its direction"),
            "momentum": (0.0, "the model must be a sum over directions"),
            "weight_decay": (0.0, "the model must be a sum over directions"),
            "max_grad_norm": (None, "there are no gradients; algorithm.grad_clip leaves steps out"),
            "accumulation_rule": ("exact", "a step has one batch, whose loss is measured twice"),
        }
        for key, (value, why) in known.items():
            if getattr(hp, key) != value and not (key == "accumulation_rule" and not hp.spills):
                shown = "null" if value is None else value
                raise ConfigError(
                    f"client.{key} is {getattr(hp, key)} but algorithm.name is {self._name}: {why}; set it to {shown}"
                )
        if hp.steps is None:
            raise ConfigError(
                f"algorithm.name is {self._name}, whose rounds are counted in steps, so that all know which seeds they "
                "take; set client.steps"
            )
        if not hp.lr or not self.run.client.lr:
            raise ConfigError(f"client.lr is 0 but algorithm.name is {self._name}, whose numbers count in it; set it")
        self._check_seeds(hp.steps)
        if getattr(task, "draws_in_loss", False):
            raise ConfigError(
                f"algorithm.name is {self._name} but the task {type(task).__name__}'s loss draws at random, so two "
                "losses differ by what was drawn; set algorithm.name to fedavg"
            )

    def _check_seeds(self, steps: int) -> None:
        if self.seeds == "round":
            if self.pro:
                raise ConfigError(
                    "algorithm.pro is true but algorithm.seeds is round, of which none comes again; set "
                    "algorithm.seeds to a number"
                )
            if steps != self.run.client.steps:
                raise ConfigError(
                    f"algorithm.seeds is round, the same for all clients of a round, but a client has client.steps "
                    f"{steps} and others {self.run.client.steps}; set the same for all"
                )
        elif self.seeds < (needed := steps * self.perturbations):
            raise ConfigError(
                f"algorithm.seeds is {self.seeds} but a round of a client takes {needed} directions (client.steps "
                f"{steps} x algorithm.perturbations {self.perturbations}); set algorithm.seeds to {needed} or more"
            )

    def check_server(self, server: ServerConfig) -> None:
        """Refuse optimisers of the server, whose steps would be no sum over directions."""
        if server.optimizer != "none":
            raise ConfigError(
                f"server.optimizer is {server.optimizer} but algorithm.name is {self._name}, whose server adds whole "
                "numbers; set server.optimizer to none"
            )

    @property
    def _name(self) -> str:
        return type(self).__name__.lower()

    # --- a round

    def client_update(self, job: ClientJob) -> Report:
        """Take the round's steps from the received weights; send the sum of what was measured along each seed."""
        candidates = self.drawn(job.client.name, job.round, job.received.get(CHANCES))
        steps = LocalSteps(self, job, candidates)
        curve = steps.train()
        job.send(SUMS, steps.sums(self.length))
        if self.pro:
            report = Report(job.client.name, examples=len(job.examples))
            weight = self.own_weight(report) or 1.0  # so that the weighted sum is a plain one, see `history.added`
            job.send(CHANCES, (steps.magnitudes(self.length) / weight).float())
        return self.report(job, curve, **steps.counts)

    def measure(self, server: ServerState, updates: Updates, weights: Sequence[float]) -> Mapping[str, float]:
        """Counts of what `robust` did."""
        return kept_counts(updates.kept)

    def server_update(self, server: ServerState, grad: Tensor) -> None:
        """Add the round's numbers to A, rounded to whole ones; with `pro` new chances.

        Raises:
            NonFiniteError: A has become so large that sums over directions are exact no more.
        """
        change, *measured = grad.chunk(len(self.travels.vectors))
        sums = server.tensors[SUMS]
        sums += torch.round(change.double() * 2.0 ** (self.bits + FINER))
        if not float(sums.abs().sum()) * LARGEST[self.z] <= EXACT:
            raise NonFiniteError(
                f"after round {server.round + 1} the numbers of all seeds come to more than 2^52 together, above which "
                "they are not added exactly; set algorithm.bits lower, or client.lr or the number of rounds"
            )
        if self.pro:
            chances = server.tensors[CHANCES]
            names = [(report.client, self.own_weight(report) or 0.0) for report in server.accepted]
            draws = partial(self.drawn, round=server.round, chances=chances)
            history.add(server, measured[0], [(draws(name), weight) for name, weight in names])
            chances.copy_(history.chances(server))

    def kept(self, layout: Layout, private: Layout) -> Kept:
        """With `pro` what was measured along each seed, and how often."""
        found = super().kept(layout, private)
        if not self.pro:
            return found
        shapes = {history.MAGNITUDES: (self.length,), history.TIMES: (self.length,)}
        return replace(found, shapes={**found.shapes, **shapes}, server=(*found.server, *shapes))


@dataclass(frozen=True)
class DeComFL(FedKSeed):
    """DeComFL (Li et al. 2025, arXiv 2405.15861): all clients of a round take the same new directions.

    Each step is the mean over some of them, one-sided by default as in its code. The server's sums are kept, so who was
    away, or joins late, gets them all at once; the code makes such a client replay the rounds.
    """

    shares_seeds: ClassVar[bool] = True
    weights: Literal["size", "equal", "declared"] = "equal"
    """what a client's weight is proportional to, as in FedAvg"""
    seeds: Count | Literal["round"] = "round"
    """`round`: new directions for every step of every round; K: they are drawn from so many, as in FedKSeed"""
    perturbations: Count = 5
    """P: directions of a step, whose numbers are averaged"""
    eps: Positive = 1e-3
    """μ: how far from the weights a loss is measured"""
    estimate: Literal["two_sided", "one_sided"] = "one_sided"
    """as in FedKSeed"""
