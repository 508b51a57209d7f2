"""The integer sum: right to far below fp32, and the same bits in any order and grouping."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction

import pytest
import torch
from fuzzing import examples
from hypothesis import example, given
from hypothesis import strategies as st

from fedtorch.comm.sums.device_sum import DeviceAccumulator
from fedtorch.comm.sums.reproducible import CHUNK, PIECE, Accumulator, RunningSum, SumScale
from fedtorch.comm.transport.digests import WindowDigest, window_digest
from fedtorch.comm.transport.windows import slice_of, windows
from fedtorch.core.kept_vectors import KeptVectors

numbers32 = st.floats(width=32, min_value=-(2.0**99), max_value=2.0**99)
weights64 = st.floats(min_value=-4.0, max_value=4.0)
clients = st.lists(st.tuples(weights64, st.lists(numbers32, min_size=3, max_size=3)), min_size=1, max_size=8)


def scale_of(weights: list[float], grads: list[torch.Tensor]) -> SumScale:
    return SumScale.of(weights, [float(grad.abs().max()) for grad in grads])


def summed(scale: SumScale, groups: list[list[tuple[float, torch.Tensor]]], dtype: torch.dtype) -> torch.Tensor:
    """Each group in an accumulator of its own, as on a rank of its own; then the accumulators' sum."""
    size = groups[0][0][1].numel()
    total = Accumulator(size, dtype)
    total.reset(scale)
    for group in groups:
        accumulator = Accumulator(size, dtype)
        accumulator.reset(scale)
        for weight, grad in group:
            accumulator.add(grad, weight)
        total.partial(size).add_(accumulator.partial(size))
    return total.result(torch.empty(size, dtype=dtype))


@given(clients, st.randoms(use_true_random=False))
def test_any_order_and_grouping_give_the_same_bits(clients: list[tuple[float, list[float]]], random: object) -> None:
    terms = [(weight, torch.tensor(values)) for weight, values in clients]
    scale = scale_of([weight for weight, _ in terms], [grad for _, grad in terms])
    expected = summed(scale, [terms], torch.float32)
    random.shuffle(terms)  # type: ignore[attr-defined]
    cut = random.randint(0, len(terms) - 1)  # type: ignore[attr-defined]
    groups = [terms[:cut], terms[cut:]] if cut else [[term] for term in terms]
    assert torch.equal(summed(scale, groups, torch.float32), expected)


@examples(100)
@given(clients)
def test_the_error_is_far_below_a_rounding_of_fp32(clients: list[tuple[float, list[float]]]) -> None:
    weights = [weight for weight, _ in clients]
    grads = [torch.tensor(values, dtype=torch.float64) for _, values in clients]
    scale = scale_of(weights, grads)
    found = summed(scale, [list(zip(weights, grads, strict=True))], torch.float64)
    bound = sum(Fraction(abs(w)) * Fraction(float(g.abs().max())) for w, g in zip(weights, grads, strict=True))
    for place in range(3):
        exact = sum(Fraction(w) * Fraction(float(g[place])) for w, g in zip(weights, grads, strict=True))
        error = abs(Fraction(float(found[place])) - exact)
        # half a unit of 2^-52 of at most twice the bound per client, and one rounding of each product to float64
        assert error <= bound * Fraction(3 * len(clients) + 4, 1 << 53) + Fraction(1, 1 << 900)


def test_results_in_fp32_are_the_rounded_exact_sum() -> None:
    torch.manual_seed(0)
    grads = [torch.randn(1000) for _ in range(5)]
    weights = (torch.rand(5, dtype=torch.float64) - 0.3).tolist()  # with 0.1, 0.2 ... one sum in ten is almost a tie
    exact = [math.fsum(w * float(g[k]) for w, g in zip(weights, grads, strict=True)) for k in range(1000)]
    found = summed(scale_of(weights, grads), [list(zip(weights, grads, strict=True))], torch.float32)
    assert torch.equal(found, torch.tensor(exact, dtype=torch.float64).float())


@given(clients)
@example([(5e-324, [0.0, 0.0, 0.5])])  # a product too small for float64
def test_the_integer_sum_never_reaches_two_to_the_53(clients: list[tuple[float, list[float]]]) -> None:
    weights = [weight for weight, _ in clients]
    tops = [max(map(abs, values)) for _, values in clients]
    scale = SumScale.of(weights, tops)
    worst = sum(abs(round(Fraction(scale.scaled(w)) * Fraction(top))) for w, top in zip(weights, tops, strict=True))
    assert worst < 1 << 53
    if any(w and top for w, top in zip(weights, tops, strict=True)) and scale.exponent < 900:
        assert worst >= 1 << 49  # nor is it coarser than it must be


@pytest.mark.parametrize("weights", ["equal", "unequal", "with both signs"])
def test_the_sum_of_a_thousand_clients_is_that_of_their_whole_numbers(weights: str) -> None:
    torch.manual_seed(2)
    shares = {
        "equal": torch.full((1000,), 1 / 1000, dtype=torch.float64),
        "unequal": torch.rand(1000, dtype=torch.float64) ** 8,
        "with both signs": torch.randn(1000, dtype=torch.float64),
    }[weights].tolist()
    # every client's largest element at once, so that the sum comes as near to its bound as it can; and others
    grads = [torch.cat([torch.tensor([1.0, -1.0]) * 3.7, torch.randn(5).clamp(-3.7, 3.7)]) for _ in shares]
    scale = scale_of(shares, grads)
    expected = [0] * 7
    for share, grad in zip(shares, grads, strict=True):
        factor = scale.scaled(share)
        expected = [total + round(factor * x) for total, x in zip(expected, grad.tolist(), strict=True)]
    terms = list(zip(shares, grads, strict=True))
    for groups in ([terms], [terms[::2], terms[1::2]], [[term] for term in reversed(terms)]):
        totals = [Accumulator(7) for _ in groups]
        for accumulator, group in zip(totals, groups, strict=True):
            accumulator.reset(scale)
            for weight, grad in group:
                accumulator.add(grad, weight)
        for other in totals[1:]:
            totals[0].add_sum(other.partial(7))
        assert totals[0].partial(7).tolist() == expected
    if weights != "with both signs":
        assert 1 << 51 <= max(expected) < 1 << 53


def test_a_zero_has_one_sign_whoever_adds_it() -> None:
    scale = SumScale.of([1.0], [1.0])
    tiny = torch.tensor([-0.0, -1e-30, 0.0, 1e-30])
    for groups in ([[tiny]], [[tiny], []], [[tiny, tiny]], [[], [tiny], [tiny]]):
        found = summed(scale, [[(1.0, grad) for grad in group] for group in [[tiny * 0.0], *groups]], torch.float32)
        alone = summed(scale, [[(1.0, grad) for grad in group] for group in groups if group], torch.float32)
        assert found.signbit().tolist() == alone.signbit().tolist() == [False] * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_sum_beyond_the_range_of_the_dtype_is_infinite_without_a_warning(dtype: torch.dtype) -> None:
    grad = torch.tensor([3e38, -3e38, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = summed(SumScale.of([4.0], [3e38]), [[(4.0, grad.to(dtype))]], dtype)
    expected = [math.inf, -math.inf, 4.0] if dtype == torch.float32 else [4 * grad[0].item(), -4 * grad[0].item(), 4.0]
    assert found[:2].tolist() == expected[:2] and abs(found[2].item() - 4.0) <= 4 * 3e38 * 2.0**-51


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3])
def test_chunks_do_not_show(size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    grads = [torch.randn(size, dtype=dtype) for _ in range(3)]
    weights = [0.5, 0.25, 0.125]  # exact in float64, so that the expected sum is too
    accumulator = Accumulator(size, dtype)
    accumulator.reset(SumScale.of(weights, [8.0] * 3))
    for grad, weight in zip(grads, weights, strict=True):
        accumulator.add(grad, weight)
    found = accumulator.result(torch.empty(size, dtype=dtype))
    expected = sum(w * g.double() for w, g in zip(weights, grads, strict=True))
    # half a unit per client, of 2^-52 of the 8 that the sum stays below
    tolerance = 1.5 * 8 * 2.0**-52 if dtype == torch.float64 else 2.0**-24 * 8
    assert torch.allclose(found.double(), expected, rtol=0, atol=tolerance)


def test_nothing_but_zeros_gives_zeros() -> None:
    scale = SumScale.of([0.5, 0.0, 0.5], [0.0, 3.0, 0.0])
    accumulator = Accumulator(4)
    accumulator.total.fill_(7)
    accumulator.reset(scale)
    assert torch.equal(accumulator.result(torch.ones(4)), torch.zeros(4))
    accumulator.add(torch.zeros(4), 0.5)
    assert torch.equal(accumulator.result(torch.ones(4)), torch.zeros(4))


@pytest.mark.parametrize(("weights", "max_abs"), [([], []), ([0.5, 0.0], [0.0, 3.0]), ([0.0], [0.0])])
def test_a_sum_of_nothing_has_the_scale_of_one(weights: list[float], max_abs: list[float]) -> None:
    assert SumScale.of(weights, max_abs) == SumScale(0)


def test_a_sum_of_nearly_one_is_as_fine_as_any() -> None:
    just_below = 1 / (1 + 2**-40)  # so that the bound, a little more than the sum, is 1 and below 2
    assert just_below * (1 + 2**-40) == 1
    assert SumScale.of([1.0], [just_below]) == SumScale.of([1.0], [1.0]) == SumScale(51)


def test_an_accumulator_is_used_again_and_for_shorter_vectors() -> None:
    accumulator = Accumulator(5)
    for length in (5, 2, 3):
        accumulator.reset(SumScale.of([2.0], [3.0]))
        accumulator.add(torch.full((length,), 3.0), 2.0)
        assert accumulator.result(torch.empty(length)).tolist() == [6.0] * length


@pytest.mark.parametrize(
    ("weights", "max_abs"),
    [
        ([math.nan], [1.0]),
        ([math.inf], [1.0]),
        ([1.0], [math.inf]),
        ([1.0], [math.nan]),
        ([1.0], [-1.0]),
        ([1e200], [1e200]),
        ([1e299], [10.0]),
        ([1e308, 1e308], [1.0, 1.0]),
    ],
)
def test_a_scale_without_a_bound_is_refused(weights: list[float], max_abs: list[float]) -> None:
    with pytest.raises(ValueError, match="weighted sum"):
        SumScale.of(weights, max_abs)


@pytest.mark.parametrize("top", [5e-324, 1e-310, 1e-45, 1e-30, 1.0, 1e30, 1e299])
@pytest.mark.parametrize("weight", [1e-12, 1.0, 1e6])
def test_extreme_magnitudes_stay_finite_and_right(top: float, weight: float) -> None:
    if top * weight > 1e299:
        pytest.skip("refused, see above")
    grad = torch.tensor([top, -top, 0.0], dtype=torch.float64)
    found = summed(SumScale.of([weight], [top]), [[(weight, grad)]], torch.float64)
    # below 1e-280 the scale ends at 2^1000, so up to half of 2^-1000 (1e-301) is lost
    assert torch.allclose(found, grad * weight, rtol=1e-15, atol=1e-300)


@pytest.mark.parametrize("grad", [torch.zeros(4), torch.zeros(3, dtype=torch.float64), torch.zeros(1, 3)])
def test_vectors_that_do_not_fit_are_refused(grad: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="an accumulator of 3"):
        Accumulator(3).add(grad, 1.0)


def test_windows_cover_a_vector_once() -> None:
    assert list(windows(0)) == []
    for size in (1, 1 << 20, (1 << 20) + 1, 3_000_000):
        places = [place for start, stop in windows(size) for place in (start, stop)]
        assert places[0] == 0 and places[-1] == size and places[1:-1:2] == places[2:-1:2]


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [0, 1, 6, 7, 8, 1000, 274_489])
def test_slices_cover_a_vector_and_are_as_equal_as_can_be(size: int, ranks: int) -> None:
    slices = [slice_of(size, ranks, place) for place in range(ranks)]
    assert slices[0][0] == 0 and slices[-1][1] == size
    assert all(before[1] == after[0] for before, after in zip(slices, slices[1:], strict=False))
    lengths = [stop - start for start, stop in slices]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("size", [1, 1000, PIECE, 2 * PIECE + 17])
def test_windows_that_come_in_any_order_give_the_bits_of_one_sum(size: int) -> None:
    updates = [torch.randn(size, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    weights, scale = [0.3, -0.7, 2.0], SumScale(30, divisor=1.6)
    whole, running = Accumulator(size), RunningSum(size, scale, KeptVectors())
    whole.reset(scale)
    for update, weight in zip(updates, weights, strict=True):
        whole.add(update, weight)
    expected = whole.result(torch.empty(size))
    cut = size // 3
    for part in (slice(cut, size), slice(0, cut)):
        both = Accumulator(part.stop - part.start)
        both.reset(scale)
        for update, weight in zip(updates[:2], weights[:2], strict=True):
            both.add(update[part], weight)
        of_an_update, of_sums = (updates[2][part], weights[2]), (both.partial(part.stop - part.start), None)
        for window, own in (of_an_update, of_sums) if part.start else (of_sums, of_an_update):
            running.add(part.start, window, own)
    out = torch.full((size,), 7.0)
    squares = running.write(out, scale)
    assert torch.equal(out, expected)
    assert squares == pytest.approx(whole.squares, rel=1e-12)
    again = torch.full((size,), 7.0)
    assert running.write(again, scale) == squares and torch.equal(again, expected)


def test_a_vector_is_shown_to_whoever_asks_also_where_others_wait() -> None:
    first, second = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-4.0, 0.5, 2.0])
    accumulator, passing = Accumulator(3), WindowDigest(3, torch.float32)
    accumulator.reset(SumScale(4))
    accumulator.add(first, 0.5)  # waits
    accumulator.add(second, 2.0, incoming=passing)
    assert passing.digest == window_digest(second) != window_digest(first)
    assert passing.squares == sum((2.0 * x * 16) ** 2 for x in second.tolist())  # of the whole numbers it stands for
    assert accumulator.result(torch.empty(3)).tolist() == [-7.5, 2.0, 5.5]


@given(clients)
@example([(0.5, [-1.0, 1.0, 0.0]), (0.5, [1.0, 1.0, -0.0])])
def test_a_sum_of_whole_tensors_as_on_a_device_has_the_same_bits(terms: list[tuple[float, list[float]]]) -> None:
    weighted = [(weight, torch.tensor(values)) for weight, values in terms]
    scale = scale_of([weight for weight, _ in weighted], [grad for _, grad in weighted])
    there, here = DeviceAccumulator(4, torch.float32, torch.device("cpu")), Accumulator(4)
    for dtype in (torch.float32, torch.float64):
        for accumulator in (there, here):
            accumulator.reset(scale)
            for weight, grad in weighted:
                accumulator.add(grad, weight)
        assert there.partial(3).add(0.0).equal(here.partial(3).add(0.0))
        found, expected = there.result(torch.empty(3, dtype=dtype)), here.result(torch.empty(3, dtype=dtype))
        assert found.view(torch.uint8).equal(expected.view(torch.uint8))
    assert there.squares == pytest.approx(here.squares, rel=1e-12)
