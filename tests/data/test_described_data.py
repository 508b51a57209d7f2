"""The shared data are as their descriptions say: checksums, sizes, traps. Tables are read off the descriptions."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

import pytest

from fedtorch.data.dialogs import read_sgd
from fedtorch.data.text2sql import CLIENTS, read_set

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def texts(shared_data: Path) -> str:
    """The description of text-to-SQL and question answering."""
    return (shared_data / "README-text2sql-qa.md").read_text()


@pytest.fixture(scope="module")
def dialogs(shared_data: Path) -> str:
    """The description of dialogs and few-shot tasks."""
    return (shared_data / "README-dialog-fewshot.md").read_text()


def rows(description: str, pattern: str) -> list[tuple[str, ...]]:
    """The groups of every line that is such a row of a table."""
    return [match.groups() for match in re.finditer(pattern, description, re.MULTILINE)]


def test_every_file_has_its_checksum(shared_data: Path, texts: str) -> None:
    listed = rows(texts, r"^\| (\S+) (\(all files.*\) )?\| (\d+) \| ([0-9a-f]{16}) \|$")
    assert len(listed) == 58
    for name, several, size, digest in listed:
        path = shared_data / name
        data = b"".join(file.read_bytes() for file in sorted(path.iterdir())) if several else path.read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()[:16]) == (int(size), digest), name


def test_entries_and_questions_of_the_text_to_sql_sets(shared_data: Path, texts: str) -> None:
    listed = rows(texts, r"^\| (\w+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+)(?: .*)? \|$")
    listed += rows(texts, r"^\| (imdb) \| (\d+) \(.*\) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$")
    assert sorted(name for name, *_ in listed) == sorted(CLIENTS.values())
    for name, *numbers in listed:
        path = shared_data / "text2sql" / f"{name}.json"
        entries, found = json.loads(path.read_bytes()), read_set(path)
        splits = [len(found.splits[split]) for split in ("train", "dev", "test")]
        questions = sum(len(entry["sentences"]) for entry in entries)
        assert [*splits, len(entries), questions] == list(map(int, numbers)), name


def test_variables_that_no_entry_declares_and_the_first_fold_of_imdb(shared_data: Path) -> None:
    undeclared = {}
    for name in CLIENTS.values():
        entries = json.loads((shared_data / "text2sql" / f"{name}.json").read_bytes())
        undeclared[name] = sum(
            variable not in {declared["name"] for declared in entry["variables"]}
            for entry in entries
            for sentence in entry["sentences"]
            for variable in sentence["variables"]
        )
        if name == "imdb":
            folds = [sentence["question-split"] for entry in entries for sentence in entry["sentences"]]
            assert folds.count("0") == 14
    assert {name: count for name, count in undeclared.items() if count} == {"advising": 86, "atis": 28}


@pytest.mark.long
def test_questions_tables_and_columns_of_wikisql(shared_data: Path, texts: str) -> None:
    def lines(path: Path) -> list[dict[str, list[str]]]:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return [json.loads(line) for line in data.splitlines()]

    listed = rows(texts, r"^\| (\S+) / \S+ \| (\d+) \| (\d+) \| ([\d.]+) \|$")
    listed += rows(texts, r"^\| (extra/\w+)\.\.\. \| (\d+) \| (\d+) \| ([\d.]+) \|$")
    assert len(listed) == 6
    total = {}
    for name, questions, tables, columns in listed:
        stem, end = name.split(".")[0], ".gz" if name.startswith("extra") else ""
        schemas = lines(shared_data / "wikisql" / f"{stem}.tables.jsonl{end}")
        total[stem] = len(lines(shared_data / "wikisql" / f"{stem}.jsonl{end}"))
        assert (total[stem], len(schemas)) == (int(questions), int(tables)), name
        assert fmean(len(schema["header"]) for schema in schemas) == pytest.approx(float(columns), abs=5e-3), name
    assert total["train"] + total["extra/train"] == 33431


@pytest.mark.long
def test_dialogs_of_each_domain_and_split(shared_data: Path, dialogs: str) -> None:
    listed = rows(dialogs, r"^\| (\w+) \| (\d+) \| (\d+) \| (\d+) \|$")
    assert len(listed) == 6
    lengths = []
    for place, split in enumerate(("train", "dev", "test"), start=1):
        found = read_sgd(sorted((shared_data / "dialog" / "sgd" / split).glob("dialogues_*.json"))).clients
        assert {name: len(turns) for name, turns in found.items()} == {
            row[0].lower(): int(row[place]) for row in listed
        }
        for domain in found.values():
            for turns in domain:
                assert turns[0][0] == "user" and all(a[0] != b[0] for a, b in pairwise(turns))
                lengths.append(sum(len(text.split()) for _, text in turns))
    lengths.sort()
    assert (median(lengths), lengths[-1]) == (147, 433)
    assert lengths[round(0.95 * len(lengths))] == pytest.approx(252, abs=1)


def test_conversations_that_taskmaster_1_lists(shared_data: Path) -> None:
    folder = shared_data / "dialog" / "taskmaster" / "TM-1-2019" / "train-dev-test"
    counts = [len((folder / f"{split}.csv").read_text().split()) for split in ("train", "dev", "test")]
    assert counts == [6168, 770, 770]


def test_rows_of_the_46_few_shot_tasks(shared_data: Path, dialogs: str) -> None:
    listed = rows(dialogs, r"^\| (\S+) \| [^|]+ \| [\d, ]+ \| [^|]+ \| (\d+)/(\d+)/(\d+) \|")
    assert len(listed) == 46
    for task, *sizes in listed:
        for split, size in zip(("train", "dev", "test"), sizes, strict=True):
            files = sorted((shared_data / "crossfit" / task).glob(f"{task}_*_{split}.tsv"))
            counts = {len(path.read_text().rstrip("\n").split("\n")) for path in files}
            assert len(files) == 5 and counts == {int(size)}, (task, split)
