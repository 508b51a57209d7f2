"""Who may write into the store: values carry an HMAC under a secret that the ranks of a job have in common.

Parties that do not trust each other sign with keys of their own instead (`parties.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from fedtorch.core.errors import ForgedNoteError, PreflightError

VARIABLE = "FEDTORCH_JOB_SECRET"
_FILE = "job.secret"
_MIN_CHARACTERS = 16


def job_secret(environ: Mapping[str, str], folder: Path) -> str:
    """The secret of this job, empty if there is none.

    Our launchers set FEDTORCH_JOB_SECRET. Under plain torchrun on one machine the first rank that comes makes one, in a
    file of the run folder that only its owner can read; `forget_secret` removes it. Of several machines nothing is
    known: there the user has to set the variable, to the same on all of them.

    Raises:
        PreflightError: FEDTORCH_JOB_SECRET is too short, or somebody else could read or has made the file.
    """
    if given := environ.get(VARIABLE, ""):
        if len(given) < _MIN_CHARACTERS:
            raise PreflightError(
                f"{VARIABLE} has {len(given)} characters, expected {_MIN_CHARACTERS} or more: openssl rand -hex 32"
            )
        return given
    is_one_agent = "TORCHELASTIC_RUN_ID" in environ and int(environ.get("GROUP_WORLD_SIZE", 1)) == 1
    return _shared_by_file(folder) if is_one_agent else ""


def read_secret(path: Path) -> str:
    """The secret in a file, without the end of its line.

    Raises:
        PreflightError: there is no such file, it cannot be read or is empty, or others than its owner may read it.
    """
    try:
        found, mode = path.read_text().strip(), path.stat().st_mode
        has_list = hasattr(os, "listxattr") and "system.posix_acl_access" in os.listxattr(path)
    except (OSError, UnicodeDecodeError) as error:
        raise PreflightError(
            f"the secret cannot be read from {path} ({error}); is it the path, and whose is it?"
        ) from None
    if not found:
        raise PreflightError(f"{path} is empty, expected a secret; make one: umask 077; openssl rand -hex 32 > {path}")
    # with an access control list, as systemd gives to credentials, the group's bits are not the group's
    if mode & 0o007 or (mode & 0o070 and not has_list):
        raise PreflightError(
            f"{path} can be read by others than its owner (mode {mode & 0o777:o}); chmod 600 {path}, and make a new "
            "secret if others are on this machine"
        )
    return found


def forget_secret(folder: Path) -> None:
    """Once all ranks have it the file has served."""
    (folder / _FILE).unlink(missing_ok=True)


def _shared_by_file(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path, own = folder / _FILE, folder / f"{_FILE}.{os.getpid()}"
    own.unlink(missing_ok=True)
    with os.fdopen(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    with contextlib.suppress(FileExistsError):
        os.link(own, path)  # whole or not at all, and only for the first
    own.unlink()
    found = os.stat(path)
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PreflightError(f"{path} belongs to somebody else or can be read by others; remove it")
    return path.read_text()


@dataclass(frozen=True)
class Signature:
    """Signs what is stored under a key, and checks what was found there."""

    secret: str
    """Of the job; empty: nothing is signed and nothing checked."""
    scope: str
    """Job and attempt: what was written in another one is no good in this."""

    called: ClassVar[str] = f"secret ({VARIABLE})"
    """Messages call so the thing that has to be the same on all sides."""
    advice: ClassVar[str] = "Copy the server's secret once more by a safe way, and start this side again"
    """Messages end so where it is not."""

    @property
    def is_on(self) -> bool:
        """Is anything signed?"""
        return bool(self.secret)

    @property
    def is_personal(self) -> bool:
        """Has each rank a key of its own, so that no other one can write in its name?"""
        return False

    def party(self, rank: int) -> str:
        """Name of the rank's party; empty: parties have no keys of their own."""
        return ""

    def sign(self, key: str, value: str, beside: bytes = b"") -> str:
        """Return the text to store, with its signature. beside: bytes that go with it; one secret signs no such."""
        return f"{self._of(key, value)} {value}" if self.secret else value

    def pass_update(self, client: str, round: int, update: Tensor) -> str:
        """Root of a client's update where a gate measures what leaves this side; empty: it has none.

        Raises:
            PolicyError: it must not leave.
        """
        return ""

    def check(self, key: str, text: str, by: int | None, beside: bytes = b"") -> str:
        """The value that was stored, and beside which these bytes came.

        by: the rank that alone may have stored it; None: any of this job. One secret for all cannot tell
        them apart.

        Raises:
            ForgedNoteError: no rank of this job has stored it.
        """
        if not self.secret:
            return text
        code, _, value = text.partition(" ")
        if not hmac.compare_digest(code.encode(), self._of(key, value).encode()):
            raise ForgedNoteError(
                f"what stands in the store under `{key}` was not written by a rank of this job: somebody else writes "
                f"there, or the ranks differ in {VARIABLE}"
            )
        return value

    def _of(self, key: str, value: str) -> str:
        text = "\0".join((self.scope, key, value)).encode("utf-8", "surrogatepass")
        return hmac.new(self.secret.encode(), text, hashlib.sha256).hexdigest()


UNSIGNED = Signature("", "")
"""Of a store that is nobody's business but this process's."""
