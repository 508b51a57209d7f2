"""Where the server's vectors are, which all ranks read."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor


class ServerVector:
    """The server's vectors, laid end to end: on every rank in its own memory."""

    def __init__(self) -> None:
        self._shared: Tensor | None = None

    @property
    def device(self) -> torch.device | None:
        """This rank's device, if whole vectors move from where they lie on it; None: it has none, or none yet."""
        return None

    def another(self) -> ServerVector:
        """A further vector of the server's, which ranks get in the same way."""
        return ServerVector()

    def make(self, size: int, dtype: torch.dtype) -> Tensor:
        """Zeros on the CPU, shape (size,); a page of memory is taken when somebody writes there."""
        if not size:
            return torch.zeros(size, dtype=dtype)
        pages = mmap.mmap(-1, size * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return torch.frombuffer(pages, dtype=dtype)

    def share(self, vector: Tensor) -> Tensor:
        """Return the server's vector where every rank can read it as it is, else the one that `make` gave.

        A server's vector that is read so may be written by nobody but the server.

        All ranks call it alike, the server after it has filled its own. What is shared is always what the server has:
        it must not change it while another rank still reads it.
        """
        return vector

    def is_shared(self, flat: Tensor) -> bool:
        """Is it the whole of what `share` gave, and the server's own memory?"""
        shared = self._shared
        return shared is not None and len(flat) == len(shared) and flat.data_ptr() == shared.data_ptr()
