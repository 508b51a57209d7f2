"""CrossFit's gym of few-shot tasks: reading its files, and joining its seeds to train, dev and test sets.

<gym>/<task>/<task>_<k>_<seed>_{train,dev,test}.tsv: one example a line, UTF-8, no header, no quoting. Column 1 is
the input, every further column an acceptable output.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedtorch.core.errors import DataError
from fedtorch.core.seeds import generator_for
from fedtorch.data.crossfit_tasks import GymTask, paper_tasks
from fedtorch.data.json_file import read_bytes, read_json
from fedtorch.metrics.generation import METRICS

SEEDS = (100, 13, 21, 42, 87)
SPLITS = ("train", "dev", "test")
_WHOLE = "every task needs a file for each seed and split"
ONE_ANSWER = ("ACC", "Classification-F1", "Matthew-Correlation")  # metrics of tasks whose only output is a label


class CrossfitRow(NamedTuple):
    """An example."""

    input: str
    """what is asked"""
    outputs: tuple[str, ...]
    """every acceptable answer"""


TaskRows = tuple[dict[str, list[CrossfitRow]], dict[str, int]]
"""(split -> rows, split -> how many were left out, and `repeated` -> how many equal another one) of a task."""


@dataclass(frozen=True)
class FewShot:
    """How a task's files become its sets."""

    seeds: tuple[int, ...] = SEEDS
    """the gym's seeds whose files are joined"""
    test: str = "few-shot"
    """few-shot: draw as many as for training; whole: take all rows"""
    per_task: bool = False
    """16 examples per task in place of 16 per label, as the paper words it"""


def known_tasks(file: Path | None) -> dict[str, GymTask]:
    """The paper's tasks and, over them, those of a JSON file such as the gym's own list.

    file: `{"tasks": [{"task": ..., "metric": ..., "sampling": "16 per class" or other, "group": ...,
        "paper_clients": [1]}]}`; only `task` and `metric` are required.

    Raises:
        DataError: the file is missing or malformed, or a metric is not one of CrossFit's.
    """
    tasks = dict(paper_tasks())
    for index, entry in enumerate(_entries(file) if file else []):
        if not isinstance(entry, dict) or not isinstance(entry.get("task"), str):
            raise DataError(f"{file}: entry {index + 1} of `tasks` has no `task`; expected an object with its name")
        name, metric = entry["task"], entry.get("metric")
        if not isinstance(metric, str) or metric not in METRICS:
            raise DataError(
                f"{file}: task {name} has the metric {metric!r}; expected one of {', '.join(METRICS)}; correct the file"
            )
        per_label = "per" in str(entry.get("sampling", "")).split()
        clients = entry.get("paper_clients") or []
        if not isinstance(clients, list) or not all(type(number) is int for number in clients):
            raise DataError(f"{file}: `paper_clients` of task {name} is no list of client numbers; correct the file")
        tasks[name] = GymTask(name, metric, per_label, str(entry.get("group") or "-"), tuple(clients))
    return tasks


def find_tasks(gym: Path, known: Mapping[str, GymTask]) -> dict[str, GymTask]:
    """The tasks that have a folder in `gym`, by name.

    Raises:
        DataError: no folder, or a task of which nobody said how it is scored.
    """
    if not gym.is_dir():
        raise DataError(f"{gym} is not a folder; --raw must be the gym's folder with one folder per task")
    names = sorted(path.name for path in gym.iterdir() if path.is_dir() and not path.name.startswith("."))
    for name in names:
        if name not in known:
            raise DataError(
                f"{gym / name} is no task of the paper, so its metric is not known; give a JSON file with --tasks "
                f"that names its metric ({', '.join(METRICS)}), or remove the folder"
            )
    if not names:
        raise DataError(f"{gym} has no task folders; --raw must be the gym's folder with one folder per task")
    return {name: known[name] for name in names}


def files_of(gym: Path, task: str, seeds: Iterable[int]) -> tuple[int, dict[tuple[int, str], Path]]:
    """(k, (seed, split) -> file) of a task.

    Raises:
        DataError: a split or seed is missing, or the folder holds several k.
    """
    found: dict[int, dict[tuple[int, str], Path]] = defaultdict(dict)
    for path in (gym / task).glob("*.tsv"):
        if match := re.fullmatch(rf"{re.escape(task)}_(\d+)_(\d+)_(train|dev|test)\.tsv", path.name):
            found[int(match[1])][int(match[2]), match[3]] = path
    if len(found) != 1:
        several = f"examples for several k: {', '.join(map(str, sorted(found)))}" if found else "no file"
        raise DataError(
            f"{gym / task} has {several}; expected {task}_<k>_<seed>_<split>.tsv with one k, the splits "
            f"{', '.join(SPLITS)} and the seeds {', '.join(map(str, seeds))}"
        )
    ((k, files),) = found.items()
    for seed in seeds:
        for split in SPLITS:
            if (seed, split) not in files:
                raise DataError(
                    f"{gym / task}/{task}_{k}_{seed}_{split}.tsv is missing; every seed needs train, dev and test "
                    "(choose other seeds with --seeds, or remove the task's folder)"
                )
    return k, {(seed, split): files[seed, split] for seed in seeds for split in SPLITS}


def read_tsv(path: Path, *, one_answer: bool = False) -> list[CrossfitRow]:
    """The rows of a file; blank lines are left out, blank columns behind the first answer too.

    Raises:
        DataError: names file and line, never the text: not UTF-8, fewer than two columns, an empty input or
            answer, or more than two columns where the answer is a label.
    """
    rows = []
    for number, line in enumerate(read_bytes(path, _WHOLE).split(b"\n"), start=1):
        try:
            columns = line.decode("utf-8").rstrip("\r").split("\t")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}:{number}: byte {error.start + 1} is not UTF-8") from None
        if columns == [""]:
            continue
        if len(columns) < 2 or (one_answer and len(columns) > 2):
            expected = "2 (input, label)" if one_answer else "at least 2 (input, answer, further answers)"
            raise DataError(f"{path}:{number}: {len(columns)} column(s), expected {expected}, separated by tabs")
        if not columns[0].strip() or not columns[1].strip():
            raise DataError(f"{path}:{number}: the input or the first answer is empty")
        rows.append(CrossfitRow(columns[0], tuple(c for i, c in enumerate(columns[1:]) if i == 0 or c.strip())))
    return rows


def read_task(gym: Path, task: GymTask, how: FewShot) -> TaskRows:
    """The sets of a task.

    train: union of the seeds' few-shot training files without duplicates. test: union over the seeds of the same
    sampling from each seed's test file (CrossFit's validation split), so that it is as small as the paper's. dev:
    union of the seeds' dev files. The sources have duplicates, and one seed's dev rows may be another seed's
    training rows: a row whose input is in train is left out of test, and one whose input is in either out of dev.
    """
    k, files = files_of(gym, task.name, how.seeds)
    one_answer = task.metric in ONE_ANSWER
    parts: dict[str, list[CrossfitRow]] = {split: [] for split in SPLITS}
    for (seed, split), path in files.items():
        rows = read_tsv(path, one_answer=one_answer)
        per_label = task.per_label and not how.per_task
        if split == "test" and how.test == "few-shot":
            rows = _few(rows, k, per_label, task.name, seed)
        elif split == "train" and task.per_label and how.per_task:
            rows = _few(rows, k, False, task.name, seed)
        parts[split] += rows
    unique = {split: list(dict.fromkeys(rows)) for split, rows in parts.items()}
    train_inputs = {row.input for row in unique["train"]}
    test = [row for row in unique["test"] if row.input not in train_inputs]
    seen = train_inputs | {row.input for row in test}
    dev = [row for row in unique["dev"] if row.input not in seen]
    left_out = {"test": len(unique["test"]) - len(test), "dev": len(unique["dev"]) - len(dev)}
    left_out["repeated"] = sum(len(parts[split]) - len(unique[split]) for split in SPLITS)
    assert not train_inputs & {row.input for row in (*test, *dev)}
    return {"train": unique["train"], "dev": dev, "test": test}, left_out


def _few(rows: Sequence[CrossfitRow], k: int, per_label: bool, task: str, seed: int) -> list[CrossfitRow]:
    """The first k rows, of each label or of all, after a shuffle by `seed`; in the file's order."""
    order = torch.randperm(len(rows), generator=generator_for(seed, "few-shot", task)).tolist()
    counts: dict[str, int] = defaultdict(int)
    picked = []
    for index in order:
        label = rows[index].outputs[0] if per_label else ""
        counts[label] += 1
        if counts[label] <= k:
            picked.append(index)
    return [rows[index] for index in sorted(picked)]


def _entries(file: Path) -> list[Any]:
    content = read_json(file, "--tasks must be a JSON file with the tasks' metrics")
    entries = content.get("tasks") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise DataError(f'{file} has no list `tasks`; expected {{"tasks": [{{"task": ..., "metric": ...}}]}}')
    return entries
