"""Epsilon at a delta: of the Gaussian mechanism in closed form, and between any two normal distributions."""

from __future__ import annotations

import math
from collections.abc import Callable

MOST = 1e4
"""Above this an epsilon says nothing."""


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Epsilon of one release of a sum of sensitivity 1 with noise N(0, noise_multiplier²).

    Balle and Wang 2018, theorem 8: delta(eps) = Phi(1/2z - eps z) - exp(eps) Phi(-1/2z - eps z).
    """
    return epsilon_between(1 / noise_multiplier, 1.0, 1.0, delta)


def epsilon_between(mean: float, deviation: float, null_deviation: float, delta: float) -> float:
    """The least epsilon with which N(mean, deviation²) and N(0, null_deviation²) cannot be told apart, but for delta.

    Of both directions the larger; infinity where one is above `MOST`. Deviations are above 0, delta in (0, 1).
    """
    shifted, null = (mean, deviation), (0.0, null_deviation)
    return max(_epsilon(shifted, null, delta), _epsilon(null, shifted, delta))


def _epsilon(one: tuple[float, float], other: tuple[float, float], delta: float) -> float:
    """By bisection: the delta of `one` against `other` falls with epsilon."""
    if _delta(one, other, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while _delta(one, other, high) > delta:
        low, high = high, 2 * high
        if high > MOST:
            return math.inf
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(one, other, middle) > delta else (low, middle)
    return high


def _delta(one: tuple[float, float], other: tuple[float, float], epsilon: float) -> float:
    """P(L > epsilon) - exp(epsilon) Q(L > epsilon), where L = log(p / q) is a quadratic a x² + b x + c."""
    (m, s), (n, t) = one, other
    a = 1 / (2 * t * t) - 1 / (2 * s * s)
    b = m / (s * s) - n / (t * t)
    c = n * n / (2 * t * t) - m * m / (2 * s * s) + math.log(t / s) - epsilon
    if abs(a) * s * t < 1e-12:  # the same deviation: one threshold
        if b == 0:
            return 0.0
        return _mass(one, other, epsilon, lambda tail: tail(-c / b, b > 0))
    inside = b * b - 4 * a * c
    if inside <= 0:
        return 1 - math.exp(min(epsilon, 700.0)) if a > 0 else 0.0
    ends = sorted((-b + sign * math.sqrt(inside)) / (2 * a) for sign in (-1, 1))
    if a > 0:
        return _mass(one, other, epsilon, lambda tail: tail(ends[0], False) + tail(ends[1], True))
    return _mass(one, other, epsilon, lambda tail: tail(ends[0], True) - tail(ends[1], True))


def _mass(
    one: tuple[float, float],
    other: tuple[float, float],
    epsilon: float,
    region: Callable[[Callable[[float, bool], float]], float],
) -> float:
    def under(normal: tuple[float, float]) -> float:
        return region(lambda x, above: _tail((x - normal[0]) / normal[1], above))

    p, q = under(one), under(other)
    return p - math.exp(epsilon + math.log(q)) if q > 0 else p


def _tail(x: float, above: bool) -> float:
    """Mass of the standard normal above, or below, x."""
    return 0.5 * math.erfc((x if above else -x) / math.sqrt(2))
