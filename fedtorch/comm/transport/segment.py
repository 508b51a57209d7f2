"""Memory without a name that one process of a machine writes and others read."""

from __future__ import annotations

import fcntl
import mmap
import os
import warnings
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

F_ADD_SEALS, F_GET_SEALS = 1033, 1034  # as in linux/fcntl.h; Python's fcntl lacks the seal of future writes
F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE = 1, 2, 4, 16
_SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE


def path_of(process: int, file: int) -> str:
    """Path of a file that another process has open as `file`."""
    return f"/proc/{process}/fd/{file}"


def machine() -> int:
    """A number that processes have in common which see each other by the same process number.

    Raises:
        OSError: the system does not say.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    return int.from_bytes(blake2b(boot + os.readlink("/proc/self/ns/pid").encode(), digest_size=7).digest(), "big")


class Segment:
    """Memory that the process which made it writes, and others read; pages that nobody has touched take nothing.

    It is sealed once its maker has mapped it: from then on nobody, the maker included, can write through its file, map
    it to be written to, or change its length (under a reader that would be SIGBUS). A reader maps only what is sealed.
    """

    def __init__(self, size: int, path: str | None = None) -> None:
        """size: bytes, not 0. path: of another process's; None: new, of this one, which `close_file` has to follow.

        Raises:
            OSError: the system refuses it, or cannot seal it (Linux before 5.1), or what another has there is not such
                memory, or shorter.
        """
        if path is not None:
            self.file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # what another says may be a FIFO
        elif hasattr(os, "memfd_create"):
            self.file = os.memfd_create("fedtorch", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        else:
            raise OSError("this system has no memory without a name")
        try:
            self._memory = self._made(size) if path is None else self._found(size)
        except (OSError, ValueError) as error:
            self.close_file()
            raise OSError(f"a segment cannot be mapped: {error}") from None
        self._bytes = np.frombuffer(self._memory, dtype=np.uint8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that torch would let a read-only tensor be written to
            self._whole = torch.from_numpy(self._bytes)

    def _made(self, size: int) -> mmap.mmap:
        os.ftruncate(self.file, size)
        memory = mmap.mmap(self.file, size)
        try:
            fcntl.fcntl(self.file, F_ADD_SEALS, _SEALS)
        except OSError as error:
            memory.close()
            raise OSError(f"it cannot be sealed: {error.strerror}") from None
        return memory

    def _found(self, size: int) -> mmap.mmap:
        try:
            seals = fcntl.fcntl(self.file, F_GET_SEALS)
        except OSError:
            seals = 0
        if seals & _SEALS != _SEALS:
            raise OSError("it is no sealed memory of a rank")
        return mmap.mmap(self.file, size, prot=mmap.PROT_READ)

    def close_file(self) -> None:
        """Nobody else will open it; what is mapped stays."""
        os.close(self.file)

    def whole(self, dtype: torch.dtype) -> Tensor:
        """All of it."""
        return self._whole.view(dtype)

    def start(self, tensor: Tensor) -> int | None:
        """The byte at which a tensor begins; None: it is elsewhere."""
        start = tensor.data_ptr() - self._bytes.ctypes.data
        return start if 0 <= start < len(self._bytes) else None

    def part(self, start: int, like: Tensor) -> Tensor:
        """Tensor that begins at a byte, as long as `like` and of its dtype."""
        return self._whole[start : start + like.nbytes].view(like.dtype)
