"""Every rule about trainers of others, with the words that say what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from own_rows import classifier, weather, write_rows
from toy import Quadratic
from trained_otherwise import ARGS, config_of, runner_of, task_of

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.fedprox import FedProx
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.config.schema import EngineConfig, PrivacyConfig, SystemConfig
from fedtorch.core.errors import ConfigError
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules import trainers as rules
from fedtorch.train.attacks.settings import AttackConfig
from fedtorch.train.settings import ClientConfig, TrainerConfig

PLAIN = TrainerConfig("transformers", ARGS)
RARE = TrainerConfig("transformers", {**ARGS, "logging_steps": 2})
RAW = TrainerConfig("transformers", ARGS, rows="raw")


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (FedProx(mu=0.1), "changes the gradient of every step; set algorithm.name to fedavg"),
        (Scaffold(), "trains clients in a way of its own"),
        (Ditto(), "trains clients in a way of its own"),
    ],
)
def test_algorithms_that_want_more_than_the_difference(tmp_path: Path, algorithm: Algorithm, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        rules.the_algorithm_leaves_steps_alone(plan(config_of(tmp_path, PLAIN, algorithm)))
    rules.the_algorithm_leaves_steps_alone(plan(config_of(tmp_path, PLAIN, FedAvg(robust="median"))))


def plan(config: Any, ranks: int = 1) -> Plan:
    return Plan.of(config, ranks)


def test_weights_by_losses_need_the_loss_of_every_step(tmp_path: Path) -> None:
    by_loss = FedAvg(weights="loss_reduction")
    rules.losses_are_told(plan(config_of(tmp_path, PLAIN, by_loss)))
    with pytest.raises(ConfigError, match="set algorithm.weights to size, or client.trainer.args.logging_steps to 1"):
        rules.losses_are_told(plan(config_of(tmp_path, RARE, by_loss)))
    rules.losses_are_told(plan(config_of(tmp_path, RARE)))


def test_a_trainer_is_one_process(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAIN)
    rules.a_trainer_has_one_process(plan(config, 3))
    several = replace(config, system=SystemConfig(ranks_per_worker=2))
    with pytest.raises(ConfigError, match="system.ranks_per_worker is 2; set it to 1"):
        rules.a_trainer_has_one_process(plan(several, 5))
    with pytest.raises(ConfigError, match="engine.kind is deepspeed; set it to torch"):
        rules.a_trainer_has_one_process(plan(replace(config, engine=EngineConfig(kind="deepspeed"))))


def test_noise_of_rows_is_the_own_loops(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAIN)
    rules.noise_is_added_in_steps(plan(config))
    units = {name: 10 for name in ("north", "south", "west")}
    private = PrivacyConfig(kind="record", units=units, clip=1.0, noise_multiplier=1.0, delta=1e-3)
    with pytest.raises(ConfigError, match="privacy.kind is record, whose noise is part of every step"):
        rules.noise_is_added_in_steps(plan(replace(config, privacy=private)))


def test_raw_rows_are_the_tasks_to_give(tmp_path: Path) -> None:
    config = config_of(tmp_path, RAW)
    rules.the_task_has_raw_rows(plan(config))
    with pytest.raises(ConfigError, match="it reads raw rows, which the task .* does not have"):
        rules.the_task_has_raw_rows(plan(replace(config, task=Quadratic({"north": (1.0, 1.0, 4)}))))
    flipped = replace(config, attack=AttackConfig(kind="labelflip", clients=("north",)))
    with pytest.raises(ConfigError, match="set attack.kind to one that changes updates"):
        rules.the_task_has_raw_rows(plan(flipped))
    rules.the_task_has_raw_rows(plan(replace(flipped, client=ClientConfig(steps=3, trainer=PLAIN))))


def test_rules_are_asked_where_anybody_has_a_trainer(tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAIN)
    native = replace(config, client=ClientConfig())
    assert rules.SUBJECT.applies(plan(config)) and not rules.SUBJECT.applies(plan(native))
    one = replace(native, per_client={"north": {"trainer": PLAIN}})
    assert rules.SUBJECT.applies(plan(one))
    with pytest.raises(ConfigError, match="trains decoders"):
        task = classifier(write_rows(tmp_path / "weather.jsonl", weather()))
        runner_of(tmp_path, TrainerConfig("trl.SFT", ARGS), task=task)
    assert task_of(tmp_path).raw_columns == ("prompt", "completion")
