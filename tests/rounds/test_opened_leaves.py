"""Leaves that are shown to silos: of one vector those that were asked for, of several what their step needs too."""

from __future__ import annotations

import random

import pytest
import torch

from fedtorch.rounds.opened_leaves import _Opening
from fedtorch.trust.merkle import LEAF

SIZES = (1, 5, LEAF - 1, LEAF, LEAF + 1, 3 * LEAF, 2 * LEAF + 77, 5 * LEAF + 4095)


def opened(vectors: int, each: int, asked: list[int]) -> _Opening:
    names = [str(number) for number in range(vectors)]
    return _Opening({"state": {"tensors": {"m": ""}}}, {"state": {"tensors": {}}}, asked, names, vectors * each, 4)


@pytest.mark.parametrize("vectors", [1, 2, 3])
@pytest.mark.parametrize("each", SIZES)
def test_whatever_is_asked_for_has_all_numbers_of_its_places_and_comes_out_whole(vectors: int, each: int) -> None:
    """Every number is its own place, so that one that is taken for another is seen."""
    flat = torch.arange(vectors * each)
    leaves = range(-(-len(flat) // LEAF))
    draw = random.Random(each)
    for asked in [[0], [leaves[-1]], [*leaves], sorted(draw.sample(leaves, draw.randint(1, len(leaves))))]:
        opening = opened(vectors, each, asked)
        stepped = torch.cat([flat[start:stop] for start, stop in opening._places()]).chunk(vectors)
        for number, vector in enumerate(stepped):
            assert torch.equal(vector, stepped[0] + number * each)  # the same places in each vector
        sums = torch.cat([flat[start:stop] for start, stop in opening.sums.stretches.values()])
        along = [part for start, stop in opening._places() for part in opening.sums.of(sums, start, stop)]
        assert torch.equal(torch.cat(along), torch.cat(stepped))
        for leaf in asked:
            parts = [opening.states.of(stepped[int(name)], *stretch) for name, *stretch in opening._in_vectors(leaf)]
            whole = torch.cat([part for some in parts for part in some])
            assert torch.equal(whole, flat[leaf * LEAF : (leaf + 1) * LEAF])
        assert {*asked} <= {*opening.sums.leaves}
        if vectors == 1:
            assert opening.sums.leaves == opening.states.leaves == asked
