"""Files of trainings that are under way: torn, changed, of something else, or on a disk that is full."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedtorch.checkpoint.under_way import FOLDER, UnderWayFile, drop_under_way
from fedtorch.core.errors import CheckpointError

KEY = {"config": "x", "client": "nörth", "round": 3, "training": 1, "ranks of a worker": 1, "beginning": "y", "part": 0}
TENSORS = {"shared": torch.arange(5.0), "own/generator": torch.arange(3, dtype=torch.uint8), "scalar": torch.ones(())}


@pytest.fixture
def file(tmp_path: Path) -> UnderWayFile:
    made = UnderWayFile(tmp_path, KEY)
    made.write(0, TENSORS, {"step": 4, "optimizer/a": 0.5})
    return made


def test_what_is_written_is_read(file: UnderWayFile) -> None:
    found = file.read(0)
    assert found is not None and found[1] == {"step": 4, "optimizer/a": 0.5} and set(found[0]) == set(TENSORS)
    assert all(torch.equal(found[0][name], tensor) for name, tensor in TENSORS.items())
    assert file.read(1) is None and [path.name for path in file.path(0).parent.iterdir()] == [file.path(0).name]


@pytest.mark.parametrize(
    ("name", "value"), [("config", "z"), ("ranks of a worker", 2), ("beginning", "another"), ("client", "north")]
)
def test_of_another_run_client_worker_or_beginning(name: str, value: object, file: UnderWayFile) -> None:
    other = replace(file, key={**KEY, name: value})
    shutil.copy(file.path(0), other.path(0)) if other.path(0) != file.path(0) else None
    with pytest.raises(CheckpointError, match=f"is of another {name}"):
        other.read(0)


def test_of_another_round_or_training_is_another_file(file: UnderWayFile) -> None:
    assert replace(file, key={**KEY, "round": 4}).read(0) is None
    other = replace(file, key={**KEY, "training": 2})
    shutil.copy(file.path(0), other.path(0))
    with pytest.raises(CheckpointError, match="is of another training"):
        other.read(0)


@pytest.mark.parametrize("size", [0, 7, 200, -1])
def test_torn(size: int, file: UnderWayFile) -> None:
    content = file.path(0).read_bytes()
    file.path(0).write_bytes(content[:size])
    with pytest.raises(CheckpointError, match="is not what a checkpoint has there"):
        file.read(0)


def test_every_bit_counts(file: UnderWayFile) -> None:
    content = file.path(0).read_bytes()
    for place in range(len(content)):
        file.path(0).write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(CheckpointError):
            file.read(0)


def test_numbers_and_names_that_cannot_be(file: UnderWayFile) -> None:
    with safe_open(file.path(0), "pt") as opened:
        about = opened.metadata()
    state = json.loads(about["state"])
    for changes in ({"numbers": {"step": "4"}}, {"numbers": {"step": 2**60}}, {"names": ["shared"]}, {"key": []}):
        save_file(load_file(file.path(0)), file.path(0), {**about, "state": json.dumps({**state, **changes})})
        with pytest.raises(CheckpointError):
            file.read(0)


def test_no_regular_file(file: UnderWayFile) -> None:
    file.path(0).unlink()
    file.path(0).mkdir()
    with pytest.raises(CheckpointError, match="is no regular file"):
        file.read(0)


def test_rounds_that_are_saved_are_dropped_and_no_other_file(file: UnderWayFile) -> None:
    later = replace(file, key={**KEY, "round": 4})
    later.write(1, TENSORS, {"step": 1})
    partial = file.path(1).with_name(f"{file.path(1).name}.77.partial")
    partial.write_bytes(b"left by a kill")
    other = file.path(0).with_name("notes.txt")
    other.write_text("mine")
    drop_under_way(file.folder, lambda round: round >= 4)
    assert {path.name for path in other.parent.iterdir()} == {later.path(1).name, "notes.txt"}
    drop_under_way(file.folder, lambda round: round >= 5)
    assert [path.name for path in other.parent.iterdir()] == ["notes.txt"]
    other.unlink()
    drop_under_way(file.folder, lambda round: round >= 5)
    assert not (file.folder / FOLDER).exists()
    drop_under_way(file.folder)


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)


def test_a_full_disk_keeps_the_file_before(file: UnderWayFile) -> None:
    large = {**TENSORS, "shared": torch.zeros(100_000)}
    with no_file_beyond(10_000), pytest.raises(CheckpointError, match="could not write"):
        file.write(0, large, {"step": 5})
    found = file.read(0)
    assert found is not None and found[1]["step"] == 4
    assert [path.name for path in file.path(0).parent.iterdir()] == [file.path(0).name]
