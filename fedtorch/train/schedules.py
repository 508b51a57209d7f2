"""Learning-rate schedules, number for number those of `transformers.optimization` (polynomial: up to rounding).

That module is not imported for them: where peft is installed it imports all of it, which takes longer than torch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedtorch.train.settings import ClientConfig


def share_of_rate(step: int, *, hp: ClientConfig, warmup: int, steps: int) -> float:
    """Share of `hp.lr` that counts in a step (from 0 on) of `steps`; afterwards that of their end."""
    step = min(step, steps)
    if step < warmup:
        return step / max(1, warmup)
    if hp.schedule == "constant":
        return 1.0
    if hp.schedule == "inverse_sqrt":
        timescale = warmup or 10_000
        return 1.0 / math.sqrt((step + timescale - warmup) / timescale)
    return _falling(step, hp, warmup, steps) * (1 - hp.schedule_floor) + hp.schedule_floor


def _falling(step: int, hp: ClientConfig, warmup: int, steps: int) -> float:
    """From 1 at the end of the warm-up to 0 at the end."""
    left, span = steps - step, max(1, steps - warmup)
    if hp.schedule == "linear":
        return max(0.0, left / span)
    if hp.schedule == "polynomial":
        power: float = (1 - (step - warmup) / span) ** hp.schedule_power
        return 0.0 if step >= steps else power
    done = (step - warmup) / span
    if hp.schedule == "cosine":
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * done)))
    return 0.0 if done >= 1 else max(0.0, 0.5 * (1.0 + math.cos(math.pi * ((hp.schedule_cycles * done) % 1.0))))
