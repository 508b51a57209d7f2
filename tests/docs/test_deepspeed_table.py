"""The table of docs/gpus.md names all that DeepSpeed refuses, and nothing else, over all algorithms and settings."""

from __future__ import annotations

import re
from dataclasses import fields
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from fedtorch.algorithms import ALGORITHMS
from fedtorch.algorithms.base import Algorithm
from fedtorch.core.errors import ConfigError

PAGE = (Path(__file__).parents[2] / "docs" / "gpus.md").read_text()
ROW = re.compile(r"^ *\| `(\w+)` \| (?:`(\w+): (\w+)`|always) \| ([\d, ]+) \| (.+) \|$", re.MULTILINE)


def variants(name: str) -> list[Algorithm]:
    """One of every combination of the settings that are words or switches and that the algorithm takes."""
    module, _, cls_name = ALGORITHMS[name].partition(":")
    cls: Any = getattr(import_module(module), cls_name)
    hints = get_type_hints(cls)
    choices: dict[str, tuple[Any, ...]] = {}
    for own in fields(cls):
        if get_origin(hints[own.name]) is Literal:
            choices[own.name] = get_args(hints[own.name])
        elif hints[own.name] is bool:
            choices[own.name] = (False, True)
    found = []
    for values in product(*choices.values()):
        try:
            found.append(cls(**dict(zip(choices, values, strict=True))))
        except ConfigError:  # settings that contradict each other
            continue
    return found


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_is_refused_is_in_the_table_with_its_reason(name: str) -> None:
    rows = [row[1:] for row in ROW.findall(PAGE) if row[0] == name]
    found = variants(name)
    assert found
    for algorithm in found:
        said = {
            (int(stage), why)
            for key, value, stages, why in rows
            if not key or str(getattr(algorithm, key)) == value
            for stage in stages.split(",")
        }
        refused = {
            (stage, algorithm.limits.why_not_deepspeed)
            for stage in range(4)
            if not {"deepspeed", f"deepspeed/{stage}"} & set(algorithm.limits.engines)
        }
        assert said == refused, algorithm


def test_the_table_names_no_other_algorithm() -> None:
    assert {row[0] for row in ROW.findall(PAGE)} <= set(ALGORITHMS)
