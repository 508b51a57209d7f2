"""Rules about algorithms, engines, evaluation and attacks, each with a plan that it refuses and one beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from harness import SGD, make_config
from torch import nn
from toy import Quadratic

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.limits import Limits
from fedtorch.algorithms.local import Local
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.config.schema import ClientConfig, EngineConfig, EvalConfig, PartitionConfig, SystemConfig
from fedtorch.core.errors import ConfigError
from fedtorch.core.places import Places
from fedtorch.core.weights import Layout, Partition
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules import engine as engine_rules
from fedtorch.setup.rules.algorithm import (
    batches_by_length_have_lengths,
    someone_has_labels,
    the_algorithm_takes_the_settings,
    the_one_client_sends_its_model,
)
from fedtorch.setup.rules.attacks import those_who_are_known_keep_nothing
from fedtorch.setup.rules.engine import (
    a_server_with_data_trains_alone,
    masters_are_fp32,
    micro_batches_can_be_dealt,
    muon_has_whole_matrices,
    private_weights_are_drawn_from_a_whole_model,
    something_is_trained,
    split_engines_have_the_kind_of_gpu,
    the_algorithm_takes_a_split_model,
    the_device_has_the_precision,
    what_is_trained_has_rows,
)
from fedtorch.setup.rules.evaluation import (
    evaluations_can_wait,
    single_examples_have_scores,
    splits_are_the_tasks,
    who_waits_for_scores_gets_some,
)
from fedtorch.setup.rules.subject import Subject
from fedtorch.setup.rules.vectors import what_travels_is_there
from fedtorch.tasks.base import Task
from fedtorch.train.attacks.settings import AttackConfig
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
    """Return what the rule says; empty where it lets the plan pass."""
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


def engine_of(*, frozen: tuple[str, ...] = ()) -> Engine:
    return Engine(TASK.build_model(0), Partition((), frozen), torch.device("cpu"))


def test_rounds_without_a_trained_parameter_are_refused_and_no_rounds_are_not(tmp_path: Path) -> None:
    cases = {
        (rounds, frozen): refused(
            lambda plan, frozen=frozen: something_is_trained(plan, engine_of(frozen=frozen)),
            plan_of(tmp_path, rounds=rounds),
        )
        for rounds in (0, 2)
        for frozen in ((), ("*",))
    }
    assert "nothing would be trained" in cases.pop((2, ("*",))) and set(cases.values()) == {""}


@pytest.mark.parametrize(
    ("kind", "engines", "is_refused"),
    [
        ("torch", ("torch",), False),
        ("deepspeed", ("torch",), True),
        ("deepspeed", ("torch", "deepspeed"), False),
        ("deepspeed", ("torch", "deepspeed/2"), False),
        ("deepspeed", ("torch", "deepspeed/3"), True),
        ("fsdp", ("torch",), True),
        ("fsdp", ("torch", "deepspeed"), False),
        ("fsdp", ("torch", "deepspeed/2"), True),
        ("fsdp", ("torch", "deepspeed/3"), False),
    ],
)
def test_an_algorithm_names_the_stages_of_deepspeed_that_it_takes(
    kind: Any, engines: tuple[str, ...], is_refused: bool, tmp_path: Path
) -> None:
    @dataclass(frozen=True)
    class Choosy(FedAvg):
        """Takes some engines."""

        @property
        def limits(self) -> Limits:
            return replace(super().limits, engines=engines, why_not_deepspeed="looks into the module")

    stage: Any = {"stage": 2} if kind == "deepspeed" else {}
    plan = plan_of(tmp_path, algorithm=Choosy(), engine=EngineConfig(kind=kind, **stage))
    said = refused(the_algorithm_takes_a_split_model, plan)
    begun = "engine.kind is fsdp but algorithm.name" if kind == "fsdp" else "is deepspeed and engine.stage 2 but"
    assert (begun in said and "looks into the module" in said) == is_refused == bool(said)


@dataclass(frozen=True)
class Drawing(Quadratic):
    """Draws private weights."""

    def draw_private(self, model: Any, seed: int) -> Any:
        return None


@pytest.mark.parametrize("kind", ["torch", "fsdp", "deepspeed"])
def test_what_needs_whole_parameters_is_refused_where_they_are_split(kind: Any, tmp_path: Path) -> None:
    """Muon, micro-batches that cannot be dealt, and private weights drawn from a whole model."""
    stage: Any = {"stage": 3} if kind == "deepspeed" else {}
    engine, is_split = EngineConfig(kind=kind, **stage), kind != "torch"
    for width, accumulation, optimizer in ((1, 3, "muon"), (2, 3, "sgd"), (2, 2, "muon"), (2, 2, "sgd")):
        client = ClientConfig(optimizer=optimizer, accumulation=accumulation)  # type: ignore[arg-type]
        changes: dict[str, Any] = {"system": SystemConfig(ranks_per_worker=width), "engine": engine, "client": client}
        plan = Plan.of(make_config(tmp_path, TASK, **changes), 3)
        said = [refused(rule, plan) for rule in (muon_has_whole_matrices, micro_batches_can_be_dealt)]
        assert [bool(one) for one in said] == [is_split and optimizer == "muon", is_split and accumulation % width > 0]
        assert f"engine.kind is {kind}; set" in said[0] or not said[0]
        for private in ((), ("w",)):
            drawing = Drawing(clients=CLIENTS)
            drawn = Plan.of(make_config(tmp_path, drawing, partition=PartitionConfig(private=private), **changes), 3)
            why = refused(private_weights_are_drawn_from_a_whole_model, drawn)
            assert bool(why) == (bool(private) and (kind == "deepspeed" or (kind == "fsdp" and width == 2)))
            assert not why or (("kind is fsdp; set engine.kind to torch" in why) == (kind == "fsdp"))
            whole = Plan.of(make_config(tmp_path, TASK, partition=PartitionConfig(private=private), **changes), 3)
            assert not refused(private_weights_are_drawn_from_a_whole_model, whole)


def test_rows_of_fp32_are_shared_out(tmp_path: Path) -> None:
    """Trained parameters alone for FSDP, all for DeepSpeed."""

    class Odd(nn.Module):
        def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, is_trained: bool) -> None:
            super().__init__()
            self.odd = nn.Parameter(torch.ones(shape, dtype=dtype), requires_grad=is_trained)

    for kind in ("torch", "fsdp", "deepspeed"):
        config = make_config(tmp_path, TASK, engine=EngineConfig(kind=kind))  # type: ignore[arg-type]
        for shape, dtype, is_trained in product(((), (2,)), (torch.float32, torch.bfloat16), (True, False)):
            module, found = Odd(shape, dtype, is_trained), list[bool]()
            for rule in (masters_are_fp32, what_is_trained_has_rows):
                try:
                    rule(config, module)
                    found.append(False)
                except ConfigError as error:
                    assert f"engine.kind is {kind}" in str(error) and "`odd`" in str(error)
                    found.append(True)
            narrow = dtype == torch.bfloat16 and (kind == "deepspeed" or (kind == "fsdp" and is_trained))
            assert found == [narrow, kind == "fsdp" and not shape and is_trained]


@dataclass(frozen=True)
class OwnData(Quadratic):
    """The server has three rows."""

    held: int = 3

    def server_examples(self) -> int:
        return self.held


@pytest.mark.parametrize("held", [0, 3])
@pytest.mark.parametrize("works", [True, False])
@pytest.mark.parametrize("width", [1, 2])
def test_a_server_with_rows_of_its_own_is_in_no_worker_of_several_ranks(
    held: int, works: bool, width: int, tmp_path: Path
) -> None:
    task, ranks = OwnData(clients=CLIENTS, held=held), 4 if works else 5
    config = make_config(tmp_path, task, system=SystemConfig(server_works=works, ranks_per_worker=width))
    said = refused(a_server_with_data_trains_alone, Plan.of(config, ranks))
    assert bool(said) == (held == 3 and works and width == 2) and (
        not said or "set system.server_works to false" in said
    )


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("has", [True, False])
@pytest.mark.parametrize("gpus", [0, 1])
def test_fp16_needs_a_cpu_that_has_it_where_there_is_no_gpu(
    precision: Any, has: bool, gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_rules, "has_fp16", lambda device: has)
    monkeypatch.setattr(engine_rules.devices, "count", lambda *_: gpus)
    plan = plan_of(tmp_path, engine=EngineConfig(precision=precision))
    said = refused(the_device_has_the_precision, plan)
    assert bool(said) == (precision == "fp16" and not has and not gpus)
    on_cpu = plan_of(tmp_path, engine=EngineConfig(precision=precision), system=SystemConfig(device="cpu"))
    assert bool(refused(the_device_has_the_precision, on_cpu)) == (precision == "fp16" and not has)


@pytest.mark.parametrize("kind", ["torch", "fsdp", "deepspeed"])
@pytest.mark.parametrize(("device", "found"), [("cpu", "mps"), ("auto", "cpu"), ("auto", "cuda"), ("auto", "mps")])
def test_split_engines_need_gpus_with_nccl(
    kind: Any, device: Any, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_rules.devices, "kind", lambda: torch.device(found))
    plan = plan_of(tmp_path, engine=EngineConfig(kind=kind), system=SystemConfig(device=device))
    said = refused(split_engines_have_the_kind_of_gpu, plan)
    assert bool(said) == (kind != "torch" and device == "auto" and found == "mps")


@dataclass(frozen=True)
class OnlyTrain(Quadratic):
    """Nobody has a row to evaluate on, or only in a split of another name."""

    other: str = ""

    def manifest(self) -> Any:
        return {
            name: {"train": n, **({self.other: 2} if self.other else {})} for name, (_, _, n) in self.clients.items()
        }

    def single_metrics(self) -> tuple[str, ...]:
        return ()


@pytest.mark.parametrize(
    ("every", "rounds", "patience", "is_refused"),
    [(1, 2, 3, True), (0, 2, None, False), (1, 0, 3, False), (1, 2, None, False)],
)
def test_who_stops_by_scores_gets_some(
    every: int, rounds: int, patience: int | None, is_refused: bool, tmp_path: Path
) -> None:
    task = OnlyTrain(clients=CLIENTS)
    plan = plan_of(tmp_path, task, rounds=rounds, eval=EvalConfig(every=every, patience=patience))
    assert bool(refused(who_waits_for_scores_gets_some, plan)) == is_refused
    with_rows = plan_of(tmp_path, rounds=rounds, eval=EvalConfig(every=every, patience=patience))
    assert not refused(who_waits_for_scores_gets_some, with_rows)


def test_a_split_of_another_name_is_taken_where_somebody_has_it(tmp_path: Path) -> None:
    for split, other, is_refused in (("dev", "", False), ("held", "held", False), ("held", "", True)):
        plan = plan_of(tmp_path, OnlyTrain(clients=CLIENTS, other=other), eval=EvalConfig(every=0, split=split))
        assert bool(refused(splits_are_the_tasks, plan)) == is_refused, (split, other)


def test_scores_of_single_examples_need_a_metric_that_is_a_mean_over_them(tmp_path: Path) -> None:
    found = {
        (per_example, type(task)): refused(
            single_examples_have_scores, plan_of(tmp_path, task, eval=EvalConfig(per_example=per_example))
        )
        for per_example in (True, False)
        for task in (TASK, OnlyTrain(clients=CLIENTS))
    }
    assert "set it to false" in found.pop((True, OnlyTrain)) and set(found.values()) == {""}


def test_an_evaluation_may_wait_where_nothing_that_it_reads_is_changed(tmp_path: Path) -> None:
    cases = [
        (FedAvg(), {}, ""),
        (Local(), {}, "clients send nothing"),
        (NoTraining(), {}, "no client trains"),
        (FedAvg(), {"client": replace(SGD, optimizer_state="keep")}, "clients keep a state"),
    ]
    for overlap in (True, False):
        for algorithm, changes, why in cases:
            plan = plan_of(tmp_path, algorithm=algorithm, eval=EvalConfig(overlap=overlap), **changes)
            said = refused(lambda plan: evaluations_can_wait(plan, engine_of()), plan)
            assert (why in said and bool(said) == bool(why)) if overlap else not said, (overlap, algorithm)


@dataclass(frozen=True)
class NoTraining(FedAvg):
    """A round is the server's training alone."""

    @property
    def limits(self) -> Limits:
        return replace(super().limits, trains_clients=False)


def test_colluding_attackers_need_clients_that_keep_nothing(tmp_path: Path) -> None:
    for kind in ("ipm", "signflip"):
        for state in ("keep", "reset"):
            attack = AttackConfig(kind=kind, clients=("a",))  # type: ignore[arg-type]
            plan = plan_of(tmp_path, attack=attack, client=replace(SGD, optimizer_state=state))
            said = refused(lambda plan: those_who_are_known_keep_nothing(plan, engine_of()), plan)
            assert bool(said) == (kind == "ipm" and state == "keep")


def test_a_subject_is_asked_unless_it_says_otherwise(tmp_path: Path) -> None:
    assert Subject("anything").applies(plan_of(tmp_path))
