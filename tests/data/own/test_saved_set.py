"""A saved set is read from its own folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from fedtorch.core.errors import DataError
from fedtorch.data.own.saved_set import check_saved
from fedtorch.data.own.source import _saved

ROWS = {"note": ["a", "b"], "label": [0, 1]}


def state_of(folder: Path) -> Path:
    return folder / "state.json"


def with_file(folder: Path, name: object) -> None:
    state = json.loads(state_of(folder).read_text())
    state["_data_files"] = [{"filename": name}]
    state_of(folder).write_text(json.dumps(state))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    Dataset.from_dict(ROWS).save_to_disk(tmp_path / "set")
    Dataset.from_dict(ROWS).save_to_disk(tmp_path / "other")
    DatasetDict(train=Dataset.from_dict(ROWS), test=Dataset.from_dict(ROWS)).save_to_disk(tmp_path / "dict")
    return tmp_path


def test_what_save_to_disk_writes_is_read(place: Path) -> None:
    (table,) = _saved(place / "set")
    assert len(table.rows) == 2
    assert [table.split for table in _saved(place / "dict")] == ["train", "test"]


@pytest.mark.parametrize(
    "name",
    ["../other/data-00000-of-00001.arrow", "/etc/passwd", "a/b.arrow", "a\0b", "", "..", 3, None, "a\\b", "a\ud800"],
)
def test_a_state_that_names_files_elsewhere_is_refused(name: object, place: Path) -> None:
    with_file(place / "set", name)
    with pytest.raises(DataError, match=r"state\.json names .*which is not in its folder"):
        _saved(place / "set")


def test_a_data_file_that_is_a_link_out_of_the_folder_is_refused(place: Path) -> None:
    file = place / "set" / "data-00000-of-00001.arrow"
    file.unlink()
    file.symlink_to(place / "other" / file.name)
    with pytest.raises(DataError, match="is a link that leads out of its folder"):
        _saved(place / "set")


@pytest.mark.parametrize("name", ["../other", "/", "..", "a\0b", 7, "\udfff"])
def test_a_dict_that_names_splits_elsewhere_is_refused(name: object, place: Path) -> None:
    (place / "dict" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", name]}))
    with pytest.raises(DataError, match=r"dataset_dict\.json names .*which is not in its folder"):
        _saved(place / "dict")


def test_a_split_that_is_a_link_out_of_the_folder_is_refused(place: Path) -> None:
    (place / "dict" / "more").symlink_to(place / "other")
    (place / "dict" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "more"]}))
    with pytest.raises(DataError, match="is a link that leads out of its folder"):
        _saved(place / "dict")


@pytest.mark.parametrize("name", ["state.json", "dataset_info.json", "data-00000-of-00001.arrow"])
def test_a_fifo_in_place_of_a_file_is_refused_without_waiting(name: str, place: Path) -> None:
    (place / "set" / name).unlink()
    os.mkfifo(place / "set" / name)
    with pytest.raises(DataError, match="not a regular file"):
        check_saved(place / "set")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"_data_files": {}}',
        '{"_data_files": null}',
        '{"_data_files": true}',
        '{"_data_files": 3}',
        "[" * 100_000,
    ],
)
def test_a_damaged_state_is_an_error_that_names_it(content: str, place: Path) -> None:
    state_of(place / "set").write_text(content)
    with pytest.raises(DataError, match=r"state\.json"):
        _saved(place / "set")


def test_a_state_with_an_entry_that_is_no_mapping_is_refused(place: Path) -> None:
    state_of(place / "set").write_text('{"_data_files": [1]}')
    with pytest.raises(DataError, match=r"state\.json names None"):
        _saved(place / "set")
