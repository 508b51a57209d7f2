"""Vectors in slices: every number has one owner, and the owners find the largest numbers together."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_peers import run_threads

from fedtorch.compression import slices as module
from fedtorch.compression.compressors import TopK
from fedtorch.compression.payload import Sparse
from fedtorch.compression.slices import Selection, Slices, cut, largest_of_all, nonzero, overlap, received_to_balance
from fedtorch.core.weights import Layout

# few different numbers, so that there are ties, and zeros of both signs
NUMBERS = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 1e-40, 3e38, float("inf")]) | st.floats(
    width=32, max_value=9
)


@settings(max_examples=60)
@given(st.integers(0, 200), st.integers(1, 9), st.integers(1, 7))
def test_every_number_has_one_owner_and_one_place(size: int, count: int, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        slices = Slices(size, count)
        whole = Sparse(size, torch.arange(size, dtype=torch.int32), torch.arange(size, dtype=torch.float32))
        parts = slices.split(whole)
        assert [part.indices.tolist() for part in parts] == [list(range(slices.length(o))) for o in range(count)]
        owned = [slices.whole(owner, part.indices.numpy()).tolist() for owner, part in enumerate(parts)]
        assert owned == [part.values.tolist() for part in parts]
        assert sorted(itertools.chain(*owned)) == list(range(size))
        assert slices.unlaid(np.arange(size)).tolist() == list(itertools.chain(*owned))
        for owner, places in enumerate(owned):
            assert [slices.before(owner, i) for i in range(size + 1)] == [
                sum(p < i for p in places) for i in range(size + 1)
            ]


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(NUMBERS, max_size=40), min_size=1, max_size=3),
    st.sampled_from([0.05, 0.3, 1.0]),
    st.sampled_from(["tensor", "global"]),
    st.integers(1, 5),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_owners_together_choose_what_one_would(
    tensors: list[list[float]], ratio: float, scope: str, count: int, dtype: torch.dtype
) -> None:
    flat = torch.tensor(list(itertools.chain(*tensors)), dtype=dtype)
    flat = torch.where(flat.isnan(), 0.5, flat)
    layout = Layout(tuple(map(str, range(len(tensors)))), tuple((len(each),) for each in tensors), dtype)
    rule = TopK(ratio=ratio, scope=scope)  # type: ignore[arg-type]
    expected = rule.select(flat, layout)
    expected_indices = expected.indices[expected.values != 0].tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", 2)
        slices = Slices(len(flat), count)
        parts = slices.split(Sparse(len(flat), torch.arange(len(flat), dtype=torch.int32), flat))

        def choose(peers: object) -> list[int]:
            own = peers.rank  # type: ignore[attr-defined]
            found = largest_of_all(parts[own].values, slices, own, rule.kept(layout), peers.add)  # type: ignore[attr-defined]
            assert torch.equal(found.values, parts[own].values[found.indices.long()])
            return slices.whole(own, found.indices.numpy()).tolist()

        found = run_threads(tuple(range(count)), {}, choose)
    assert sorted(itertools.chain(*found)) == expected_indices


def test_all_that_are_to_be_kept_are_however_small() -> None:
    """The first digits of subnormal numbers are 0."""
    own = torch.tensor([1e-40, 0.0, -1.0, 1e-45])
    for count, expected in ((4, [0, 2, 3]), (3, [0, 2, 3]), (2, [0, 2]), (1, [2])):
        found = largest_of_all(own, Slices(4, 1), 0, Selection((0,), (count,), torch.float32), lambda counts: counts)
        assert found.indices.tolist() == expected


def test_a_vector_with_nan_is_refused_by_all_owners() -> None:
    def choose(peers: object) -> str:
        own = torch.tensor([1.0, float("nan") if peers.rank == 1 else 2.0])  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match="NaN has no largest"):
            largest_of_all(own, Slices(4, 2), peers.rank, Selection((0,), (1,), torch.float32), peers.add)  # type: ignore[attr-defined]
        return "refused"

    assert run_threads((0, 1), {}, choose) == ["refused"] * 2


def test_large_numbers_that_lie_together_are_shared_by_all_owners() -> None:
    vector = torch.zeros(10_000)
    vector[3000:3640] = 1.0  # a few rows of an embedding
    assert [part.indices.numel() for part in Slices(10_000, 4).split(nonzero(vector))] == [160, 160, 160, 160]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8))
def test_stretches_are_equal_and_what_balancing_receives_is_what_is_not_there_yet(counts: list[int]) -> None:
    wanted = list(cut(sum(counts), len(counts)))
    assert [place for start, stop in wanted for place in range(start, stop)] == list(range(sum(counts)))
    width = -(-sum(counts) // len(counts))
    assert all(stop - start <= width for start, stop in wanted)
    held = list(itertools.pairwise([0, *itertools.accumulate(counts)]))
    missing = []
    for have, want in zip(held, wanted, strict=True):
        both = overlap(have, want)
        assert set(range(*both)) == set(range(*have)) & set(range(*want))
        missing.append(len(set(range(*want)) - set(range(*have))))
    assert received_to_balance(counts) == max(missing) <= width
