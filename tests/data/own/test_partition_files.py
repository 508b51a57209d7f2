"""A partition on disk is read back as it was, or refused with the file; and how unlike clients' labels are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from fedtorch.core.errors import DataError
from fedtorch.data.own.overview import label_divergence
from fedtorch.data.own.partition import ClientRule, deal
from fedtorch.data.own.partition_files import read_partition, write_partition

PARTS = {"Süd 1": np.array([3, 0]), "west": np.array([1]), "none": np.array([], dtype=np.int64)}
IDS = ["a", "b", "c", "é"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_partition(tmp_path / "parts", PARTS, IDS)
    return tmp_path / "parts"


def test_a_partition_is_read_back_as_it_was_written(folder: Path) -> None:
    assert read_partition(folder) == {"Süd 1": ["é", "a"], "none": [], "west": ["b"]}
    assert list(read_partition(folder)) == ["Süd 1", "none", "west"]
    west = json.loads((folder / "west.json").read_text())
    assert west == {"format": 1, "client": "west", "clients": 3, "rows": ["b"]}


def test_what_deal_gives_can_be_written(tmp_path: Path) -> None:
    ids = [f"r{i}" for i in range(40)]
    parts = deal(ClientRule(iid=6), ids=ids, labels=None, owners=None, seed=0)
    write_partition(tmp_path / "new", parts, ids)
    assert read_partition(tmp_path / "new") == {client: [ids[i] for i in rows] for client, rows in parts.items()}


def test_a_folder_in_use_is_left_alone(folder: Path) -> None:
    before = sorted(folder.iterdir())
    with pytest.raises(DataError, match="exists and is not empty"):
        write_partition(folder, {"other": np.array([0])}, IDS)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(("names", "said"), [(["../x"], "is refused"), (["West", "west"], "look alike")])
def test_a_name_that_is_refused_leaves_nothing(tmp_path: Path, names: list[str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        write_partition(tmp_path / "parts", {name: np.array([i]) for i, name in enumerate(names)}, IDS)
    assert list(tmp_path.iterdir()) == []


def change(folder: Path, **changes: Any) -> None:
    path = folder / "west.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "west.json").unlink(), "holds 2 clients, but its files speak of 3"),
        (lambda folder: (folder / "west.json").write_text("{"), r"west\.json cannot be read as JSON"),
        (lambda folder: (folder / "west.json").write_text("[]"), r"west\.json is no client of a partition"),
        (lambda folder: change(folder, format=2), r"west\.json is no client of a partition; expected `format` 1"),
        (lambda folder: change(folder, rows=["b", 3]), r"west\.json: `rows` is no list of texts"),
        (lambda folder: change(folder, rows=["b", "a"]), r"west\.json: row 2 belongs to the client 'S\\xfcd 1' too"),
        (lambda folder: change(folder, rows=["b", "b"]), r"west\.json: row 2 belongs to the client 'west' too"),
        (lambda folder: change(folder, client="none"), r"west\.json: the client 'none' stands in another file too"),
        (lambda folder: [path.unlink() for path in folder.iterdir()], "holds no partition"),
    ],
)
def test_a_folder_that_is_wrong_is_named(folder: Path, spoil: Any, said: str) -> None:
    spoil(folder)
    with pytest.raises(DataError, match=said):
        read_partition(folder)


def test_no_folder_is_no_partition(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no partition"):
        read_partition(tmp_path / "gone")


COUNTS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.dictionaries(st.sampled_from("wxyz"), st.integers(0, 1000)), min_size=1
)


@given(COUNTS)
def test_divergence_equals_scipys(counts: dict[str, dict[str, int]]) -> None:
    found = label_divergence(counts)
    assert set(found) == {client for client, own in counts.items() if sum(own.values())}
    pooled = [sum(own.get(label, 0) for own in counts.values()) for label in "wxyz"]
    for client, value in found.items():
        own = [counts[client].get(label, 0) for label in "wxyz"]
        # scipy takes a root of what rounding may leave at 1e-17, hence 1e-12 after squaring
        assert value == pytest.approx(jensenshannon(own, pooled, base=2) ** 2, abs=1e-12)
        assert 0 <= value <= 1


def test_divergence_by_hand() -> None:
    # p = (1, 0), q = (½, ½), m = (¾, ¼): ½ log2(4/3) + ½ (½ log2(2/3) + ½ log2(2)) = 0.311278
    found = label_divergence({"one": {0: 5}, "two": {1: 5}, "empty": {0: 0}})
    assert found == {"one": pytest.approx(0.3112781245), "two": pytest.approx(0.3112781245)}
    assert label_divergence({"one": {"x": 3, "y": 9}, "two": {"x": 1, "y": 3}}) == {"one": 0.0, "two": 0.0}
    assert label_divergence({}) == label_divergence({"empty": {}}) == {}
