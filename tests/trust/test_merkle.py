"""The root of a vector: the specification's figure, and another one for anything that is changed."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from fedtorch.trust.merkle import (
    LEAF,
    PassingLeaves,
    leaves,
    levels,
    path,
    path_length,
    root,
    root_along,
    root_of,
    vector_leaves,
)

SUM = np.array([4, 18, (1 << 40) - 27, -(1 << 40) + 44, 46], np.int64)


def test_the_example_of_the_specification() -> None:
    """Three silos' whole numbers, in leaves of two."""
    parts = [[1, -2, 3, 4, -5], [10, 20, -30, 40, 50], [-7, 0, 1 << 40, -(1 << 40), 1]]
    assert np.array_equal(np.sum(np.array(parts, np.int64), axis=0), SUM)
    assert root(SUM, 2).hex() == "19f7b57ae16a77b87ca2bbfe50698c4e5060d23feb618c1a07e95afb7cd525be"


def test_an_odd_node_is_carried_up() -> None:
    one, two, three = leaves(np.arange(3, dtype=np.float32), 1)
    pair = hashlib.sha256(b"\x01" + one + two).digest()
    assert root(np.arange(3, dtype=np.float32), 1) == hashlib.sha256(b"\x01" + pair + three).digest()
    assert root(np.zeros(0, np.float32)) == hashlib.sha256(b"\x00").digest()
    assert root(np.zeros(1, np.float32)) == hashlib.sha256(b"\x00" + bytes(4)).digest()


@pytest.mark.parametrize("size", [1, LEAF - 1, LEAF, LEAF + 1, 3 * LEAF, 5 * LEAF + 7])
def test_any_change_is_another_root(size: int) -> None:
    values = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    found = root(values)
    assert root(values.astype(">f4")) == found and root(values[::-1][::-1]) == found
    for place in {0, size // 2, size - 1}:
        other = values.copy()
        other.view(np.uint8)[4 * place] ^= 1
        assert root(other) != found
    assert root(np.append(values, np.float32(0))) != found and root(values[:-1]) != found


def test_minus_zero_is_not_zero() -> None:
    assert root(np.array([0.0], np.float32)) != root(np.array([-0.0], np.float32))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7, 8, 11, 16, 33])
def test_every_leaf_can_be_shown_alone_and_no_other_in_its_place(count: int) -> None:
    hashes = list(leaves(np.arange(count, dtype=np.int64), leaf=1))
    tree = levels(hashes)
    assert root_of(hashes) == tree[-1][0] == root(np.arange(count, dtype=np.int64), leaf=1)
    for place, found in enumerate(hashes):
        nodes = path(tree, place)
        assert len(nodes) == path_length(place, count)
        assert root_along(found, place, count, nodes) == tree[-1][0]
        assert root_along(bytes(32), place, count, nodes) != tree[-1][0]
        for other in {*range(count)} - {place}:
            if path_length(other, count) == len(nodes):
                assert root_along(found, other, count, nodes) != tree[-1][0]


@pytest.mark.parametrize("size", [1, LEAF - 1, 2 * LEAF, 5 * LEAF + 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_a_vector_that_comes_piece_by_piece_has_the_same_leaves(size: int, dtype: torch.dtype) -> None:
    here = torch.arange(size).to(dtype)
    for piece in (1000, LEAF, 2 * LEAF + 1, size):
        coming = torch.zeros_like(here)
        passing = PassingLeaves(coming)
        for stop in [*range(piece, size, piece), size]:
            coming[:stop] = here[:stop]  # what is behind it has not come yet
            assert not passing.are_all
            passing.up_to(stop)
            assert len(passing.hashes) == (-(-size // LEAF) if stop == size else stop // LEAF)
        passing.up_to(size)
        assert passing.are_all and passing.hashes == list(vector_leaves(here))
