"""Freed memory that the C library keeps for the process, where it would give it back to the system."""

from __future__ import annotations

import ctypes
import logging

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's <malloc.h>
_MALLOPT = "mallopt"

log = logging.getLogger("fedtorch")


def keep_freed(megabytes: int) -> None:
    """From now on, until the process ends, keep up to so many MiB of freed memory. 0: leave the C library its own rule.

    By its own rule glibc gives a block above 32 MiB back as soon as it is freed, and smaller ones once enough of them
    are free together. Training frees in every step what it takes again in the next, and the system maps and clears all
    its pages anew. No number changes. Where the C library has no `mallopt` (not glibc), a warning, and nothing is kept.
    """
    if not megabytes:
        return
    option = getattr(ctypes.CDLL(None), _MALLOPT, None)
    if option is None or not all(option(name, megabytes << 20) for name in (_MMAP_THRESHOLD, _TRIM_THRESHOLD)):
        log.warning("system.keep_freed_mb is %d, but this C library cannot be told what to keep; ignored", megabytes)
