"""Tags of a sum's terms add up to the tag of the sum, and to nothing else's."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from fedtorch.core import kernels
from fedtorch.core.kernels import library, tag_sums
from fedtorch.core.prime import P, added, negative, reduced
from fedtorch.trust.merkle import LEAF
from fedtorch.trust.tags import LARGEST, TagKey, drawn_leaves, words

pytest.importorskip("cryptography")

KEY = hashlib.sha256(b"fedtorch").digest()
PARTS = [[1, -2, 3, 4, -5], [10, 20, -30, 40, 50], [-7, 0, 1 << 40, -(1 << 40), 1]]


def whole(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


@pytest.fixture(params=["C", "numpy"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setattr(kernels, "library", lambda: None)
    elif library() is None:
        pytest.skip("the loops in C were not built")


def test_the_example_of_the_specification(loops: None) -> None:
    factors = words(KEY, 5)
    assert reduced(factors)[:3].tolist() == [1750640996001762595, 776247287727002156, 1513345190546625729]
    tags = [tag_sums(whole(*part), factors).item() for part in PARTS]
    assert tags == [28187854337919074, 457209878018178410, 479224357149178130]
    total = whole(*map(sum, zip(*PARTS, strict=True)))
    assert sum(tags) % P == tag_sums(total, factors).item() == 964622089505275614
    total[1] += 1
    assert tag_sums(total, factors).item() == 1740869377232277770


def test_the_loops_come_to_what_whole_numbers_of_python_do(loops: None) -> None:
    drawn = np.random.default_rng(0)
    numbers = drawn.integers(-LARGEST + 1, LARGEST, LEAF)
    numbers[:4] = LARGEST - 1, 1 - LARGEST, 0, -1
    factors = drawn.integers(0, 1 << 64, LEAF, dtype=np.uint64)
    factors[:5] = (1 << 64) - 1, P, P - 1, 0, P
    expected = sum(int(k) * (int(g) & P) for k, g in zip(numbers, factors, strict=True)) % P
    assert tag_sums(numbers, factors).tolist() == [expected]
    largest, factors = np.full(LEAF, LARGEST - 1), np.full(LEAF, P - 1, np.uint64)
    assert tag_sums(largest, factors).tolist() == [-LEAF * (LARGEST - 1) % P]
    assert tag_sums(-largest, factors).tolist() == [LEAF * (LARGEST - 1) % P]


def test_many_leaves_at_once_have_the_tags_of_each(loops: None) -> None:
    drawn = np.random.default_rng(0)
    numbers = drawn.integers(-LARGEST + 1, LARGEST, 3 * LEAF + 5)
    factors = drawn.integers(0, 1 << 64, len(numbers), dtype=np.uint64)
    apart = [tag_sums(numbers[at : at + LEAF], factors[at : at + LEAF]).item() for at in range(0, len(numbers), LEAF)]
    assert tag_sums(numbers, factors, LEAF).tolist() == apart
    assert tag_sums(numbers[:0], factors[:0]).tolist() == []
    with pytest.raises(ValueError, match="at most 4096"):
        tag_sums(numbers, factors, LEAF + 1)


@pytest.mark.parametrize("size", [1, LEAF - 1, LEAF, 2 * LEAF + 3])
def test_tags_with_pads_add_up(size: int) -> None:
    key, drawn = TagKey(KEY, "an exchange"), np.random.default_rng(1)
    parts = {name: drawn.integers(-(1 << 50), 1 << 50, size) for name in ("north", "south", "west")}
    leaves = -(-size // LEAF)
    sent = [added([key.tags(part), key.pads(name, leaves)], leaves) for name, part in parts.items()]
    opened = added([*sent, *(negative(key.pads(name, leaves)) for name in parts)], leaves)
    assert opened.tolist() == key.tags(sum(parts.values())).tolist()
    assert len({int(tag) for part in sent for tag in part}) == 3 * leaves


def test_another_exchange_party_or_leaf_has_other_words() -> None:
    numbers = np.arange(1, LEAF + 1)
    one, other = TagKey(KEY, "one"), TagKey(KEY, "other")
    assert one.tags(numbers) != other.tags(numbers) and one.tags(numbers) != one.tags(numbers, first=1)
    assert one.tags(numbers, first=1).tolist() == one.tags(np.concatenate([numbers, numbers]))[1:].tolist()
    assert one.pads("north", 1) != one.pads("south", 1) and one.pads("north", 1) != other.pads("north", 1)


@pytest.mark.parametrize("number", [LARGEST, -LARGEST, P, np.iinfo(np.int64).min])
def test_a_number_that_has_the_tag_of_another_one_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="could not be told from others by its tag"):
        TagKey(KEY, "one").tags(whole(0, number))


def test_what_is_negative_adds_up_to_nothing() -> None:
    some = np.array([0, 1, P - 1], np.uint64)
    assert added([some, negative(some)], 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize(("false", "rate"), [(1, 0.05), (10, 0.401), (100, 0.994)])
def test_false_leaves_are_asked_for_at_the_rate_of_the_formula(false: int, rate: float) -> None:
    """400 rounds of a vector of 200 leaves, and the 99.99 % interval of the binomial distribution."""
    rounds = 400
    found = sum(min(drawn_leaves(KEY, f"record {r}", 200, 0.05)) < false for r in range(rounds))
    assert 1 - 0.95**false == pytest.approx(rate, abs=0.001)
    assert abs(found - rounds * rate) <= 3.9 * (rounds * rate * (1 - rate)) ** 0.5


def test_one_leaf_at_least_is_asked_for_and_the_same_by_all() -> None:
    for number in range(50):
        asked = drawn_leaves(KEY, f"record {number}", 3, 1e-9)
        assert len(asked) == 1 and 0 <= asked[0] < 3
        assert asked == drawn_leaves(KEY, f"record {number}", 3, 1e-9)
    assert len({drawn_leaves(KEY, f"record {number}", 3, 1e-9)[0] for number in range(50)}) == 3
    assert drawn_leaves(KEY, "record 0", 200, 0.5) != drawn_leaves(bytes(32), "record 0", 200, 0.5)
