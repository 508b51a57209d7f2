"""From the name in `client.trainer` to the trainer."""

from __future__ import annotations

import importlib

from fedtorch.config.registry import imported
from fedtorch.config.validate import nearest
from fedtorch.core.errors import ConfigError
from fedtorch.train.settings import TrainerConfig
from fedtorch.trainers import TRAINERS, process_state
from fedtorch.trainers.base import Trainer
from fedtorch.trainers.function import FunctionTrainer


def trainer_of(settings: TrainerConfig) -> Trainer:
    """The trainer that a config names.

    Raises:
        ConfigError: there is none of that name, or the function cannot be imported.
    """
    name = settings.name
    if name in TRAINERS:
        module, _, cls = TRAINERS[name].partition(":")
        with process_state.quiet_import():
            made = getattr(importlib.import_module(module), cls)(settings)
        assert isinstance(made, Trainer)
        return made
    if ":" not in name:
        raise ConfigError(
            f"client.trainer.name is `{name}` but there is no such trainer; {nearest(name, list(TRAINERS))} "
            "(or write `module:function` for one of your own)"
        )
    return FunctionTrainer(settings, imported("client.trainer.name", name, ""))
