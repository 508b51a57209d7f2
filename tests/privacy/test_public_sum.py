"""The mean at a public scale and what is told of it, without a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedtorch.core.mechanism import RoundFacts
from fedtorch.core.server import ServerState
from fedtorch.core.update import Report
from fedtorch.privacy.public_sum import Masking, PublicSum
from fedtorch.privacy.secure_sum.openings import Openings


def never(updates: Any) -> Any:
    raise AssertionError("the algorithm's own combination is not asked")


def updates_of(count: int, dtype: torch.dtype) -> Any:
    """Whose whole numbers add up to three clips, and half of one the other way."""
    total = torch.tensor([3.0 * 2**32, -0.5 * 2**32], dtype=torch.float64)
    reports = [Report(str(number)) for number in range(count)]
    return SimpleNamespace(whole_sum=lambda exponent, limit: total.clone(), reports=reports, sum_dtype=dtype)


@pytest.mark.parametrize(("count", "mean"), [(1, [3.0, -0.5]), (2, [1.5, -0.25]), (0, [3.0, -0.5])])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_mean_is_over_the_clients_that_count(count: int, mean: list[float], dtype: torch.dtype) -> None:
    mechanism = PublicSum(1.0, 4)
    assert mechanism.exponent == 32
    found = mechanism.combine(updates_of(count, dtype), never)
    assert found.tolist() == mean and found.dtype == dtype


def test_with_a_secure_sum_a_record_has_how_many_took_part_and_no_client() -> None:
    facts = RoundFacts(
        [Report("a"), Report("b", status="failed"), Report("c")], {"a": 1.0}, {"train": 2.0}, figures={"x": 1.0}
    )
    assert PublicSum(1.0, 3).facts(0, facts, ServerState({})) is facts and PublicSum(1.0, 3).shows_losses
    masked = PublicSum(1.0, 3, Masking(0.7, Openings(None)))
    found = masked.facts(0, facts, ServerState({}))
    assert found == RoundFacts(None, seconds={"train": 2.0}, figures={"x": 1.0, "secure_sum/clients": 2.0})
    assert (
        masked.facts(0, RoundFacts(None), ServerState({})).figures == {"secure_sum/clients": 0.0}
        and not masked.shows_losses
    )


def test_whose_sum_it_is_is_known_once_it_is_settled() -> None:
    masking = Masking(0.7, Openings(None))
    mechanism = PublicSum(1.0, 3, masking)
    assert mechanism.settled(2) is None
    masking.openings.settle((2, 0), ["a", "b"], None)
    assert mechanism.settled(2) == {"a", "b"} and mechanism.settled(3) is None
    assert PublicSum(1.0, 3).settled(2) is None
