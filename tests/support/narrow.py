"""Windows of fewer numbers, in a rank of its own: vectors of many windows that are still short."""

from __future__ import annotations

import sys
from pathlib import Path

import fedtorch.comm
from fedtorch.comm.transport import windows

USUAL = windows.WINDOW
NARROW = 1 << 16
"""Numbers in a narrow window. Whole pages, as in one of the usual length."""
_COMM = Path(fedtorch.comm.__file__).parent
_MODULES = [
    ".".join(("fedtorch.comm", *path.relative_to(_COMM).with_suffix("").parts)) for path in _COMM.rglob("[a-z]*.py")
]
"""Names, as a rank that went through all of its modules would copy the pages of thousands of them."""


def narrow_windows(numbers: int = NARROW) -> None:
    """In this process windows have so many numbers from now on; what is told in windows of bytes follows."""
    for module in filter(None, map(sys.modules.get, _MODULES)):
        for key, usual, narrow in (
            ("WINDOW", USUAL, numbers),
            ("SLOT_BYTES", 8 * USUAL, 8 * numbers),
            ("WINDOW_BYTES", 8 * USUAL, 8 * numbers),
        ):
            if vars(module).get(key) == usual:
                setattr(module, key, narrow)
    assert windows.WINDOW == numbers
