"""Who chooses a best round and when training ends early: clients without scores, late clients, evaluated-only ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from parsing_toy import Toy
from toy import Quadratic

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.fednova import FedNova
from fedtorch.algorithms.fedparsing import FedParsing
from fedtorch.algorithms.local import Local
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.config.schema import CheckpointConfig, ClientConfig, ClientsConfig, Config, EvalConfig, PartitionConfig
from fedtorch.core.errors import ConfigError
from fedtorch.core.update import Report
from fedtorch.tasks.base import SERVER, Merged, Scores

STEP = ClientConfig(optimizer="sgd", lr=1.0, batch_size=4)
STILL = replace(STEP, lr=1e-300)  # a rate of 0 is refused; this one changes no bit
TWO = {"a": (1.0, -1.0, 4), "b": (1.0, 1.0, 4)}


@dataclass(frozen=True)
class Gaps(Quadratic):
    """unscored: clients of which no example counts."""

    unscored: tuple[float, ...] = ()

    def score(self, examples: Sequence[Any], predictions: Sequence[float]) -> Scores:
        count = sum(b not in self.unscored for _, b in examples)
        return {"nearness": (sum(predictions) if count else 0.0, count)}


@dataclass(frozen=True)
class EvaluatedOnly(Quadratic):
    """`visitor` has no training data."""

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        return {**super().manifest(), "visitor": {"dev": 3, "test": 3}}

    def load(self, client: str, split: str) -> Sequence[Any]:
        if client == "visitor":
            return {"dev": [(1.0, 0.0)] * 3, "test": [(1.0, 0.0)] * 3}[split]
        return super().load(client, split)


@pytest.mark.parametrize("changes", [{"paradigm": "local"}, {"eval": EvalConfig(best="per_client")}])
def test_a_client_of_which_no_example_counts_has_no_best_round(tmp_path: Path, changes: dict[str, Any]) -> None:
    task = Gaps(clients=TWO, unscored=(1.0,))
    runner = make_runner(make_config(tmp_path, task, **{"eval": EvalConfig(), "client": STEP, **changes}))
    result = runner.run()
    assert result.scores["b"]["nearness"] == (0.0, 0)
    assert "best_round" in runner.context.store.get("a").numbers
    assert "best_round" not in runner.context.store.get("b").numbers


@pytest.mark.parametrize("paradigm", ["federated", "centralized"])
def test_clients_that_choose_for_themselves_end_the_training_together(tmp_path: Path, paradigm: str) -> None:
    """Nothing is ever gained, so all stop at the third evaluation: those that train nothing, without a score too."""
    task = Gaps(clients={**TWO, "c": (1.0, 5.0, 4)}, unscored=(5.0,))
    config = make_config(
        tmp_path, task, client=STILL, rounds=9, paradigm=paradigm, eval=EvalConfig(best="per_client", patience=2)
    )
    assert make_runner(config).run().rounds == 3


def test_training_goes_on_while_a_client_gains_again(tmp_path: Path) -> None:
    """`a` stands still for two evaluations while the other overshoots; neither has stopped for good by then."""
    task = Quadratic(clients={"a": (1.0, 0.0, 4)})
    config = make_config(tmp_path, task, client=STILL, rounds=9, eval=EvalConfig(best="per_client", patience=2))
    evaluation = make_runner(config).evaluation
    for numbers, ends in (
        ({"stopped": 1, "evaluations_without_gain": 0}, False),
        ({"evaluations_without_gain": 2}, True),
    ):
        state = evaluation.context.store.get("a")
        state.numbers = numbers
        evaluation.context.store.put("a", state)
        (answered,) = evaluation._rest({"a": {"nearness": (0.0, 3)}})
        assert answered.numbers["stopped"] == ends


@pytest.mark.parametrize("point", ["received", "trained"])
@pytest.mark.parametrize("algorithm", [FedAvg(), Ditto()], ids=["fedavg", "ditto"])
def test_a_client_that_trained_only_after_the_best_round_is_evaluated_as_in_it(
    tmp_path: Path, algorithm: Algorithm, point: Any
) -> None:
    """The start is everyone's optimum by dev; what is learned later leads away from it."""
    config = make_config(
        tmp_path,
        Away(clients=TWO, head=(7.0,)),
        algorithm,
        client=STEP,
        rounds=2,
        partition=PartitionConfig(private=("head",)),
        eval=EvalConfig(on_start=True, point=point),
    )
    result = make_runner(config).run()
    assert result.best_round == 0
    # w = 0 and head = 7 of w^0, against the optimum 1 or -1
    assert result.scores["a"]["nearness"][0] == pytest.approx(-3 * (1 + 8) / 2)
    assert result.scores["b"]["nearness"][0] == pytest.approx(-3 * (1 + 6) / 2)


@dataclass(frozen=True)
class Away(Quadratic):
    """Dev examples want what nobody trains towards."""

    def load(self, client: str, split: str) -> Sequence[Any]:
        return [(1.0, 100.0)] * 3 if split == "dev" else super().load(client, split)


def test_the_best_round_is_known_to_a_resumed_run(tmp_path: Path) -> None:
    def config(rounds: int) -> Config:
        return make_config(
            tmp_path,
            Away(clients=TWO, head=(7.0,)),
            client=STEP,
            rounds=rounds,
            partition=PartitionConfig(private=("head",)),
            eval=EvalConfig(on_start=True),
            checkpoint=CheckpointConfig(every=1),
        )

    make_runner(config(1)).run()
    resumed = make_runner(config(2)).run(resume=1)
    assert resumed.best_round == 0 and resumed.scores["a"]["nearness"][0] == pytest.approx(-3 * (1 + 8) / 2)


def test_a_run_that_ends_early_is_saved(tmp_path: Path) -> None:
    config = make_config(tmp_path, Quadratic(clients=TWO), client=STILL, rounds=9, eval=EvalConfig(patience=2))
    runner = make_runner(config)
    assert runner.run().rounds == 3
    found = runner.components.checkpoints.latest()
    assert found is not None and found.round == 3


def test_who_only_is_evaluated_is_no_part_of_the_merged_training_data() -> None:
    task = Merged(EvaluatedOnly(clients=TWO))
    assert len(task.load("all", "train")) == task.manifest()["all"]["train"] == 8


def test_clients_with_models_of_their_own_do_not_keep_them_twice(tmp_path: Path) -> None:
    for name, changes in (("ditto", {}), ("local", {"paradigm": "local"})):
        config = make_config(
            tmp_path / name, Quadratic(clients=TWO), Ditto(), eval=EvalConfig(point="trained"), **changes
        )
        runner = make_runner(config)
        runner.run()
        assert "trained" not in runner.context.store.get("a").tensors


@pytest.mark.parametrize("paradigm", ["federated", "centralized", "local"])
def test_the_chance_to_be_drawn_is_at_most_one(tmp_path: Path, paradigm: str) -> None:
    clients = ClientsConfig(per_round=2)
    runner = make_runner(make_config(tmp_path, Quadratic(clients=TWO), paradigm=paradigm, clients=clients))
    assert [runner.trainer.chance(client) for client in runner.components.clients] == [1] * len(
        runner.components.clients
    )


def test_large_clients_are_drawn_more_often_where_the_draw_is_by_size(tmp_path: Path) -> None:
    clients = ClientsConfig(per_round=2, sampling="size_proportional")
    task = Quadratic(clients={"a": (1.0, 0.0, 3), "b": (1.0, 0.0, 1), "c": (1.0, 0.0, 0)})
    runner = make_runner(make_config(tmp_path, task, FedAvg(weights="equal"), clients=clients))
    assert [runner.trainer.chance(client) for client in runner.components.clients] == [
        Fraction(15, 16),
        Fraction(7, 16),
    ]


def test_the_servers_schedule_spans_all_its_rounds(tmp_path: Path) -> None:
    """It trains before the first round and after each: with a rate of 0 after the first time it would stand still."""
    task = Toy(clients={"c": (1.0, 0.0)})
    hp = ClientConfig(optimizer="sgd", lr=0.4, schedule="linear", schedule_span="run")
    runner = make_runner(make_config(tmp_path, task, FedParsing(group="hydranet", decoder=("w",)), client=hp, rounds=3))
    runner.run()
    left = 2.0
    for rate in (0.4, 0.3, 0.2, 0.1):
        left *= 1 - rate
    assert runner.context.server.weights.item() == pytest.approx(2.0 - left)


def test_a_client_counts_as_often_as_it_was_drawn() -> None:
    reports = [Report("a", loss_max=1.0, draws=2), Report("b", loss_max=1.0)]
    assert FedParsing().weigh(reports) == [0.5, 0.25]
    assert FedParsing().weigh(reports[1:] * 3) == [0.25] * 3


def test_what_the_server_keeps_gives_clients_no_home(tmp_path: Path) -> None:
    config = make_config(
        tmp_path,
        Toy(clients={"c": (1.0, 0.1)}),
        FedParsing(decoder=("w",)),
        per_client={SERVER: {"optimizer_state": "keep"}},
    )
    assert not make_runner(config).context.is_stateful


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition": PartitionConfig(private=("head",))}, "partition.private is set but paradigm is centralized"),
        ({"eval": EvalConfig(point="trained")}, "eval.point is trained but paradigm is centralized"),
        ({"algorithm": Local()}, "paradigm is centralized but algorithm.name is .*, which sends nothing"),
        (
            {"paradigm": "local", "eval": EvalConfig(point="trained", also_received=True)},
            "eval.also_received is true but paradigm is local",
        ),
    ],
)
def test_settings_without_effect_in_a_paradigm_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    task = Quadratic(clients=TWO, head=(1.0,))
    with pytest.raises(ConfigError, match=message):
        make_runner(make_config(tmp_path, task, **{"paradigm": "centralized", **changes}))


@pytest.mark.parametrize("algorithm", [Scaffold(), FedNova()], ids=["scaffold", "fednova"])
@pytest.mark.parametrize("warmup", [{"warmup_steps": 2}, {"warmup_ratio": 0.5}])
def test_rules_for_a_constant_rate_refuse_both_kinds_of_warm_up(algorithm: Algorithm, warmup: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="warm-up"):
        algorithm.check(replace(STEP, **warmup), None)
    algorithm.check(STEP, None)


def test_pfedme_minimises_at_the_full_rate(tmp_path: Path) -> None:
    from fedtorch.algorithms.pfedme import PFedMe

    tensors = []
    falling: dict[str, Any] = {"schedule": "cosine", "schedule_floor": 0.5}
    for name, rates in enumerate(({}, {"warmup_ratio": 0.5}, falling)):
        hp = replace(STEP, lr=0.1, **rates)
        config = make_config(tmp_path / str(name), Quadratic(clients=TWO), PFedMe(inner_steps=4, lam=1.0), client=hp)
        runner = make_runner(config)
        runner.run()
        tensors.append(runner.context.store.get("a").tensors["personal"])
    assert all(torch.equal(tensors[0], other) for other in tensors[1:])
