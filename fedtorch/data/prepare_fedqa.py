"""`python -m fedtorch.data prepare fedqa` and `synthetic-qa`: FedMatch's clients as prepared folders."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedtorch.core.errors import DataError
from fedtorch.core.extras import require
from fedtorch.data.client_facts import FACTS, of_answers
from fedtorch.data.fedqa import CLIENTS
from fedtorch.data.left_out import OMITTED, LeftOut
from fedtorch.data.recipe import Recipe, digests, prepare_once, synthetic_recipe

if TYPE_CHECKING:  # not at run time: transformers takes seconds to import, and other recipes do without
    from fedtorch.data.fedqa import Collection
    from fedtorch.data.fedqa_rows import Sampling
    from fedtorch.data.qa_folder import QARow

_RAW = "a folder with privacyqa, pubmedqa, fiqa, insuranceqa and medquad, a folder per client with train.json, or both"
SHARES = (70, 10, 20)


def prepare_fedqa(
    raw: Path,
    out: Path,
    *,
    shares: tuple[int, int, int] = SHARES,
    sampling: Sampling | None = None,
    vocab_size: int = 8000,
) -> dict[str, Any]:
    """Prepares FedMatch's clients and returns the manifest.

    `raw` holds the five public collections, or clients laid out as the authors' FedQA files (a folder each, with
    train.json), or both: beside such clients some of the collections are enough. A client with train.json keeps its
    splits and candidates; `shares` and the public pool are of the collections alone. The vocabulary and the word list
    are made of what the clients' training splits hold together; a federation with private text could not do so (give
    the task a published model instead). The same files and options give the same bytes.

    Args:
        shares: percent of train, dev and test, by question (the paper does not give its split).
        sampling: numbers of negatives, and the seed of all choices.

    Raises:
        DataError: a file is missing or malformed, or `out` was prepared differently.
        ConfigError: shares or sizes that cannot be, or bm25s is not installed.
    """
    require("prepare fedqa", "bm25s", extra="fedmatch")
    from fedtorch.data.fedqa_readers import public_questions
    from fedtorch.data.fedqa_released import released_clients, released_files
    from fedtorch.data.fedqa_rows import Sampling
    from fedtorch.data.qa_folder import write_qa

    sampling = sampling or Sampling()
    released = released_clients(raw)
    collections = _collections_in(raw, released)
    options = {
        "sources": digests([*_collection_files(raw, collections), *released_files(raw)], _RAW, root=raw),
        "shares": list(shares) if collections else None,
        **asdict(sampling),
        "vocab_size": vocab_size,
    }

    def write(folder: Path) -> None:
        made = [*_collections(raw, collections, shares, sampling), *_released(raw, released, sampling)]
        record = {
            "options": options,
            "layout": " and ".join(["collections"] * bool(collections) + ["released"] * bool(released)),
            "notes": {client.name: client.notes for client in made},
            FACTS: {client.name: client.facts for client in made},
            OMITTED: [*(entry for client in made for entry in client.left_out), *_unread(raw, collections, released)],
        }
        clients = {client.name: client.splits for client in made}
        pool = public_questions(raw, collections)
        write_qa(folder, "fedqa", clients, pool=pool, vocab_size=vocab_size, record=record)

    return prepare_once(out, options, write)


class _Made(NamedTuple):
    """A client, ready to be written."""

    name: str
    """of the client, that of its folder"""
    splits: dict[str, list[QARow]]
    """split -> rows"""
    notes: dict[str, int]
    """what was counted while it was read -> how many, for the manifest"""
    facts: dict[str, float]
    """the columns of FedMatch's table 1, of what was published"""
    left_out: list[LeftOut]
    """what is not among the rows, and why"""


def _collections(raw: Path, names: Sequence[str], shares: tuple[int, int, int], sampling: Sampling) -> Iterator[_Made]:
    from fedtorch.data.fedqa_readers import READERS
    from fedtorch.data.fedqa_rows import candidate_rows, split_questions

    for name in names:
        collection = READERS[name](raw / name)
        splits = split_questions(collection.questions, shares, seed=sampling.seed, client=name)
        rows, special = candidate_rows(name, collection, splits, sampling)
        facts = {"documents": len(collection.documents), "questions": len(collection.questions)}
        left_out = [LeftOut(name, *entry) for entry in collection.left_out]
        left_out.append(_untrained(name, special, len(splits["train"])))
        yield _Made(name, rows, {**facts, **collection.notes, **special}, _table_1(collection, rows), left_out)


def _released(raw: Path, names: Sequence[str], sampling: Sampling) -> Iterator[_Made]:
    from fedtorch.data.fedqa_released import complete_training, read_released

    for name in names:
        splits, left_out = read_released(raw / name)
        rows, special = complete_training(name, splits["train"], sampling)
        left_out.append(_untrained(name, special, len(splits["train"])))
        yield _Made(name, {**splits, "train": rows}, special, _table_1_of_files(splits), left_out)


def _table_1(collection: Collection, rows: Mapping[str, Sequence[QARow]]) -> dict[str, float]:
    """Figures of a public collection, before training leaves anything out.

    Where the publisher gives no negatives, the candidates are those of `rows`.
    """
    questions = collection.questions
    labels = _labels(row for part in rows.values() for row in part)
    if given := sum(len(question.negatives) for question in questions):
        labels = Counter({1: sum(len(question.positives) for question in questions), 0: given})
    return of_answers([question.text for question in questions], list(collection.documents.values()), labels)


def _table_1_of_files(splits: Mapping[str, Sequence[QARow]]) -> dict[str, float]:
    """Figures of the authors' files, before training leaves questions out and BM25 adds negatives."""
    rows = [row for part in splits.values() for row in part]
    answers = list(dict.fromkeys(answer for row in rows for answer in row.answers))
    return of_answers([row.question for row in rows], answers, _labels(rows))


def _labels(rows: Iterable[QARow]) -> Counter[int]:
    return Counter(label for row in rows for label in row.labels)


def _untrained(client: str, notes: Mapping[str, int], questions: int) -> LeftOut:
    count = notes.get("train questions without a positive answer", 0)
    return LeftOut(f"{client}, train", count, questions, "questions (they have no positive answer)")


def _collections_in(raw: Path, released: Sequence[str]) -> list[str]:
    """The public collections to read: all five, or those that lie beside clients with train.json."""
    found = [client for client in CLIENTS if (raw / client).is_dir() and client not in released]
    missing = [client for client in CLIENTS if client not in found]
    if missing and not released:
        raise DataError(f"{raw} has no {', '.join(missing)}; --raw must be {_RAW}")
    return found


def _unread(raw: Path, *read: Sequence[str]) -> list[LeftOut]:
    """The folders that are neither a collection nor a client."""
    folders = sorted(path.name for path in raw.iterdir() if path.is_dir())
    unread = [name for name in folders if name not in {name for names in read for name in names}]
    what = f"folders (neither one of the five collections nor with train.json: {', '.join(unread)})"
    return [LeftOut(str(raw.name), len(unread), len(folders), what)]


def _collection_files(raw: Path, clients: Sequence[str]) -> list[Path]:
    """The published files that are read, in a fixed order."""
    names = [
        "privacyqa/test.jsonl",
        "privacyqa/train_opp_annotations.csv",
        "pubmedqa/ori_pqal.json",
        "fiqa/FiQA_train_question_final.tsv",
        "fiqa/split_qids.json",
        "fiqa/test_answers.csv",
        "insuranceqa/validation.csv",
        "insuranceqa/test.csv",
    ]
    files = [raw / name for name in names if name.partition("/")[0] in clients]
    return [*files, *(sorted((raw / "medquad").glob("*/*.xml")) if "medquad" in clients else [])]


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--raw", type=Path, required=True, help=_RAW)
    parser.add_argument(
        "--shares", type=int, nargs=3, default=SHARES, metavar=("TRAIN", "DEV", "TEST"), help="percent (70 10 20)"
    )
    parser.add_argument("--negatives", type=int, default=5, help="BM25 negatives of a question (5)")
    parser.add_argument("--given-negatives", type=int, default=5, help="most published negatives in training (5)")
    parser.add_argument("--vocab-size", type=int, default=8000, help="entries of the trained vocabulary (8000)")
    parser.add_argument("--seed", type=int, default=0, help="of the split and of the negatives (0)")


def _run(args: argparse.Namespace) -> Mapping[str, Any]:
    from fedtorch.data.fedqa_rows import Sampling

    sampling = Sampling(args.negatives, args.given_negatives, args.seed)
    return prepare_fedqa(args.raw, args.out, shares=tuple(args.shares), sampling=sampling, vocab_size=args.vocab_size)


RECIPE = Recipe("FedMatch's five question answering clients", _arguments, _run)
SYNTHETIC_RECIPE = synthetic_recipe("small made-up question answering clients", "fedtorch.data.synthetic_qa")
