"""The robust rules: numbers to be redone by hand, limits, breakdown points from both sides, and bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedtorch.algorithms.robust import RULES
from fedtorch.algorithms.robust.base import kept_counts, rule_of
from fedtorch.algorithms.robust.products import inner_products
from fedtorch.comm.local import LocalUpdates
from fedtorch.core.errors import QuorumError, RefusedUpdatesError
from fedtorch.core.norms import norm_and_max
from fedtorch.core.seeds import generator_for
from fedtorch.core.update import Report, UpdateBuffer


def updates_of(rows: Sequence[Sequence[float]] | Tensor, dtype: torch.dtype = torch.float64) -> LocalUpdates:
    """One client per row, in this process."""
    values = torch.as_tensor(rows, dtype=dtype)
    local = UpdateBuffer(values.shape[1], dtype, Path("unused"), memory_bytes=1 << 30)
    reports = []
    for place, row in enumerate(values):
        local.put(f"c{place}", row)
        norm, max_abs = norm_and_max(row.contiguous())
        reports.append(Report(f"c{place}", norm=norm, max_abs=max_abs))
    return LocalUpdates(reports, local)


def combined(rule: str, rows: Any, weights: Sequence[float] | None = None, **fields: Any) -> Tensor:
    """What a rule makes of rows, weighted alike unless said otherwise."""
    updates = updates_of(rows)
    return rule_of({"name": rule, **fields}).combine(updates, weights or [1 / len(rows)] * len(rows))


def drawn(count: int, size: int = 50) -> Tensor:
    return torch.randn(count, size, generator=generator_for(0, "robust"), dtype=torch.float64)


def test_the_median_of_four_is_the_mean_of_the_middle_two() -> None:
    assert combined("median", [[1.0], [2.0], [3.0], [1000.0]]).tolist() == [2.5]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([0.1, 0.1, 0.7, 0.1], 3.0),  # has more than half by itself
        ([0.2, 0.3, 0.4, 0.1], 2.5),  # 1 and 2 are half of all exactly
        ([0.2, 0.31, 0.39, 0.1], 2.0),
        ([0.0, 0.2, 0.2, 0.6], 1000.0),  # the liar is most of the data
    ],
)
def test_the_median_goes_by_weight(weights: list[float], expected: float) -> None:
    assert combined("median", [[1.0], [2.0], [3.0], [1000.0]], weights).tolist() == [expected]


def test_sizes_that_halve_the_weight_halve_it_as_shares_that_are_rounded() -> None:
    """1 + 1 + 1 of 6 is a half, but three times 1/6 as it is rounded is not: the mean of 3 and 10, not 3."""
    for sizes, values, expected in (
        ([1, 1, 1, 3], [1.0, 2.0, 3.0, 10.0], 6.5),
        ([3, 1, 1, 1], [1.0, 2.0, 3.0, 10.0], 1.5),
        ([1] * 7 + [7], [*map(float, range(7)), 20.0], 13.0),
        ([5, 5, 5, 10, 25], [1.0, 2.0, 3.0, 4.0, 10.0], 7.0),
    ):
        weights = [size / sum(sizes) for size in sizes]
        assert combined("median", [[value] for value in values], weights).tolist() == [expected]


@pytest.mark.parametrize("count", [1, 2, 5, 6, 11])
def test_the_median_of_equal_clients_is_that_of_numpy(count: int) -> None:
    rows = drawn(count)
    assert combined("median", rows).numpy().tolist() == np.median(rows.numpy(), axis=0).tolist()


def test_the_trimmed_mean_by_hand() -> None:
    """0.1 of 0.2 of the weight is off at either end, the second client is whole."""
    found = combined("trimmed_mean", [[0.0], [10.0], [1000.0]], [0.2, 0.6, 0.2], trim=0.1)
    assert found.item() == pytest.approx((0.1 * 0 + 0.6 * 10 + 0.1 * 1000) / 0.8, rel=1e-9)
    assert combined("trimmed_mean", [[0.0], [10.0], [1000.0]], [0.2, 0.6, 0.2], trim=0.2).item() == 10.0
    updates = updates_of(torch.tensor([[0.0], [10.0], [1000.0]]))
    rule_of({"name": "trimmed_mean", "trim": 0.1}).combine(updates, [0.2, 0.6, 0.2])
    assert [updates.kept[f"c{place}"] for place in range(3)] == pytest.approx([0.5, 1.0, 0.5], rel=1e-9)


def test_krum_takes_the_row_with_the_most_others_close_by() -> None:
    """n = 5, f = 1: the two nearest others. Row 1 has them at 1 and 1, row 0 at 1 and 4, row 2 at 1 and 1.44."""
    rows = [[0.0], [1.0], [2.0], [3.2], [-50.0]]
    assert combined("krum", rows, attackers=1).tolist() == [1.0]
    weights = [0.1, 0.2, 0.5, 0.1, 0.1]
    found = combined("multi_krum", rows, weights, attackers=1, keep=2)  # rows 1 and 2, by their weights
    assert found.item() == pytest.approx((0.2 * 1 + 0.5 * 2) / 0.7, rel=1e-12)


def test_krum_of_too_few_says_how_many_it_needs() -> None:
    with pytest.raises(QuorumError, match="needs 7 clients but round 1 has 6"):
        combined("krum", drawn(6), attackers=2)
    assert combined("krum", drawn(7), attackers=2).shape == (50,)


@pytest.mark.parametrize("size", [1.0, 0.01])
def test_clipping_by_hand(size: float) -> None:
    """Norms 5 and 10 of which 5 counts; the median of the norms is that of the larger half."""
    rows = [[3.0 * size, 4.0 * size], [6.0 * size, 8.0 * size], [0.0, 5.0 * size]]
    expected = [(3 + 3 + 0) / 3 * size, (4 + 4 + 5) / 3 * size]
    assert combined("clip", rows, max_norm=5.0 * size).tolist() == pytest.approx(expected, rel=1e-12)
    assert combined("clip", rows).tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("sizes", "limit"),
    [
        ([1, 1, 1, 1], 3.0),  # of an even number the upper one of the middle two
        ([1, 1, 1, 1, 1, 1], 4.0),
        ([1, 1, 1], 2.0),
        ([1, 1], 2.0),
        ([3, 1, 1, 1], 2.0),  # 3 of 6 are at most 1, which is not more than half
        ([4, 1, 1, 1], 1.0),
        ([1, 1, 1, 3], 4.0),
    ],
)
def test_without_a_limit_it_is_the_first_norm_that_more_than_half_of_the_weight_is_within(
    sizes: list[int], limit: float
) -> None:
    """Clients have the norms 1, 2, 3 and so on, each along an axis of its own."""
    norms = [float(1 + place) for place in range(len(sizes))]
    weights = [size / sum(sizes) for size in sizes]
    expected = [weight * min(norm, limit) for norm, weight in zip(norms, weights, strict=True)]
    found = combined("clip", torch.diag(torch.tensor(norms, dtype=torch.float64)), weights)
    assert found.tolist() == pytest.approx(expected, rel=1e-9)
    for order in (list(reversed(range(len(norms)))),):  # whoever comes first
        turned = combined("clip", [[norms[i]] for i in order], [weights[i] for i in order])
        assert turned.tolist() == pytest.approx([sum(expected)], rel=1e-9)


def test_the_geometric_median_is_that_of_a_plain_loop() -> None:
    rows, weights = drawn(9), np.arange(1, 10) / 45
    rows[8] += 20
    v = (weights[:, None] * rows.numpy()).sum(axis=0)
    for _ in range(100):
        pulls = weights / np.maximum(1e-6, np.linalg.norm(rows.numpy() - v, axis=1))
        v = (pulls[:, None] * rows.numpy()).sum(axis=0) / pulls.sum()
    # inner products are right to some 2^-39 of the largest ones
    assert combined("geometric_median", rows, weights.tolist()).numpy() == pytest.approx(v, rel=1e-6, abs=1e-8)


def test_the_geometric_median_of_close_numbers_is_not_smoothed_to_their_mean() -> None:
    """Two of three are 0; their mean would be 0.001, and so would it be for distances below the smoothing."""
    assert abs(combined("geometric_median", [[0.0], [0.0], [0.003]]).item()) < 1e-5
    assert combined("geometric_median", [[0.0], [0.0], [0.003]], smoothing=1.0).item() == pytest.approx(0.001)


def test_centred_clipping_is_that_of_a_plain_loop() -> None:
    rows, weights = drawn(9), np.arange(1, 10) / 45
    rows[8] += 20
    v = np.zeros(50)
    for _ in range(3):
        apart = rows.numpy() - v
        v = v + (weights * np.minimum(1, 8.0 / np.linalg.norm(apart, axis=1))) @ apart
    found = combined("centred_clipping", rows, weights.tolist(), tau=8.0, steps=3)
    assert found.numpy() == pytest.approx(v, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize(
    ("rule", "fields"),
    [("centred_clipping", {"tau": 2.0}), ("geometric_median", {}), ("median", {}), ("trimmed_mean", {"trim": 0.2})],
)
def test_weights_that_add_up_to_two_give_twice_as_much(rule: str, fields: dict[str, float]) -> None:
    rows, shares = drawn(4), [0.1, 0.2, 0.3, 0.4]
    once, twice = (combined(rule, rows, [times * share for share in shares], **fields) for times in (1, 2))
    assert twice.numpy() == pytest.approx(2 * once.numpy(), rel=1e-6, abs=1e-8)


OPEN: dict[str, dict[str, Any]] = {
    "clip": {"max_norm": 1e9},
    "centred_clipping": {},
    "trimmed_mean": {"trim": 0.0},
    "multi_krum": {"attackers": 0},
}


@pytest.mark.parametrize("rule", OPEN)
def test_with_open_limits_it_is_plain_averaging_to_the_bit(rule: str) -> None:
    rows, weights = drawn(7).float(), [0.1, 0.2, 0.05, 0.3, 0.15, 0.125, 0.075]
    updates = updates_of(rows, torch.float32)
    found = rule_of({"name": rule, **OPEN[rule]}).combine(updates, weights)
    assert found.equal(updates_of(rows, torch.float32).weighted_sum(weights))
    assert set(updates.kept.values()) == {1.0}


def test_a_far_limit_of_centred_clipping_is_plain_averaging_too() -> None:
    rows = drawn(5)
    assert combined("centred_clipping", rows, tau=1e9).equal(updates_of(rows).weighted_sum([0.2] * 5))


def test_no_bucket_of_all_clients_changes_their_mean() -> None:
    rows, weights = drawn(5), [0.1, 0.2, 0.3, 0.15, 0.25]
    for rule in RULES:
        if "krum" not in rule:
            found = combined(rule, rows, weights, bucket=5)
            assert found.numpy() == pytest.approx(np.array(weights) @ rows.numpy(), rel=1e-9), rule


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_with_buckets_is_the_rule_of_their_means(rule: str) -> None:
    """Nine clients in four buckets of two and one of one; the weights add up to 2 and one of them is 0."""
    rows, weights = drawn(10), [0.1, 0.3, 0.2, 0.0, 0.1, 0.3, 0.2, 0.25, 0.35, 0.2]
    rows[4] += 20
    fields = {"tau": 3.0} if rule == "centred_clipping" else {"attackers": 1} if "krum" in rule else {}
    with_buckets = rule_of({"name": rule, "bucket": 2, "bucket_seed": 3, **fields})
    buckets = with_buckets.buckets(weights, 0)
    assert sorted(len(bucket.places) for bucket in buckets) == [1, 2, 2, 2, 2]
    means = [sum(s * rows[place] for place, s in zip(bucket.places, bucket.shares, strict=True)) for bucket in buckets]
    expected = combined(rule, torch.stack(means), [bucket.weight for bucket in buckets], **fields)  # type: ignore[arg-type]
    updates = updates_of(rows)
    assert with_buckets.combine(updates, weights).numpy() == pytest.approx(expected.numpy(), rel=1e-6, abs=1e-8)
    assert updates.kept["c3"] == 0.0 and len(updates.kept) == 10
    for bucket in buckets:
        assert len({updates.kept[f"c{place}"] for place in bucket.places}) == 1


def test_buckets_are_filled_anew_each_round_and_weigh_what_their_clients_do() -> None:
    rule = rule_of({"name": "median", "bucket": 3})
    rounds = [[tuple(bucket.places) for bucket in rule.buckets([0.25, 0.5] * 4, round)] for round in (0, 1, 0)]
    assert rounds[0] == rounds[2] != rounds[1] and sorted(sum(rounds[0], ())) == list(range(8))
    for bucket in rule.buckets([0.25, 0.5] * 4, 0):
        own = [(0.25, 0.5)[place % 2] for place in bucket.places]
        assert bucket.weight == sum(own) and bucket.shares == pytest.approx([weight / sum(own) for weight in own])


def test_what_a_record_says_of_shares() -> None:
    kept = {"a": 1.0, "b": 0.0, "c": 0.5, "d": 0.0, "e": 1e-12, "f": 1 - 1e-12}
    assert kept_counts(kept) == {"robust/left_out": 2.0, "robust/shrunk": 2.0} and kept_counts({}) == {}


# (fields, clients of one size, attackers that are harmless; one more is not)
BREAKDOWN: dict[str, tuple[dict[str, Any], int, int]] = {
    "median": ({}, 9, 4),
    "trimmed_mean": ({"trim": 0.23}, 9, 2),
    "geometric_median": ({}, 9, 4),
    "krum": ({"attackers": 2}, 7, 3),  # liars who agree need as many as the n - f - 2 nearest others, and one
    "multi_krum": ({"attackers": 2}, 7, 2),
}
FAR = 1e6


@pytest.mark.parametrize("rule", BREAKDOWN)
def test_so_many_attackers_are_harmless_and_one_more_is_not(rule: str) -> None:
    fields, count, most = BREAKDOWN[rule]
    for attackers in (most, most + 1):
        rows = drawn(count)
        rows[:attackers] = FAR
        largest = combined(rule, rows, **fields).abs().max().item()
        assert (largest < 10) == (attackers <= most), (rule, attackers, largest)


@pytest.mark.parametrize("rule", BREAKDOWN)
def test_what_is_left_out_is_said(rule: str) -> None:
    fields, count, most = BREAKDOWN[rule]
    rows = drawn(count)
    rows[:most] = FAR
    updates = updates_of(rows)
    rule_of({"name": rule, **fields}).combine(updates, [1 / count] * count)
    kept = [updates.kept[f"c{place}"] for place in range(count)]
    assert max(kept[:most]) < 1e-4 and max(kept) <= 1
    assert math.fsum(kept[most:]) > 0.4


@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(9)), rule=st.sampled_from(sorted(RULES)))
def test_the_order_of_clients_changes_no_bit(order: list[int], rule: str) -> None:
    rows = drawn(9).float()
    rows[3, :25] = rows[4, :25]  # equal values of unequal clients
    weights = [0.02, 0.05, 0.08, 0.1, 0.12, 0.13, 0.15, 0.15, 0.2]
    fields = {"tau": 5.0} if rule == "centred_clipping" else {}
    apply: Callable[..., Tensor] = rule_of({"name": rule, **fields}).combine
    first = apply(updates_of(rows, torch.float32), weights)
    assert apply(updates_of(rows[order], torch.float32), [weights[k] for k in order]).equal(first)


def test_inner_products_are_those_of_numpy_and_the_same_on_any_number_of_threads() -> None:
    rows = drawn(6, 10_000) * 10.0 ** torch.arange(-3, 3)[:, None]
    rows[2] = 0
    found, threads = inner_products(updates_of(rows)), torch.get_num_threads()
    norms = rows.norm(dim=1).numpy()
    assert (abs(found - rows.numpy() @ rows.numpy().T) <= 1e-9 * np.outer(norms, norms)).all()
    try:
        torch.set_num_threads(3 - min(2, threads))
        assert (inner_products(updates_of(rows)) == found).all()
    finally:
        torch.set_num_threads(threads)


def test_inner_products_of_numbers_of_twenty_bits_are_exact() -> None:
    one, other = [1 + 2.0**-19, -0.5, 2.0**-19], [2.0, 3 - 2.0**-18, 2.0**-18]
    exact = [[math.fsum(a * b for a, b in zip(x, y, strict=True)) for y in (one, other)] for x in (one, other)]
    assert inner_products(updates_of([one, other])).tolist() == exact


def test_windows_of_an_update_that_is_not_as_reported_are_void() -> None:
    updates = updates_of(drawn(3))
    updates.reports = (Report("c0", norm=1.0, max_abs=1.0), *updates.reports[1:])
    with pytest.raises(RefusedUpdatesError) as raised:
        rule_of("median").combine(updates, [0.3, 0.3, 0.4])
    assert set(raised.value.reasons) == {"c0"}
