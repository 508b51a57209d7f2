"""Keys that parties sign with: Ed25519 (RFC 8032), by the package `cryptography`."""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fedtorch.core.errors import ConfigError, PreflightError
from fedtorch.core.extras import require

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

BYTES = 32
"""Length of a key, private or public."""
SIGNATURE_BYTES = 64


@dataclass(frozen=True)
class PrivateKey:
    """A party's own key. It is never printed, and never sent."""

    path: Path
    """The file that it was read from, for messages."""
    _secret: bytes
    """32 bytes."""

    def __repr__(self) -> str:
        return f"PrivateKey({str(self.path)!r})"

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self._secret)

    @cached_property
    def public(self) -> bytes:
        """The public key that belongs to it, 32 bytes."""
        return self._key.public_key().public_bytes_raw()

    def sign(self, text: bytes, beside: bytes = b"") -> bytes:
        """The signature of a text and of the bytes that go with it, 64 bytes; of the same always the same."""
        return self._key.sign(_whole(text, beside))


class Signer(Protocol):
    """Signs for a party: its key itself, or a gate that holds it (`trust.policy.remote`)."""

    @property
    def path(self) -> Path:
        """File with the key, for messages."""
        ...

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        ...

    def sign(self, text: bytes, beside: bytes = b"") -> bytes:
        """The signature of a text and of the bytes that go with it, 64 bytes."""
        ...


def is_signed(text: bytes, signature: bytes, public: bytes, beside: bytes = b"") -> bool:
    """Has who holds the private key of `public` signed the text, and the bytes that go with it?"""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _whole(text, beside))
    except (InvalidSignature, ValueError):
        return False
    return True


def _whole(text: bytes, beside: bytes) -> bytes:
    """Stand for a text and what goes with it; of a text alone it is the text."""
    return text + b"\0" + hashlib.sha256(beside).hexdigest().encode() if beside else text


def needs_cryptography() -> None:
    """Raises ConfigError where the package is missing."""
    require("trust.members", "cryptography", extra="privacy", instead="remove trust.members")


def new_key(path: Path) -> PrivateKey:
    """Make a pair: `path`, for its owner alone, and beside it the public key, in a file whose name ends in `.pub`.

    Raises:
        ConfigError: one of the two files is there already, or cannot be written; then neither is changed.
    """
    key, public = PrivateKey(path, os.urandom(BYTES)), path.with_suffix(".pub")
    if public.exists():
        raise ConfigError(f"{public} is there already; a key is made once, so choose another name or remove both files")
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"{path} is there already; a key is made once, so choose another name") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror})") from error
    try:
        with os.fdopen(handle, "w") as file:
            file.write(key._secret.hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
        public.write_text(key.public.hex() + "\n")
    except OSError as error:
        for each in (path, public):
            with suppress(OSError):
                each.unlink(missing_ok=True)
        raise ConfigError(f"{path} and {public} cannot be written ({error.strerror})") from error
    return key


def read_key(path: Path) -> PrivateKey:
    """The private key in a file that only its owner may read.

    Raises:
        PreflightError: there is no such file, others may read it, or it holds no private key.
    """
    try:
        status = path.stat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) and status.st_size < 1 << 12 else b""
    except OSError as error:
        raise PreflightError(
            f"trust.key is {path}, which cannot be read ({error.strerror}); make a key with `fedtorch keys new NAME`, "
            "and have the others put its public part into their list of members"
        ) from None
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise PreflightError(
            f"trust.key is {path}, which others than its owner may read or change (mode {mode:o}); if nobody has, "
            f"`chmod 600 {path}`, else make a new key and have the old one revoked"
        )
    secret = bytes_of(content.decode("ascii", "replace").strip())
    if secret is None:
        raise PreflightError(
            f"trust.key is {path}, which holds no private key: expected {2 * BYTES} hexadecimal digits, as `fedtorch "
            "keys new` writes them"
        )
    return PrivateKey(path, secret)


def bytes_of(text: str) -> bytes | None:
    """A key from its hexadecimal digits; None where it is none."""
    with suppress(ValueError):
        if len(text) == 2 * BYTES:
            return bytes.fromhex(text) if not text.isspace() and " " not in text else None
    return None
