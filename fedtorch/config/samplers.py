"""From the value of `clients.sampling` to the sampler it stands for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedtorch.config.registry import class_of
from fedtorch.config.schema import ClientsConfig
from fedtorch.config.validate import at, field_names, validate, wrong
from fedtorch.core.errors import ConfigError
from fedtorch.core.yaml_tree import Tree

if TYPE_CHECKING:
    from fedtorch.core.sampling import Sampler

KEY = ("clients", "sampling")
DEFAULT = "uniform"


def make_sampler(value: str | dict[str, Any]) -> Sampler:
    """The sampler that a name, or a mapping of `name` and fields, stands for.

    Raises:
        ConfigError: there is no such sampler, or its fields are wrong.
    """
    sampler, problems = _find(value, Tree())
    if sampler is None:
        raise ConfigError("\n".join(problems))
    return sampler


def resolved(clients: ClientsConfig, tree: Tree) -> tuple[ClientsConfig, list[str]]:
    """The section with every field of its sampler, and what is wrong with these, a line each.

    A sampler without fields is written as its name. tree: what the section was read from, for messages.

    Raises:
        ConfigError: there is no such sampler, or it is none.
    """
    value = clients.sampling
    sampler, problems = _find(value, tree)
    if sampler is None:
        return clients, problems
    fields = {field: getattr(sampler, field) for field in field_names(type(sampler))}
    name = _mapping(value)["name"]
    return replace(clients, sampling={"name": name, **fields} if fields else name), []


def _find(value: str | dict[str, Any], tree: Tree) -> tuple[Sampler | None, list[str]]:
    """The sampler, or None and a line for each thing that is wrong."""
    fields = _mapping(value)
    name, where = fields.pop("name"), (*KEY, "name") if isinstance(value, dict) else KEY
    if not isinstance(name, str):
        return None, [wrong(where, name, "a string", tree)]
    module = "fedtorch.core.sampling"
    table, base = f"{module}:SAMPLERS", f"{module}:Sampler"
    cls = class_of(".".join(where), name, at(tree, where), what="sampler", table=table, base=base)
    return validate(cls, fields, KEY, tree)


def _mapping(value: Any) -> dict[str, Any]:
    """The value as a mapping that has a `name`, in a new dictionary."""
    if isinstance(value, str):
        return {"name": value}
    return {"name": DEFAULT, **value} if isinstance(value, dict) else {"name": DEFAULT}
