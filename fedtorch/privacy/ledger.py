"""The secret key of a run and its ledger of releases: on the server only, read and written by their owner alone.

Both are in `RUN/privacy/`, not in single checkpoints: what was released stays released, whichever checkpoint the run
goes on from, or if it has none yet.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fedtorch.core.errors import CheckpointError
from fedtorch.privacy.data_ledger import DataLedger, counted
from fedtorch.privacy.owner_files import append_own, read_own
from fedtorch.privacy.stream import KEY_BYTES, derived

FOLDER, KEY, LEDGER = "privacy", "key", "ledger.jsonl"
_FORM = 1
_RESTORE = "bring it back from where the checkpoint came from, or begin anew with `--resume never`"


class Release(NamedTuple):
    """Something that has left the server, or was about to."""

    round: int
    """From 0."""
    attempt: int
    """How many other sums of that round were released before it."""
    digest: str
    """Of the sum before noise, keyed."""


class Ledger:
    """The key, and which sums were released under it. A line is on the disk before what it is about leaves the server.

    With `folder` None nothing is on the disk: for simulations, whose key is no secret.
    """

    def __init__(self, key: bytes, terms: Mapping[str, Any], folder: Path | None, releases: list[Release]) -> None:
        self.key, self.terms, self.folder = key, dict(terms), folder
        self.releases = releases
        self.data: DataLedger | None = None
        self._digest_key = derived(key, "digest")

    @classmethod
    def begin(cls, folder: Path, terms: Mapping[str, Any], releases: list[Release] | None = None) -> Ledger:
        """A new key and an empty ledger in `folder`, in place of what was there.

        terms: the numbers that the account rests on. releases: what counts already, of the run this one goes on from.
        """
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.mkdir(mode=0o700)
            _write(folder / KEY, key := os.urandom(KEY_BYTES))
            ledger = cls(key, terms, folder, [])
            _write(folder / LEDGER, json.dumps({"form": _FORM, **ledger.terms}).encode() + b"\n")
            for release in releases or ():
                ledger._append(release)
            _sync(folder)
            _sync(folder.parent)
        except OSError as error:
            raise CheckpointError(f"{folder} cannot be written ({error}); free some space, or set `run.dir`") from error
        return ledger

    @classmethod
    def open(cls, folder: Path) -> Ledger:
        """The key and the ledger that are in `folder`.

        Raises:
            CheckpointError: one is missing or damaged, or others than the owner may read it.
        """
        key = read_own(folder / KEY, "the key of this run's noise", _RESTORE)
        if len(key) != KEY_BYTES:
            raise CheckpointError(f"{folder / KEY} has {len(key)} bytes instead of {KEY_BYTES}; {_RESTORE}")
        lines = _lines(folder)
        head, releases = _parsed(folder, lines)
        if (folder / LEDGER).stat().st_size > sum(map(len, lines)):
            _write(folder / LEDGER, b"".join(lines))
        return cls(key, head, folder, releases)

    @property
    def check(self) -> int:
        """40 bits of a check of the key, for checkpoints: with another key the noise would be another one."""
        return int.from_bytes(derived(self.key, "check")[:5], "big")

    @property
    def run(self) -> str:
        """What the ledger of the data calls the run: a key is a run."""
        return derived(self.key, "run")[:8].hex()

    def attach(self, data: DataLedger, folder: Path) -> None:
        """Count this run's releases, at `folder`, in the ledger of its data too, those so far and those to come.

        Raises:
            CheckpointError: that cannot be read or written.
        """
        own = [release for release in self.releases if release.round >= self.terms.get("since", 0)]
        data.begin(self.run, self.terms, folder, [(release.round, release.attempt) for release in own])
        self.data = data

    def digest_of(self, *parts: bytes | memoryview) -> str:
        """A digest of what is to be released, that nobody without the key can compare with a guess."""
        hasher = hmac.new(self._digest_key, digestmod=hashlib.blake2b)
        for part in parts:
            hasher.update(len(part).to_bytes(8, "big"))
            hasher.update(part)
        return hasher.hexdigest()[:64]

    def attempt(self, round: int, digest: str) -> int | None:
        """Under which attempt a sum with this digest was released in the round; None: it was not."""
        return next((r.attempt for r in self.releases if r.round == round and r.digest == digest), None)

    def enter(self, round: int, digest: str) -> int:
        """The attempt for the noise on a sum; a new one is on the disk when this returns.

        Raises:
            CheckpointError: the disk refuses; then nothing may leave.
        """
        found = self.attempt(round, digest)
        if found is not None:
            return found
        release = Release(round, sum(r.round == round for r in self.releases), digest)
        if self.data is not None:
            self.data.enter(self.run, round, release.attempt)
        self._append(release)
        return release.attempt

    def _append(self, release: Release) -> None:
        if self.folder is not None:
            path = self.folder / LEDGER
            try:
                append_own(path, [release._asdict()])
            except OSError as error:
                raise CheckpointError(
                    f"{path} cannot be written ({error}), so the round's sum stays here; free some space and start the "
                    "run again"
                ) from error
        self.releases.append(release)


def read_releases(folder: Path) -> tuple[dict[str, Any], list[Release]]:
    """The terms of a run and its releases, of the ledger in `folder`; the key is not looked at.

    Raises:
        CheckpointError: the ledger is missing or damaged, or others than the owner may read it.
    """
    return _parsed(folder, _lines(folder))


def _lines(folder: Path) -> list[bytes]:
    """Of the ledger; without one in which a process died, as nothing left the server after it."""
    lines = read_own(folder / LEDGER, "the ledger of this run's releases", _RESTORE).splitlines(keepends=True)
    return [line for line in lines if line.endswith(b"\n")]


def _parsed(folder: Path, lines: Sequence[bytes]) -> tuple[dict[str, Any], list[Release]]:
    try:
        head, *rest = map(json.loads, lines)
        if head.pop("form") != _FORM:
            raise ValueError
        return head, [Release(counted(line["round"]), counted(line["attempt"]), str(line["digest"])) for line in rest]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{folder / LEDGER} is damaged; {_RESTORE}") from error


def _write(path: Path, content: bytes) -> None:
    partial = path.with_name(f"{path.name}.partial")
    with suppress(OSError):
        partial.unlink(missing_ok=True)
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
