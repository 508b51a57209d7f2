"""Rules of `privacy.kind: record` one by one: what passes, and what is refused with key, value and reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from supervisor import toy_config
from torch import nn

from fedtorch.config.load import load
from fedtorch.core.errors import ConfigError
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules import record

UNITS = {"a": 6, "b": 9, "c": 5, "d": 7}


def plan(folder: Path, privacy: str = "", ranks: int = 5, **changes: str) -> Plan:
    """Four silos that share the noise, a worker for each."""
    units = ", ".join(f"{name}: {number}" for name, number in UNITS.items())
    usual = {
        "algorithm": "{name: fedavg, weights: declared}",
        "server": "{optimizer: sgd, lr: 0.5}",
        "client": "{batch_size: 4, steps: 1}",
        "clients": "{per_round: all}",
        "privacy": f"{{kind: record, units: {{{units}}}, clip: 0.5, delta: 0.1, noise_multiplier: 1.0, {privacy}}}",
    }
    return Plan.of(load(str(toy_config(folder, **{**usual, **changes}))), ranks)


SHARED = "noise_at: shared, secure_sum: {threshold: 1.0}, colluders: 1"
ONE_SUM = record.a_shared_round_is_one_gradient
HONEST = record.enough_of_those_who_answer_are_honest


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"algorithm": "{name: fedopt, weights: declared}"}, ""),
        ({"server": "{optimizer: adam, lr: 0.5}"}, ""),
        ({"client": "{batch_size: 4, steps: 2}"}, r"client\.steps is not 1"),
        ({"algorithm": "{name: fedavg, weights: declared, robust: trimmed_mean}"}, r"without algorithm\.robust"),
        ({"algorithm": "{name: fedprox, weights: declared}"}, r"algorithm\.name is fedprox"),
        ({"algorithm": "{name: fedavg, weights: equal}"}, r"algorithm\.weights is equal"),
        ({"server": "{optimizer: none}"}, r"server\.optimizer is none"),
        ({"clients": "{per_round: 3}"}, r"clients\.per_round is 3"),
    ],
)
def test_a_shared_round_is_one_sum(changes: dict[str, str], words: str, tmp_path: Path) -> None:
    found = plan(tmp_path, SHARED, **changes)
    if not words:
        return ONE_SUM(found)
    with pytest.raises(ConfigError, match=words):
        ONE_SUM(found)


def test_with_noise_of_their_own_silos_take_as_many_steps_as_they_like(tmp_path: Path) -> None:
    ONE_SUM(plan(tmp_path, client="{batch_size: 4, steps: 3}", server="{optimizer: none}"))
    HONEST(plan(tmp_path, ranks=8))


@pytest.mark.parametrize(
    ("ranks", "colluders", "words"),
    [
        (5, 3, ""),
        (4, 2, ""),
        (5, 4, r"privacy\.colluders is 4 but a sum is opened with 4 parts .*; set privacy\.colluders to 3 or less"),
        (6, 1, r"there are 5 workers for 4 silos, .*; start 5 ranks"),
    ],
)
def test_those_who_answer_are_silos_and_some_are_honest(ranks: int, colluders: int, words: str, tmp_path: Path) -> None:
    found = plan(tmp_path, SHARED.replace("colluders: 1", f"colluders: {colluders}"), ranks)
    if not words:
        return HONEST(found)
    with pytest.raises(ConfigError, match=words):
        HONEST(found)


@pytest.mark.parametrize(
    ("changes", "ranks", "words"),
    [
        ({}, 5, ""),
        ({"system": "{server_works: true}"}, 1, ""),  # one process, which is everybody
        ({"system": "{server_works: true}"}, 2, r"system\.server_works is true: the server would hold rows"),
        ({"engine": "{kind: deepspeed}"}, 5, r"engine\.kind is deepspeed: an engine that splits a model .* to torch"),
        ({"system": "{ranks_per_worker: 2}"}, 5, r"system\.ranks_per_worker is 2: a silo's units .* to 1"),
        ({"engine": "{precision: fp16}"}, 5, r"engine\.precision is fp16"),
    ],
)
def test_a_silo_trains_in_one_process(changes: dict[str, str], ranks: int, words: str, tmp_path: Path) -> None:
    found = plan(tmp_path, ranks=ranks, **changes)
    if not words:
        return record.a_silo_trains_in_one_process(found)
    with pytest.raises(ConfigError, match=words):
        record.a_silo_trains_in_one_process(found)


@pytest.mark.parametrize(
    ("way", "again", "refused"), [("vmap", True, True), ("vmap", False, False), ("auto", True, False)]
)
def test_vmap_keeps_activations(way: str, again: bool, refused: bool, tmp_path: Path) -> None:
    found = plan(tmp_path, f"per_unit: {way}", engine=f"{{activation_checkpointing: {str(again).lower()}}}")
    if not refused:
        return record.vmap_keeps_activations(found)
    with pytest.raises(ConfigError, match=r"per_unit is vmap and engine\.activation_checkpointing is true"):
        record.vmap_keeps_activations(found)


@pytest.mark.parametrize(
    ("delta", "refused"), [(1 / 9, False), (0.112, True), (0.05, False)], ids=["one of the largest", "more", "less"]
)
def test_delta_is_one_unit_of_the_largest_silo_at_most(delta: float, refused: bool, tmp_path: Path) -> None:
    found = plan(tmp_path, f"per_silo: {{b: {{delta: {delta}}}}}")
    if not refused:
        return record.delta_is_less_than_one_unit(found)
    with pytest.raises(ConfigError, match=r"privacy\.delta is 0\.112 for the silo 'b', which declares 9 units"):
        record.delta_is_less_than_one_unit(found)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({}, ""),
        ({"class_weights": {"good": 2.0}}, ""),  # as somebody has written them, and not by counting rows
        ({"class_weights": "balanced"}, r"task\.class_weights is balanced: a row would weigh by how many others"),
        ({"pack": True}, r"task\.pack is true: rows would share a batch's row; set it to false"),
        ({"long": "windows"}, r"task\.long is windows: a row would be as many rows"),
        ({"long": "truncate"}, ""),
    ],
)
def test_rows_are_used_as_they_are(task: dict[str, Any], words: str) -> None:
    found: Any = SimpleNamespace(task=SimpleNamespace(**task))
    if not words:
        return record.rows_are_used_as_they_are(found)
    with pytest.raises(ConfigError, match=words):
        record.rows_are_used_as_they_are(found)


def experts(loads: bool) -> nn.Module:
    """A model that says whether its experts' load is in its loss."""
    model = nn.Linear(2, 2)
    model.config = SimpleNamespace(output_router_logits=loads)  # type: ignore[assignment]
    return model


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), ""),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), r"the model has batch norm \(1\), in which rows"),
        (lambda: experts(True), r"part over its experts' load"),
        (lambda: experts(False), ""),
    ],
)
def test_rows_of_a_batch_do_not_mix(made: Callable[[], nn.Module], words: str, tmp_path: Path) -> None:
    config, model = plan(tmp_path).config, made()
    record.units_do_not_mix(load(str(toy_config(tmp_path / "plain"))), model)  # without privacy all may mix
    if not words:
        return record.units_do_not_mix(config, model)
    with pytest.raises(ConfigError, match=words):
        record.units_do_not_mix(config, model)
