"""Reading what `prepare crossfit` wrote: tasks, their metrics, and the rows of a client, sub-sampled per task."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter

from fedtorch.core.errors import DataError
from fedtorch.core.extras import require
from fedtorch.core.seeds import generator_for
from fedtorch.data.folder import read_manifest, read_rows
from fedtorch.data.manifest import PREPARE, Number, check_form
from fedtorch.metrics.generation import LIBRARIES, METRICS, SHORT

_FIELDS: dict[str, type] = {"task": str, "input": str, "outputs": list}
_FORMS: dict[str, TypeAdapter[Any]] = {
    "tasks": TypeAdapter(dict[str, dict[str, Any]]),
    "sizes": TypeAdapter(dict[str, dict[str, dict[str, Number]]]),
}
_KEY = re.compile(r"[a-z][a-z0-9_./@-]{0,63}")  # what a score may be called, see `comm.wire`


def score_name(task: str, metric: str) -> str:
    """Name of a task's score in records: `<task>/<metric>`, in lower case."""
    return f"{task.lower()}/{SHORT[metric]}"


@dataclass(frozen=True)
class PreparedGym:
    """A prepared folder of few-shot tasks."""

    folder: Path
    """that `data prepare crossfit` wrote, with a manifest"""

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The folder's manifest.

        Raises:
            DataError: there is none, or it is of another data set.
        """
        manifest = read_manifest(self.folder)
        record, clients = manifest["record"], manifest["clients"]
        if not {"tasks", "sizes"} <= set(record):
            raise DataError(f"{self.folder} holds no few-shot tasks; prepare it with `prepare crossfit`")
        for key, form in _FORMS.items():
            check_form(form, record[key], f"{self.folder / 'manifest.json'}: record.{key}")
        sizes = {c: {s: sum(tasks.values()) for s, tasks in splits.items()} for c, splits in record["sizes"].items()}
        named = {c: {s: facts["examples"] for s, facts in entry["splits"].items()} for c, entry in clients.items()}
        if wrong := [client for client in {**sizes, **named} if sizes.get(client) != named.get(client)]:
            raise DataError(
                f"{self.folder / 'manifest.json'}: record.sizes counts other rows of client {wrong[0]} than its "
                f"splits have; {PREPARE} again"
            )
        return manifest

    @property
    def sizes(self) -> Mapping[str, Mapping[str, Mapping[str, int]]]:
        """client -> split -> task -> examples."""
        sizes: Mapping[str, Mapping[str, Mapping[str, int]]] = self.manifest["record"]["sizes"]
        return sizes

    @cached_property
    def metric_of(self) -> dict[str, str]:
        """task -> CrossFit's name of its metric.

        Raises:
            DataError: a metric is unknown, or a task's name cannot be part of a score's name.
        """
        found: dict[str, str] = {}
        keys: set[str] = set()
        for name, facts in self.manifest["record"]["tasks"].items():
            metric = facts.get("metric")
            if not isinstance(metric, str) or metric not in METRICS:
                raise DataError(
                    f"{self.folder}/manifest.json: task {name} has the metric {metric!r}; expected one of "
                    f"{', '.join(METRICS)}; prepare the data again"
                )
            key = score_name(name, metric)
            if key in keys or not _KEY.fullmatch(key):
                raise DataError(
                    f"{self.folder}: the task name {ascii(name)} cannot be used: with its metric it has {len(key)} "
                    "characters (at most 64), does not begin with a letter, has other characters than letters, "
                    "digits and _./@-, or equals another one in lower case; rename its folder in the gym"
                )
            keys.add(key)
            found[name] = metric
        return found

    def require_packages(self) -> None:
        """Check that the tasks' metrics can be computed.

        Raises:
            ConfigError: a package that one needs is not installed.
        """
        for metric in dict.fromkeys(self.metric_of.values()):
            if package := LIBRARIES.get(metric):
                require(f"the metric {metric}, for {self.folder},", package, extra="fewfedweight")

    @cached_property
    def digest(self) -> str:
        """Equal for folders with the same clients, rows and metrics."""
        text = json.dumps([self.manifest["clients"], self.manifest["record"]["tasks"]], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def size(self, client: str, split: str, limit: int | None) -> int:
        """Examples of a client's split with at most `limit` per task."""
        return sum(n if limit is None else min(limit, n) for n in self.sizes[client][split].values())

    def rows(self, client: str, split: str, limit: int | None) -> list[dict[str, Any]]:
        """Task after task, of each at most `limit` rows: a fixed random subset in the file's order.

        Raises:
            DataError: see `read_rows`; or a row has no answer, or a task that the manifest does not name.
        """
        groups: dict[str, list[dict[str, Any]]] = {}
        for number, row in enumerate(read_rows(self.folder, client, split, fields=_FIELDS), start=1):
            is_text = all(isinstance(text, str) for text in row["outputs"])
            if row["task"] not in self.metric_of or not row["outputs"] or not is_text:
                raise DataError(
                    f"{self.folder}, client {client}, split {split}, row {number}: no answer, or a task that the "
                    "manifest does not name; prepare the data again"
                )
            groups.setdefault(row["task"], []).append(row)
        if (known := self.sizes[client][split]) != {name: len(groups.get(name, ())) for name in {**known, **groups}}:
            raise DataError(
                f"{self.folder}, client {client}, split {split}: record.sizes of the manifest counts other rows of a "
                f"task; {PREPARE} again"
            )
        return [row for task, group in groups.items() for row in _subset(group, limit, client, split, task)]


def _subset(rows: list[dict[str, Any]], limit: int | None, *parts: str) -> list[dict[str, Any]]:
    if limit is None or limit >= len(rows):
        return rows
    picked = torch.randperm(len(rows), generator=generator_for(0, "subset", *parts))[:limit]
    return [rows[i] for i in sorted(picked.tolist())]
