"""Rules about an algorithm, its task and its settings, each with a plan that it refuses and one beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from harness import make_config
from toy import Quadratic

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.limits import Limits
from fedtorch.algorithms.local import Local
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.core.errors import ConfigError
from fedtorch.core.places import Places
from fedtorch.core.weights import Layout, Partition
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules.algorithm import (
    batches_by_length_have_lengths,
    someone_has_labels,
    the_algorithm_takes_the_settings,
    the_one_client_sends_its_model,
)
from fedtorch.setup.rules.vectors import what_travels_is_there
from fedtorch.tasks.base import Task
from fedtorch.train.engine import Engine

CLIENTS = {"a": (1.0, 0.0, 3), "b": (2.0, 1.0, 3)}
TASK = Quadratic(clients=CLIENTS, start=(1.0,))


@dataclass(frozen=True)
class Unlabelled(Quadratic):
    """Clients without labels."""

    has_labelled_clients: ClassVar[bool] = False


@dataclass(frozen=True)
class NoLengths(Quadratic):
    """Does not say how long its examples are."""

    example_lengths = Task.example_lengths


@dataclass(frozen=True)
class NeedsNoLabels(FedAvg):
    """Brings an objective of its own."""

    @property
    def limits(self) -> Limits:
        return replace(super().limits, needs_labels=False)


def plan_of(tmp_path: Path, task: Quadratic = TASK, algorithm: Algorithm | None = None, **changes: Any) -> Plan:
    return replace(Plan.of(make_config(tmp_path, task, **changes), 1), algorithm=algorithm or FedAvg())


def refused(rule: Callable[[Plan], None], plan: Plan) -> str:
    """What the rule says; empty where it lets the plan pass."""
    try:
        rule(plan)
    except ConfigError as error:
        return str(error)
    return ""


def test_the_one_client_of_centralized_training_sends_its_model(tmp_path: Path) -> None:
    cases = {
        (paradigm, type(algorithm)): refused(
            the_one_client_sends_its_model, plan_of(tmp_path, algorithm=algorithm, paradigm=paradigm)
        )
        for paradigm in ("centralized", "federated")
        for algorithm in (Local(), FedAvg())
    }
    assert "which sends nothing" in cases.pop(("centralized", Local)) and set(cases.values()) == {""}


@pytest.mark.parametrize(
    ("paradigm", "algorithm", "why"),
    [
        ("federated", FedAvg(), "set algorithm.name to one that needs none"),
        ("federated", NeedsNoLabels(), ""),
        ("local", NeedsNoLabels(), "there is nothing to train on without a server"),
    ],
)
def test_labels_are_needed_where_clients_learn_from_them(
    paradigm: str, algorithm: Algorithm, why: str, tmp_path: Path
) -> None:
    said = refused(someone_has_labels, plan_of(tmp_path, Unlabelled(clients=CLIENTS), algorithm, paradigm=paradigm))
    assert why in said and bool(said) == bool(why)
    assert not refused(someone_has_labels, plan_of(tmp_path, algorithm=algorithm, paradigm=paradigm))


def test_settings_of_one_client_alone_are_checked_too(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, algorithm=Scaffold(), per_client={"b": {"momentum": 0.9}})
    assert "which needs plain SGD on clients" in refused(the_algorithm_takes_the_settings, plan)
    assert not refused(the_algorithm_takes_the_settings, plan_of(tmp_path, algorithm=Scaffold()))


def test_one_client_with_batches_by_length_is_enough_to_ask_for_lengths(tmp_path: Path) -> None:
    long, unknown = {"b": {"max_tokens_per_batch": 64}}, NoLengths(clients=CLIENTS)
    plan = plan_of(tmp_path, unknown, per_client=long)
    assert "client.max_tokens_per_batch is set but" in refused(batches_by_length_have_lengths, plan)
    assert not refused(batches_by_length_have_lengths, plan_of(tmp_path, unknown))
    assert not refused(batches_by_length_have_lengths, plan_of(tmp_path, per_client=long))


def test_what_travels_is_asked_for_the_first_round(tmp_path: Path) -> None:
    asked: list[tuple[str, int]] = []

    @dataclass(frozen=True)
    class Notes(FedAvg):
        """Notes what it is asked."""

        def places(self, way: str, layout: Layout, client: str, round: int) -> Places | None:
            asked.append((way, round))
            return None

    plan = plan_of(tmp_path, algorithm=Notes())
    what_travels_is_there(plan, Engine(TASK.build_model(0), Partition((), ()), torch.device("cpu")))
    assert asked == [("sent", 0), ("sent", 0)]
