"""Rows that two silos both have, counted by keyed digests: silos share the key, and the server has not got it.

Each silo sends the digests of its different rows, in an order that tells nothing, to the server, which compares them
and keeps how many every two silos have in common. A silo gets these counts and no digest of another one. Whoever has
the key and gets hold of digests can try out rows; so it is not for rows that can be guessed where the server's disk or
memory is not safe from a silo.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.privacy.digests import keyed_digest
from fedtorch.privacy.owner_files import read_own
from fedtorch.stats.prefixes import Vector

NUMBERS = 3
"""A digest of 48 bits travels as so many numbers below 2^16, which sums carry exactly."""
LEAST_KEY = 32
_BITS = 16


def read_key(path: str) -> bytes:
    """The key that silos have agreed on.

    Raises:
        CheckpointError: it is not there, or others than its owner may read it.
        ConfigError: it is too short for a key.
    """
    key = read_own(Path(path), "the key of stats.recur", "make one, give it to all silos and not to the server")
    if len(key.strip()) < LEAST_KEY:
        raise ConfigError(
            f"stats.recur.key is {path}, which has {len(key.strip())} bytes instead of {LEAST_KEY} or more; make one "
            "with `openssl rand -hex 32` and give it to all silos"
        )
    return key.strip()


def check_rows(rows: int, most: int, client: str) -> None:
    """Refuse more different rows than have room.

    Raises:
        DataError: there are.
    """
    if rows > most:
        raise DataError(
            f"client {client} has {rows} different rows, above stats.recur.rows {most}; set it higher at all silos, or "
            "stats.recur to null"
        )


def write_digests(out: Vector, key: bytes, rows: Iterable[bytes]) -> None:
    """Write keyed digests of different rows into a silo's block of zeros, `NUMBERS` numbers for each."""
    found = sorted({keyed_digest(key, [row])[: NUMBERS * _BITS // 4] for row in rows})
    for at, digest in enumerate(found):
        value = int(digest, 16)
        for number in range(NUMBERS):
            out[at * NUMBERS + number] = value >> (_BITS * number) & 0xFFFF


def in_common(blocks: Sequence[Vector]) -> list[float]:
    """How many digests every two blocks have in common, in the order of `pairs`; empty places are none."""
    sets = [{tuple(digest) for digest in block.reshape(-1, NUMBERS).tolist() if any(digest)} for block in blocks]
    return [float(len(sets[one] & sets[other])) for one, other in combinations(range(len(sets)), 2)]


def pairs(silos: Sequence[str]) -> tuple[str, ...]:
    """Names of the cells: every two silos."""
    return tuple(f"{one}, {other}" for one, other in combinations(silos, 2))
