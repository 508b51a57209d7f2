"""One digest for a vector, of which parts can be shown later: the root of a tree of hashes over its leaves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

LEAF = 4096
"""Numbers in a leaf; the last one may have fewer."""


def root(values: npt.NDArray[np.generic], leaf: int = LEAF) -> bytes:
    """sha256, 32 bytes. values: flat, of any dtype; as little-endian bytes.

    A leaf is sha256(0x00 ‖ its bytes), a node sha256(0x01 ‖ left ‖ right); an odd one is carried up unchanged. Of no
    numbers it is the leaf of no bytes.
    """
    return root_of(leaves(values, leaf))


def root_of(hashes: Iterable[bytes]) -> bytes:
    """The root over these hashes of leaves, of which there is at least one."""
    level = list(hashes)
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [hashlib.sha256(b"\x01" + left + right).digest() for left, right in pairs] + level[len(level) & ~1 :]
    return level[0]


def leaves(values: npt.NDArray[np.generic], leaf: int = LEAF) -> Iterator[bytes]:
    """The hash of each leaf, in order."""
    content = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"), copy=False)).view(np.uint8)
    size = leaf * values.dtype.itemsize
    for start in range(0, max(1, len(content)), size):
        digest = hashlib.sha256(b"\x00")
        digest.update(content[start : start + size].data)
        yield digest.digest()
