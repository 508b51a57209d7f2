"""A client's round of FedKSeed: steps along drawn directions, and sums of whole numbers by direction."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from fedtorch.algorithms.seeds.draws import Candidates
from fedtorch.algorithms.seeds.history import CLIP
from fedtorch.algorithms.seeds.probes import LIMIT, Probes, whole
from fedtorch.core import state_keys as keys
from fedtorch.core.directions import Kind
from fedtorch.core.seeds import seed_torch
from fedtorch.train.job import ClientJob
from fedtorch.train.loop import LossCurve, Step
from fedtorch.train.optim import warmup_of
from fedtorch.train.schedules import share_of_rate

_TRAIN = "train"


class Rule(Protocol):
    """Settings of an algorithm that the steps go by; `seeds.fedkseed.FedKSeed` has each explained."""

    @property
    def perturbations(self) -> int: ...
    @property
    def eps(self) -> float: ...
    @property
    def estimate(self) -> str: ...
    @property
    def z(self) -> Kind: ...
    @property
    def bits(self) -> int: ...
    @property
    def grad_clip(self) -> float | None: ...
    @property
    def base_rate(self) -> float: ...
    def seed(self, candidate: int) -> int: ...


class LocalSteps:
    """Steps and measurements of one client in one round; used once."""

    def __init__(self, rule: Rule, job: ClientJob, candidates: Candidates) -> None:
        """candidates: places of the directions, `rule.perturbations` for each step."""
        self.rule, self.job = rule, job
        self._candidates = candidates.reshape(-1, rule.perturbations).tolist()
        self._sums: dict[int, int] = {}
        self._magnitudes: dict[int, float] = {}
        self._left_out = self._cut = 0

    def train(self) -> LossCurve:
        """Take the steps from the received weights; the engine has the client's weights then.

        The losses of the curve are those that a step has measured, their mean.
        """
        job, engine = self.job, self.job.engine
        engine.load(job.received[keys.WEIGHTS], job.private)
        engine.module.eval()
        seed_torch(job.seed(f"{_TRAIN}/dropout"), engine.device)  # what a batch may draw
        one_sided = self.rule.estimate == "one_sided"
        weights = job.received[keys.WEIGHTS].clone()
        probes = Probes(engine, job.task, weights, self.rule.z, self.rule.eps, one_sided)
        losses, epochs = list[float](), list[int]()
        plans, rates = job.plans(len(job.examples), purpose=_TRAIN), self._rates()
        for number, step in enumerate(job.collated(plans, job.examples)):
            self._take(probes, step, self._candidates[number], rates[number])
            found = probes.losses or losses[-1:] or [0.0]
            losses.append(math.fsum(found) / len(found))
            epochs.append(step.epoch)
            job.on_step(number + 1)
        probes.load()
        left_out = min(len(losses), self._left_out)
        return LossCurve(tuple(losses), (0.0,) * len(losses), tuple(epochs), left_out)

    def _rates(self) -> list[float]:
        """η_t / η of each step."""
        job, hp = self.job, self.job.hp
        count, taken = len(self._candidates), 0
        steps = count
        if hp.schedule_span == "run":
            steps = job.steps_of_the_run(len(job.examples))
            taken = int(job.state.numbers.get(keys.steps(_TRAIN), 0))
            job.state.numbers[keys.steps(_TRAIN)] = taken + count
        warmup, base = warmup_of(hp, steps), self.rule.base_rate
        shares = (share_of_rate(taken + k, hp=hp, warmup=warmup, steps=max(1, steps)) for k in range(count))
        return [share * hp.lr / base for share in shares]

    def _take(self, probes: Probes, step: Step, candidates: list[int], rate: float) -> None:
        """One step: a number for each of its directions, measured at the same weights, and then the move."""
        rule, moves = self.rule, list[tuple[int, int]]()
        probes.begin_step()
        for candidate in candidates:
            difference, slope = probes.slope(step, rule.seed(candidate))
            q = whole(slope * rate / rule.perturbations, rule.bits)
            if q is None or (rule.grad_clip is not None and abs(difference) > rule.grad_clip):
                self._left_out += 1
                return
            self._magnitudes[candidate] = self._magnitudes.get(candidate, 0.0) + min(abs(slope), CLIP)
            moves.append((candidate, q))
        for candidate, q in moves:
            kept = self._sums.get(candidate, 0)
            self._sums[candidate] = total = max(-LIMIT, min(LIMIT, kept + q))
            self._cut += total != kept + q
            probes.move(rule.seed(candidate), rule.base_rate * math.ldexp(total - kept, -rule.bits))

    @property
    def counts(self) -> dict[str, float]:
        """How many numbers were cut, where there were any."""
        return {"cut": float(self._cut)} if self._cut else {}

    def sums(self, length: int) -> Tensor:
        """Σ of the numbers along each direction, as multiples of 2^-bits, which fp32 has; shape (length,)."""
        flat = torch.zeros(length, dtype=torch.float32)
        for candidate, total in self._sums.items():
            flat[candidate] = math.ldexp(total, -self.rule.bits)
        return flat

    def magnitudes(self, length: int) -> Tensor:
        """Σ |ĝ| along each direction, float64, shape (length,)."""
        flat = torch.zeros(length, dtype=torch.float64)
        for candidate, total in self._magnitudes.items():
            flat[candidate] = total
        return flat
