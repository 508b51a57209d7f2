"""Parts of a model: the outermost of a kind, and its blocks, the layers that FSDP gathers one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import nn


def outermost(module: nn.Module, is_wanted: Callable[[nn.Module], bool]) -> list[nn.Module]:
    """The parts of a module, or itself, that are wanted and lie within no other such part."""
    if is_wanted(module):
        return [module]
    return [found for child in module.children() for found in outermost(child, is_wanted)]


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """The parts that are gathered one at a time: elements of the outermost lists of modules, such as a model's layers.

    Not those that share a parameter with anything else.
    """
    found = [element for each in _lists(module) for element in each if any(True for _ in element.parameters())]
    owners: dict[int, int] = {}
    for part in module.modules():
        for parameter in part._parameters.values():
            if parameter is not None:
                owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    inside = [_count(block) for block in found]
    return [block for block, own in zip(found, inside, strict=True) if all(owners[key] == n for key, n in own.items())]


def _lists(module: nn.Module) -> Iterator[nn.ModuleList]:
    for child in module.children():
        if isinstance(child, nn.ModuleList) and not any(isinstance(each, nn.ModuleList) for each in child):
            yield child
        else:
            yield from _lists(child)


def _count(block: nn.Module) -> dict[int, int]:
    """Places inside the block that have each of its parameters."""
    found: dict[int, int] = {}
    for part in block.modules():
        for parameter in part._parameters.values():
            if parameter is not None:
                found[id(parameter)] = found.get(id(parameter), 0) + 1
    return found
