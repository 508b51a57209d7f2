"""Older versions of the server's vectors, from which jobs are yet to start."""

from __future__ import annotations

from collections.abc import Collection, MutableMapping
from pathlib import Path

import torch
from torch import Tensor

from fedtorch.core.state_keys import VERSION


class Versions:
    """Versions on one rank; those beyond `memory_bytes` are in files.

    On the server they stand among the tensors of its state, so that a checkpoint has them.
    """

    def __init__(self, tensors: MutableMapping[str, Tensor], folder: Path, memory_bytes: int) -> None:
        """tensors: where they are kept, under names that begin with `VERSION`. folder: for files."""
        self._tensors, self._folder, self._memory_bytes = tensors, folder, memory_bytes
        self._files: dict[int, Path] = {}

    def held(self) -> list[int]:
        """The versions, in order."""
        return sorted(int(name.removeprefix(VERSION)) for name in self._tensors if name.startswith(VERSION))

    def keep(self, version: int, flat: Tensor) -> None:
        """Keep a copy of the vectors, flat, on the CPU.

        Raises:
            OSError: it had to go to a file and could not.
        """
        in_memory = [v for v in self.held() if v not in self._files]
        if in_memory and flat.nbytes * (len(in_memory) + 1) > self._memory_bytes:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"version_{version}.bin"
            path.write_bytes(flat.detach().numpy().data)
            self._files[version] = path
            self._tensors[_name(version)] = torch.from_file(str(path), shared=False, size=len(flat), dtype=flat.dtype)
        else:
            self._tensors[_name(version)] = flat.detach().clone()

    def get(self, version: int) -> Tensor:
        """The vectors of a version that is kept; not to be changed."""
        return self._tensors[_name(version)]

    def keep_only(self, versions: Collection[int]) -> None:
        """Forget all others."""
        for version in set(self.held()) - set(versions):
            del self._tensors[_name(version)]
            if (path := self._files.pop(version, None)) is not None:
                path.unlink(missing_ok=True)


def _name(version: int) -> str:
    return f"{VERSION}{version}"
