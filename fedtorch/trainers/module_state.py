"""A module lent to somebody else's code: what that leaves in it is found, and put back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from fedtorch.core.errors import UpdateError
from fedtorch.train.engine import Engine


@contextmanager
def lent(engine: Engine, weights: Tensor, private: Tensor | None) -> Iterator[nn.Module]:
    """The engine's module with these weights, flat; afterwards it is as it was, but for what was trained.

    Raises:
        UpdateError: something else was done to its parameters.
    """
    engine.load(weights, private)
    untrained = {*engine.fixed, *engine.frozen.names}
    state = ModuleState(engine.module, untrained.__contains__)
    try:
        yield engine.module
        state.check()
    finally:
        state.put_back()


class ModuleState:
    """Everything about a module but the values of its trained parameters, as it is now.

    Trainers wrap `forward` for a precision (accelerate) or for a fused loss (TRL), set dropout to 0, change the model's
    config, add hooks, tags and adapters; the next client would train, and everybody be evaluated, with that.
    """

    def __init__(self, module: nn.Module, fixed: Callable[[str], bool]) -> None:
        """fixed: is the parameter of this name one that nobody may change?"""
        self._module = module
        self._parts = [(part, _Attributes(part)) for part in module.modules()]
        self._configs = [_Attributes(config) for config in _configs(module)]
        self._parameters = [_Parameter(name, parameter, fixed(name)) for name, parameter in module.named_parameters()]

    def check(self) -> None:
        """Compare the module's parameters with those from before.

        Raises:
            UpdateError: one is new, gone, elsewhere, or of another shape or dtype; or one was changed that is fixed.
        """
        there = dict(self._module.named_parameters())
        before = {each.name for each in self._parameters}
        if added := [name for name in there if name not in before]:
            raise UpdateError(f"the trainer left {len(added)} new parameters in the model, `{added[0]}` the first")
        for each in self._parameters:
            if problem := each.problem(there.get(each.name)):
                raise UpdateError(f"the trainer {problem}")

    def put_back(self) -> None:
        """Make everything as it was, but for the values of parameters; gradients are gone."""
        for part, attributes in self._parts:
            attributes.put_back(part)
        for config in self._configs:
            config.put_back(config.owner)
        for each in self._parameters:
            each.put_back()


class _Parameter:
    """One parameter, with the memory in which it lies."""

    def __init__(self, name: str, parameter: nn.Parameter, is_fixed: bool) -> None:
        self.name, self._parameter, self._is_fixed = name, parameter, is_fixed
        self._data, self._trains = parameter.data, parameter.requires_grad
        self._version = parameter._version

    def problem(self, there: nn.Parameter | None) -> str:
        """Say what was done to it, as a clause; empty: nothing, but that it was trained."""
        if there is None:
            return f"took the parameter `{self.name}` out of the model"
        if (there.shape, there.dtype) != (self._data.shape, self._data.dtype):
            was, now = (f"{str(t.dtype).removeprefix('torch.')} of {tuple(t.shape)}" for t in (self._data, there))
            return f"made the parameter `{self.name}`, {was}, one of {now}"
        if there is not self._parameter or there.data_ptr() != self._data.data_ptr():
            return f"put another tensor in the place of the parameter `{self.name}`; it has to be changed in place"
        if self._is_fixed and there._version != self._version:
            return f"changed the parameter `{self.name}`, which is not trained"
        return ""

    def put_back(self) -> None:
        self._parameter.data = self._data
        self._parameter.requires_grad_(self._trains)
        self._parameter.grad = None


class _Attributes:
    """The instance dictionary of an object, with the contents of the plain containers in it."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self._values = dict(vars(owner))
        deep = not isinstance(owner, nn.Module)
        self._contents = {
            name: copy.deepcopy(value) if deep and not _holds_config(value) else copy.copy(value)
            for name, value in self._values.items()
            if isinstance(value, dict | list | set)
        }

    def put_back(self, owner: Any) -> None:
        attributes = vars(owner)
        attributes.clear()
        attributes.update(self._values)
        for name, content in self._contents.items():
            _refill(self._values[name], content)


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, MutableMapping):
        container.clear()
        container.update(content)
    elif isinstance(container, list):
        container[:] = content
    else:
        container.clear()
        container |= content


def _configs(module: nn.Module) -> list[Any]:
    """The configs that the module and its parts have, of models and of generation, each once."""
    found: dict[int, Any] = {}
    waiting = [value for part in module.modules() for value in vars(part).values()]
    while waiting:
        value = waiting.pop()
        if _is_config(value) and id(value) not in found:
            found[id(value)] = value
            waiting += vars(value).values()
    return list(found.values())


def _is_config(value: Any) -> bool:
    """Has it the form of a config of transformers? That package need not be imported here."""
    return hasattr(value, "to_diff_dict") and hasattr(value, "__dict__") and not isinstance(value, type)


def _holds_config(value: Any) -> bool:
    members: Iterator[Any] = iter(value.values() if isinstance(value, dict) else value)
    return any(_is_config(member) or isinstance(member, Tensor) for member in members)
