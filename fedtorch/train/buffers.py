"""A module's floating-point buffers as they were at the start, to be put back for every client."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class InitialBuffers:
    """Copies of them, and where in the module each belongs."""

    def __init__(self, module: nn.Module) -> None:
        self.values = {n: b.detach().cpu().clone() for n, b in module.named_buffers() if b.is_floating_point()}
        """by name, on the CPU"""
        # where each of them is: walking through the module for every client takes longer than copying them
        paths = [(*path.rpartition(".")[::2], initial) for path, initial in self.values.items()]
        self._places = [(module.get_submodule(part), name, initial) for part, name, initial in paths]

    @torch.no_grad()
    def put_back(self) -> None:
        """Into the module."""
        for part, name, initial in self._places:
            getattr(part, name).copy_(initial)

    def present(self) -> dict[str, Tensor]:
        """Copies of what they are now, by name, on the CPU."""
        found = (getattr(part, name).detach() for part, name, _ in self._places)
        return {name: buffer.cpu().clone() for name, buffer in zip(self.values, found, strict=True)}

    @torch.no_grad()
    def put(self, values: Mapping[str, Tensor]) -> None:
        """Put into the module what `present` gave."""
        for (part, own, _), name in zip(self._places, self.values, strict=True):
            getattr(part, own).copy_(values[name])
