"""Memory without a name that several processes of one machine see."""

from __future__ import annotations

import mmap
import os
import warnings
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


def path_of(process: int, file: int) -> str:
    """Of a file that another process has open as `file`."""
    return f"/proc/{process}/fd/{file}"


def machine() -> int:
    """A number that processes have in common which see each other by the same process number.

    Raises:
        OSError: the system does not say.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    return int.from_bytes(blake2b(boot + os.readlink("/proc/self/ns/pid").encode(), digest_size=7).digest(), "big")


class Segment:
    """Memory that several processes see; pages that nobody has touched take nothing."""

    def __init__(self, size: int, path: str | None = None, *, only_reads: bool = False) -> None:
        """size: bytes, not 0. path: of another process's; None: new, of this one, which `close_file` has to follow.

        Raises:
            OSError: the system refuses it.
        """
        if path is not None:
            self.file = os.open(path, os.O_RDONLY if only_reads else os.O_RDWR)
        elif hasattr(os, "memfd_create"):
            self.file = os.memfd_create("fedtorch")
        else:
            raise OSError("this system has no memory without a name")
        try:
            if path is None:
                os.ftruncate(self.file, size)
            self._memory = mmap.mmap(self.file, size, prot=mmap.PROT_READ | (0 if only_reads else mmap.PROT_WRITE))
        except (OSError, ValueError) as error:
            self.close_file()
            raise OSError(f"a segment cannot be mapped: {error}") from None
        self._bytes = np.frombuffer(self._memory, dtype=np.uint8)

    def close_file(self) -> None:
        """Nobody else will open it; what is mapped stays."""
        os.close(self.file)

    def whole(self, dtype: torch.dtype) -> Tensor:
        """All of it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that torch would let a read-only tensor be written to
            return torch.from_numpy(self._bytes).view(dtype)

    def start(self, tensor: Tensor) -> int | None:
        """The byte at which a tensor begins; None: it is elsewhere."""
        start = tensor.data_ptr() - self._bytes.ctypes.data
        return start if 0 <= start < len(self._bytes) else None

    def part(self, start: int, like: Tensor) -> Tensor:
        """What begins at a byte, as long as `like` and of its dtype."""
        return torch.from_numpy(self._bytes[start : start + like.nbytes]).view(like.dtype)
