"""transformers' Trainer as a client: the bits of a script without this package, and what is put back after it."""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_rows import classifier, weather, write_rows
from trained_otherwise import ARGS, by_hand, job_of, runner_of, task_of, weights

from fedtorch.core.errors import ConfigError
from fedtorch.core.seeds import seed_for
from fedtorch.train.settings import TrainerConfig

PLAIN = TrainerConfig("transformers", ARGS)


def test_one_client_has_the_bits_of_a_script_without_this_package(tmp_path: Path) -> None:
    runner = runner_of(tmp_path, PLAIN)
    job = job_of(runner)
    job.train(job.received["weights"])
    found = weights(job.engine.module)

    other = runner_of(tmp_path / "other", PLAIN, task=task_of(tmp_path))
    task, module = other.context.components.training, other.context.components.engine.module
    seed = seed_for(other.context.config.run.seed, "trainer", "north", 0)
    by_hand(module, task.load("north", "train"), partial(task.collate, train=True), seed, tmp_path / "out")
    assert torch.equal(found, weights(module))


def test_the_losses_and_steps_are_the_librarys(tmp_path: Path) -> None:
    job = job_of(runner_of(tmp_path, PLAIN))
    seen: list[int] = []
    job.on_step = seen.append
    curve = job.train(job.received["weights"])
    assert len(curve) == 3 and seen == [1, 2, 3] and all(4 < loss < 7 for loss in curve.losses)


def test_the_next_client_finds_module_and_process_as_they_were(tmp_path: Path) -> None:
    half = TrainerConfig("transformers", {**ARGS, "bf16": True, "neftune_noise_alpha": 5.0})
    runner = runner_of(tmp_path, half)
    job = job_of(runner)
    module = job.engine.module
    job.train(job.received["weights"])  # whatever a library notes once is noted now
    attributes = {name: sorted(vars(part)) for name, part in module.named_modules()}
    places = [parameter.data_ptr() for parameter in module.parameters()]
    config, environment, threads = module.config.to_dict(), dict(os.environ), torch.get_num_threads()
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    job.train(job.received["weights"])
    assert {name: sorted(vars(part)) for name, part in module.named_modules()} == attributes
    assert "forward" not in vars(module) and "_original_forward" not in vars(module)
    assert [parameter.data_ptr() for parameter in module.parameters()] == places
    assert all(parameter.grad is None for parameter in module.parameters())
    assert (module.config.to_dict(), dict(os.environ), torch.get_num_threads()) == (config, environment, threads)
    assert (states[0], states[1]) == (random.getstate(), np.random.get_state()[1].tolist())
    assert torch.equal(states[2], torch.get_rng_state())


def test_after_half_precision_the_native_loop_has_the_bits_of_a_fresh_process(tmp_path: Path) -> None:
    def native(runner: Any) -> torch.Tensor:
        engine = runner.context.components.engine
        task = runner.context.components.training
        engine.load(engine.initial_shared)
        engine.module.train()
        torch.manual_seed(0)
        total, count = task.loss(engine.module, task.collate(task.load("west", "train"), True))
        return (total / count).detach()

    half = runner_of(tmp_path, TrainerConfig("transformers", {**ARGS, "bf16": True}))
    job = job_of(half)
    job.train(job.received["weights"])
    fresh = runner_of(tmp_path / "fresh", PLAIN, task=task_of(tmp_path))
    assert torch.equal(native(half), native(fresh))


def test_a_task_whose_batches_only_it_understands_is_trained_by_its_own_loss(tmp_path: Path) -> None:
    task = classifier(write_rows(tmp_path / "weather.jsonl", weather()))
    runner = runner_of(tmp_path, PLAIN, task=task)
    job = job_of(runner)
    curve = job.train(job.received["weights"])
    assert len(curve) == 3 and all(0.4 < loss < 1.0 for loss in curve.losses)  # ln 2, as labels are two


@pytest.mark.parametrize("round", [0, 1])
def test_every_round_has_a_seed_of_its_own(tmp_path: Path, round: int) -> None:
    job, other = (job_of(runner_of(tmp_path / str(n), PLAIN, task=task_of(tmp_path)), round=n) for n in (round, 2))
    one, two = job.train(job.received["weights"]), other.train(other.received["weights"])
    assert one.losses != two.losses


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"learning_rate": "1e-2"}, "args.learning_rate is '1e-2' but transformers takes float"),
        ({"learning_rate": None}, "args.learning_rate is None but transformers takes float"),
        ({"per_device_train_batch_size": 2.5}, "args.per_device_train_batch_size is 2.5 but transformers takes int"),
        ({"dataloader_prefetch_factor": "x"}, "takes int or null"),
        ({"per_device_train_batch_size": 0}, "args.per_device_train_batch_size is 0 but transformers needs at least 1"),
        ({"gradient_accumulation_steps": 0}, "args.gradient_accumulation_steps is 0 but transformers needs at least 1"),
        ({"log_level": "loud"}, "args is refused by transformers: 'loud'"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "args is refused by transformers: "),
        ({"adam_beta1": 1.5}, "args is refused by transformers: "),
        ({"auto_find_batch_size": True}, "it begins again from half-trained weights"),
    ],
)
def test_an_argument_that_no_training_could_begin_with_is_refused_before_it(
    tmp_path: Path, args: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        runner_of(tmp_path, TrainerConfig("transformers", args))


def test_a_whole_number_is_a_rate_too(tmp_path: Path) -> None:
    job = job_of(runner_of(tmp_path, TrainerConfig("transformers", {"learning_rate": 1, "optim": "sgd"})))
    assert len(job.train(job.received["weights"])) == 3
