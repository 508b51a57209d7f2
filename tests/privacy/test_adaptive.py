"""A clip that follows a quantile of norms, against figures that can be redone by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedtorch.core.errors import ConfigError
from fedtorch.privacy.adaptive import bit_noise, moved, noised_count, update_noise
from fedtorch.privacy.settings import AdaptiveClip
from fedtorch.privacy.stream import Stream, derived

KEY = bytes(range(32))


def unclipped(norms: np.ndarray, clip: float) -> float:
    """Σ (b_i − ½), b_i = 1 where a norm is not above the clip."""
    return float(np.sum(norms <= clip) - len(norms) / 2)


def test_the_noise_that_is_left_for_updates() -> None:
    rule = AdaptiveClip()
    assert bit_noise(rule, 100.0) == 5.0 and bit_noise(AdaptiveClip(bit_noise=2.0), 100.0) == 2.0
    assert update_noise(1.0, 5.0) == pytest.approx(1.005037815, abs=1e-9)
    assert update_noise(2.0, 1.5) == pytest.approx((36 / 5) ** 0.5, rel=1e-12)  # 1/4 - 1/9 = 5/36
    with pytest.raises(ConfigError, match="set it above 0.5"):
        update_noise(1.0, 0.5)


@pytest.mark.parametrize(("clip", "following"), [(1.0, 1.0), (0.1, 0.110517), (4.0, 3.619350)])
def test_a_step_towards_the_median_of_four_norms(clip: float, following: float) -> None:
    """Half of {0.5, 1, 2, 4} are at most 1: that stays. None is at most 0.1: it grows by exp(0.1), all at most 4."""
    norms = np.array([0.5, 1.0, 2.0, 4.0])
    assert moved(clip, AdaptiveClip(), unclipped(norms, clip), 4.0) == pytest.approx(following, abs=1e-6)


@pytest.mark.parametrize("start", [0.1, 0.9, 1.1, 10.0])
def test_the_clip_finds_the_median_of_log_normal_norms(start: float) -> None:
    rng, clip, rule, seen = np.random.default_rng(1), start, AdaptiveClip(), []
    for round in range(120):
        norms = np.exp(rng.normal(0, 0.5, 100))
        halves = round_half(2 * unclipped(norms, clip))
        clip = moved(clip, rule, noised_count(halves, 5.0, Stream(derived(KEY, "count", round))), 100.0)
        seen.append(clip)
    assert any(0.98 <= clip <= 1.02 for clip in seen[:60])
    assert 0.98 <= float(np.mean(seen[60:])) <= 1.02


def round_half(value: float) -> int:
    assert value == int(value)
    return int(value)


def test_the_noise_on_the_count_has_its_size() -> None:
    drawn = [noised_count(7, 5.0, Stream(derived(KEY, "count", round))) for round in range(2000)]
    assert all((count * 2**32).is_integer() for count in drawn)  # so that no digit of the noise says what the count was
    assert np.std(drawn) == pytest.approx(5.0, rel=4 / math.sqrt(4000))
    assert np.mean(drawn) == pytest.approx(3.5, abs=4 * 5 / math.sqrt(2000))
