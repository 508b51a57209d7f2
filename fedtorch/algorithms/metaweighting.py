"""Meta Weighting, FewFedWeight's baseline: pseudo rows count by how they help on annotated ones (Ren et al. 2018)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedtorch.algorithms import pseudo
from fedtorch.algorithms.fewfedweight import FewFedWeight
from fedtorch.algorithms.limits import Limits
from fedtorch.algorithms.token_weights import TokenWeighting
from fedtorch.core.seeds import generator_for
from fedtorch.core.state_keys import PERSONAL
from fedtorch.core.update import Report
from fedtorch.train.engine import Engine
from fedtorch.train.job import ClientJob

Parameters = dict[str, Tensor]
RowLosses = Callable[[Parameters], Tensor]


class Pair(NamedTuple):
    """A pseudo row, the annotated row that its weight is measured on, and the annotated row of the same real step."""

    pseudo: Any
    """example of the task with a model's answer"""
    measured_on: Any
    """example whose loss says what the pseudo row is worth"""
    trained_on: Any
    """example of the real step; the same one with `meta_gold_on: B`"""


def meta_weights(
    pseudo_losses: RowLosses,
    gold_losses: RowLosses,
    parameters: Parameters,
    *,
    alpha: float,
    eps_init: float = 0.0,
    rule: Literal["cited", "printed"] = "cited",
) -> tuple[Tensor, Tensor]:
    """(w, u) of the pseudo rows of a batch: w_j = max(−u_j, 0) / Σ max(−u, 0), all 0 if the sum is.

    cited: u_j = ∂/∂ε_j of the mean gold loss at θ'(ε) = θ − alpha·∇Σ ε_j l_j, at ε = eps_init for all j. As θ' is
    linear in ε, u_j = −alpha·⟨∇L(θ'), ∇l_j(θ)⟩ exactly: one gradient of the gold loss and one forward-mode derivative
    of the row losses in its direction; no graph of second order.
    printed: as in the paper's Algorithm 2, where ε weighs the gold rows' losses at θ', so that u_j is the j-th gold
    row's loss, never negative, and all weights are 0.

    parameters: by name, as the two functions take them. Results have no graph.
    """
    point = parameters
    if eps_init or rule == "printed":
        start = eps_init or 1.0
        slopes = _gradients(lambda p: start * pseudo_losses(p).sum(), parameters)
        point = {name: value.detach() - alpha * slopes[name] for name, value in parameters.items()}
    if rule == "printed":
        with torch.no_grad():
            u = gold_losses(point)
    else:
        slopes = _gradients(lambda p: gold_losses(p).mean(), point)
        fixed = {name: value.detach() for name, value in parameters.items()}
        with torch.no_grad():
            u = -alpha * jvp(pseudo_losses, (fixed,), (slopes,))[1]
    raw = (-u).clamp(min=0)
    total = raw.sum()
    return (raw / total if total > 0 else torch.zeros_like(raw)), u


@dataclass(frozen=True)
class MetaWeighting(FewFedWeight):
    """Pseudo rows as in FewFedWeight, one weight per row in place of token weights, aggregation by size.

    A step: weights of a batch of pseudo rows by `meta_weights` on a batch of annotated rows of equal size, then one
    optimiser step on Σ_j w_j l_j plus the mean loss of the annotated batch.
    """

    weights: Literal["loss", "size"] = "size"
    """a client's part in the average: by training size, or by its mean pseudo loss plus mean annotated loss"""
    token_weights: TokenWeighting = "uniform"
    """of pseudo labels, from energies; uniform: rows are weighted, and tokens not"""
    meta_lr: float | None = None
    """alpha, the size of the virtual step; null: client.lr. The weights hardly depend on it"""
    meta_eps_init: Literal[0, 1] = 0
    """where the derivative is taken: 0 in the cited method's code, 1 in the paper"""
    meta_rule: Literal["cited", "printed"] = "cited"
    """the cited method, or the paper's Algorithm 2 as printed, which gives every pseudo row the weight 0"""
    meta_gold_on: Literal["B", "Bhat"] = "B"
    """annotated rows of the real step: those that the weights were measured on (the text), or the pseudo rows' own
    gold answers (as printed)"""

    @property
    def limits(self) -> Limits:
        """The derivatives that make the weights have no loss scale."""
        return replace(super().limits, precisions=("fp32", "bf16"))

    def client_update(self, job: ClientJob) -> Report:
        """Label, train the personal model on weighted pairs of rows, send its difference from the received one."""
        personal = job.state.tensors.get(PERSONAL, job.initial)
        made = self.pseudo_data(job, personal)
        task = _MetaTask(self, pseudo.labelling_task(job.task), job.engine, self.meta_lr or job.hp.lr)
        started = time.monotonic()
        data = self._pairs(job, made.rows) if made.rows else job.examples
        working = replace(job, task=task if made.rows else task.measured)
        curve = working.train(personal, data=data)
        numbers = {**made.numbers, **task.measured.means(), "train_s": time.monotonic() - started}
        numbers |= {"used": task.used() / max(1, len(made.rows))}
        return self.deliver(job, self.report(job, curve, **numbers))

    def _pairs(self, job: ClientJob, rows: Sequence[Any]) -> list[Pair]:
        """Every pseudo row with an annotated row of its own, at random."""
        generator = generator_for(job.seed("pairs"), "pairs")
        order = torch.randperm(len(rows), generator=generator).tolist()
        pairs = []
        for index, other in enumerate(order):
            gold = job.examples[other]
            pairs.append(Pair(rows[index], gold, gold if self.meta_gold_on == "B" else job.examples[index]))
        return pairs


@dataclass
class _MetaTask:
    """The loss of a step on pairs; counts the pseudo rows that got a weight."""

    whole_passes: ClassVar[bool] = True

    rule: MetaWeighting
    """whose `meta_*` keys are used"""
    task: pseudo.LabellingTask
    """whose rows and row losses they are"""
    engine: Engine
    """whose passes say whether they count (`Engine.counts`), and whose worker's sums are added"""
    alpha: float
    """size of the virtual step"""
    measured: pseudo.Measured = field(init=False)
    """losses of pseudo and annotated rows, as they are trained"""
    _used: list[Tensor] = field(default_factory=list)
    """scalars on the device: pseudo rows of each batch that got a weight above 0"""

    def __post_init__(self) -> None:
        self.measured = pseudo.Measured(self.task, self.engine)

    def collate(self, examples: Sequence[Pair], train: bool) -> dict[str, Any]:
        """A batch of each kind of row."""
        pseudo_rows, measured_on, trained_on = zip(*examples, strict=True)
        batch = {"pseudo": self.task.collate(pseudo_rows, train), "gold": self.task.collate(measured_on, train)}
        if self.rule.meta_gold_on == "Bhat":
            batch["trained"] = self.task.collate(trained_on, train)
        return batch

    def loss(self, model: nn.Module, batch: Mapping[str, Any]) -> tuple[Tensor, int]:
        """(Σ_j w_j l_j + mean gold loss, 1)."""
        rows = _Rows(model, self.task)
        trained: Parameters = {name: p for name, p in rows.named_parameters() if p.requires_grad}

        def losses_of(part: Any) -> RowLosses:
            return lambda parameters: functional_call(rows, parameters, (part,))

        # the fused attention kernels have no forward-mode derivative
        with sdpa_kernel(SDPBackend.MATH):
            weights_B, _ = meta_weights(
                losses_of(batch["pseudo"]),
                losses_of(batch["gold"]),
                trained,
                alpha=self.alpha,
                eps_init=float(self.rule.meta_eps_init),
                rule=self.rule.meta_rule,
            )
        pseudo_B = self.task.row_losses(model, batch["pseudo"])
        gold_B = self.task.row_losses(model, batch.get("trained", batch["gold"]))
        for losses_B, is_pseudo in ((pseudo_B, True), (gold_B, False)):
            self.measured.add(losses_B, torch.full_like(losses_B, is_pseudo))
        if self.engine.counts:
            self._used.append((weights_B > 0).sum())
        return (weights_B * pseudo_B).sum() + gold_B.mean(), 1

    def used(self) -> int:
        """Pseudo rows that got a weight above 0 so far."""
        own = int(torch.stack(self._used).sum()) if self._used else 0
        return int(self.engine.summed([own])[0])


class _Rows(nn.Module):
    """The row losses of a model, as a module that `functional_call` can run with other parameters."""

    def __init__(self, model: nn.Module, task: pseudo.LabellingTask) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, batch: Any) -> Tensor:
        return self.task.row_losses(self.model, batch)


def _gradients(function: Callable[[Parameters], Tensor], parameters: Parameters) -> Parameters:
    """∇function at `parameters`; zeros for those it does not depend on."""
    point = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    with torch.enable_grad():
        found = torch.autograd.grad(function(point), list(point.values()), allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(point.items(), found, strict=True)}
