"""Prepared folders spoilt at random, of every task: read, or refused with 3 (2 where only the vocabulary is wrong)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fuzzing import cases, only_named_errors, spoilt, text_of, torn
from hypothesis import given
from hypothesis import strategies as st
from prepared_files import seal

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
    finally:
        for changed in {name, "manifest.json"}:
            shutil.copyfile(whole[kind] / changed, root / changed)
        if kind == "wikisql" and name.endswith("l"):
            index = Path(name).with_suffix(".offsets.npy")
            shutil.copyfile(whole[kind] / index, root / index)


@cases(50)
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
