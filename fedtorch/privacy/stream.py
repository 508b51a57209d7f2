"""Randomness from a secret key: a ChaCha20 stream for each purpose, round and attempt, and what is drawn from it.

Nobody who has not the key can compute it, and who has it draws the same again. So neither numpy's nor torch's
generators: from some of their numbers, such as the noise on weights that nobody trains, the others can be told.

What the normal numbers lack to the ideal ones: their radius comes from 64 bits and their angle from 53, so that no |g|
is above 9.493 (an ideal one is, with probability 2.3e-21) and pairs lie on a grid of 2^117 points. numpy's logarithm,
sine and cosine may differ in the last bit from one kind of processor to another, which changes a whole number of the
noise by 1 now and then: the same bits after a resume need the same kind of machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

KEY_BYTES = 32
CHUNK = 1 << 16  # pairs drawn together, whose vectors stay in the cache
_SALT = b"fedtorch privacy 1"


def derived(key: bytes, purpose: str, round: int = 0, attempt: int = 0) -> bytes:
    """HKDF-SHA256 of the key for one purpose, round and attempt, 32 bytes."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = f"{purpose}/{round}/{attempt}".encode()
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=_SALT, info=info).derive(key)


class Stream:
    """The ChaCha20 key stream under a key of 32 bytes, as integers."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

        # every key is used for one stream, so counter and nonce begin at 0
        self._cipher = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()

    def integers(self, count: int) -> npt.NDArray[np.uint64]:
        """The next `count` integers, uniform over 64 bits."""
        return np.frombuffer(self._cipher.update(bytes(8 * count)), dtype="<u8")

    def normals(self, count: int) -> Iterator[npt.NDArray[np.float64]]:
        """`count` independent standard normal numbers, chunk by chunk (Box and Muller 1958); to be taken at once."""
        while count > 0:
            pairs = min(CHUNK, -(-count // 2))
            drawn = self.integers(2 * pairs)
            share = (drawn[:pairs].astype(np.float64) + 0.5) * 2.0**-64  # in (0, 1]
            radius = np.sqrt(-2.0 * np.log(share))
            angle = (drawn[pairs:] >> np.uint64(11)).astype(np.float64) * (2.0 * np.pi * 2.0**-53)
            both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
            yield both[:count]
            count -= len(both)


def chosen(stream: Stream, count: int, rate: float) -> Sequence[int]:
    """Which of 0 … count − 1 are chosen, each by itself with probability `rate`, exact to 2^-64; ascending."""
    threshold = int(Fraction(rate) * 2**64)
    if threshold >= 2**64:
        return range(count)
    return np.flatnonzero(stream.integers(count) < np.uint64(threshold)).tolist()


def add_noise(total: npt.NDArray[np.float64], deviation: float, stream: Stream) -> None:
    """Add rint(deviation · g_j) to the whole numbers of `total`, in place.

    x + rint(y) = rint(x + y) for whole x: the rounded output of a Gaussian mechanism on whole numbers, so that no bit
    of the sum shows in the last places of a float (Mironov 2012).
    """
    place = 0
    for numbers in stream.normals(len(total)):
        part = total[place : place + len(numbers)]
        np.multiply(numbers, deviation, out=numbers)
        np.rint(numbers, out=numbers)
        np.add(part, numbers, out=part)
        place += len(numbers)
