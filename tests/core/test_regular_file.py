"""What is not a regular file is refused before anybody opens it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from fedtorch.core.errors import DataError
from fedtorch.core.regular_file import check_regular, shown_path


def test_a_regular_file_and_a_link_to_one_pass(tmp_path: Path) -> None:
    file, link = tmp_path / "rows.jsonl", tmp_path / "link"
    file.write_text("{}")
    link.symlink_to(file)
    check_regular(file, "the data file")
    check_regular(link, "the data file")


def test_a_fifo_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"^the data file .*pipe is a named pipe \(FIFO\), not a regular file; give"):
        check_regular(tmp_path / "pipe", "the data file")


def test_a_link_to_a_fifo_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "rows.jsonl").symlink_to("pipe")
    with pytest.raises(DataError, match="named pipe"):
        check_regular(tmp_path / "rows.jsonl", "the data file")


def test_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path has at most 107 characters
    with socket.socket(socket.AF_UNIX) as end:
        end.bind("end")
        with pytest.raises(DataError, match="is a socket"):
            check_regular(Path("end"), "the data file")


@pytest.mark.parametrize(("path", "kind"), [("/dev/zero", "a character device"), ("/", "a folder")])
def test_devices_and_folders_are_refused(path: str, kind: str) -> None:
    with pytest.raises(DataError, match=f"is {kind}, not a regular file"):
        check_regular(Path(path), "the data file")


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_characters_that_no_path_has_are_refused_and_escaped(name: str) -> None:
    with pytest.raises(DataError, match=r"holds a character that no path can have") as caught:
        check_regular(Path(name), "the data file")
    assert str(caught.value).isprintable()


def test_a_missing_file_a_long_name_and_a_circle_of_links_are_named(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    for name in ("none", "n" * 5000, "circle"):
        with pytest.raises(DataError, match="cannot be read") as caught:
            check_regular(tmp_path / name, "the data file")
        assert len(str(caught.value)) < 400


def test_a_shown_path_has_no_control_characters() -> None:
    assert shown_path("a\x1b[31m\nb") == "a\\x1b[31m\\nb"
