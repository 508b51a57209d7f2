"""Key agreement, derivation and sealing; the primitives are those of the package `cryptography`."""

from __future__ import annotations

import os
from typing import NamedTuple

BYTES = 32
_SALT = b"fedtorch secure sum 1"


class KeyPair(NamedTuple):
    """Keys of X25519 (RFC 7748), raw bytes."""

    secret: bytes
    """32 bytes; others hold shares of it at most"""
    public: bytes
    """32 bytes, sent to the others"""


def new_pair() -> KeyPair:
    """From the system's randomness."""
    return pair_of(os.urandom(BYTES))


def pair_of(secret: bytes) -> KeyPair:
    """The pair with this secret."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return KeyPair(secret, X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw())


def agreed(secret: bytes, public: bytes) -> bytes:
    """DH of one's secret and another's public key, the same on both sides.

    Raises:
        ValueError: the public key is one of the few with which every secret agrees on zero.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    return X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public))


def derived(shared: bytes, info: str) -> bytes:
    """HKDF-SHA256 (RFC 5869) of what was agreed, for one purpose, 32 bytes."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=SHA256(), length=BYTES, salt=_SALT, info=info.encode()).derive(shared)


def sealed(key: bytes, text: bytes, about: str) -> bytes:
    """AES-256-GCM under a key that seals nothing else, so that its nonce may be 0. about: what is checked with it."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key).encrypt(bytes(12), text, about.encode())


def unsealed(key: bytes, box: bytes, about: str) -> bytes:
    """Open what was sealed.

    Raises:
        ValueError: it was not sealed with this key about this, or was damaged.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(bytes(12), box, about.encode())
    except InvalidTag:
        raise ValueError(f"{about}: it was not sealed for this party, or was damaged") from None
