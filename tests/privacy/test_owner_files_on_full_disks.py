"""A full disk takes a part of a line, or none: then nothing was added, and nothing may leave the server."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtorch.core.errors import CheckpointError
from fedtorch.core.weights import mapped
from fedtorch.data.indexed import load_integers, save_array
from fedtorch.privacy import owner_files
from fedtorch.privacy.data_ledger import DataLedger
from fedtorch.privacy.ledger import LEDGER, Ledger
from fedtorch.privacy.owner_files import append_own, whole_lines
from fedtorch.privacy.release import Release

TERMS = {"rate": 0.5, "clients": 8, "noise_multiplier": 1.0, "delta": 1e-5}
LINE = {"round": 3, "attempt": 0, "digest": "ab" * 32}
BYTES = len(json.dumps(LINE)) + 1


class FullDisk(io.FileIO):
    """A file on a disk with so much room left; a write that does not fit is short, and one into no room fails."""

    room = 0

    def write(self, data: Any) -> int:
        """What fits, as write(2) does."""
        part = bytes(data)[: FullDisk.room]
        if not part:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        FullDisk.room -= len(part)
        return super().write(part)


class SaysNothing(FullDisk):
    """One that takes nothing more and raises nothing, as a file that would block."""

    def write(self, data: Any) -> int:
        """What fits, and then 0 for ever."""
        part = bytes(data)[: FullDisk.room]
        FullDisk.room -= len(part)
        return super(FullDisk, self).write(part)


@contextmanager
def room(size: int, kind: type[FullDisk] = FullDisk) -> Iterator[None]:
    """Inside it every file of `owner_files` is on a disk with `size` bytes left."""
    FullDisk.room = size
    before = os.fdopen
    owner_files.os.fdopen = lambda handle, mode, buffering: kind(handle, mode)  # type: ignore[assignment]
    try:
        yield
    finally:
        owner_files.os.fdopen = before


@pytest.mark.parametrize("kind", [FullDisk, SaysNothing])
def test_a_line_is_added_whole_or_not_at_all(kind: type[FullDisk], tmp_path: Path) -> None:
    for size in range(BYTES):
        path = tmp_path / f"{size}.jsonl"
        append_own(path, [{"a": 1}])
        with room(size, kind), pytest.raises(OSError):
            append_own(path, [LINE])
        assert path.read_bytes() == b'{"a": 1}\n', size


def test_a_write_that_takes_a_part_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OneByte(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(bytes(data)[:1])

    monkeypatch.setattr(owner_files.os, "fdopen", lambda handle, mode, buffering: OneByte(handle, mode))
    append_own(path := tmp_path / "lines.jsonl", [LINE, {"b": 2}])
    assert list(map(json.loads, whole_lines(path.read_bytes()))) == [LINE, {"b": 2}]


@pytest.mark.parametrize("size", [0, 1, BYTES // 2, BYTES - 1])
def test_no_sum_leaves_without_its_line(size: int, tmp_path: Path) -> None:
    second = "ab" * 32
    ledger = Ledger.begin(tmp_path / "privacy", TERMS)
    ledger.enter(0, 0, "first")
    before = (tmp_path / "privacy" / LEDGER).read_bytes()
    with room(size), pytest.raises(CheckpointError, match="so the round's sum stays here"):
        ledger.enter(1, 0, second)
    assert (tmp_path / "privacy" / LEDGER).read_bytes() == before
    assert len(ledger.releases) == 1
    assert ledger.enter(1, 0, second)
    assert [release.digest for release in Ledger.open(tmp_path / "privacy").releases] == ["first", second]


def test_a_line_in_which_a_process_died_is_no_release_and_takes_no_other_with_it(tmp_path: Path) -> None:
    for cut in range(1, BYTES):
        ledger = Ledger.begin(folder := tmp_path / str(cut), TERMS)
        ledger.enter(0, 0, "first")
        path = folder / LEDGER
        whole = path.read_bytes()
        path.write_bytes(whole + json.dumps(LINE).encode()[:cut])
        again = Ledger.open(folder)
        assert [release.digest for release in again.releases] == ["first"], cut
        assert again.enter(3, 0, "second")  # the round is done again, and is counted then
        assert path.read_bytes().startswith(whole)
        assert [release.digest for release in Ledger.open(folder).releases] == ["first", "second"], cut


def test_a_torn_line_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (path := tmp_path / "lines.jsonl").write_bytes(b'{"a": 1}\n{"b"')
    append_own(path, [{"c": 3}])
    assert f"the last 4 bytes of {path} are no whole line" in caplog.text


@pytest.mark.parametrize("length", [4095, 4096, 4097, 9000])
def test_a_torn_line_may_be_longer_than_what_is_read_at_once(length: int, tmp_path: Path) -> None:
    (path := tmp_path / "lines.jsonl").write_bytes(b'{"a": 1}\n' + b"x" * length)
    append_own(path, [{"c": 3}])
    assert path.read_bytes() == b'{"a": 1}\n{"c": 3}\n'


def test_what_cannot_be_synced_is_not_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines.jsonl"
    append_own(path, [{"a": 1}])

    def refuse(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="Input/output"):
        append_own(path, [LINE])
    assert path.read_bytes() == b'{"a": 1}\n'


def test_a_new_file_is_synced_with_its_folder_and_the_folders_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "new").mkdir()
    real, synced = os.fsync, list[str]()

    def note(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    monkeypatch.setattr(os, "fsync", note)
    append_own(folder / "lines.jsonl", [{}])
    assert synced == [str(folder / "lines.jsonl"), str(folder), str(tmp_path)]
    append_own(folder / "lines.jsonl", [{}])
    assert synced[3:] == [str(folder / "lines.jsonl")]


# --- on disks that are full in earnest

FILL = """
import sys
from pathlib import Path
from fedtorch.core.errors import CheckpointError
from fedtorch.privacy.data_ledger import DataLedger
from fedtorch.privacy.ledger import Ledger
root, left = Path(sys.argv[1]), 0
ledger = Ledger.begin(root / "privacy", {"rate": 0.5, "clients": 8, "noise_multiplier": 1.0, "delta": 1e-5})
ledger.attach(DataLedger(root / "data.privacy.jsonl"), root)
try:
    for round in range(3000):
        ledger.enter(round, 0, "ab" * 32)
        left += 1
except CheckpointError:
    pass
print(left, len(Ledger.open(root / "privacy").releases), len(next(iter(ledger.data.runs().values())).releases))
"""


def _inside(mounts: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program where `mounts` was done, in name spaces of its own."""
    command = ["unshare", "-rm", "sh", "-c", f'{mounts} && exec "$@"', "sh", *words]
    return subprocess.run(command, capture_output=True, text=True)


def _check(mounts: str, place: Path) -> None:
    if shutil.which("unshare") is None or (tried := _inside(mounts, "true")).returncode:
        pytest.skip(
            "this machine lets nobody mount: " + ("no unshare" if shutil.which("unshare") is None else tried.stderr)
        )
    done = _inside(mounts, sys.executable, "-c", FILL, str(place))
    assert not done.returncode, done.stderr
    left, kept, of_data = map(int, done.stdout.split())
    assert 0 < left < 3000
    assert kept == left
    assert left <= of_data <= left + 1  # the data's line comes first


@pytest.mark.processes
@pytest.mark.parametrize("kilobytes", [16, 20, 64])
def test_on_a_full_tmpfs_every_release_has_its_line(kilobytes: int, tmp_path: Path) -> None:
    _check(f"mount -t tmpfs -o size={kilobytes}k tmpfs {tmp_path}", tmp_path)


@pytest.mark.processes
@pytest.mark.parametrize("block", [1024, 4096])
def test_on_a_full_ext4_every_release_has_its_line(block: int, tmp_path: Path) -> None:
    if shutil.which("mkfs.ext4") is None or os.geteuid():
        pytest.skip("an image can be made and mounted by root alone, with mkfs.ext4")
    (image := tmp_path / "image").write_bytes(b"")
    os.truncate(image, 256 * 1024 if block == 1024 else 512 * 1024)
    subprocess.run(["mkfs.ext4", "-q", "-b", str(block), "-O", "^has_journal", "-m", "0", image], check=True)
    (place := tmp_path / "disk").mkdir()
    mounted = subprocess.run(["mount", "-o", "loop", image, place], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no loop device: {mounted.stderr}")
    try:
        done = subprocess.run([sys.executable, "-c", FILL, place], capture_output=True, text=True)
    finally:
        subprocess.run(["umount", place], check=True)
    assert not done.returncode, done.stderr
    left, kept, of_data = map(int, done.stdout.split())
    assert 0 < left < 3000
    assert kept == left
    assert left <= of_data <= left + 1


# --- siblings: numpy's own writing says nothing on a full disk

OTHERS = """
import sys
from pathlib import Path
import numpy as np, torch
from fedtorch.core.weights import mapped
from fedtorch.data.indexed import save_array
root = Path(sys.argv[1])
(root / "fill").write_bytes(b"x" * 4096)
flat = torch.arange(2000, dtype=torch.float32)
print(mapped(flat, root) is flat)
try:
    save_array(root / "numbers.npy", np.arange(800))
    print("whole")
except OSError:
    print("refused")
"""


@pytest.mark.processes
def test_vectors_and_indices_on_a_full_disk_are_not_cut_short_in_silence(tmp_path: Path) -> None:
    mounts = f"mount -t tmpfs -o size=8k tmpfs {tmp_path}"
    if shutil.which("unshare") is None or _inside(mounts, "true").returncode:
        pytest.skip("this machine lets nobody mount a tmpfs")
    done = _inside(mounts, sys.executable, "-c", OTHERS, str(tmp_path))
    assert done.stdout.split() == ["True", "refused"], done.stderr


def test_what_fits_is_written_whole(tmp_path: Path) -> None:
    import torch

    flat = torch.arange(5, dtype=torch.float32)
    assert torch.equal(mapped(flat, tmp_path), flat)
    save_array(tmp_path / "numbers.npy", np.arange(5))
    assert load_integers(tmp_path / "numbers.npy").tolist() == [0, 1, 2, 3, 4]


def test_the_ledger_of_data_is_written_whole_too(tmp_path: Path) -> None:
    ledger = DataLedger(tmp_path / "data.privacy.jsonl")
    ledger.begin("run", TERMS, tmp_path, [], is_known=False)
    with room(7), pytest.raises(CheckpointError, match="cannot be written"):
        ledger.enter("run", Release(0, 0, "ab", 0))
    assert ledger.runs()["run"].releases == {}
