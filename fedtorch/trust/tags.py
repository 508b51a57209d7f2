"""Tags by which silos check a sum that the server made: linear in the numbers, under keys that the server has not.

The tag of a leaf of whole numbers k is t = Σ_j (k_j mod p) g_j + b mod p with p = 2^61 − 1. Factors g are the same for
all silos, pads b of each silo's own, so the tags of a sum's terms add up to the tag of the sum. Who has not the key
passes with a false leaf with probability 2^-60 at most, and learns nothing from a tag, which a pad hides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtorch.core.kernels import tag_sums
from fedtorch.core.prime import Words, added, reduced
from fedtorch.privacy.secure_sum.keys import derived
from fedtorch.trust.merkle import LEAF

LARGEST = 1 << 53
"""Above every |whole number| of a sum: one with p added to it would have the same tag."""

_AT_ONCE = 16  # leaves: their words stay in the caches
_ZEROS = memoryview(bytes(8 * LEAF))

Whole = npt.NDArray[np.int64]


def words(key: bytes, count: int, place: int = 0) -> Words:
    """The first `count` words of 8 bytes, little-endian, of the ChaCha20 stream at a place, uint64.

    place: another one is another stream; it stands in the nonce.
    """
    return np.frombuffer(_cipher(key, place).update(bytes(8 * count)), dtype="<u8").astype(np.uint64, copy=False)


def _cipher(key: bytes, place: int = 0) -> Any:
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    return Cipher(ChaCha20(key, _nonce(place)), mode=None).encryptor()


def _nonce(place: int) -> bytes:
    return bytes(8) + place.to_bytes(8, "little")


class TagKey:
    """Factors and pads of one exchange, from the key that silos have in common; no other exchange may have its name."""

    def __init__(self, key: bytes, exchange: str) -> None:
        self._factors = derived(key, f"factors of tags/{exchange}")
        self._key, self._exchange = key, exchange

    def tags(self, numbers: Whole, first: int = 0) -> Words:
        """Tag of each leaf without pads, uint64, below p. numbers: flat. first: the number of the first leaf.

        Raises:
            ValueError: a number is too large for one tag to mean one number.
        """
        if len(numbers) and max(int(numbers.max()), -int(numbers.min())) >= LARGEST:
            raise ValueError(f"a number of a sum is {LARGEST} or larger, and could not be told from others by its tag")
        found = [np.empty(0, np.uint64)]
        # one cipher and one buffer for all leaves: both new for each take three times as long as the words
        cipher, drawn = _cipher(self._factors), np.empty(min(_AT_ONCE * LEAF, len(numbers)), "<u8")
        content = drawn.view(np.uint8).data
        for start in range(0, len(numbers), _AT_ONCE * LEAF):
            some = numbers[start : start + _AT_ONCE * LEAF]
            for place in range(0, len(some), LEAF):
                cipher.reset_nonce(_nonce(first + (start + place) // LEAF))
                count = 8 * min(LEAF, len(some) - place)
                cipher.update_into(_ZEROS[:count], content[8 * place : 8 * place + count])
            found.append(tag_sums(some, drawn[: len(some)].astype(np.uint64, copy=False), LEAF))
        return np.concatenate(found)

    def pads(self, party: str, leaves: int) -> Words:
        """The pads of a party, one for each leaf of its part, uint64, below p."""
        return reduced(words(derived(self._key, f"pads of tags/{self._exchange}/{party}"), leaves))

    def padded(self, tags: Sequence[Words], party: str) -> Words:
        """The tags of a party's part, window by window, in one vector with its pads."""
        count = sum(map(len, tags))
        return added([np.concatenate(tags), self.pads(party, count)] if tags else [], count)


def drawn_leaves(key: bytes, record: str, count: int, share: float) -> list[int]:
    """Which leaves of a round are looked at, ascending: each with probability `share`, and one at least.

    key: that all silos have in common, and the server has not. record: digest of what the server has signed before.
    """
    drawn = words(derived(key, f"leaves that are looked at/{record}"), count + 1)
    found = np.flatnonzero(drawn[:count] < np.uint64(int(share * 2**64))).tolist()
    return found or [int(drawn[count]) % count]
