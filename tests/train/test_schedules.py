"""Learning rates over the steps of a schedule, against their formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedtorch.core.errors import ConfigError
from fedtorch.train.optim import make_schedule
from fedtorch.train.settings import ClientConfig


def rates(steps: int, taken: int = 0, **client: Any) -> list[float]:
    """Of each step and of the three after the last one, as a share of `client.lr`."""
    hp = ClientConfig(optimizer="sgd", lr=0.5, **client)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=7.0)  # as another client has left it
    schedule, found = make_schedule(optimizer, hp, steps, taken), []
    for _ in range(taken, steps + 3):
        found.append(optimizer.param_groups[0]["lr"] / hp.lr)
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize(
    ("client", "formula"),
    [
        ({"schedule": "constant"}, lambda s: 1.0),
        ({"schedule": "constant", "warmup_steps": 4}, lambda s: min(1.0, s / 4)),
        ({"schedule": "linear"}, lambda s: 1 - s / 8),
        ({"schedule": "linear", "warmup_ratio": 0.25}, lambda s: s / 2 if s < 2 else 1 - (s - 2) / 6),
        ({"schedule": "cosine"}, lambda s: (1 + math.cos(math.pi * s / 8)) / 2),
        ({"schedule": "cosine_with_restarts"}, lambda s: (1 + math.cos(math.pi * s / 8)) / 2),
        (
            {"schedule": "cosine_with_restarts", "schedule_cycles": 2},
            lambda s: (1 + math.cos(math.pi * (s % 4) / 4)) / 2 if s < 8 else 0.0,
        ),
        ({"schedule": "polynomial"}, lambda s: 1 - s / 8),
        ({"schedule": "polynomial", "schedule_power": 3}, lambda s: (1 - s / 8) ** 3),
        ({"schedule": "inverse_sqrt", "warmup_steps": 2}, lambda s: s / 2 if s < 2 else math.sqrt(2 / s)),
    ],
)
def test_a_rate_follows_its_formula_and_stays_where_it_ends(
    client: dict[str, Any], formula: Callable[[int], float]
) -> None:
    expected = [formula(min(step, 8)) for step in range(11)]
    assert rates(8, **client) == pytest.approx(expected, abs=1e-12)
    assert rates(8, taken=3, **client) == pytest.approx(expected[3:], abs=1e-12)  # as a resumed client goes on


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ({"schedule_cycles": 2}, "client.schedule_cycles is 2 but client.schedule is constant"),
        ({"schedule": "polynomial", "lr": 0.0}, "needs a client.lr above 0"),
        ({"schedule_power": 2.0, "schedule": "cosine"}, "set client.schedule to polynomial"),
    ],
)
def test_a_value_without_effect_is_refused(client: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ClientConfig(**client)
