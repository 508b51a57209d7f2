"""A process that is lent to a trainer again and again: what is looked through for garbage each time."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch

from fedtorch.trainers.process_state import _MANY, lent


def looks_at(one: list[Any]) -> bool:
    """Would a collection of garbage go through this list?"""
    return any(found is one for found in gc.get_objects())


def test_many_objects_that_a_training_leaves_are_not_looked_at_in_the_next() -> None:
    """A library, say; the tests' process has frozen what was there before, as a command does."""
    with lent(torch.device("cpu"), 1):
        library: list[list[Any]] = [[] for _ in range(_MANY + 1)]
        assert looks_at(library[0])
    assert not looks_at(library[0])


def test_few_objects_may_be_garbage_later() -> None:
    with lent(torch.device("cpu"), 1):
        pass  # whatever was there before
    with lent(torch.device("cpu"), 1):
        model: list[list[Any]] = [[] for _ in range(10)]
    assert looks_at(model[0])
    parameter = torch.zeros(1)
    parameter.own = parameter  # type: ignore[attr-defined]
    remembered = weakref.ref(parameter)
    with lent(torch.device("cpu"), 1):
        del parameter
    assert remembered() is None
