"""`python -m fedtorch.data prepare fedqa` and `synthetic-qa`: FedMatch's clients as prepared folders."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtorch.core.errors import DataError
from fedtorch.core.extras import require
from fedtorch.data.fedqa import CLIENTS
from fedtorch.data.recipe import Recipe, digests, prepare_once, synthetic_recipe

if TYPE_CHECKING:  # not at run time: transformers takes seconds to import, and other recipes do without
    from fedtorch.data.fedqa_rows import Sampling
    from fedtorch.data.qa_folder import QARow

_RAW = "a folder with privacyqa, pubmedqa, fiqa, insuranceqa and medquad, or a folder per client with train.json"
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

    `raw` holds the five public collections, or the authors' FedQA files (a folder per client with train.json): then
    their splits and candidates are kept, `shares` is not used, and there is no public pool. The vocabulary and the word
    list are made of what the clients' training splits hold together; a federation with private text could not do so
    (give the task a published model instead). The same files and options give the same bytes.

    Args:
        shares: percent of train, dev and test, by question (the paper does not give its split).
        sampling: numbers of negatives, and the seed of all choices.

    Raises:
        DataError: a file is missing or malformed, or `out` was prepared differently.
        ConfigError: shares or sizes that cannot be, or bm25s is not installed.
    """
    require("prepare fedqa", "bm25s", extra="fedmatch")
    from fedtorch.data.fedqa_released import released_clients, released_files
    from fedtorch.data.fedqa_rows import Sampling
    from fedtorch.data.qa_folder import write_qa

    sampling = sampling or Sampling()
    released = released_clients(raw)
    files = released_files(raw) if released else _collection_files(raw)
    options = {
        "sources": digests(files, _RAW, root=raw),
        "shares": None if released else list(shares),
        **asdict(sampling),
        "vocab_size": vocab_size,
    }

    def write(folder: Path) -> None:
        make = _released if released else _collections
        clients, pool, notes = make(raw, released or CLIENTS, shares, sampling)
        record = {"options": options, "layout": "released" if released else "collections", "notes": notes}
        write_qa(folder, "fedqa", clients, pool=pool, vocab_size=vocab_size, record=record)

    return prepare_once(out, options, write)


_Clients = dict[str, dict[str, list["QARow"]]]
_Made = tuple[_Clients, list[str], dict[str, dict[str, Any]]]


def _collections(raw: Path, names: Sequence[str], shares: tuple[int, int, int], sampling: Sampling) -> _Made:
    from fedtorch.data.fedqa_readers import READERS, public_questions
    from fedtorch.data.fedqa_rows import candidate_rows, split_questions

    clients, notes = {}, {}
    for client in names:
        collection = READERS[client](raw / client)
        splits = split_questions(collection.questions, shares, seed=sampling.seed, client=client)
        clients[client], special = candidate_rows(client, collection, splits, sampling)
        facts = {"documents": len(collection.documents), "questions": len(collection.questions)}
        notes[client] = {**facts, **collection.notes, **special}
    return clients, public_questions(raw), notes


def _released(raw: Path, names: Sequence[str], shares: tuple[int, int, int], sampling: Sampling) -> _Made:
    from fedtorch.data.fedqa_released import complete_training, read_released

    clients, notes = {}, {}
    for client in names:
        splits = read_released(raw / client)
        splits["train"], special = complete_training(client, splits["train"], sampling)
        clients[client], notes[client] = splits, {**special}
    return clients, [], notes


def _collection_files(raw: Path) -> list[Path]:
    """The published files that are read, in a fixed order."""
    missing = [client for client in CLIENTS if not (raw / client).is_dir()]
    if missing:
        raise DataError(f"{raw} has no {', '.join(missing)}; --raw must be {_RAW}")
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
    return [*(raw / name for name in names), *sorted((raw / "medquad").glob("*/*.xml"))]


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
