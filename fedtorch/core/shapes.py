"""Modules whose parameters have shapes and no values: to be counted, or to be given the values of another rank."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

META = torch.device("meta")
_READER = "transformers.core_model_loading"


@contextmanager
def without_values() -> Iterator[None]:
    """Modules that are built in here have parameters on torch's meta device; tied ones stay tied, buffers have values.

    A parameter is in memory only until a module gets it, which is before anything is drawn into it. What transformers
    reads from files has the shapes and number formats that are written there; buffers among it are on the meta device
    too. Not for several threads at once.
    """
    register = nn.Module.register_parameter

    def register_bare(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, None if param is None else _bare(param))

    nn.Module.register_parameter = register_bare  # type: ignore[method-assign]
    try:
        with _reading_headers():
            yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def has_values(module: nn.Module) -> bool:
    """Is nothing of it on the meta device?"""
    return not any(parameter.is_meta for parameter in module.parameters())


def make_room(module: nn.Module) -> None:
    """Give parameters without values memory, in place; tied ones stay tied.

    What is there is not said. The system takes a page of it when somebody writes there, so whoever copies a part of it
    elsewhere, to fill that, takes no more than the part.
    """
    rooms: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, own in list(part._parameters.items()):
            if own is not None and own.is_meta:
                room = torch.empty_like(own, device="cpu")
                setattr(part, name, rooms.setdefault(id(own), nn.Parameter(room, own.requires_grad)))


def _bare(parameter: nn.Parameter) -> nn.Parameter:
    """The one without values that takes a parameter's place, wherever that is registered."""
    if parameter.is_meta:
        return parameter
    known: Any = parameter
    if not hasattr(known, "_without_values"):
        known._without_values = nn.Parameter(parameter.detach().to(META), requires_grad=parameter.requires_grad)
    bare: nn.Parameter = known._without_values
    return bare


@contextmanager
def _reading_headers() -> Iterator[None]:
    """transformers, checked with 5.23, takes from a file what its header says, and reads no numbers."""

    reader: Any = sys.modules[_READER]
    read: Callable[..., Tensor] = reader._materialize_copy
    reader._materialize_copy = _of_header
    try:
        yield
    finally:
        reader._materialize_copy = read


def _of_header(found: Any, device: Any = None, dtype: torch.dtype | None = None) -> Tensor:
    """The tensor of a slice of safetensors, without values."""
    from safetensors.torch import _getdtype

    return torch.empty(found.get_shape(), dtype=dtype or _getdtype(found.get_dtype()), device=META)
