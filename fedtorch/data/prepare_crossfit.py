"""`python -m fedtorch.data prepare crossfit`: from a gym of few-shot tasks to clients that hold dozens each."""

from __future__ import annotations

import argparse
import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedtorch.core.errors import DataError
from fedtorch.core.seeds import generator_for
from fedtorch.data.crossfit import (
    SEEDS,
    SPLITS,
    CrossfitRow,
    FewShot,
    TaskRows,
    files_of,
    find_tasks,
    known_tasks,
    read_task,
)
from fedtorch.data.crossfit_tasks import GymTask, paper_tasks
from fedtorch.data.folder import write_client, write_manifest
from fedtorch.data.json_file import read_bytes
from fedtorch.data.left_out import OMITTED, LeftOut
from fedtorch.data.recipe import Recipe, prepare_once

log = logging.getLogger(__name__)

PAPER = "paper"


def prepare_crossfit(
    raw: Path,
    out: Path,
    *,
    tasks: Path | None = None,
    clients: str = PAPER,
    tasks_per_client: int = 5,
    partition_seed: int = 0,
    how: FewShot | None = None,
    vocab_size: int = 8000,
) -> dict[str, Any]:
    """Prepares the clients and returns the manifest; `raw` is a gym folder, of which any subset of tasks may be there.

    tasks: JSON file with the metrics of tasks that are not the paper's. clients: `paper` for its four clients, or
    their number, each with `tasks_per_client` tasks drawn by `partition_seed`. vocab_size: of the vocabulary for
    models with random weights, trained on the training splits.

    A row has `task`, `input` and `outputs`. The record says which tasks of the paper are missing, and what was left
    out because it occurs in the training data.

    Raises:
        DataError: a file is missing or malformed, `out` was prepared differently, or there are too few tasks.
        ConfigError: no vocabulary of that size can be trained.
    """
    how = how or FewShot()
    known = known_tasks(tasks)
    found = find_tasks(raw, known)
    placement = place_tasks(found, clients, tasks_per_client, partition_seed)
    used = {name: found[name] for name in sorted({name for names in placement.values() for name in names})}
    options = {
        "sources": _digest(raw, used, how.seeds),
        "placement": placement,
        "metrics": {name: task.metric for name, task in used.items()},
        "few_shot": {"seeds": list(how.seeds), "test": how.test, "per_task": how.per_task},
        "vocab_size": vocab_size,
    }

    def write(folder: Path) -> None:
        paper = set(paper_tasks()) if clients == PAPER else set()
        missing = sorted(paper - set(found)) if paper & set(found) else []
        if missing:
            log.warning("%d of the paper's tasks are not in %s and are left out", len(missing), raw)
        read = {name: read_task(raw, task, how) for name, task in used.items()}
        facts = {"options": options, "missing": missing, "unplaced": len(found) - len(used)}
        _write(folder, used, read, placement, facts)

    return prepare_once(out, options, write)


def _write(
    folder: Path,
    tasks: Mapping[str, GymTask],
    read: Mapping[str, TaskRows],
    placement: Mapping[str, Sequence[str]],
    facts: Mapping[str, Any],
) -> None:
    """Write the clients' files, vocabulary and manifest. read: what `read_task` gave of each task."""
    from fedtorch.text.sentencepiece import load_tokenizer, train_vocabulary

    entries, sizes = {}, {}
    for client, names in placement.items():
        splits = {split: [_as_row(n, row) for n in names for row in read[n][0][split]] for split in SPLITS}
        sizes[client] = {split: {n: len(read[n][0][split]) for n in names} for split in SPLITS}
        entries[client] = write_client(folder, client, splits, facts={"tasks": names})
    texts = [text for name in tasks for row in read[name][0]["train"] for text in _texts(name, row)]
    train_vocabulary(texts, folder / "tokenizer", size=facts["options"]["vocab_size"])
    record = {
        OMITTED: _left_out(read, facts["unplaced"]),
        "options": facts["options"],
        "tasks": {name: {"metric": task.metric, "group": task.group} for name, task in tasks.items()},
        "sizes": sizes,
        "missing": facts["missing"],
        "left_out": {name: left_out for name, (_, left_out) in read.items() if left_out["dev"] or left_out["test"]},
        "vocabulary": len(load_tokenizer(folder / "tokenizer")),
    }
    write_manifest(folder, "crossfit", clients=entries, record=record)


def _left_out(read: Mapping[str, TaskRows], unplaced: int) -> list[LeftOut]:
    """Count what is left out of all tasks together. unplaced: tasks that are in no client."""
    found = [LeftOut("the clients", unplaced, unplaced + len(read), "tasks (nobody holds them)")]
    for split, where in (("dev", "train or test"), ("test", "train")):
        count = sum(left_out[split] for _, left_out in read.values())
        rows = count + sum(len(splits[split]) for splits, _ in read.values())
        found.append(LeftOut(split, count, rows, f"rows (their input is in their task's {where} too)"))
    merged = sum(left_out["repeated"] for _, left_out in read.values())
    kept = sum(len(rows) for splits, _ in read.values() for rows in splits.values())
    total = merged + kept + found[1].number + found[2].number
    return [
        *found,
        LeftOut("all splits", merged, total, "rows (merged with an equal one, of another seed or the same)"),
    ]


def place_tasks(
    tasks: Mapping[str, GymTask], clients: str, tasks_per_client: int, partition_seed: int
) -> dict[str, list[str]]:
    """client -> names of its tasks, in alphabetical order.

    `paper`: the paper's four clients; `aeslc` is with two of them. A number: so many clients with `tasks_per_client`
    different tasks each, drawn by `partition_seed` from all tasks by name (FewFedWeight does not list them).

    Raises:
        DataError: a client would have no task, `paper` knows no client for one, or there are fewer tasks than needed.
    """
    if clients == PAPER:
        if homeless := sorted(name for name, task in tasks.items() if not task.clients):
            raise DataError(
                f"{len(homeless)} of {len(tasks)} tasks belong to no client of the paper ({', '.join(homeless[:5])}"
                f"{', ...' if len(homeless) > 5 else ''}); say which of its clients hold them, by `paper_clients` in "
                "the file of --tasks, or give a number of clients (--clients 4), or remove their folders"
            )
        numbers = sorted({number for task in tasks.values() for number in task.clients})
        return {f"client{i}": sorted(name for name, task in tasks.items() if i in task.clients) for i in numbers}
    if not clients.isdigit() or int(clients) < 1:
        raise DataError(f"--clients is {clients!r}; expected `{PAPER}` or a number of clients, such as 4")
    needed = int(clients) * tasks_per_client
    if tasks_per_client < 1 or needed > len(tasks):
        raise DataError(
            f"--clients {clients} with --tasks-per-client {tasks_per_client} needs {needed} tasks but there are "
            f"{len(tasks)}; lower one of them (at least 1 task each)"
        )
    order = torch.randperm(len(tasks), generator=generator_for(partition_seed, "tasks", needed)).tolist()
    drawn = [sorted(tasks)[index] for index in order[:needed]]
    step = tasks_per_client
    return {f"client{i + 1}": sorted(drawn[i * step : (i + 1) * step]) for i in range(int(clients))}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `prepare crossfit`."""
    parser.add_argument("--raw", type=Path, required=True, help="the gym's folder, with one folder per task")
    parser.add_argument("--tasks", type=Path, help="JSON file with the metrics of tasks that are not the paper's")
    parser.add_argument("--clients", default=PAPER, help="`paper` (its four clients), or a number of clients")
    parser.add_argument("--tasks-per-client", type=int, default=5, help="with a number of clients (5)")
    parser.add_argument("--partition-seed", type=int, default=0, help="draws the tasks of each client (0)")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="few-shot seeds that are joined")
    parser.add_argument("--test", choices=("few-shot", "whole"), default="few-shot", help="size of the test sets")
    parser.add_argument("--shots-per", choices=("label", "task"), default="label", help="of classification tasks")
    parser.add_argument("--vocab-size", type=int, default=8000, help="entries of the trained vocabulary (8000)")


def run(args: argparse.Namespace) -> Mapping[str, Any]:
    """Prepare as the command line says."""
    how = FewShot(tuple(dict.fromkeys(args.seeds)), args.test, args.shots_per == "task")
    return prepare_crossfit(
        args.raw,
        args.out,
        tasks=args.tasks,
        clients=args.clients,
        tasks_per_client=args.tasks_per_client,
        partition_seed=args.partition_seed,
        how=how,
        vocab_size=args.vocab_size,
    )


def _as_row(task: str, row: CrossfitRow) -> dict[str, Any]:
    return {"task": task, "input": row.input, "outputs": list(row.outputs)}


def _texts(task: str, row: CrossfitRow) -> list[str]:
    return [f"{task}: {row.input}", *row.outputs]


def _digest(raw: Path, tasks: Mapping[str, GymTask], seeds: Sequence[int]) -> str:
    """First 16 digits of a sha256 over all files that are read."""
    hasher = hashlib.sha256()
    for name in tasks:
        for path in files_of(raw, name, seeds)[1].values():
            hasher.update(path.name.encode() + b"\0" + hashlib.sha256(read_bytes(path, "fetch it again")).digest())
    return hasher.hexdigest()[:16]


RECIPE = Recipe("few-shot tasks of CrossFit's gym", add_arguments, run)
