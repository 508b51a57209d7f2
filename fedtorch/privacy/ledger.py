"""The secret key of a run and its ledger of releases: on the server only, read and written by their owner alone.

Both are in `RUN/privacy/`, not in single checkpoints: what was released stays released, whichever checkpoint the run
goes on from, or if it has none yet.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedtorch.core.errors import CheckpointError
from fedtorch.privacy.accounting import shared
from fedtorch.privacy.data_ledger import DataLedger, stamp
from fedtorch.privacy.digests import keyed_digest
from fedtorch.privacy.owner_files import append_own, read_own, sync_folder, write_own
from fedtorch.privacy.release import Release, TwoSumsError, merge
from fedtorch.privacy.stream import KEY_BYTES, derived

log = logging.getLogger(__name__)

FOLDER, KEY, LEDGER = "privacy", "key", "ledger.jsonl"
_FORM = 1
_RESTORE = "bring it back from where the checkpoint came from, or begin anew with `--resume never`"


class Ledger:
    """The key, and which sums were released under it. A line is on the disk before what it is about leaves the server.

    With `folder` None nothing is on the disk: for simulations, whose key is no secret.
    """

    def __init__(self, key: bytes, terms: Mapping[str, Any], folder: Path | None, releases: Iterable[Release]) -> None:
        self.key, self.terms, self.folder = key, dict(terms), folder
        self._known = {(release.round, release.attempt): release for release in releases}
        self.data: DataLedger | None = None
        self._digest_key = derived(key, "digest")
        self._seen: tuple[int, ...] | None = None
        """the stamp of the file as this process left it"""

    @property
    def releases(self) -> list[Release]:
        """One for each attempt, those of which nothing has left yet too: they are on the account."""
        return list(self._known.values())

    @property
    def spent(self) -> Counter[int]:
        """As the account counts them."""
        return shared((release.round, release.draw) for release in self._known.values())

    @classmethod
    def begin(cls, folder: Path, terms: Mapping[str, Any], releases: list[Release] | None = None) -> Ledger:
        """A new key and an empty ledger in `folder`, in place of what was there.

        terms: the numbers that the account rests on. releases: what counts already, of the run this one goes on from.
        """
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.mkdir(mode=0o700)
            write_own(folder / KEY, key := os.urandom(KEY_BYTES))
            ledger = cls(key, terms, folder, [])
            write_own(folder / LEDGER, json.dumps({"form": _FORM, **ledger.terms}).encode() + b"\n")
            ledger._seen = stamp(folder / LEDGER)
            for release in releases or ():
                ledger._append(release)
            sync_folder(folder)
            sync_folder(folder.parent)
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
            write_own(folder / LEDGER, b"".join(lines))
        ledger = cls(key, head, folder, releases)
        ledger._seen = stamp(folder / LEDGER)
        return ledger

    @property
    def check(self) -> int:
        """40 bits of a check of the key, for checkpoints: with another key the noise would be another one."""
        return int.from_bytes(derived(self.key, "check")[:5], "big")

    @property
    def run(self) -> str:
        """Name of the run in the ledger of the data: a key is a run."""
        return derived(self.key, "run")[:8].hex()

    def attach(self, data: DataLedger | None, folder: Path, *, anew: bool = False) -> None:
        """Count this run's releases, at `folder`, in the ledger of its data too, those so far and those to come.

        What that knows and this one does not is taken over: a copy of the run released it, or the run itself before its
        folder came back from a backup. data: None where the data have none. anew: enter the run there even if it was
        counted elsewhere, or was there and is not any more.

        Raises:
            CheckpointError: that cannot be read or written; it is another file than before, or lacks what it must have.
        """
        was, now = self.terms.get("data_ledger"), None if data is None else str(data.path.resolve())
        is_moved = was is not None and now is not None and not Path(was).exists() and Path(now).exists()
        if was not in (None, now) and not is_moved and (not anew or now is None):
            raise CheckpointError(
                f"the releases of this run are counted in {was}, but privacy.ledger, or the folder of the data, leads "
                f"to {now or 'no ledger'}; set privacy.ledger to the former"
                + (", or use `--resume force`, which enters all of them in the latter" if now else "")
            )
        if data is None:
            self._claim(folder.resolve())
            return
        since = self.terms.get("since", 0)
        own = [release for release in self.releases if release.round >= since]
        if anew and own and (was != now or self.run not in data.runs()):
            log.warning(
                "the releases of this run are entered in %s, as asked for (--resume force); what other runs released "
                "of these data is counted there no more, if it was counted elsewhere",
                now,
            )
        data.begin(self.run, self.terms, folder, own, is_known=bool(own and was and not anew))
        self.data = data
        if was != now:
            self.terms["data_ledger"] = now
            self._rewrite()
        self.refresh()

    def _claim(self, folder: Path) -> None:
        """Without a ledger of the data: the run's folder is this one, and no copy of one that is there too.

        Raises:
            CheckpointError: it is; where both go on, each puts its noise on another sum.
        """
        was, now = self.terms.get("folder"), str(folder)
        original = Path(was or now) / FOLDER / KEY
        with suppress(OSError):
            if was != now and original.read_bytes() == self.key and not original.samefile(folder / FOLDER / KEY):
                raise CheckpointError(
                    f"{now} is a copy of the run in {was}, with its key, and no ledger counts what both release: go on "
                    f"there; or from here with a key of its own, `--resume {now}/checkpoints/round_...` and another "
                    "run.dir; or delete the other one's folder"
                )
        if was != now:
            self.terms["folder"] = now
            self._rewrite()

    def refresh(self) -> None:
        """Take over what the ledger of the data knows of this key's releases and this one does not.

        Raises:
            CheckpointError: one of them cannot be read or written.
        """
        for release in self.data.of(self.run) if self.data is not None else ():
            there = self._known.get((release.round, release.attempt))
            if there is None or (there.is_open and not release.is_open):
                self._append(release)

    def of_data(self) -> dict[str, Any] | None:
        """Account of all runs on the data; None: nobody counts them."""
        return None if self.data is None else self.data.account()

    def last(self, round: int) -> Release | None:
        """The round's last attempt, with which it begins when it is done again; None: it has had none."""
        attempts = [release for release in self._known.values() if release.round == round]
        return max(attempts, key=lambda release: release.attempt, default=None)

    def digest_of(self, *parts: bytes | memoryview) -> str:
        """A digest of what is to be released, that nobody without the key can compare with a guess."""
        return keyed_digest(self._digest_key, parts)

    def enter(self, round: int, attempt: int, digest: str) -> bool:
        """May the sum with this digest leave, with the noise of this attempt? Its line is on the disk then.

        False: another sum was released under the attempt, here or by a copy of the run.

        Raises:
            CheckpointError: the disk refuses; then nothing may leave.
        """
        release = Release(round, attempt, digest, attempt)
        there = self._known.get((round, attempt))
        if there is not None and not there.is_open:
            return there.digest == digest
        if self.data is not None and not self.data.enter(self.run, release):
            self.refresh()
            return False
        self._append(release)
        return True

    def renew(self, round: int) -> None:
        """The round gets its next attempt: another draw of the cohort, and of the noise; on the disk then.

        Raises:
            CheckpointError: the disk refuses.
        """
        last = self.last(round)
        attempt = 0 if last is None else last.attempt + 1
        self._append(Release.begun(round, attempt) if self.data is None else self.data.renew(self.run, round, attempt))

    def _append(self, release: Release) -> None:
        if self.folder is not None:
            path = self.folder / LEDGER
            self._check_file()
            try:
                append_own(path, [release.line()])
            except OSError as error:
                raise CheckpointError(
                    f"{path} cannot be written ({error}), so the round's sum stays here; free some space and start the "
                    "run again"
                ) from error
            self._seen = stamp(path)
        merge(self._known, release)

    def _check_file(self) -> None:
        """Nobody else has written to the file, or taken it away.

        Raises:
            CheckpointError: somebody has.
        """
        assert self.folder is not None
        path = self.folder / LEDGER
        if self._seen is None or self._seen == stamp(path):
            return
        with suppress(CheckpointError):
            if read_releases(self.folder) == (self.terms, self.releases):  # a disk with a clock of its own
                return
        raise CheckpointError(
            f"{path} was changed or taken away by something else than this run, so the round's sum stays here; "
            f"{_RESTORE}"
        )

    def _rewrite(self) -> None:
        """Write the file anew, with other terms."""
        if self.folder is not None:
            lines = [{"form": _FORM, **self.terms}, *(release.line() for release in self.releases)]
            try:
                write_own(self.folder / LEDGER, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
            except OSError as error:
                raise CheckpointError(f"{self.folder / LEDGER} cannot be written ({error}); free some space") from error
            self._seen = stamp(self.folder / LEDGER)


def read_releases(folder: Path) -> tuple[dict[str, Any], list[Release]]:
    """The terms of a run and its releases, of the ledger in `folder`; the key is not looked at.

    Raises:
        CheckpointError: the ledger is missing or damaged, or others than the owner may read it.
    """
    return _parsed(folder, _lines(folder))


def _lines(folder: Path) -> list[bytes]:
    """Lines of the ledger; without one in which a process died, as nothing left the server after it."""
    lines = read_own(folder / LEDGER, "the ledger of this run's releases", _RESTORE).splitlines(keepends=True)
    return [line for line in lines if line.endswith(b"\n")]


def _parsed(folder: Path, lines: Sequence[bytes]) -> tuple[dict[str, Any], list[Release]]:
    try:
        head, *rest = map(json.loads, lines)
        if head.pop("form") != _FORM:
            raise ValueError
        known: dict[tuple[int, int], Release] = {}
        for line in rest:
            merge(known, Release.of(line))
        return head, list(known.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f" ({error})" if isinstance(error, TwoSumsError) else ""
        raise CheckpointError(f"{folder / LEDGER} is damaged{why}; {_RESTORE}") from error
