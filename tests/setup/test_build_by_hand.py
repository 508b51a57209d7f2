"""What a config is built into: who is told of idle clients, who compares what it does not train, engines, remarks."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import make_config
from toy import Quadratic

from fedtorch.config.schema import ClientConfig, EngineConfig, SystemConfig
from fedtorch.core.errors import ConfigError
from fedtorch.setup.build import BuiltRun, build, rebuild
from fedtorch.setup.remarks import about_metrics
from fedtorch.setup.rules.engine import deepspeed_has_one_optimizer
from fedtorch.train.engine import Engine

TASK = Quadratic(clients={"a": (1.0, 0.0, 3), "b": (1.0, 0.0, 0), "c": (1.0, 0.0, 2)})


class WithBase(Quadratic):
    """A model with a parameter that no run saves, as adapters have."""

    def unsaved(self, model: Any) -> list[str]:
        return ["head"]


def built_run(folder: Path, ranks: int, rank: int, task: Quadratic = TASK, **changes: Any) -> BuiltRun:
    system = SystemConfig(device="cpu", server_works=False, **changes)
    return build(make_config(folder, task, system=system), num_ranks=ranks, rank=rank)


@pytest.mark.parametrize(("rank", "times"), [(0, 1), (1, 0)])
def test_the_server_alone_says_who_has_nothing_to_train_on(
    rank: int, times: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        built = built_run(tmp_path, 3, rank)
    said = [line for line in caplog.messages if "no training examples" in line]
    assert said == ["1 clients have no training examples and take no part: b"] * times
    assert [client.name for client in built.clients] == ["a", "c"]


def test_a_rank_that_trains_nobody_compares_what_is_not_trained(tmp_path: Path) -> None:
    for rank, compared in ((0, ["head"]), (1, []), (2, [])):
        assert built_run(tmp_path, 3, rank, WithBase(TASK.clients, head=(1.0,))).idle_base(rank) == compared


def test_ranks_of_a_worker_join_it_and_the_server_none(tmp_path: Path) -> None:
    built, joined = built_run(tmp_path, 3, 0, ranks_per_worker=(2,)), list[Any]()
    for rank in range(3):
        comm: Any = SimpleNamespace(rank=rank, join_worker=lambda ranks: joined.append(ranks))
        built._join_worker(comm)
    assert joined == [(1, 2), (1, 2)]


def test_a_run_that_is_looked_at_needs_no_deepspeed(tmp_path: Path) -> None:
    task = Quadratic(TASK.clients, double=False)
    config = make_config(tmp_path, task, engine=EngineConfig(kind="deepspeed"))
    assert type(rebuild(config).engine) is Engine


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ((ClientConfig(optimizer="sgd"), ClientConfig(optimizer="adamw")), r"several \(adamw and sgd\)"),
        ((ClientConfig(optimizer="sgd"), ClientConfig(optimizer="sgd", no_decay=("w",))), r"several \(no_decay\)"),
    ],
)
def test_deepspeeds_clients_differ_in_numbers_alone(settings: Any, shown: str) -> None:
    config = SimpleNamespace(engine=EngineConfig(kind="deepspeed"))
    plan: Any = SimpleNamespace(settings=settings, config=config)
    with pytest.raises(ConfigError, match=shown):
        deepspeed_has_one_optimizer(plan)
    deepspeed_has_one_optimizer(SimpleNamespace(settings=settings[:1], config=config))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("metrics", "said"),
    [("a", []), ("abcd", ["3 of 4 metrics are no means over examples: b, c, d"]),
     ("abcde", ["4 of 5 metrics are no means over examples: b, c, d, ..."])],
)  # fmt: skip
def test_metrics_without_scores_of_single_examples_are_named(metrics: str, said: list[str]) -> None:
    plan: Any = SimpleNamespace(
        task=SimpleNamespace(single_metrics=lambda: ["a"], metrics=lambda: list(metrics)),
        config=SimpleNamespace(eval=SimpleNamespace(per_example=True)),
    )
    assert list(about_metrics(plan)) == [f"eval.per_example: {line}" for line in said]
