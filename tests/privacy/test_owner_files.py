"""Lines that are added to a file of one's own: whole, on the disk, behind whatever a process left that died."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import threading
from pathlib import Path

import pytest

from fedtorch.privacy import owner_files
from fedtorch.privacy.owner_files import append_own, sync_folder, whole_lines


def test_a_new_file_is_for_its_owner_alone_and_grows_by_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    append_own(path, [{"a": 1}, {"b": 2}])
    append_own(path, [{"c": 3}])
    assert path.read_text() == '{"a": 1}\n{"b": 2}\n{"c": 3}\n'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("before", ["", '{"a": 1}\n', '{"a": 1}\n' * 2000], ids=["nothing", "a line", "long"])
@pytest.mark.parametrize("torn", ["", "{", '{"b": "' + "x" * 3000], ids=["whole", "begun", "long"])
def test_what_was_not_finished_is_cut_off_and_nothing_else(before: str, torn: str, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text(before + torn)
    append_own(path, [{"c": 3}])
    assert path.read_text() == before + '{"c": 3}\n'


def test_the_lines_are_in_the_file_when_it_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "lines.jsonl", list[object]()
    monkeypatch.setattr(os, "fsync", lambda handle: seen.append(json.loads(path.read_text())))
    append_own(path, [{"a": 1}])
    assert seen[0] == {"a": 1}


@pytest.mark.parametrize("shared", [True, False])
def test_a_shared_file_is_waited_for(shared: bool, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    writes = threading.Thread(target=append_own, args=(path, [{}]), kwargs={"shared": True} if shared else {})
    writes.daemon = True
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        writes.start()
        writes.join(0.1 if shared else 5)
        assert writes.is_alive() == shared
    writes.join(5)
    assert path.read_text() == "{}\n"


def test_of_a_new_file_its_folder_and_the_one_above_are_synced_and_of_an_old_one_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "in" / "lines.jsonl", list[Path]()
    path.parent.mkdir()
    monkeypatch.setattr(owner_files, "sync_folder", synced.append)
    append_own(path, [{"a": 1}])
    assert synced == [tmp_path / "in", tmp_path]
    append_own(path, [{"b": 2}])
    assert len(synced) == 2


def test_a_file_system_that_cannot_sync_folders_is_no_error_and_one_that_fails_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(number: int) -> None:
        def fsync(handle: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fsync)

    fails(errno.EINVAL)
    sync_folder(tmp_path)
    fails(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"a", []),
        (b"a\n", [b"a"]),
        (b"a\n\nb\nc\n", [b"a", b"b", b"c"]),
        (b"a\nb\nc\nd", [b"a", b"b", b"c"]),
    ],
)
def test_whole_lines_are_those_with_an_end(content: bytes, lines: list[bytes]) -> None:
    assert whole_lines(content) == lines
