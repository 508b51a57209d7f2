"""Learning rates over the steps of a schedule, against their formulas."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import get_scheduler

from fedtorch.core.errors import ConfigError
from fedtorch.train.optim import make_schedule
from fedtorch.train.schedules import share_of_rate
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


@pytest.mark.parametrize("warmup", [0, 3, 7])
@pytest.mark.parametrize(
    ("name", "options"),
    [("linear", {}), ("cosine", {}), ("cosine_with_restarts", {"num_cycles": 3}), ("inverse_sqrt", {})],
)
def test_a_schedule_is_number_for_number_that_of_transformers(name: str, options: dict[str, Any], warmup: int) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    theirs = get_scheduler(name, optimizer, warmup, 50, options).lr_lambdas[0]
    hp = ClientConfig(schedule=name, schedule_cycles=options.get("num_cycles", 1))
    assert [share_of_rate(step, hp=hp, warmup=warmup, steps=50) for step in range(51)] == [theirs(s) for s in range(51)]


@pytest.mark.parametrize("floor", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("warmup", [0, 3, 7])
def test_a_cosine_with_a_floor_is_number_for_number_that_of_transformers(warmup: int, floor: float) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    theirs = get_scheduler("cosine_with_min_lr", optimizer, warmup, 50, {"min_lr_rate": floor}).lr_lambdas[0]
    hp = ClientConfig(schedule="cosine", schedule_floor=floor)
    assert [share_of_rate(step, hp=hp, warmup=warmup, steps=50) for step in range(51)] == [theirs(s) for s in range(51)]


@pytest.mark.parametrize("client", [{"schedule": "linear"}, {"schedule": "polynomial", "schedule_power": 3.0},
    {"schedule": "cosine"}, {"schedule": "cosine_with_restarts", "schedule_cycles": 2}])  # fmt: skip
def test_what_is_left_of_a_rate_above_its_floor_is_the_share_without_one(client: dict[str, Any]) -> None:
    plain, floored = (rates(10, warmup_steps=2, schedule_floor=floor, **client) for floor in (0.0, 0.2))
    assert floored[:3] == plain[:3] == [0.0, 0.5, 1.0]
    assert floored[2:] == pytest.approx([0.2 + 0.8 * share for share in plain[2:]], abs=1e-15)
    assert plain[10:] == [0.0] * 3 and floored[10:] == pytest.approx([0.2] * 3, abs=1e-15)


@pytest.mark.processes
def test_a_run_imports_neither_peft_nor_deepspeed_where_they_are_installed(tmp_path: Path) -> None:
    code = """
import sys, torch
from transformers import BertConfig, BertForSequenceClassification
import fedtorch.main
from fedtorch.models.pretrained import save_model
sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=8)
save_model(BertForSequenceClassification(BertConfig(**sizes)), "model")
print(*({"peft", "deepspeed"} & set(sys.modules)))
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert ended.stdout == "\n" and (tmp_path / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ({"schedule_cycles": 2}, "client.schedule_cycles is 2 but client.schedule is constant"),
        ({"schedule_power": 2.0, "schedule": "cosine"}, "set client.schedule to polynomial"),
        ({"schedule_floor": 0.1}, "client.schedule_floor is 0.1 but client.schedule is constant, which does not fall"),
        ({"schedule_floor": 0.1, "schedule": "inverse_sqrt"}, "set client.schedule to cosine or linear"),
    ],
)
def test_a_value_without_effect_is_refused(client: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ClientConfig(**client)
