"""Shares: over a small field every case there is, over the large one what it is for."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product

import pytest

from fedtorch.privacy.secure_sum.shamir import PRIME, join, split


def fixed(numbers: tuple[int, ...]):  # type: ignore[no-untyped-def]
    left = list(numbers)
    return lambda below: left.pop(0)


@pytest.mark.parametrize("threshold", [1, 2, 3])
def test_over_a_small_field_enough_shares_give_the_secret_and_fewer_say_nothing(threshold: int) -> None:
    prime, count = 5, 4
    for secret, drawn in product(range(prime), product(range(prime), repeat=threshold - 1)):
        shares = split(secret, threshold, count, prime=prime, draw=fixed(drawn))
        for enough in range(threshold, count + 1):
            for places in combinations(range(count), enough):
                assert join({place + 1: shares[place] for place in places}, prime=prime) == secret
    for places in combinations(range(count), threshold - 1):  # what is seen there is as likely with any secret
        seen = [
            Counter(
                tuple(split(secret, threshold, count, prime=prime, draw=fixed(drawn))[place] for place in places)
                for drawn in product(range(prime), repeat=threshold - 1)
            )
            for secret in range(prime)
        ]
        assert all(each == seen[0] for each in seen)


def test_a_secret_of_32_bytes_comes_back_from_any_of_the_shares() -> None:
    secret = 2**256 - 1
    shares = split(secret, 3, 5)
    assert len(shares) == 5
    assert all(join({place + 1: shares[place] for place in some}) == secret for some in combinations(range(5), 3))
    assert join({1: shares[0], 2: shares[1]}) != secret


def test_the_field_is_that_of_a_prime_above_every_secret() -> None:
    assert PRIME > 2**256
    odd = PRIME - 1
    power = (odd & -odd).bit_length() - 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):  # Miller and Rabin
        value = pow(base, odd >> power, PRIME)
        assert value in (1, PRIME - 1) or any(pow(value, 2**i, PRIME) == PRIME - 1 for i in range(1, power))


@pytest.mark.parametrize(("secret", "threshold", "count"), [(PRIME, 2, 3), (-1, 2, 3), (1, 4, 3), (1, 0, 3)])
def test_what_cannot_be_shared_is_refused(secret: int, threshold: int, count: int) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        split(secret, threshold, count)
