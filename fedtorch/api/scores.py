"""The final scores of a run, none without the number of examples behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from typing_extensions import Self

from fedtorch.core.scores import COUNT, Means


class Score(NamedTuple):
    """A client's score."""

    value: float
    """mean over its examples; nan if it was not finite"""
    examples: int
    """examples behind it"""


@dataclass(frozen=True)
class RunScores:
    """Scores that a run's model was evaluated with."""

    split: str
    """`eval.final_split`"""
    metric: str | None
    """the score that the run is compared by"""
    clients: Mapping[str, Mapping[str, Score]]
    """client -> metric -> score; a client without examples has none"""
    overall: Mapping[str, Means]
    """metric -> its means over the clients: `macro`, `micro` and `examples`"""
    summary: Mapping[str, Any]
    """figures that are no means over examples, such as F1: `summary` of results.json"""
    best_round: int | None
    """whose model it was, where one was chosen"""

    @classmethod
    def of(cls, results: Mapping[str, Any], metric: str | None) -> Self:
        """From results.json."""
        clients = {
            client: {
                name: Score(_number(total) / count, count)
                for name, (total, count) in entry["scores"].items()
                if count and not name.startswith(COUNT)
            }
            for client, entry in results["clients"].items()
        }
        overall = {
            name: Means(_number(mean["macro"]), _number(mean["micro"]), mean["count"])
            for name, mean in results["averages"].items()
        }
        metric = metric if metric in overall else next(iter(overall), None)
        return cls(results["split"], metric, clients, overall, results["summary"], results["best_round"])

    @property
    def main(self) -> str:
        """The score that counts, in a line."""
        if self.metric is None or self.metric not in self.overall:
            return f"nothing scored on {self.split}"
        macro, micro, examples = self.overall[self.metric]
        return f"{self.split} {self.metric} micro {micro:.4f} macro {macro:.4f} of {examples}"


def _number(value: float | None) -> float:
    return math.nan if value is None else value
