"""Rounds of a trainer that are one training: the bits of a training that was never cut."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_runner
from trained_otherwise import ARGS, by_hand, config_of, job_of, runner_of, task_of

from fedtorch.config.clients import ClientsConfig
from fedtorch.config.schema import CheckpointConfig
from fedtorch.core.client import ClientState
from fedtorch.core.errors import CheckpointError, ConfigError
from fedtorch.core.seeds import seed_for
from fedtorch.rounds.restored import check_client
from fedtorch.train.settings import TrainerConfig

GOES_ON: dict[str, Any] = {"steps": 4, "optimizer_state": "keep", "schedule_span": "run"}


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear"])
def test_three_rounds_of_four_steps_are_twelve_steps(tmp_path: Path, schedule: str) -> None:
    trainer = TrainerConfig("transformers", {**ARGS, "lr_scheduler_type": schedule, "warmup_steps": 2})
    config = config_of(tmp_path, trainer, rounds=3, paradigm="local", client=GOES_ON)
    runner = make_runner(config)
    runner.run()
    state = runner.context.store.get("north")
    found = state.tensors["personal"]

    other = runner_of(tmp_path / "other", trainer, task=task_of(tmp_path))
    task, engine = other.context.components.training, other.context.components.engine
    engine.load(engine.initial_shared)
    seed = seed_for(config.run.seed, "trainer", "north")
    more = {"max_steps": 12, "lr_scheduler_type": schedule, "warmup_steps": 2}
    by_hand(engine.module, task.load("north", "train"), partial(task.collate, train=True), seed, tmp_path, **more)
    assert torch.equal(found, engine.snapshot())
    assert state.numbers["trainer/steps"] == 12


def test_two_new_trainers_are_another_training_than_one(tmp_path: Path) -> None:
    runner = runner_of(tmp_path, TrainerConfig("transformers", {**ARGS, "lr_scheduler_type": "cosine"}))
    job = job_of(runner)
    job.train(job.received["weights"])
    half = job.engine.snapshot()
    again = job_of(runner, round=1)
    again.train(half)
    twice = again.engine.snapshot()
    whole = runner_of(
        tmp_path / "whole",
        TrainerConfig("transformers", {**ARGS, "lr_scheduler_type": "cosine"}),
        task=task_of(tmp_path),
        client={"steps": 6},
    )
    job = job_of(whole)
    job.train(job.received["weights"])
    assert not torch.equal(twice, job.engine.snapshot())


def test_a_kept_optimiser_goes_on_with_its_moments(tmp_path: Path) -> None:
    trainer = TrainerConfig("transformers", ARGS)
    runner = runner_of(tmp_path, trainer, client={"optimizer_state": "keep"})
    state = ClientState()
    first = job_of(runner, state=state)
    first.train(first.received["weights"])
    steps = [value for name, value in state.tensors.items() if name.endswith("/step")]
    assert steps and all(value == 3 for value in steps)
    second = job_of(runner, round=1, state=state)
    second.train(second.received["weights"])
    kept = second.engine.snapshot()
    assert all(value == 6 for name, value in state.tensors.items() if name.endswith("/step"))
    anew = job_of(runner, round=1)
    anew.train(anew.received["weights"])
    assert not torch.equal(kept, anew.engine.snapshot())
    assert not any(name.startswith("trainer/random") for name in state.tensors)


@pytest.mark.parametrize("lacks", [{"optimizer_state": "reset"}, {"steps": None, "epochs": 1}])
def test_one_training_over_rounds_needs_steps_and_its_optimiser(tmp_path: Path, lacks: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="client.optimizer_state: keep"):
        runner_of(tmp_path, TrainerConfig("transformers", ARGS), client={**GOES_ON, **lacks})


def test_generators_come_back_as_they_were() -> None:
    import random

    import numpy as np

    from fedtorch.trainers.over_rounds import generators, put_back_generators

    random.gauss(0, 1), np.random.normal()  # both keep a second number for later
    kept = generators(torch.device("cpu"))
    first = random.gauss(0, 1), random.random(), np.random.normal(), np.random.rand(), torch.rand(3).tolist()
    put_back_generators(kept, torch.device("cpu"))
    assert first == (random.gauss(0, 1), random.random(), np.random.normal(), np.random.rand(), torch.rand(3).tolist())


def test_a_client_that_is_drawn_more_often_than_expected_trains_on(tmp_path: Path) -> None:
    trainer = TrainerConfig("transformers", {**ARGS, "lr_scheduler_type": "cosine"})
    clients = ClientsConfig(per_round=1)
    runner = make_runner(config_of(tmp_path, trainer, rounds=9, client=GOES_ON, clients=clients))
    runner.run()
    steps = [runner.context.store.get(name).numbers["trainer/steps"] for name in ("north", "south", "west")]
    assert sum(steps) == 9 * 4 and max(steps) > 3 * 4


@pytest.mark.long
@pytest.mark.parametrize("per_round", ["all", 1])
def test_one_training_over_rounds_is_the_same_when_it_is_interrupted(tmp_path: Path, per_round: Any) -> None:
    trainer = TrainerConfig("transformers", {**ARGS, "lr_scheduler_type": "cosine"})
    settings: dict[str, Any] = {"client": GOES_ON, "clients": ClientsConfig(per_round=per_round), "rounds": 4}
    settings["checkpoint"] = CheckpointConfig(every=1, keep=9)
    config = config_of(tmp_path, trainer, **settings)
    whole = make_runner(config).run()
    assert make_runner(config).run(resume=2).digest == whole.digest


DAMAGE: dict[str, Any] = {
    "trainer/moments/transformer.wte.weight/exp_avg": torch.zeros(3),
    "trainer/moments/nowhere/exp_avg": torch.zeros(3),
    "trainer/random/torch": torch.zeros(3),
    "trainer/random/python": None,
    "trainer/schedule/last_epoch": None,
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_state_that_a_training_cannot_go_on_from_is_refused_by_name(tmp_path: Path, name: str) -> None:
    trainer = TrainerConfig("transformers", ARGS)
    config = config_of(tmp_path, trainer, rounds=1, client=GOES_ON, checkpoint=CheckpointConfig(every=1))
    runner = make_runner(config)
    runner.run()
    state = runner.context.store.get("north").copy()
    state.tensors.pop(name, None), state.numbers.pop(name, None)
    if DAMAGE[name] is not None:
        state.tensors[name] = DAMAGE[name]
    with pytest.raises(CheckpointError, match=f"the state of client 'north' in .*{name.rpartition('/')[2]}"):
        check_client(runner.context, "north", state, tmp_path, 1)
