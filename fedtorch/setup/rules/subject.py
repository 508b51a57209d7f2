"""A subject: the rules about one part of a run, and when they are asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import getdoc

from torch import nn

from fedtorch.config.schema import Config
from fedtorch.setup.plan import Plan
from fedtorch.train.engine import Engine

PlanRule = Callable[[Plan], None]
ModuleRule = Callable[[Config, nn.Module], None]
EngineRule = Callable[[Plan, Engine], None]


@dataclass(frozen=True)
class Subject:
    """Rules about one part of a run. Each raises ConfigError with the keys, their values and what to set."""

    name: str
    """As it heads the rules in docs/refusals.md."""
    applies: Callable[[Plan], bool] = lambda plan: True
    """Are its rules asked at all?"""
    of_plan: tuple[PlanRule, ...] = ()
    """Asked before anything is built."""
    of_module: tuple[ModuleRule, ...] = ()
    """Asked before an engine takes the model."""
    of_engine: tuple[EngineRule, ...] = ()
    """Asked once there is an engine, which knows what is shared, private and frozen."""

    def rules(self) -> list[tuple[str, str]]:
        """Every rule's name and the first line of its docstring, in the order in which they are asked."""
        rules = (*self.of_plan, *self.of_module, *self.of_engine)
        return [(rule.__name__, (getdoc(rule) or "").partition("\n")[0]) for rule in rules]
