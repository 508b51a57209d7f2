"""Published files spoilt at random, of every format that is read: read, or refused with 3 and the file's name."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fedqa_files import write_collections, write_released
from fuzzing import cases, only_named_errors, spoilt, text_of, torn
from hypothesis import given
from hypothesis import strategies as st

from fedtorch.core.errors import FedtorchError
from fedtorch.data import text2sql, wikisql
from fedtorch.data.crossfit import SEEDS, FewShot, find_tasks, known_tasks, read_task
from fedtorch.data.dialogs import read_sgd, read_taskmaster_1, read_taskmaster_4
from fedtorch.data.fedqa_readers import READERS, public_questions
from fedtorch.data.fedqa_released import read_released

CANARY = "cinnamon walrus"
TURNS = [["USER", f"a {CANARY}"], ["ASSISTANT", "b"], ["USER", "c"]]


def lines_of(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def put(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)


def write_all(root: Path) -> None:
    """Some files of each format."""
    write_collections(root / "fedqa")
    write_released(root / "released", "law")
    variables = [{"name": "name0", "example": "river", "location": "both", "type": "x"}]
    sentences = [
        {"text": f"{CANARY} name0", "question-split": n, "variables": {"name0": "lake"}} for n in ("train", "7")
    ]
    put(
        root / "text2sql/geo.json",
        json.dumps([{"sql": ["SELECT name0 ;"], "variables": variables, "sentences": sentences}]),
    )
    put(root / "text2sql/geo-schema.csv", "Table, Field, Is Primary\nriver, name, y\n-, -, -\nlake, area, n\n")
    table = {"id": "1-1", "header": ["Name", "Goals"], "types": ["text", "real"], "rows": [["Ann", 3]]}
    sql = {"sel": 1, "agg": 4, "conds": [[0, 0, "Ann"]]}
    question = {"table_id": "1-1", "question": f"how many goals has Ann {CANARY}", "sql": sql}
    put(root / "wikisql/train.jsonl", lines_of(*[question] * 3))
    put(root / "wikisql/train.tables.jsonl", lines_of(table))
    put(root / "zipped/train.jsonl.gz", gzip.compress(lines_of(*[question] * 3).encode()))
    put(root / "zipped/train.tables.jsonl.gz", gzip.compress(lines_of(table).encode()))
    said = [{"speaker": side, "text": text} for side, text in TURNS]
    put(root / "taskmaster1/self-dialogs.json", json.dumps([{"instruction_id": "auto-1", "utterances": said}]))
    put(root / "taskmaster4/data_1.json", json.dumps([{"vertical": "Coffee", "utterances": said}]))
    turns = [{"speaker": side, "utterance": text} for side, text in TURNS]
    put(root / "sgd/dialogues_001.json", json.dumps([{"services": ["Hotels_1"], "turns": turns}]))
    tasks = {"tasks": [{"task": "t", "metric": "ACC", "sampling": "16 per class", "group": "g", "paper_clients": [1]}]}
    put(root / "crossfit/tasks.json", json.dumps(tasks))
    for seed in SEEDS[:1]:
        for split in ("train", "dev", "test"):
            put(root / f"crossfit/t/t_2_{seed}_{split}.tsv", f"{CANARY} {split}\tyes\nother {split}\tno\n")


def read_fedqa(root: Path) -> None:
    for client, reader in READERS.items():
        reader(root / client)
    public_questions(root)


def read_crossfit(root: Path) -> None:
    known = known_tasks(root / "tasks.json")
    for task in find_tasks(root, known).values():
        read_task(root, task, FewShot(seeds=SEEDS[:1]))


READ: dict[str, Callable[[Path], object]] = {
    "fedqa": read_fedqa,
    "released": lambda root: read_released(root / "law"),
    "text2sql": lambda root: (text2sql.read_set(root / "geo.json"), text2sql.read_schema(root / "geo-schema.csv")),
    "wikisql": lambda root: (wikisql.read_split(root, "train"), wikisql.read_tables(root, "train")),
    "zipped": lambda root: wikisql.read_split(root, "train"),
    "taskmaster1": lambda root: read_taskmaster_1([root / "self-dialogs.json"]),
    "taskmaster4": lambda root: read_taskmaster_4([root / "data_1.json"]),
    "sgd": lambda root: read_sgd([root / "dialogues_001.json"]),
    "crossfit": read_crossfit,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("published")
    write_all(root)
    return root


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "raw"))


def read(kind: str, root: Path) -> str:
    """With what message the files were refused, or nothing; it names a file and quotes none of its texts."""
    refused = ""
    with only_named_errors():
        try:
            READ[kind](root / kind)
        except FedtorchError as error:
            refused = str(error)
            assert error.exit_code == 3 and str(root / kind) in refused and CANARY not in refused, error
            raise
    return refused


def spoil(draw: st.DrawFn, path: Path) -> None:
    """The file as JSON, one of its lines as JSON, or its bytes."""
    data = path.read_bytes()
    how = draw(st.sampled_from(["json", "json", "torn", "flip"]))
    inner = gzip.decompress(data) if path.suffix == ".gz" and draw(st.integers(0, 3)) else None
    data = data if inner is None else inner
    changed = data
    if how == "json" and path.suffix in (".json", ".jsonl", ".gz"):
        try:
            changed = text_of(spoilt(draw, json.loads(data)))
        except ValueError:
            lines = data.split(b"\n")
            place = draw(st.integers(0, len(lines) - 1))
            if lines[place].startswith(b"{"):
                lines[place] = text_of(spoilt(draw, json.loads(lines[place])))
            changed = b"\n".join(lines)
    elif how == "flip":
        flipped = bytearray(data)
        for _ in range(draw(st.integers(1, 3))):
            place = draw(st.integers(0, len(flipped) - 1))
            flipped[place] = draw(st.sampled_from([0, 9, 10, 0x22, 0x2C, 0x3C, 0x80, 0xFF, flipped[place] ^ 1]))
        changed = bytes(flipped)
    else:
        changed = torn(draw, data)
    path.write_bytes(changed if inner is None else gzip.compress(changed))


def try_published(draw: st.DrawFn, whole: Path, copy: Path) -> None:
    kind = draw(st.sampled_from(sorted(READ)))
    files = sorted(path.relative_to(whole) for path in (whole / kind).rglob("*") if path.is_file())
    name = draw(st.sampled_from(files))
    try:
        spoil(draw, copy / name)
        read(kind, copy)
    finally:
        shutil.copyfile(whole / name, copy / name)


CORPUS: dict[str, tuple[str, bytes | Callable[[Path], object]]] = {
    "values of a sentence as a list": (
        "text2sql/geo.json",
        b'[{"sql": ["a"], "variables": [], "sentences": [{"text": "a", "question-split": "0", "variables": []}]}]',
    ),
    "a query that is a number": ("text2sql/geo.json", b'[{"sql": [1], "variables": [], "sentences": []}]'),
    "a split that is a list": (
        "text2sql/geo.json",
        b'[{"sql": ["a"], "variables": [], "sentences": [{"text": "a", "question-split": [], "variables": {}}]}]',
    ),
    "a value that is null beside the name of another": (
        "text2sql/geo.json",
        b'[{"sql": ["a"], "variables": [{"name": "x", "example": 1}], "sentences": []}]',
    ),
    "half of a surrogate pair": ("text2sql/geo.json", b'[{"sql": ["\\ud800"], "variables": [], "sentences": []}]'),
    "a folder in place of a file": ("text2sql/geo.json", lambda path: (path.unlink(), path.mkdir())),
    "a FIFO": ("text2sql/geo-schema.csv", lambda path: (path.unlink(), os.mkfifo(path))),
    "a FIFO of questions": ("released/law/train.json", lambda path: (path.unlink(), os.mkfifo(path))),
    "a header of 200 kB": ("fedqa/insuranceqa/test.csv", b"x" * 200_000 + b",y\n"),
    "a number of thousands of digits": ("fedqa/pubmedqa/ori_pqal.json", b'{"1": ' + b"9" * 5000 + b"}"),
    "brackets thousands deep": ("fedqa/pubmedqa/ori_pqal.json", b"[" * 100_000),
    "brackets thousands deep in a line": ("wikisql/train.jsonl", b"[" * 100_000),
    "an encoding that is unknown": ("fedqa/medquad/1_A_QA/01.xml", b'<?xml version="1.0" encoding="x-none"?><a/>'),
    "an encoding of several bytes": ("fedqa/medquad/1_A_QA/01.xml", b'<?xml version="1.0" encoding="utf-7"?><a/>'),
    "a damaged gzip file": ("zipped/train.jsonl.gz", gzip.compress(b"{}")[:12] + b"\xff" * 9),
    "half a gzip file": ("zipped/train.jsonl.gz", lambda path: path.write_bytes(path.read_bytes()[:20])),
    "a metric that is a list": ("crossfit/tasks.json", b'{"tasks": [{"task": "t", "metric": []}]}'),
    "a folder in place of a table": (
        f"crossfit/t/t_2_{SEEDS[0]}_dev.tsv",
        lambda path: (path.unlink(), path.mkdir()),
    ),
    "dialogs that are a number": ("sgd/dialogues_001.json", b"inf"),
    "a service that is true": ("sgd/dialogues_001.json", b'[{"services": [true], "turns": []}]'),
    "a column that is infinite": (
        "wikisql/train.jsonl",
        b'{"table_id": "1-1", "question": "q", "sql": {"agg": 0, "sel": Infinity, "conds": []}}',
    ),
    "a row without its end": ("fedqa/insuranceqa/test.csv", b'question,answer,label\nwhat,"a'),
    "no UTF-8": ("fedqa/fiqa/test_answers.csv", b"1\t\xff\n"),
}  # fmt: skip
"""What it once broke, or may break -> a file, and what is in it now or is done to it."""


@pytest.mark.parametrize("what", CORPUS)
def test_what_was_found_in_published_files_is_refused(what: str, copy: Path) -> None:
    name, change = CORPUS[what]
    path = copy / name
    if isinstance(change, bytes):
        path.write_bytes(change)
    else:
        change(path)
    message = read(Path(name).parts[0], copy)
    assert path.name in message and len(message) < 900


def test_whole_files_are_read(copy: Path) -> None:
    assert [kind for kind in READ if read(kind, copy)] == []


@cases(50)
@given(data=st.data())
def test_a_published_file_spoilt_at_random_is_read_or_refused(data: Any, whole: Path, copy: Path) -> None:
    try_published(data.draw, whole, copy)


@cases(10_000)
@given(data=st.data())
def test_ten_thousand_spoilt_published_files_are_read_or_refused(data: Any, whole: Path, copy: Path) -> None:
    try_published(data.draw, whole, copy)
