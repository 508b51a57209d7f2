"""What an algorithm is that says only what it must, and what a client of FedAvg reports, by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedtorch.algorithms.adapters.hetlora import HetLoRA
from fedtorch.algorithms.adapters.ranks import FlexLoRA
from fedtorch.algorithms.adapters.stacks import FLoRA
from fedtorch.algorithms.base import Algorithm, on_device
from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedassistant import FedAssistant
from fedtorch.algorithms.fedavg import FedAvg, FedOpt
from fedtorch.algorithms.feddyn import FedDyn
from fedtorch.algorithms.fednova import FedNova
from fedtorch.algorithms.kept import Kept
from fedtorch.algorithms.limits import Limits
from fedtorch.algorithms.local import Local
from fedtorch.algorithms.loss_reduction import LossReduction
from fedtorch.algorithms.message import MessageAlgorithm, message_bytes
from fedtorch.algorithms.run_facts import RunFacts
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.algorithms.sums import why_not_private, why_not_record
from fedtorch.algorithms.travels import Travels
from fedtorch.config.registry import named_class
from fedtorch.core.client import ClientState
from fedtorch.core.errors import ConfigError
from fedtorch.core.server import ServerState
from fedtorch.core.settings import ServerConfig
from fedtorch.core.state_keys import NOT_EVALUATED
from fedtorch.core.update import Report
from fedtorch.core.weights import Layout
from fedtorch.train.loop import LossCurve
from fedtorch.train.settings import ClientConfig

ONE, NONE = Layout(("w",), ((1,),)), Layout((), ())


@dataclass(frozen=True)
class Least(Algorithm):
    """Nothing of its own."""


@dataclass(frozen=True)
class Trains(Algorithm):
    """A server that trains."""

    def server_train(self, server: Any, job: Any) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Inherits(Trains):
    """The same."""


def test_an_algorithm_that_says_nothing() -> None:
    rule = Least()
    assert rule.travels.vectors == ("weights",) and rule.travels.varying == ()
    limits = rule.limits
    assert limits.needs_labels and limits.trains_clients and not limits.trains_server
    assert Trains().limits.trains_server and Inherits().limits.trains_server
    assert limits.engines == ("torch", "deepspeed") and limits.precisions == ("fp32", "bf16", "fp16")
    assert limits.weighting == "equal" and why_not_private(rule) == "" and limits.is_sum
    assert all(rule.places(way, ONE, "a", 0) is None for way in ("sent", "received", "broadcast"))


def test_nothing_is_against_an_algorithm_of_which_nothing_is_known() -> None:
    limits = Limits()
    assert limits.is_sum and limits.steps_with_optimizer and limits.reads_initial
    assert not limits.trains_server and not limits.reads_num_rounds and limits.why_not_private is None


@dataclass(frozen=True)
class Corrects(FedAvg):
    """Has something of its own that is called while a client trains."""

    def correction(self, job: Any) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Knows(Corrects):
    """The same, and says what it does not need."""

    @property
    def limits(self) -> Limits:
        """Nothing of the start."""
        return replace(super().limits, reads_initial=False)

    def correction(self, job: Any) -> None:
        """Nothing."""


def limits_of(name: str) -> Limits:
    limits: Limits = named_class("algorithm", name, "")().limits
    return limits


def test_who_may_ask_for_the_initial_weights() -> None:
    assert not Least().limits.reads_initial and not FedAvg().limits.reads_initial
    assert Corrects().limits.reads_initial and not Knows().limits.reads_initial
    for name in ("ditto", "fewfedweight", "silo_augmented", "metaweighting", "local", "fedparsing"):
        assert limits_of(name).reads_initial, name
    for name in ("fedprox", "scaffold", "feddyn", "fednova", "pfedme", "fedassistant", "hetlora", "flora", "rolora"):
        assert not limits_of(name).reads_initial, name


@dataclass(frozen=True)
class Steps(Algorithm):
    """A server with a step of its own."""

    def server_update(self, *args: Any, **kwargs: Any) -> Any:
        """Nothing."""


@dataclass(frozen=True)
class StepsWithOptimizer(Steps):
    """The same, and says that the optimiser takes it."""

    @property
    def limits(self) -> Limits:
        """Those of a rule with an optimiser's step."""
        return replace(super().limits, steps_with_optimizer=True)

    def server_update(self, *args: Any, **kwargs: Any) -> Any:
        """Nothing."""


@dataclass(frozen=True)
class OwnStep(FedDyn):
    """FedDyn with another step of its own."""

    def server_update(self, *args: Any, **kwargs: Any) -> Any:
        """Nothing."""


def test_whose_step_is_the_optimisers() -> None:
    for rule, is_so in ((Least(), True), (Steps(), False), (StepsWithOptimizer(), True), (OwnStep(), False)):
        assert rule.limits.steps_with_optimizer is is_so
    for name in ("fedavg", "fedprox", "scaffold", "feddyn", "fednova", "fedassistant", "ditto", "rolora"):
        assert limits_of(name).steps_with_optimizer, name
    for name in ("hetlora", "flora"):
        assert not limits_of(name).steps_with_optimizer, name


@pytest.mark.parametrize("rule", [Ditto, FedAssistant, FedDyn, FedNova, Local, Scaffold, FlexLoRA, HetLoRA, FLoRA])
def test_who_says_himself_what_clients_do_is_not_vouched_for(rule: type[Algorithm]) -> None:
    """A subclass from elsewhere may look at rows, whatever its base promises of itself."""
    named = type("Named", (rule,), {})
    own = type("Own", (rule,), {"client_update": lambda self, job: None})
    options = {"weights": "equal"} if "weights" in {f.name for f in fields(rule)} else {}  # type: ignore[arg-type]
    assert why_not_record(rule(**options)) == why_not_record(named(**options)) == ""
    assert own(**options).limits.why_not_record is None
    assert "trains clients in a way of its own" in why_not_record(own(**options))


def test_a_client_with_private_numbers_or_a_model_of_its_own_keeps_something() -> None:
    assert (Least().kept(ONE, ONE), Least().kept(ONE, NONE)) == (Kept(by_clients=True), Kept())
    assert Local().kept(ONE, NONE) == Kept(client=("personal",), by_clients=True)


@dataclass(frozen=True)
class Messages(MessageAlgorithm):
    """Sends messages of 7 bytes."""

    def message_bytes(self, layout: Layout) -> int:
        return 7


def test_a_message_algorithm_that_says_nothing() -> None:
    rule = Messages()
    said = (rule.combines_everywhere, rule.combines_in_slices, rule.keeps_left_out, rule.choice_varies)
    assert said == (False,) * 4 and rule.selection(ONE) is None and rule.kept_by_server == ()
    assert rule.replicas_compared_every == 50 and rule.choice_seed(ServerState({"weights": torch.zeros(1)})) == 0
    assert (message_bytes(rule, ONE), message_bytes(Least(), ONE)) == (7, 0)
    with pytest.raises(ConfigError, match="has `message_bytes` but is no MessageAlgorithm"):
        message_bytes(SimpleNamespace(message_bytes=lambda layout: 7), ONE)  # type: ignore[arg-type]


def job_of(examples: int = 5) -> Any:
    """As far as a report needs it."""
    return SimpleNamespace(client=SimpleNamespace(name="a"), examples=[0] * examples)


def test_a_report_of_four_steps_by_hand() -> None:
    """Windows of two steps: 4, then 2, then 7 and 1; the penalty of 0.5 in the second step counts."""
    rule = FedAvg(loss_reduction=LossReduction(window=2))
    curve = LossCurve((4.0, 1.5, 9.0, 5.0, 1.0), (0.0, 0.5, 0.0, 0.0, 0.0), (0,) * 5, left_out=1)
    found = rule.report(job_of(), curve, more=3.0)
    assert found == Report(
        "a", examples=5, steps=5, loss_first=4.0, loss_last=1.0, loss_max=7.0, loss_min=1.0, loss_mean=14 / 4,
        curve=(4.0, 2.0, 9.0, 5.0, 1.0), extra={"loss_reduction": 6.0, "left_out": 1.0, "more": 3.0},
    )  # fmt: skip


def test_a_report_without_steps_is_of_zeros() -> None:
    assert FedAvg().report(job_of(2), LossCurve()) == Report("a", examples=2, extra={"loss_reduction": 0.0})


@pytest.mark.parametrize("losses", [(math.nan, 2.0), (2.0, math.nan), (math.inf, 1.0)])
def test_a_loss_that_is_not_finite_is_no_reduction(losses: tuple[float, ...]) -> None:
    rule = FedAvg(loss_reduction=LossReduction(measure="step"))
    found = rule.report(job_of(), LossCurve(losses, (0.0, 0.0), (0, 0)))
    assert math.isnan(found.extra["loss_reduction"])


def test_fedopt_without_an_optimiser_is_refused_and_fedavg_is_not() -> None:
    FedAvg().check_server(ServerConfig())
    FedOpt().check_server(ServerConfig(optimizer="sgd", lr=1.0))
    with pytest.raises(ConfigError, match="server.optimizer is none but algorithm.name is fedopt"):
        FedOpt().check_server(ServerConfig())


@dataclass(frozen=True)
class OwnSum(FedAvg):
    """Combines by itself."""

    def aggregate(self, updates: Any, weights: Any) -> torch.Tensor:
        return next(iter(updates))


@dataclass(frozen=True)
class OwnWeights(FedAvg):
    """Weighs by itself."""

    def weigh(self, reports: Any) -> list[float]:
        return [report.norm for report in reports]


@dataclass(frozen=True)
class Vouches(OwnWeights):
    """Says that it keeps to what privacy needs."""

    @property
    def limits(self) -> Limits:
        """Nothing is against privacy."""
        return replace(super().limits, why_not_private="")


@dataclass(frozen=True)
class Heir(OwnWeights):
    """Does what the class above does."""


@dataclass(frozen=True)
class Twice(FedAvg):
    """Sends two vectors."""

    @property
    def travels(self) -> Travels:
        """A second one."""
        return Travels(("weights", "control"))


@dataclass(frozen=True)
class OnAnyDevice(FedAvg):
    """Marks one function of its own, and has the others of a class that does."""

    @on_device
    def report(self, job: Any, curve: Any, **extra: float) -> Report:
        return super().report(job, curve, **extra)


@dataclass(frozen=True)
class OnTheCpu(OnAnyDevice):
    """Takes the place of a marked function, and says nothing."""

    def correction(self, job: Any) -> None:
        return None


def test_vectors_stay_on_devices_where_each_function_of_clients_says_so() -> None:
    assert FedAvg().limits.stays_on_device and OnAnyDevice().limits.stays_on_device
    assert not any(rule.limits.stays_on_device for rule in (OnTheCpu(), Least(), Local()))
    assert not Limits().stays_on_device and not RunFacts(0, 1, ClientConfig(), lambda name: ClientConfig()).same_places


def test_what_travels_has_the_layout_of_the_weights_and_is_them_unless_it_is_said() -> None:
    scalars = Layout(("sums",), ((7,),), torch.float64)
    assert Travels().laid_out(ONE) is ONE and Travels(layout=scalars).laid_out(ONE) is scalars
    made = SimpleNamespace()
    assert Travels().rule() is None and Travels(model=lambda: made).rule() is made  # type: ignore[arg-type,return-value]


def test_what_a_robust_rule_or_privacy_stands_against() -> None:
    assert FedAvg().limits.why_not_robust == "" and "way of its own" in OwnSum().limits.why_not_robust
    assert Twice().limits.why_not_robust == "does not send one vector of updates"
    assert why_not_private(FedAvg(weights="equal")) == "" != why_not_private(FedAvg(weights="equal", robust="median"))
    assert "in a way of its own" in why_not_private(OwnSum(weights="equal"))
    assert why_not_private(Vouches(weights="equal")) == ""
    for rule in (OwnWeights(weights="equal"), Heir(weights="equal")):
        assert "weighs clients in a way of its own" in why_not_private(rule)


class Sums:
    """Updates of which 3 were left out and 1 shrunk by a rule."""

    kept = {"a": 1.0, "b": 0.0, "c": 0.5, "d": 0.0, "e": 0.0}  # noqa: RUF012

    def weighted_sum(self, weights: Any) -> torch.Tensor:
        return torch.tensor(weights)


def test_the_mean_is_the_weighted_sum_and_records_have_what_a_rule_left_out() -> None:
    server = ServerState({"weights": torch.zeros(1)})
    assert FedAvg().aggregate(Sums(), [0.25, 0.75]).tolist() == [0.25, 0.75]  # type: ignore[arg-type]
    found = FedAvg().measure(server, Sums(), [1.0])  # type: ignore[arg-type]
    assert found == {"robust/left_out": 3.0, "robust/shrunk": 1.0}


def local_job(state: ClientState) -> Any:
    """A client's job whose model is 2 after training from 1."""
    trained: list[float] = []
    job = SimpleNamespace(
        **vars(job_of()), state=state, initial=torch.tensor([1.0]),
        engine=SimpleNamespace(snapshot=lambda: torch.tensor([2.0])),
        train=lambda start: trained.append(float(start)) or LossCurve((1.0,), (0.0,), (0,)), trained=trained,
    )  # fmt: skip
    return job


def test_a_client_alone_trains_its_own_model_on_and_rests_where_it_was_stopped() -> None:
    state = ClientState()
    for start in (1.0, 2.0):
        job = local_job(state)
        assert Local().client_update(job).steps == 1 and job.trained == [start]
        assert state.tensors["personal"].tolist() == [2.0] and state.numbers[NOT_EVALUATED] == 1
    rests = local_job(ClientState(numbers={"stopped": 1}))
    assert Local().client_update(rests).steps == 0 and rests.trained == []
    assert Local().weigh([Report("a"), Report("b")]) == [0.0, 0.0]
    received = torch.zeros(1)
    assert Local().eval_weights(received, state).tolist() == [2.0]
    assert Local().eval_weights(received, ClientState()) is received
    layout = Layout.of({"w": torch.zeros(1)})
    assert Local().kept(layout, layout).by_clients and Local().travels.vectors == ()
    assert (Local().kept(layout, layout).client, Local().kept(layout, layout).server) == (("personal",), ())
