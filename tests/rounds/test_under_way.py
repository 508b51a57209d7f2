"""Saves inside a round: when they are due, what is not taken up, and what cannot be saved."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import interrupt, make_config, make_runner
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from toy import Quadratic

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.pfedme import PFedMe
from fedtorch.checkpoint.under_way import FOLDER
from fedtorch.config.schema import CheckpointConfig, ClientConfig, Config, PrivacyConfig
from fedtorch.core.errors import ConfigError
from fedtorch.privacy.settings import SecureSum
from fedtorch.rounds.under_way import UnderWay
from fedtorch.setup.plan import Plan
from fedtorch.setup.rules import under_way as rules
from fedtorch.train.engine import Engine, GradientHook
from fedtorch.train.job import ClientJob
from fedtorch.train.settings import TrainerConfig

TASK = Quadratic(clients={"a": (1.0, 1.0, 6), "b": (2.0, -1.0, 9)}, start=(0.3, -0.7), dropout=0.2, double=False)
CLIENT = ClientConfig(optimizer="adamw", lr=0.1, batch_size=4, optimizer_state="keep", steps=8, epochs=None)
SAVING = CheckpointConfig(every_steps=2)


def config_of(folder: Path, **changes: Any) -> Config:
    return make_config(folder, TASK, **{"rounds": 2, "client": CLIENT, "checkpoint": SAVING, **changes})


def interrupted(config: Config, calls: int = 14) -> list[Path]:
    """The files that are left of a run that was stopped when it had looked for a signal so often."""
    interrupt(config, calls)
    return sorted((config.folder / FOLDER).iterdir())


def edited(path: Path, **tensors: torch.Tensor) -> None:
    """Other tensors in a file that is sealed as it was."""
    with safe_open(path, "pt") as file:
        about = file.metadata()
    save_file({**load_file(path), **tensors}, path, about)


def swapped(files: list[Path]) -> None:
    first, second = (path.read_bytes() for path in files)
    files[0].write_bytes(second)
    files[1].write_bytes(first)


DAMAGE = {
    "torn": (lambda files: files[0].write_bytes(files[0].read_bytes()[:99]), "is not what a checkpoint has there"),
    "changed": (lambda files: edited(files[0], shared=torch.zeros(2)), "has other content than when it was written"),
    "another client's": (swapped, "is of another client"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_not_this_trainings_own_is_named_and_the_client_begins_anew(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = make_runner(config_of(tmp_path / "whole")).run().digest
    damage, words = DAMAGE[name]
    config = config_of(tmp_path / "parts")
    files = interrupted(config)
    assert len(files) == 2
    damage(files)
    with caplog.at_level(logging.INFO):
        assert make_runner(config).run().digest == expected
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any(f"client a: a saved training is not used: {files[0]}" in line and words in line for line in said)


def test_of_another_config(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    interrupted(config_of(tmp_path / "run"))
    other = config_of(tmp_path / "run", client=replace(CLIENT, lr=0.2))
    expected = make_runner(replace(other, run=replace(other.run, dir=str(tmp_path / "whole")))).run().digest
    assert make_runner(other).run().digest == expected
    assert "is of another config and another beginning" in caplog.text


def test_a_disk_that_refuses_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = make_runner(config_of(tmp_path / "whole")).run().digest
    config = config_of(tmp_path / "run")
    config.folder.mkdir(parents=True)
    (config.folder / FOLDER).write_text("in the way")
    assert make_runner(config).run().digest == expected
    said = [r for r in caplog.records if r.levelname == "WARNING" and "a training is not saved" in r.getMessage()]
    assert len(said) == 1 and "free some space" in said[0].getMessage()


def due(settings: CheckpointConfig, tmp_path: Path, planned: int = 10) -> list[int]:
    """The steps of two trainings after which a save is due; a step takes a second."""
    seconds, found = [0.0], []
    rule = UnderWay(make_runner(config_of(tmp_path, checkpoint=settings)).context, clock=lambda: seconds[0])
    for _ in range(2):
        for step in range(1, planned + 1):
            seconds[0] += 1
            if rule.is_due(step, planned):
                rule._unsaved, rule._saved_at = 0, seconds[0]
                found.append(step)
    return found


def test_when_a_save_is_due(tmp_path: Path) -> None:
    assert due(CheckpointConfig(every_steps=4), tmp_path) == [4, 8, 10] * 2
    assert due(CheckpointConfig(every_seconds=4), tmp_path) == [4, 8, 10] * 2
    assert due(CheckpointConfig(every_seconds=3, every_steps=2), tmp_path) == [2, 4, 6, 8, 10] * 2
    assert due(CheckpointConfig(every_seconds=2.5, every_steps=8), tmp_path) == [3, 6, 9, 10] * 2
    assert due(CheckpointConfig(every_steps=100), tmp_path) == [10, 10]
    assert UnderWay(make_runner(config_of(tmp_path, checkpoint=CheckpointConfig())).context).of("a") is None


class OwnSteps(FedAvg):
    """Changes gradients in a way that nobody knows."""

    def correction(self, job: ClientJob) -> GradientHook | None:
        def change(engine: Engine) -> None: ...

        return change


SHARED: dict[str, Any] = {
    "units": {"a": 6, "b": 9},
    "clip": 1.0,
    "noise_multiplier": 1.0,
    "delta": 1e-5,
    "secure_sum": SecureSum(),
}
REFUSED: dict[str, tuple[dict[str, Any], Algorithm | None, str]] = {
    "a trainer": ({"client": ClientConfig(trainer=TrainerConfig("x:y"))}, None, "client.trainer is x:y, whose state"),
    "another loop": ({}, PFedMe(), "which takes its steps in a loop of its own"),
    "a rule from elsewhere": ({}, OwnSteps(), "which has a `correction` of its own"),
    "privacy": (
        {"privacy": PrivacyConfig("client", clip=1.0, noise_multiplier=1.0, delta=1e-5)},
        None,
        "privacy.kind is client, and files",
    ),
    "shared noise": (
        {"privacy": PrivacyConfig("record", noise_at="shared", **SHARED)},
        None,
        "privacy.noise_at is shared, where a round is one sum",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_saved_half_way_is_refused(name: str, tmp_path: Path) -> None:
    changes, algorithm, words = REFUSED[name]
    plan = Plan.of(make_config(tmp_path, TASK, algorithm, checkpoint=SAVING, **changes), 1)
    assert rules.SUBJECT.applies(plan)
    with pytest.raises(ConfigError, match=words) as raised:
        for rule in rules.SUBJECT.of_plan:
            rule(plan)
    assert "checkpoint.every_steps" in str(raised.value) and "to null" in str(raised.value)
    assert not rules.SUBJECT.applies(Plan.of(make_config(tmp_path, TASK, algorithm, **changes), 1))
