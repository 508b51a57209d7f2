"""FewFedWeight: personal models, pseudo labels of the global model weighted by energy, aggregation by loss."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from fedtorch.algorithms import pseudo
from fedtorch.algorithms.limits import Limits
from fedtorch.algorithms.personal_model import PersonalModel
from fedtorch.algorithms.token_weights import TokenWeighting
from fedtorch.algorithms.travels import Travels
from fedtorch.algorithms.weighting import normalised
from fedtorch.core.ranges import Count, Positive, Whole
from fedtorch.core.state_keys import NOT_EVALUATED, PERSONAL, STOPPED
from fedtorch.core.update import Report
from fedtorch.train.job import ClientJob
from fedtorch.train.loop import LossCurve
from fedtorch.train.settings import ClientConfig

LOSSES_BYTES = 16
"""What a client sends beside its parameters: two fp64 losses."""


@dataclass(frozen=True)
class FewFedWeight(PersonalModel):
    """Algorithm 1, with who predicts the pseudo labels as in the text (the global model), not as printed.

    A client's model F_i starts at w^0, is trained in every round on its annotated rows and on the same inputs with
    the received global model's answers, and is what the client is evaluated with. The broadcast never overwrites it:
    F_global is only a labeller and the average Σ δ_i F_i. Nothing of F_i but the update is sent.

    A client that fails in a round keeps the model it had. The state is the model, and the optimiser's where
    `client.optimizer_state` is `keep`; labels are made anew in every round and never kept.
    """

    weights: Literal["loss", "size"] = "loss"  # type: ignore[assignment]
    """a client's weight δ_i: proportional to its mean pseudo loss plus mean annotated loss, or to its training size"""
    size_rounds: Whole = 0
    """with `weights: loss`: so many rounds by size come first (the paper's figure 5 has 10)"""
    token_weights: TokenWeighting = "clamp"
    """of pseudo labels, from energies (see `token_weights.py`); uniform: no weighting"""
    top_k: Count = 7
    """logits per token that make its energy"""
    temperature: Positive = 1.0
    """of the energy"""
    tau: Positive = 1.0
    """of `token_weights: softmax`"""
    energy_from: Literal["global", "client"] = "global"
    """whose logits: the labeller's as it generates, or those of the client's model in a second pass"""
    pseudo_start_round: Whole = 0
    """rounds without pseudo data before the first with; in round 0 the labeller is the untrained model"""
    generation_batch: Count = 64
    """inputs labelled at a time"""

    @property
    def limits(self) -> Limits:
        """The losses of pseudo and annotated rows are added up beside the engine."""
        return replace(super().limits, why_not_saved="adds up losses while it trains, which are not saved")

    def check(self, hp: ClientConfig, task: Any) -> None:
        """The task must be able to label."""
        pseudo.labelling_task(task)

    def client_update(self, job: ClientJob) -> Report:
        """Label, train the personal model on both kinds of rows, send its difference from the received one."""
        personal = job.state.tensors.get(PERSONAL, job.initial)
        made = self.pseudo_data(job, personal)
        measured = pseudo.Measured(pseudo.labelling_task(job.task), job.engine)
        started = time.monotonic()
        data = [*job.examples, *made.rows]
        curve = replace(job, task=measured).train(personal, data=data, run_steps=self.steps_of_the_run(job))
        numbers = {**made.numbers, **measured.means(), "train_s": time.monotonic() - started}
        return self.deliver(job, self.report(job, curve, **numbers))

    def steps_of_the_run(self, job: ClientJob) -> int:
        """Steps of the rounds without pseudo data and, twice as many rows, of those with."""
        start, n = min(self.pseudo_start_round, job.rounds), len(job.examples)
        without, having = range(start), range(start, job.rounds)
        return job.steps_of_the_run(n, rounds=without) + job.steps_of_the_run(2 * n, rounds=having)

    def pseudo_data(self, job: ClientJob, personal: Tensor) -> pseudo.PseudoData:
        """The round's pseudo rows; none before `pseudo_start_round`."""
        if job.round < self.pseudo_start_round:
            return pseudo.PseudoData([], {"generate_s": 0.0})
        how = pseudo.Labelling(self.token_weights, self.top_k, self.temperature, self.tau, self.generation_batch)
        energy_from = personal if self.energy_from == "client" else None
        return pseudo.make(job, self.labeller(job, personal), how, energy_from=energy_from)

    def labeller(self, job: ClientJob, personal: Tensor) -> Tensor:
        """The weights that make the pseudo labels: the received ones."""
        return job.received["weights"]

    def deliver(self, job: ClientJob, report: Report) -> Report:
        """Keep the engine's weights as the personal model, and send them as a difference."""
        job.state.tensors[PERSONAL] = job.engine.snapshot()
        size = float(job.send_difference(job.received["weights"]).nbytes)
        extra = {"received_bytes": size, "sent_bytes": size + LOSSES_BYTES}
        by_size = {"by_size": 1.0} if job.round < self.size_rounds else {}
        return replace(report, extra={**report.extra, **extra, **by_size})

    def weigh(self, reports: Sequence[Report]) -> list[float]:
        """δ_i = L_i / Σ L_j with L_i = mean pseudo loss + mean annotated loss; all alike where every loss is 0.

        Raises:
            ValueError: a loss is not finite. The runner refuses such reports before; set `clients.min` to the number
                of clients for the paper's reading that the round is then void.
        """
        if self.weights == "size" or any(report.extra.get("by_size") for report in reports):
            return normalised("size", reports)
        losses = [report.extra["pseudo_loss"] + report.extra["annotated_loss"] for report in reports]
        if not all(map(math.isfinite, losses)):
            raise ValueError(f"the losses of the clients are {losses}; expected finite numbers")
        total = math.fsum(losses)
        return [loss / total for loss in losses] if total else [1.0 / len(losses)] * len(losses)


@dataclass(frozen=True)
class SiloAugmented(FewFedWeight):
    """The paper's Data Silo DA: no server; every client labels with its own model, and all tokens count alike."""

    @property
    def travels(self) -> Travels:
        """Nothing travels."""
        return Travels(())

    token_weights: TokenWeighting = "uniform"
    """of pseudo labels, as in `FewFedWeight`; here uniform: all count alike"""

    def client_update(self, job: ClientJob) -> Report:
        """As above; a client whose dev score stopped rising (`eval.patience`) rests."""
        if job.state.numbers.get(STOPPED):
            return self.report(job, LossCurve())
        return super().client_update(job)

    def labeller(self, job: ClientJob, personal: Tensor) -> Tensor:
        """The client's own weights."""
        return personal

    def deliver(self, job: ClientJob, report: Report) -> Report:
        """Keep the model; nothing is sent."""
        job.state.tensors[PERSONAL] = job.engine.snapshot()
        job.state.numbers[NOT_EVALUATED] = 1  # the next evaluation counts for this client
        return report

    def weigh(self, reports: Sequence[Report]) -> list[float]:
        """Nothing is averaged."""
        return [0.0] * len(reports)
