"""Reader of the FedQA benchmark as FedMatch's authors lay it out: a folder per client, a file per split.

SPLIT.json   one object a line: question, answer, label (0 or 1, as a number or a string)
SPLIT.rank   optional, line by line beside it: `qid Q0 docid rank score tag` (trec_eval's run)
SPLIT.ref    optional: `qid 0 docid label` (trec_eval's qrels), for the pairs of SPLIT.rank
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fedtorch.core.errors import DataError
from fedtorch.core.seeds import generator_for
from fedtorch.data.bm25 import BM25
from fedtorch.data.fedqa import CLIENTS, clean
from fedtorch.data.fedqa_readers import read_json_lines, read_text
from fedtorch.data.fedqa_rows import SPLITS, Sampling
from fedtorch.data.left_out import LeftOut
from fedtorch.data.qa_folder import QARow

_LABELS = {"0": 0, "1": 1}


class Released(NamedTuple):
    """A client as published."""

    splits: dict[str, list[QARow]]
    """split -> rows"""
    left_out: list[LeftOut]
    """pairs that say what another one says"""


class _Pair(NamedTuple):
    qid: str
    """of the question; its text where the client has no SPLIT.rank"""
    question: str
    """text, cleaned"""
    docid: str
    """of the answer, unique in the split"""
    answer: str
    """text, cleaned"""
    label: int
    """1: relevant, 0: not"""


def released_clients(raw: Path) -> list[str]:
    """Names of the folders below `raw` that have a `train.json`, sorted.

    A folder with another split alone is among them, so that what it lacks is an error and not a client less; but a
    public collection may have files of these names.
    """
    found = {path.parent.name for path in raw.glob("*/train.json")}
    others = {path.parent.name for split in SPLITS for path in raw.glob(f"*/{split}.json")}
    return sorted(found | others - set(CLIENTS))


def released_files(raw: Path) -> list[Path]:
    """All files that make up the released layout, sorted."""
    ends = ("json", "ref", "rank")
    paths = [raw / client / f"{split}.{end}" for client in released_clients(raw) for split in SPLITS for end in ends]
    return [path for path in paths if path.is_file() or path.suffix == ".json"]


def read_released(folder: Path) -> Released:
    """The rows of one client, in the order in which the questions appear; texts are cleaned.

    With SPLIT.rank a question is a qid, candidates have its docids, and all lines are kept. Without it a question is
    its text, equal answers are one candidate (relevant if one of them is), and docids are numbers in file order. In
    training the positives come first.

    Raises:
        DataError: a file is missing or malformed, numbers of lines differ, labels contradict SPLIT.ref, or a qid stands
            for two questions; file and line are named.
    """
    read = {split: _rows(folder, split) for split in SPLITS}
    what = "pairs (merged with one of the same texts)"
    left_out = [LeftOut(f"{folder.name}, {split}", *count, what) for split, (_, count) in read.items()]
    return Released({split: rows for split, (rows, _) in read.items()}, left_out)


def complete_training(client: str, rows: list[QARow], sampling: Sampling) -> tuple[list[QARow], dict[str, int]]:
    """Training rows with BM25 negatives where a question has none; questions without a positive one are left out.

    The index is over this client's training answers, since those of the other splits are candidates there.
    """
    texts = list(dict.fromkeys(answer for row in rows for answer in row.answers))
    index = BM25(texts)
    completed, filled = [], 0
    for number, row in enumerate(rows):
        if not row.positives:
            continue
        if row.positives == len(row.labels):
            generator = generator_for(sampling.seed, "negatives", client, number)
            chosen = index.negatives(row.question, row.answers, count=sampling.negatives, generator=generator)
            row = replace(
                row,
                answers=row.answers + [texts[i] for i in chosen],
                labels=row.labels + [0] * len(chosen),
                docids=row.docids + [f"bm25-{i:06d}" for i in chosen],
            )
            filled += 1
        completed.append(row)
    left_out = len(rows) - len(completed)
    return completed, {
        "train questions without a positive answer": left_out,
        "train questions with BM25 negatives": filled,
    }


def _rows(folder: Path, split: str) -> tuple[list[QARow], tuple[int, int]]:
    """The rows, and how many of how many pairs were merged with another."""
    path = folder / f"{split}.json"
    pairs = _pairs(path)
    ranked = folder / f"{split}.rank"
    if ranked.is_file():
        pairs = _identify(pairs, ranked, path)
        _compare(pairs, folder / f"{split}.ref", ranked)
    grouped: dict[str, dict[str, _Pair]] = {}
    for number, pair in enumerate(pairs, start=1):
        group = grouped.setdefault(pair.qid, {})
        other = next(iter(group.values()), pair)
        if other.question != pair.question:
            raise DataError(f"{path}, pair {number}: query id {pair.qid!r} stands for two questions; expected one")
        known = group.get(pair.docid)
        if known is not None and ranked.is_file():
            raise DataError(f"{path}, pair {number}: docid {pair.docid!r} occurs twice for query {pair.qid!r}")
        group[pair.docid] = pair if known is None else pair._replace(label=max(pair.label, known.label))
    rows = [_row(list(group.values()), training=split == "train") for group in grouped.values()]
    return rows, (len(pairs) - sum(len(row.labels) for row in rows), len(pairs))


def _pairs(path: Path) -> list[_Pair]:
    """The lines of SPLIT.json, identified by their texts."""
    documents: dict[str, str] = {}
    pairs = []
    for number, row in read_json_lines(path, ("question", "answer")):
        label = _LABELS.get(json.dumps(row.get("label")).strip('"'))
        if label is None:
            raise DataError(f"{path}:{number}: `label` is missing or neither 0 nor 1; expected one of them")
        question, answer = clean(row["question"]), clean(row["answer"])
        if not question or not answer:
            raise DataError(f"{path}:{number}: an empty question or answer; expected text in both")
        pairs.append(_Pair(question, question, documents.setdefault(answer, f"{len(documents):06d}"), answer, label))
    if not pairs:
        raise DataError(f"{path} is empty; expected one JSON object a line")
    return pairs


def _identify(pairs: list[_Pair], ranked: Path, path: Path) -> list[_Pair]:
    lines = _fields(ranked, 6, "qid Q0 docid rank score tag")
    if len(lines) != len(pairs):
        raise DataError(f"{ranked} has {len(lines)} lines and {path} {len(pairs)}; expected one for each pair")
    return [pair._replace(qid=line[0], docid=line[2]) for pair, line in zip(pairs, lines, strict=True)]


def _compare(pairs: list[_Pair], reference: Path, ranked: Path) -> None:
    """Checks the labels against the qrels; a pair that is not in them is not relevant."""
    if not reference.is_file():
        raise DataError(f"{reference} is missing, although {ranked.name} is there; expected both or none")
    relevant = {(line[0], line[2]) for line in _fields(reference, 4, "qid 0 docid label") if line[3] != "0"}
    for number, pair in enumerate(pairs, start=1):
        if pair.label != ((pair.qid, pair.docid) in relevant):
            raise DataError(f"{ranked}, pair {number}: the label is {pair.label}, but not so in {reference.name}")


def _fields(path: Path, count: int, form: str) -> list[list[str]]:
    lines = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        parts = line.split()
        if len(parts) != count:
            raise DataError(f"{path}:{number}: {len(parts)} fields; expected `{form}`")
        lines.append(parts)
    return lines


def _row(group: list[_Pair], *, training: bool) -> QARow:
    if training:
        group = sorted(group, key=lambda pair: -pair.label)  # stable: file order otherwise
    return QARow(
        group[0].question,
        [pair.answer for pair in group],
        [pair.label for pair in group],
        [pair.docid for pair in group],
    )
