"""Prepared folders spoilt at random, of every task: read, or refused with 3 (2 where only the vocabulary is wrong)."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzzing import cases, only_named_errors, spoilt, text_of, torn
from hypothesis import given
from hypothesis import strategies as st
from prepared_files import seal

from fedtorch.core.errors import DataError
from fedtorch.data.folder import folder_name
from fedtorch.data.indexed import write_index
from fedtorch.data.qa_folder import QARow, write_qa
from fedtorch.data.synthetic.dialogs import prepare as prepare_dialogs
from fedtorch.data.synthetic.gym import prepare as prepare_gym
from fedtorch.models.gpt2 import GPT2Model
from fedtorch.tasks.base import Task
from fedtorch.tasks.dialog import Dialog
from fedtorch.tasks.fewshot import FewShotTasks
from fedtorch.tasks.qa import QA
from fedtorch.tasks.text2sql import Text2SQL
from fedtorch.tasks.wikisql import WikiSQL

TASKS = ("text2sql", "qa", "fewshot", "dialog", "wikisql")


def make(kind: str, root: Path) -> Task:
    """The task on a prepared folder."""
    made: dict[str, Any] = {
        "text2sql": lambda: Text2SQL(data=str(root)),
        "qa": lambda: QA(data=str(root)),
        "fewshot": lambda: FewShotTasks(data=str(root)),
        "dialog": lambda: Dialog(data=str(root), model=GPT2Model(positions=64), max_length=64),
        "wikisql": lambda: WikiSQL(data=str(root), server_labelled=4, num_clients=2, client_size=(2, 3), parts=1),
    }
    task: Task = made[kind]()
    return task


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, tiny_data: Path, tiny_wikisql: Path) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("whole")
    shutil.copytree(tiny_data, root / "text2sql")
    shutil.copytree(tiny_wikisql, root / "wikisql")
    row = QARow("which one ?", ["this one", "that one"], [1, 0], ["a", "b"])
    splits = {"train": [row] * 3, "dev": [row] * 2, "test": [row]}
    write_qa(root / "qa", "qa", {"red": splits, "blue": splits}, pool=["why ?"], vocab_size=150, record={})
    prepare_gym(root / "fewshot")
    prepare_dialogs(root / "dialog")
    return {kind: root / kind for kind in TASKS}


@pytest.fixture(scope="module")
def vocabularies(folders: dict[str, Path]) -> dict[str, Any]:
    return {kind: make(kind, folder).vocabulary for kind, folder in folders.items()}  # type: ignore[attr-defined]


@pytest.fixture
def copies(folders: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    return {kind: Path(shutil.copytree(folder, tmp_path / kind)) for kind, folder in folders.items()}


def spoil_file(draw: st.DrawFn, path: Path) -> None:
    """One line of a file of rows, or the whole of another one, as JSON or as bytes."""
    data = path.read_bytes()
    if draw(st.integers(0, 3)) == 0:
        path.write_bytes(torn(draw, data))
    elif path.suffix == ".jsonl":
        lines = data.splitlines()
        place = draw(st.integers(0, len(lines) - 1))
        lines[place] = text_of(spoilt(draw, json.loads(lines[place])))
        path.write_bytes(b"\n".join(lines) + b"\n")
    else:
        path.write_bytes(text_of(spoilt(draw, json.loads(data))))


def read(kind: str, root: Path, client: str, name: str, vocabularies: dict[str, Any]) -> None:
    """What a run reads of a client before it trains it, if the file `name` is what is looked at."""
    task = make(kind, root)
    object.__setattr__(task, "vocabulary", vocabularies[kind])  # reading it takes longer than all else
    sizes = task.manifest()
    for held in [client] if client in sizes else [*list(sizes)[:1], *list(sizes)[-1:]]:
        task.cost(held)
        task.check(held)
        for split in {"dev", Path(name).stem} & set(sizes[held]):
            task.load(held, split)
    task.facts()
    task.record()


def try_folder(draw: st.DrawFn, whole: dict[str, Path], copies: dict[str, Path], vocabularies: dict[str, Any]) -> None:
    kind = draw(st.sampled_from(TASKS))
    root = copies[kind]
    client = draw(st.sampled_from([*json.loads((whole[kind] / "manifest.json").read_text())["clients"]]))
    files = [
        "manifest.json",
        *(f"{folder_name(client)}/{name}" for name in ("client.json", "train.jsonl", "dev.jsonl")),
    ]
    name = draw(st.sampled_from(files))
    try:
        spoil_file(draw, root / name)
        if name.endswith("l") and draw(st.integers(0, 3)):
            seal(root)
            if kind == "wikisql":
                write_index(root / name)
        with only_named_errors():
            read(kind, root, client, name, vocabularies)
    finally:
        for changed in {name, "manifest.json"}:
            shutil.copyfile(whole[kind] / changed, root / changed)
        if kind == "wikisql" and name.endswith("l"):
            index = Path(name).with_suffix(".offsets.npy")
            shutil.copyfile(whole[kind] / index, root / index)


def in_manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """`change` is made to what the manifest says of the first split of the first client."""

    def do(path: Path) -> None:
        manifest = json.loads(path.read_bytes())
        change(next(iter(next(iter(manifest["clients"].values()))["splits"].values())))
        path.write_bytes(text_of(manifest))

    return do


def to_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def to_link(path: Path) -> None:
    path.rename(path.parents[2] / "elsewhere")
    path.symlink_to(path.parents[2] / "elsewhere")


def row(**changes: Any) -> Callable[[Path], object]:
    """The first row with other fields; the manifest has the digest that goes with it."""

    def do(path: Path) -> None:
        first, *rest = path.read_bytes().splitlines()
        path.write_bytes(b"\n".join([text_of({**json.loads(first), **changes}), *rest]) + b"\n")
        seal(path.parents[1])

    return do


CORPUS: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "examples that are true": ("text2sql", "manifest.json", in_manifest(lambda split: split.update(examples=True))),
    "examples that are infinite": ("qa", "manifest.json", in_manifest(lambda split: split.update(examples=math.inf))),
    "fewer examples than none": ("dialog", "manifest.json", in_manifest(lambda split: split.update(examples=-1))),
    "examples beyond 64 bits": ("fewshot", "manifest.json", in_manifest(lambda split: split.update(examples=10**30))),
    "a split that is an empty object": ("wikisql", "manifest.json", in_manifest(lambda split: split.clear())),
    "a manifest that is an object without anything": ("qa", "manifest.json", lambda path: path.write_bytes(b"{}")),
    "a manifest of brackets": ("qa", "manifest.json", lambda path: path.write_bytes(b"[" * 100_000)),
    "a manifest of which half is gone": (
        "fewshot", "manifest.json", lambda path: path.write_bytes(path.read_bytes()[:-200]),
    ),
    "a manifest that is a FIFO": ("text2sql", "manifest.json", to_fifo),
    "rows that are a FIFO": ("text2sql", "dev.jsonl", to_fifo),
    "facts that are a FIFO": ("text2sql", "client.json", to_fifo),
    "rows behind a link that leads out of the folder": ("dialog", "dev.jsonl", to_link),
    "a line that was cut": ("qa", "dev.jsonl", lambda path: path.write_bytes(path.read_bytes()[:-20])),
    "a NUL in a line": ("fewshot", "dev.jsonl", lambda path: path.write_bytes(b"\0" + path.read_bytes())),
    "a number of thousands of digits": (
        "wikisql", "dev.jsonl", lambda path: path.write_bytes(b'{"a": ' + b"9" * 5000 + b"}\n"),
    ),
    "a question that is a number": ("text2sql", "dev.jsonl", row(question=1)),
    "a question that is half of a surrogate pair": ("text2sql", "dev.jsonl", row(question="\ud800")),
    "answers that are an object": ("qa", "dev.jsonl", row(answers={})),
    "labels that are true": ("qa", "dev.jsonl", row(labels=[True, True])),
    "a label of 100 kB": ("qa", "dev.jsonl", row(labels="x" * 10**5)),
    "outputs that are null": ("fewshot", "dev.jsonl", row(outputs=[None])),
    "a task that nobody knows": ("fewshot", "dev.jsonl", row(task="x" * 10**5)),
    "turns of nobody": ("dialog", "dev.jsonl", row(turns=[["nobody", "a"]])),
    "turns that are lists of lists": ("dialog", "dev.jsonl", row(turns=[[["user", "a"]]])),
    "a client's facts that are a list": ("text2sql", "client.json", lambda path: path.write_bytes(b"[1]")),
}  # fmt: skip
"""What it once broke, or may break -> kind of folder, its file (of the first client), and what is done to it."""


@pytest.mark.parametrize("what", CORPUS)
def test_what_was_found_in_folders_is_refused(what: str, copies: dict[str, Path], vocabularies: dict[str, Any]) -> None:
    kind, name, change = CORPUS[what]
    root = copies[kind]
    client = next(iter(json.loads((root / "manifest.json").read_text())["clients"]))
    path = root / (name if name == "manifest.json" else f"{folder_name(client)}/{name}")
    change(path)
    if kind == "wikisql" and name.endswith("l"):
        seal(root)
        write_index(path)
    with pytest.raises(DataError) as caught:
        read(kind, root, client, name, vocabularies)
    message = str(caught.value)
    message.encode()
    assert len(message) < 1200 and str(root) in message


@cases(30)
@given(data=st.data())
def test_a_folder_spoilt_at_random_is_read_or_refused(
    data: Any, folders: dict[str, Path], copies: dict[str, Path], vocabularies: dict[str, Any]
) -> None:
    try_folder(data.draw, folders, copies, vocabularies)


@cases(10_000)
@given(data=st.data())
def test_ten_thousand_spoilt_folders_are_read_or_refused(
    data: Any, folders: dict[str, Path], copies: dict[str, Path], vocabularies: dict[str, Any]
) -> None:
    try_folder(data.draw, folders, copies, vocabularies)
