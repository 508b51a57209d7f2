"""One digest for a vector, of which parts can be shown later: the root of a tree of hashes over its leaves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

LEAF = 4096
"""Numbers in a leaf; the last one may have fewer."""


def leaves_in(size: int) -> int:
    """How many leaves a vector of so many numbers has; none, where it has no numbers."""
    return -(-size // LEAF)


def root(values: npt.NDArray[np.generic], leaf: int = LEAF) -> bytes:
    """sha256, 32 bytes. values: flat, of any dtype; as little-endian bytes.

    A leaf is sha256(0x00 ‖ its bytes), a node sha256(0x01 ‖ left ‖ right); an odd one is carried up unchanged. Of no
    numbers it is the leaf of no bytes.
    """
    return root_of(leaves(values, leaf))


def root_of(hashes: Iterable[bytes]) -> bytes:
    """The root over these hashes of leaves, of which there is at least one."""
    return levels(hashes)[-1][0]


def levels(hashes: Iterable[bytes]) -> list[list[bytes]]:
    """The whole tree over these leaves: they come first, the root last."""
    found = [list(hashes)]
    while len(level := found[-1]) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        found.append([_node(left, right) for left, right in pairs] + level[len(level) & ~1 :])
    return found


def path(tree: Sequence[Sequence[bytes]], leaf: int) -> list[bytes]:
    """Nodes beside the way from a leaf to the root, from below; of an odd one that is carried up there is none."""
    return [level[leaf >> height ^ 1] for height, level in enumerate(tree[:-1]) if leaf >> height ^ 1 < len(level)]


def path_length(leaf: int, count: int) -> int:
    """How many nodes `path` gives for a leaf of so many."""
    return sum(here ^ 1 < width for here, width in _way(leaf, count))


def root_along(leaf_hash: bytes, leaf: int, count: int, nodes: Sequence[bytes]) -> bytes:
    """The root that a leaf and its path lead to. leaf: its number among `count`."""
    found, above = leaf_hash, iter(nodes)
    for here, width in _way(leaf, count):
        if here ^ 1 < width:
            node = next(above)
            found = _node(node, found) if here & 1 else _node(found, node)
    return found


def _way(leaf: int, count: int) -> Iterator[tuple[int, int]]:
    """(place, how many there are) on each level below the root."""
    while count > 1:
        yield leaf, count
        leaf, count = leaf >> 1, count + 1 >> 1


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def vector_root(vector: Tensor, leaf: int = LEAF) -> str:
    """The root of a flat tensor of any dtype on the CPU, hexadecimal."""
    return root_of(vector_leaves(vector, leaf)).hex()


def vector_leaves(vector: Tensor, leaf: int = LEAF) -> Iterator[bytes]:
    """The hash of each of its leaves, in order; numpy has not all dtypes that it may have."""
    return leaves(vector.detach().contiguous().view(-1).view(torch.uint8).numpy(), leaf * vector.itemsize)


class PassingLeaves:
    """Hashes the leaves of a vector while it comes."""

    def __init__(self, vector: Tensor) -> None:
        """vector: flat, on the CPU; written from its start to its end."""
        self._vector, self.hashes = vector, list[bytes]()

    def up_to(self, stop: int) -> None:
        """Hash what is whole once `stop` numbers are there; the last leaf may have fewer than others."""
        size, start = len(self._vector), len(self.hashes) * LEAF
        whole = size if stop >= size else stop // LEAF * LEAF
        if whole > start:
            self.hashes += vector_leaves(self._vector[start:whole])

    @property
    def are_all(self) -> bool:
        """Is the vector hashed to its end, and not empty?"""
        return bool(self.hashes) and len(self.hashes) * LEAF >= len(self._vector)


def leaves(values: npt.NDArray[np.generic], leaf: int = LEAF) -> Iterator[bytes]:
    """The hash of each leaf, in order."""
    content = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"), copy=False)).view(np.uint8).data
    size = leaf * values.dtype.itemsize
    for start in range(0, max(1, len(content)), size):
        digest = hashlib.sha256(b"\x00")
        digest.update(content[start : start + size])
        yield digest.digest()
