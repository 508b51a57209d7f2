"""A secret in shares, any `threshold` of which give it back, while fewer say nothing of it (Shamir 1979)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

PRIME = 2**256 + 297
"""The least prime above 2^256, so that every secret of 32 bytes is a number of the field."""


def split(
    secret: int, threshold: int, count: int, *, prime: int = PRIME, draw: Callable[[int], int] = secrets.randbelow
) -> list[int]:
    """The shares at 1 … count of a polynomial of degree threshold − 1 whose value at 0 is `secret`.

    draw: a uniform number below its argument.

    Raises:
        ValueError: the secret is no number of the field, or so many shares cannot be.
    """
    if not 0 <= secret < prime or not 1 <= threshold <= count < prime:
        raise ValueError(f"a secret in {count} shares with threshold {threshold} over a field of {prime} cannot be")
    factors = [secret, *(draw(prime) for _ in range(threshold - 1))]
    return [_value(factors, place, prime) for place in range(1, count + 1)]


def join(shares: Mapping[int, int], *, prime: int = PRIME) -> int:
    """The secret, by Lagrange's formula at 0, of at least `threshold` shares: place (from 1) -> share."""
    total = 0
    for place, share in shares.items():
        above, below = 1, 1
        for other in shares:
            if other != place:
                above, below = above * other % prime, below * (other - place) % prime
        total += share * above * pow(below, -1, prime)
    return total % prime


def _value(factors: list[int], place: int, prime: int) -> int:
    found = 0
    for factor in reversed(factors):
        found = (found * place + factor) % prime
    return found
