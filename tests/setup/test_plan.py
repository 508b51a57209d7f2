"""What follows from a config before anything is built, and the smallest rules about it, by hand."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import SGD, make_config
from private_runs import CLIENT, private
from supervisor import toy_config
from toy import Quadratic

from fedtorch.algorithms.fedassistant import FedAssistant
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.limits import Limits
from fedtorch.algorithms.local import Local
from fedtorch.algorithms.travels import Travels
from fedtorch.config.load import load
from fedtorch.config.schema import ClientsConfig, Config, SystemConfig
from fedtorch.core import devices as device_facts
from fedtorch.core.client import folder_name
from fedtorch.core.devices import own as device
from fedtorch.core.errors import ConfigError, DataError
from fedtorch.core.sampling import cohort
from fedtorch.core.weights import Partition
from fedtorch.privacy.accounting import Accountant
from fedtorch.privacy.settings import PrivacyConfig
from fedtorch.setup.engine import WithinMemory, check_room, divide, make_engine, share_engine
from fedtorch.setup.plan import Plan, training_clients
from fedtorch.setup.privacy_cost import cost_of
from fedtorch.setup.remarks import about_rates
from fedtorch.setup.rules import check_plan
from fedtorch.setup.rules.clients import clients_may_be_late
from fedtorch.setup.rules.evaluation import models_of_clients_have_the_present_base
from fedtorch.setup.rules.sums import PREVIOUS
from fedtorch.setup.rules.vectors import something_is_shared, what_travels_is_there
from fedtorch.train.engine import Engine
from fedtorch.train.fsdp import FsdpEngine

TASK = Quadratic(clients={name: (1.0, 0.0, 3) for name in "abcdefgh"}, start=(1.0, 2.0), head=(3.0,))


def test_the_paradigm_says_who_trains_and_what_is_exchanged(tmp_path: Path) -> None:
    federated = Plan.of(make_config(tmp_path, TASK), 1)
    assert federated.algorithm == FedAvg() and federated.training is federated.task and len(federated.clients) == 8
    alone = Plan.of(make_config(tmp_path, TASK, paradigm="local"), 1)
    assert isinstance(alone.algorithm, Local) and len(alone.clients) == 8
    merged = Plan.of(make_config(tmp_path, TASK, paradigm="centralized"), 1)
    assert list(merged.clients) == [merged.clients.named("all")] and merged.clients[0].sizes["train"] == 24
    assert merged.task.manifest() == TASK.manifest()  # which are evaluated as they are


def test_the_first_cohort_is_that_of_round_0(tmp_path: Path) -> None:
    plan = Plan.of(make_config(tmp_path, TASK, clients=ClientsConfig(per_round=3)), 1)
    seed = plan.config.run.seed
    first, second = (cohort(plan.clients, 3, plan.sampler, seed=seed, round=number) for number in (0, 1))
    assert plan.first_cohort == first != second


def test_settings_are_those_that_somebody_trains_with(tmp_path: Path) -> None:
    sets = [f"per_client.{name}.lr=0.5" for name in ("a", "b")]
    some = Plan.of(load([toy_config(tmp_path)], sets), 1)
    names = [client.name for client in some.clients]
    assert {one.lr for one in some.settings} == {0.5, some.config.client.lr}
    everyone = Plan.of(load([toy_config(tmp_path)], [f"per_client.{name}.lr=0.5" for name in names]), 1)
    assert {one.lr for one in everyone.settings} == {0.5}  # nobody is left who has the others


def test_a_task_without_a_training_example_is_refused() -> None:
    empty = Quadratic(clients={"a": (1.0, 0.0, 0)})
    with pytest.raises(DataError, match="none of the 1 clients has a training example"):
        training_clients(empty)
    assert [client.name for client in training_clients(TASK)] == list("abcdefgh")


def test_a_model_counts_until_it_is_twice_as_large_as_the_machine() -> None:
    with WithinMemory() as memory:
        assert memory.limit_bytes == 2 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        torch.zeros(10, 3)
        assert memory.bytes == 120
        torch.empty(5, dtype=torch.float64)
        assert memory.bytes == 160
        torch.empty(1 << 40, device="meta")  # which is nowhere
        memory.limit_bytes = 200
        torch.ones(10)
        with pytest.raises(ConfigError, match=r"with a tensor of \[1\] it has come to 0 GiB"):
            torch.ones(1)


def test_two_runs_share_an_engine_where_nothing_of_it_differs(tmp_path: Path) -> None:
    one = make_config(tmp_path, TASK)
    assert share_engine(one, replace(one, rounds=9)) and share_engine(one, replace(one, client=replace(SGD, lr=1.0)))
    assert share_engine(one, replace(one, client=replace(SGD, optimizer="adamw")))  # torch's are made anew
    for other in (
        replace(one, task=replace(TASK, start=(0.0, 0.0))),
        replace(one, run=replace(one.run, seed=9)),
        replace(one, partition=replace(one.partition, private=("head",))),
    ):
        assert not share_engine(one, other)


def test_without_a_gpu_a_rank_computes_on_the_cpu_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device("auto") == device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="system.device is cuda but torch finds no GPU"):
        device("cuda")


def test_runs_that_will_begin_cost_epsilon_of_all_their_releases_at_the_least_delta(tmp_path: Path) -> None:
    configs = [
        private(tmp_path / name, rate=0.3, privacy={"delta": delta}) for name, delta in (("a", 1e-3), ("b", 1e-2))
    ]
    (line,) = cost_of([*configs, replace(configs[0], privacy=PrivacyConfig())])  # a run without privacy costs nothing
    epsilon = Accountant(0.3, CLIENT["noise_multiplier"], 1e-3).epsilon(6)
    assert line == (
        f"privacy: 2 runs on the data of the task {configs[0].task_name} will cost epsilon {epsilon:.4f} together, "
        "6 releases at delta 0.001"
    )
    (line,) = cost_of([replace(configs[0], privacy=replace(configs[0].privacy, epsilon=None))])
    assert "privacy: 1 run on the data" in line and "3 releases" in line


def test_what_is_exchanged_is_there_and_of_the_present_base(tmp_path: Path) -> None:
    plan = Plan.of(make_config(tmp_path, TASK), 1)
    shared, nothing = (
        Engine(TASK.build_model(0), Partition(private, ()), torch.device("cpu")) for private in ((), ("*",))
    )
    something_is_shared(plan, shared)
    with pytest.raises(ConfigError, match="partition leaves no shared parameter"):
        something_is_shared(plan, nothing)
    something_is_shared(Plan.of(make_config(tmp_path, TASK, paradigm="local"), 1), nothing)

    class Moves(FedAvg):
        """Changes the base."""

        @property
        def travels(self) -> Travels:
            return Travels(varying=("base",))

    moves = replace(plan, algorithm=Moves())
    models_of_clients_have_the_present_base(moves, shared)
    models_of_clients_have_the_present_base(plan, shared)
    for key, value, instead in (("point", "trained", "received"), ("best", "per_client", "together")):
        asked = replace(plan.config, eval=replace(plan.config.eval, every=1, **{key: value}))
        with pytest.raises(
            ConfigError, match=rf"eval.{key} is {value} but algorithm.name is .* set eval.{key} to {instead}"
        ):
            models_of_clients_have_the_present_base(replace(moves, config=asked), shared)
        models_of_clients_have_the_present_base(replace(plan, config=asked), shared)


def test_what_the_first_cohort_sends_is_looked_for_or_what_some_client_would(tmp_path: Path) -> None:
    asked: list[str] = []

    class Notes(FedAvg):
        """Notes who is asked."""

        def places(self, way: str, shared: Any, client: str, round: int) -> None:
            """Everything."""
            asked.append(client)

    plan = Plan.of(make_config(tmp_path, TASK, Notes(), clients=ClientsConfig(per_round=3)), 1)
    engine = Engine(TASK.build_model(0), Partition((), ()), torch.device("cpu"))
    what_travels_is_there(plan, engine)
    assert asked == [client.name for client, _ in plan.first_cohort] and len(asked) == 3
    nobody = Plan.of(make_config(tmp_path, TASK, Notes(), clients=ClientsConfig(sampling="poisson", rate=1e-9)), 1)
    asked.clear()
    what_travels_is_there(nobody, engine)
    assert nobody.first_cohort == [] and asked == ["a"]


def test_a_rate_of_nothing_is_said_where_clients_train_with_it(tmp_path: Path) -> None:
    plan = Plan.of(make_config(tmp_path, TASK, client=replace(SGD, lr=0.0)), 1)
    assert list(about_rates(plan)) == ["client.lr is 0 for all clients, so their training changes nothing"]

    class Rests(FedAvg):
        """Trains nobody."""

        @property
        def limits(self) -> Limits:
            """Those of nobody."""
            return replace(super().limits, trains_clients=False)

    assert list(about_rates(replace(plan, algorithm=Rests()))) == []
    messages = FedAssistant(payload="delta", weights="equal")
    assert list(about_rates(replace(plan, algorithm=messages))) == []  # whose steps are not the client's own


def test_an_algorithm_is_called_as_the_config_calls_it(tmp_path: Path) -> None:
    sets = ["system.sum_scale=previous", "algorithm={name: fednova}"]
    with pytest.raises(ConfigError, match="system.sum_scale is previous but algorithm.name is fednova, which"):
        check_plan(Plan.of(load([toy_config(tmp_path)], sets), 1), (PREVIOUS,))


def test_torch_or_whoever_trains_nothing_has_the_plain_engine(tmp_path: Path) -> None:
    config, cpu = make_config(tmp_path, TASK), torch.device("cpu")

    def engine(config: Config, ranks: int) -> Any:
        narrow = replace(TASK, double=False)
        return make_engine(config, lambda: narrow.build_model(0), cpu, hp=config.client, ranks=ranks)

    assert type(engine(config, 1)) is type(engine(config, 0)) is Engine
    deep = replace(config, engine=replace(config.engine, kind="deepspeed"))
    assert type(engine(deep, 0)) is Engine
    split = replace(config, engine=replace(config.engine, kind="fsdp"))
    assert [type(engine(split, ranks)) for ranks in (0, 1, 2)] == [Engine, Engine, FsdpEngine]
    offloaded = replace(split, engine=replace(split.engine, offload_parameters=True))
    assert [type(engine(offloaded, ranks)) for ranks in (0, 1)] == [Engine, FsdpEngine]
    nothing = replace(config, partition=replace(config.partition, private=("nothing*",)))
    with pytest.raises(ConfigError, match="matches none of the 2 parameters"):
        engine(nothing, 1)


@dataclass(frozen=True)
class Divided(Quadratic):
    """The head belongs to a worker's second rank."""

    def parameter_owners(self, model: Any, ranks: int) -> dict[str, int]:
        """Of workers of two ranks; larger ones are refused."""
        if ranks > 2:
            raise ConfigError("of no use")
        return {"w": 0, "head": 1}


def test_the_parts_of_a_model_are_noted_for_workers_of_this_ranks_size(tmp_path: Path) -> None:
    config = make_config(tmp_path, TASK)
    for own, is_divided in ((2, True), (1, False)):
        engine = Engine(TASK.build_model(0), Partition((), ()), torch.device("cpu"))
        divide(engine, config, Divided(TASK.clients, head=(3.0,)), [1, 2, 2], own)
        assert (engine.owners is not None) == is_divided
    engine = Engine(TASK.build_model(0), Partition((), ()), torch.device("cpu"))
    divide(engine, replace(config, engine=replace(config.engine, kind="deepspeed")), Divided(TASK.clients), [2], 2)
    assert engine.owners is None  # it divides the work in its own way
    with pytest.raises(ConfigError, match="of no use"):
        divide(engine, config, Divided(TASK.clients), [1, 3], 1)


@pytest.mark.parametrize(("widths", "is_refused"), [((1, 2), True), ((2, 1), True), ((1, 1, 1), False)], ids=str)
def test_nobody_may_be_late_where_one_workers_ranks_train_together(
    widths: tuple[int, ...], is_refused: bool, tmp_path: Path
) -> None:
    system, late = SystemConfig(ranks_per_worker=widths), ClientsConfig(deadline=1.0)
    plan = Plan.of(make_config(tmp_path, TASK, clients=late, system=system), 4)
    if is_refused:
        with pytest.raises(ConfigError, match="clients.deadline is 1.0 but system.ranks_per_worker is"):
            clients_may_be_late(plan)
    else:
        clients_may_be_late(plan)


def quadratic(*names: str) -> Quadratic:
    return Quadratic(clients={name: (1.0, 1.0, 6) for name in names})


@pytest.mark.parametrize("pair", [("a", "A"), ("a", "\uff41"), ("stra\xdfe", "STRASSE"), ("x y", folder_name("x y"))])
def test_clients_whose_folders_would_be_one_on_some_disk_are_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(DataError, match="look alike; rename one"):
        training_clients(quadratic(*pair))


def test_other_names_are_kept_apart() -> None:
    names = ["a", "b", "a b", "a_b", "\xe4", "ae"]
    assert [*training_clients(quadratic(*names)).names()] == names
    assert len({folder_name(name).lower() for name in names}) == len(names)


def test_a_gpu_that_others_fill_is_refused_with_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    module = torch.nn.Linear(1 << 14, 1 << 14, device="meta")  # 1 GiB
    for free, fits in ((1.25, True), (0.5, False)):
        monkeypatch.setattr(device_facts, "free_bytes", lambda device, free=free: (int(free * 2**30), 80 << 30))
        if fits:
            check_room(module, torch.device("cuda", 1))
            continue
        with pytest.raises(ConfigError, match=r"GPU 1 has 0.5 of 80.0 GiB free, and .* weights alone need 1.0: wait"):
            check_room(module, torch.device("cuda", 1))
    monkeypatch.undo()
    check_room(module, torch.device("cpu"))
