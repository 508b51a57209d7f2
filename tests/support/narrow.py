"""Windows of fewer numbers, in a rank of its own: vectors of many windows that are still short."""

from __future__ import annotations

import sys

from fedtorch.comm.transport import windows

USUAL = windows.WINDOW
NARROW = 1 << 16
"""Numbers in a narrow window. Whole pages, as in one of the usual length."""


def narrow_windows(numbers: int = NARROW) -> None:
    """In this process windows have so many numbers from now on; what is told in windows of bytes follows."""
    for name, module in list(sys.modules.items()):
        if name.startswith("fedtorch.comm."):
            for key, usual, narrow in (
                ("WINDOW", USUAL, numbers),
                ("SLOT_BYTES", 8 * USUAL, 8 * numbers),
                ("WINDOW_BYTES", 8 * USUAL, 8 * numbers),
            ):
                if getattr(module, key, None) == usual:
                    setattr(module, key, narrow)
    assert windows.WINDOW == numbers
