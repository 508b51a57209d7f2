"""Rows that two silos both have: keys, digests, and how many are in common."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fedtorch.core.errors import CheckpointError, ConfigError, DataError
from fedtorch.privacy.digests import keyed_digest
from fedtorch.stats.recurring import NUMBERS, check_rows, in_common, pairs, read_key, write_digests

KEY = b"k" * 32


def block(*rows: bytes, room: int = 4, key: bytes = KEY) -> np.ndarray:
    out = np.zeros(room * NUMBERS)
    write_digests(out, key, rows)
    return out


def test_a_digest_is_48_bits_in_three_numbers_and_the_order_tells_nothing() -> None:
    found = block(b"a", b"b", b"a")
    digests = sorted(keyed_digest(KEY, [row])[:12] for row in (b"a", b"b"))
    for at, digest in enumerate(digests):
        low, middle, high = found[at * 3 : at * 3 + 3].astype(int).tolist()
        assert f"{high << 32 | middle << 16 | low:012x}" == digest and max(low, middle, high) < 1 << 16
    assert not found[6:].any(), "a row that a silo has twice is written once"
    assert np.array_equal(found, block(b"b", b"a")) and not np.array_equal(found, block(b"a", b"b", key=b"o" * 32))


def test_rows_in_common_are_counted_for_every_two_silos() -> None:
    blocks = [block(b"a", b"b", b"c"), block(b"c", b"a"), block(b"c"), block()]
    assert in_common(blocks) == [2.0, 1.0, 0.0, 1.0, 0.0, 0.0]
    assert pairs(["x", "y", "z", "w"]) == ("x, y", "x, z", "x, w", "y, z", "y, w", "z, w")
    with_zeros = np.array([5.0, 0.0, 0.0, 0.0, 0.0, 0.0])  # a digest may have zeros, an empty place has nothing else
    assert in_common([with_zeros, with_zeros]) == [1.0]
    assert in_common(blocks[:1]) == [] and in_common([block(), block()]) == [0.0]


def test_a_silo_with_more_rows_than_have_room_is_named() -> None:
    check_rows(12, 12, "north")
    with pytest.raises(DataError, match=r"client north has 13 different rows, above stats.recur.rows 12"):
        check_rows(13, 12, "north")


def test_a_key_is_long_enough_and_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    for text, length in ((b"x" * 31 + b"\n", 31), (b" " * 9, 0)):
        path.write_bytes(text)
        path.chmod(0o600)
        with pytest.raises(ConfigError, match=f"which has {length} bytes instead of 32 or more"):
            read_key(str(path))
    path.write_bytes(KEY + b"\n")
    assert read_key(str(path)) == KEY
    os.chmod(path, 0o644)
    with pytest.raises(CheckpointError, match=r"the key of stats.recur"):
        read_key(str(path))
