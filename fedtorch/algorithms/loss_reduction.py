"""How much a client's training loss fell within a round: Lorar's ΔL (paper and code: docs/lorar.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import Literal

from fedtorch.core.ranges import Positive
from fedtorch.train.loop import LossCurve


@dataclass(frozen=True)
class LossReduction:
    """ΔL_i = max − min of the local training loss in the round (Lorar, Algorithm 1, line 21), over chosen values."""

    measure: Literal["window", "step", "epoch"] = "window"
    """which losses: means over windows of steps (as the authors log them), single steps, or epoch means"""
    window: int = 4
    """steps per window; the first step is a window of its own, the others end at multiples of this"""
    include_tail: bool = True
    """does the mean of the last incomplete window count? The authors' logs never show it"""
    round_digits: int | None = None
    """decimals each value is rounded to; the authors' logs have 4"""
    include_prox: bool = True
    """does the FedProx penalty count? In the paper's Algorithm 1, line 14, and in the code it does"""
    cap: Positive | None = None
    """the largest ΔL that counts in a client's weight, more counts as this; null: no limit. The server knows a
    client's losses from its report alone: without a limit one that reports a fall from 1e12 to 0 has all the weight"""

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"algorithm.loss_reduction.window is {self.window}; set it to at least 1")

    def values(self, curve: LossCurve) -> list[float]:
        """The measured losses of a round, in float64; empty if no step was taken."""
        losses = curve.objective(include_penalty=self.include_prox)
        if self.measure == "window":
            values = _window_means(losses, self.window, self.include_tail)
        elif self.measure == "epoch":
            epochs = sorted(set(curve.epochs))
            values = [_mean([x for x, e in zip(losses, curve.epochs, strict=True) if e == epoch]) for epoch in epochs]
        else:
            values = losses
        return values if self.round_digits is None else [round(value, self.round_digits) for value in values]


def _window_means(losses: Sequence[float], window: int, include_tail: bool) -> list[float]:
    """[mean of step 1], [2 .. window], [window+1 .. 2·window], ...; the last one may be incomplete."""
    if not losses:
        return []
    ends = sorted({1, *range(window, len(losses) + 1, window)})
    if include_tail and ends[-1] < len(losses):
        ends.append(len(losses))
    starts = [0, *ends[:-1]]
    return [_mean(losses[start:end]) for start, end in zip(starts, ends, strict=True)]


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)
