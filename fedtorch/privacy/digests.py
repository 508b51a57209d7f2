"""Digests of several parts in a row, each with its length before it, so that no two rows of parts look alike."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Any

Part = bytes | memoryview


def digest_of(parts: Iterable[Part]) -> bytes:
    """64 bytes, which whoever guesses the parts can compute."""
    return _fed(hashlib.blake2b(), parts).digest()


def keyed_digest(key: bytes, parts: Iterable[Part]) -> str:
    """64 hexadecimal digits, which nobody without the key can compare with a guess."""
    return _fed(hmac.new(key, digestmod=hashlib.blake2b), parts).hexdigest()[:64]


def _fed(hasher: Any, parts: Iterable[Part]) -> Any:
    for part in parts:
        hasher.update(len(part).to_bytes(8, "big"))
        hasher.update(part)
    return hasher
