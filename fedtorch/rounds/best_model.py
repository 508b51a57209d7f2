"""Which round was the best so far, and whether to go on."""

from __future__ import annotations

import math


class Selection:
    """Keeps the best score in a `numbers` dictionary: the server's for a shared model, a client's for its own.

    A later score replaces an earlier one only if it is higher: ties go to the earlier round (docs/lorar.md).
    `patience` evaluations in a row without gain set `stopped`.
    """

    def __init__(self, numbers: dict[str, int | float], patience: int | None) -> None:
        self.numbers, self.patience = numbers, patience

    def offer(self, score: float, round: int) -> bool:
        """Is this the best score so far? (NaN never is.)"""
        better = score > self.numbers.get("best_score", -math.inf)
        if better:
            self.numbers.update(best_score=score, best_round=round, evaluations_without_gain=0)
        else:
            self.numbers["evaluations_without_gain"] = int(self.numbers.get("evaluations_without_gain", 0)) + 1
        if self.patience is not None and self.numbers["evaluations_without_gain"] >= self.patience:
            self.numbers["stopped"] = 1
        return better
