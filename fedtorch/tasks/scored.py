"""Tasks over prepared rows whose metrics can be chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import Self

from fedtorch.tasks.base import Scores
from fedtorch.tasks.chosen_metrics import pooled_of, scores_of, selectable
from fedtorch.tasks.copies import copy_as
from fedtorch.tasks.prepared import Prepared


@dataclass(frozen=True)
class Scored(Prepared):
    """How `eval.metrics` is answered: by a task's scores and figures, or by metrics that compare its predictions."""

    takes_metrics: ClassVar[bool] = True
    lower_is_better: ClassVar[tuple[str, ...]] = ()
    """those of `figures` that no best model is chosen by"""

    def with_metrics(self, chosen: Mapping[str, Any]) -> Self:
        """A copy that keeps what this one has read."""
        if not chosen:
            return self
        return copy_as(type(self), self, chosen=dict(chosen))

    def metrics(self) -> tuple[str, ...]:
        """Metrics that a best model can be chosen by."""
        return tuple(dict.fromkeys((self.main_metric, *selectable(self.chosen, self.lower_is_better))))

    def single_metrics(self) -> tuple[str, ...]:
        """Only the main one; figures of several rows are no means."""
        return (self.main_metric,)

    def figures(self, totals: Mapping[str, float]) -> dict[str, float]:
        """Figures that are no means, from sums of scores by name."""
        return {}

    def summary(self, scores: Mapping[str, Scores]) -> dict[str, Any]:
        """`figures` of all rows together, and of each client's."""
        each = {client: self.figures(pooled({client: found})) for client, found in scores.items()}
        return {"pooled": self.figures(pooled(scores)), "clients": each}

    def compared(self, examples: Sequence[Any], predictions: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """(predictions, references) as a metric of one's own gets them, one each per row."""
        raise NotImplementedError

    def client_scores(self, client: str, scores: Scores, examples: Sequence[Any], predictions: Sequence[Any]) -> Scores:
        """Scores that `eval.metrics` asks for, of all of a client's rows."""
        found, references = self.compared(examples, predictions)
        return scores_of(self.chosen, client, scores, found, references, self.figures)

    def pooled_scores(self, scores: Mapping[str, Scores]) -> Mapping[str, float]:
        """Figures of the chosen metrics that are no means."""
        return pooled_of(self.chosen, scores, self.figures) if self.chosen else {}


def pooled(scores: Mapping[str, Scores]) -> dict[str, float]:
    """Metric -> sum over all clients."""
    totals: dict[str, float] = {}
    for metrics in scores.values():
        for name, (total, _) in metrics.items():
            totals[name] = totals.get(name, 0.0) + total
    return totals
