"""New vectors begin elsewhere in memory than torch would have them, to see whether anything depends on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from fedtorch.core import client, weights


class Displaced(TorchDispatchMode):
    """Every new flat vector of floating-point numbers on the CPU begins some bytes behind a multiple of 64.

    What a model computes has two dimensions or more and stays where torch puts it.
    """

    def __init__(self, skipped_bytes: int) -> None:
        super().__init__()
        self.skipped_bytes, self.count = skipped_bytes, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        held = {each.untyped_storage().data_ptr() for each in _tensors((*args, *(kwargs or {}).values()))}
        is_new = _is_plain(found) and found.ndim == 1 and found.untyped_storage().data_ptr() not in held
        return self.moved(found) if is_new and found.is_floating_point() and found.numel() > 1 else found

    def moved(self, flat: Tensor) -> Tensor:
        """A copy that begins elsewhere."""
        self.count += 1
        room = torch.empty(flat.numel() + 32, dtype=flat.dtype)
        start = (-room.data_ptr() % 64 + self.skipped_bytes) // room.element_size()
        return room[start : start + flat.numel()].copy_(flat)


@contextmanager
def displaced(skipped_bytes: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Displaced]:
    """Inside the block vectors lie elsewhere, those read from files too, but for those that are asked for `aligned`."""
    mode = Displaced(skipped_bytes)

    def undisturbed(flat: Tensor, made: Callable[[Tensor], Tensor] = weights.aligned) -> Tensor:
        with _disable_current_modes():
            return made(flat)

    with monkeypatch.context() as patch:
        patch.setattr(weights, "aligned", undisturbed)
        patch.setattr("fedtorch.train.initial.aligned", undisturbed)
        read = client.load_file
        patch.setattr(client, "load_file", lambda path: {
            name: mode.moved(tensor) if tensor.ndim == 1 and tensor.is_floating_point() else tensor
            for name, tensor in read(path).items()
        })  # fmt: skip
        with mode:
            yield mode


def _is_plain(value: object) -> bool:
    return type(value) is Tensor and value.device.type == "cpu" and value.layout is torch.strided


def _tensors(values: Iterable[object]) -> Iterator[Tensor]:
    """Those among arguments, parameters and members of lists too: a view of one of them is no new vector."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
