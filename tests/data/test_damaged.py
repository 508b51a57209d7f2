"""Prepared folders that are not what was written: every one is refused with the file's name, or read as it stands."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prepared_files import seal

from fedtorch.core.errors import DataError
from fedtorch.data import manifest as m
from fedtorch.data.folder import read_client, read_rows
from fedtorch.data.indexed import write_index
from fedtorch.data.wikisql import read_split
from fedtorch.models.t5 import T5Model
from fedtorch.tasks.text2sql import Text2SQL
from fedtorch.tasks.wikisql import WikiSQL

SMALL = T5Model(d_model=4, d_ff=4, d_kv=2, num_heads=1, num_layers=1)


@pytest.fixture
def root(tiny_data: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_data, tmp_path / "data"))


def change_manifest(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((root / "manifest.json").read_text())
    change(manifest)
    (root / "manifest.json").write_text(json.dumps(manifest))


def train_facts(manifest: dict[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = manifest["clients"]["north"]["splits"]["train"]
    return facts


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + path.read_bytes().split(b"\n")[0] + b"\n")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "emptied": (lambda path: path.write_text(""), "it has 0 rows instead of 12 and its content has another sha256"),
    "longer": (append, "it has 13 rows instead of 12 and its content"),
    "another letter": (lambda path: path.write_bytes(path.read_bytes().replace(b"river", b"rover")), ": its content"),
    "without its last line end": (lambda path: path.write_bytes(path.read_bytes()[:-1]), ": its content has another"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_is_not_the_one_of_the_manifest_is_refused(root: Path, damage: str) -> None:
    change, problem = DAMAGES[damage]
    path = root / "north" / "train.jsonl"
    read_rows(root, "north", "train")
    change(path)
    with pytest.raises(DataError) as caught:
        read_rows(root, "north", "train")
    message = str(caught.value)
    assert message.startswith(f"{path} is not the file that {root}/manifest.json tells of") and problem in message
    assert "restore it or prepare the data again" in message and "remove `sha256` of this split" in message


def test_a_file_is_digested_once(root: Path) -> None:
    before = m._digest.cache_info()
    for _ in range(3):
        read_rows(root, "north", "train")
        read_rows(root, "north", "dev")
    after = m._digest.cache_info()
    assert (after.misses - before.misses, after.hits - before.hits) == (2, 4)


def test_a_folder_of_ones_own_without_digests_and_characters_is_read_and_its_counts_are_checked(root: Path) -> None:
    change_manifest(root, lambda manifest: [train_facts(manifest).pop(key) for key in ("sha256", "characters")])
    task = Text2SQL(data=str(root), model=SMALL)
    assert len(task.load("north", "train")) == 12 and task.cost("north") == 1.0 and task.cost("south") > 1
    (root / "north" / "train.jsonl").write_text("")
    with pytest.raises(DataError, match="it has 0 rows instead of 12; restore it"):
        task.check("north")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{}", "the field 'schema' is missing"),
        ('{"schema": {}}', "the field 'schema' is a dict, not a str"),
        ('{"schema": null}', "the field 'schema' is a NoneType, not a str"),
        ("[1]", "a JSON list, not an object"),
        ('{"schema": "x', "not JSON"),
        ("\0\0\0", "not JSON"),
        ('{"schema": "\\ud800"}', "half of a surrogate pair"),
        (None, "is a folder or a special file"),
    ],
)
def test_a_damaged_client_json_is_named(root: Path, content: str | None, problem: str) -> None:
    path = root / "north" / "client.json"
    path.unlink()
    if content is None:
        path.mkdir()
    else:
        path.write_text(content)
    task = Text2SQL(data=str(root), model=SMALL)
    for read in (lambda: task.check("north"), lambda: task.load("north", "dev")):
        with pytest.raises(DataError) as caught:
            read()
        assert str(caught.value).startswith(str(path)) and problem in str(caught.value)


def test_a_folder_in_place_of_a_file_and_a_file_without_rights_are_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "north" / "dev.jsonl").unlink()
    (root / "north" / "dev.jsonl").mkdir()
    with pytest.raises(DataError, match=r"dev.jsonl is a folder or a special file; expected a file of JSON"):
        read_rows(root, "north", "dev")
    (root / "manifest.json").unlink()
    (root / "manifest.json").mkdir()
    with pytest.raises(DataError, match="manifest.json is a folder, not a regular file"):
        m.read_manifest(root)

    def refuse(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DataError, match=r"client.json cannot be read \(Permission denied\)"):
        read_client(root, "north")


def test_a_schema_of_a_row_must_be_text_too(root: Path) -> None:
    path = root / "north" / "dev.jsonl"
    path.write_text(path.read_text().replace('{"question"', '{"schema": ["x"], "question"', 1))
    seal(root)
    with pytest.raises(DataError, match="client north, split dev, row 1: `schema` is no string"):
        Text2SQL(data=str(root), model=SMALL).load("north", "dev")


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda manifest: train_facts(manifest).pop("examples"), "clients.north.splits.train.examples: field required"),
        (
            lambda manifest: train_facts(manifest).update(examples=-1),
            "clients.north.splits.train.examples: input should",
        ),
        (lambda manifest: train_facts(manifest).update(examples=1e30), "clients.north.splits.train.examples: "),
        (lambda manifest: train_facts(manifest).update(examples=10**30), "clients.north.splits.train.examples: "),
        (lambda manifest: train_facts(manifest).update(examples=True), "clients.north.splits.train.examples: "),
        (lambda manifest: train_facts(manifest).update(sha256="x"), "clients.north.splits.train.sha256: string should"),
        (lambda manifest: train_facts(manifest).update(characters="9"), "clients.north.splits.train.characters: "),
        (lambda manifest: manifest["clients"].update(north=[]), "clients.north: input should be a valid dict"),
        (lambda manifest: manifest["clients"]["north"].update(splits=[3]), "clients.north.splits: input should be"),
        (lambda manifest: manifest["clients"]["north"]["splits"].update({"a\0b": {"examples": 1}}), r"split 'a\x00b'"),
        (lambda manifest: manifest["clients"]["north"]["splits"].update({"../x": {"examples": 1}}), "split '../x'"),
        (lambda manifest: manifest.update(format=[1]), "has format [1], expected 1"),
        (lambda manifest: manifest.update(record=3), "lacks `clients` or `record`"),
    ],
)
def test_a_manifest_that_is_not_of_its_form_is_named_with_the_key(root: Path, change: Any, key: str) -> None:
    change_manifest(root, change)
    with pytest.raises(DataError) as caught:
        m.read_manifest(root)
    assert str(root / "manifest.json") in str(caught.value) and key in str(caught.value)


def test_an_escaped_nul_is_text_like_any_other(root: Path) -> None:
    path = root / "north" / "dev.jsonl"
    path.write_text(path.read_text().replace("which", "wh\\u0000ich"))
    task = Text2SQL(data=str(seal(root)), model=SMALL)
    task.check("north")
    assert len(task.load("north", "dev")) == 2


# WikiSQL


def table_files(folder: Path, table: dict[str, Any], row: dict[str, Any]) -> Path:
    good = {"id": "t", "header": ["a", "b"], "types": ["text", "real"]}
    query = {"table_id": "t", "question": "q x", "sql": {"agg": 0, "sel": 1, "conds": [[0, 0, "x"]]}}
    (folder / "train.tables.jsonl").write_text(json.dumps({**good, **table}))
    (folder / "train.jsonl").write_text(json.dumps({**query, **row}))
    return folder


@pytest.mark.parametrize(
    ("table", "row", "problem"),
    [
        ({"header": [["a"], "b"]}, {}, "tables.jsonl:1: a column's name in `header` is no text"),
        ({"header": [None, "b"]}, {}, "tables.jsonl:1: a column's name in `header` is no text"),
        ({"types": [["text"], "real"]}, {}, "tables.jsonl:1: a column has type"),
        ({}, {"sql": {"agg": float("inf"), "sel": 1, "conds": []}}, "train.jsonl:1: `sql` needs agg, sel and conds"),
        ({}, {"sql": {"agg": 0, "sel": 1, "conds": [[0, 0, {}]]}}, "train.jsonl:1: `sql` needs agg, sel and conds"),
        ({}, {"sql": {"agg": 0, "sel": 10**400, "conds": []}}, "train.jsonl:1: the query refers to column 1000"),
    ],
)
def test_rows_and_headers_of_a_wrong_type_are_refused_when_read(
    tmp_path: Path, table: dict[str, Any], row: dict[str, Any], problem: str
) -> None:
    with pytest.raises(DataError) as caught:
        read_split(table_files(tmp_path, table, row), "train")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"question": 3}, "`question` is no str"),
        ({"question": "\ud800"}, "is not a JSON object in UTF-8"),
        ({"header": ["\ud800", "b"]}, "is not a JSON object in UTF-8"),
        ({"header": "abc"}, "`header` is no list"),
        ({"header": [1, 2]}, "`header` and `types` are no table's"),
        ({"types": ["string"]}, "`header` and `types` are no table's"),
        ({"types": [["string"], {}]}, "`header` and `types` are no table's"),
        ({"agg": "0"}, "`agg` is no int"),
        ({"sel": 99}, "the query refers to column 99"),
        ({"conds": [[0, 0]]}, "`conds` are no triples"),
        ({"conds": [[0, 0, 3]]}, "`conds` are no triples"),
    ],
)
def test_a_prepared_row_of_a_wrong_type_is_named(
    tiny_wikisql: Path, tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    root = Path(shutil.copytree(tiny_wikisql, tmp_path / "data"))
    path = root / "pool" / "dev.jsonl"
    lines = path.read_text().split("\n")
    lines[0] = json.dumps({**json.loads(lines[0]), **change})
    path.write_text("\n".join(lines))
    write_index(path)
    task = WikiSQL(data=str(seal(root)), server_labelled=10, num_clients=3, client_size=(3, 5), parts=1)
    with pytest.raises(DataError) as caught:
        task.check("part0")
    assert f"{path}:1" in str(caught.value) and problem in str(caught.value)


def test_a_pool_whose_rows_or_indices_changed_is_refused(tiny_wikisql: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(tiny_wikisql, tmp_path / "data"))
    task = WikiSQL(data=str(root), server_labelled=10, num_clients=3, client_size=(3, 5), parts=1)
    task.check("part0")
    path = root / "pool" / "dev.jsonl"
    good = path.read_bytes()
    path.write_bytes(good.replace(b"question", b"quextion", 1))
    with pytest.raises(DataError, match="dev.jsonl is not the file that"):
        task.check("part0")
    path.write_bytes(good)
    for name, array, problem in (
        ("dev.offsets.npy", np.array([0, 9, 3, len(good)]), "does not fit dev.jsonl"),
        ("dev.offsets.npy", np.array(3), "does not fit dev.jsonl"),
        ("dev.words.npy", np.array([1, 2]), "is of 2 questions but the manifest counts 24"),
        ("dev.words.npy", np.array(["a"]), "words.npy cannot be read"),
    ):
        kept = (root / "pool" / name).read_bytes()
        np.save(root / "pool" / name, array)
        with pytest.raises(DataError, match=problem):
            WikiSQL(data=str(root), server_labelled=10, num_clients=3, client_size=(3, 5), parts=1).check("part0")
        (root / "pool" / name).write_bytes(kept)
