"""Reading a run folder: its config, its records, and the scores that count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fedtorch.core.errors import ConfigError
from fedtorch.core.scores import LOSS
from fedtorch.tracking import records
from fedtorch.tracking.records import Record

Pair = tuple[float, int]  # sum over examples, examples

BESIDE = "compare-"
"""What the folder of a companion that has a name begins with; the only one, without a name, is in `compare`."""


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a model on a split."""

    label: str
    """which model: `global`, `training`, `personal`, `final`"""
    split: str
    """train, dev or test"""
    round: int
    """rounds done by then"""
    metrics: Mapping[str, Mapping[str, Pair]]
    """client -> metric -> (sum, examples)"""
    averages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """metric -> macro, micro and count as they were recorded; micro of a metric that is no mean is pooled"""
    weights_of: int | None = None
    """the round whose weights were evaluated, where one was chosen for all clients"""

    def average(self, metric: str) -> Mapping[str, Any]:
        """macro, micro and count over the clients; where they were not recorded, the means."""
        if metric in self.averages:
            return self.averages[metric]
        return records.totals({client: {metric: pair} for client, pair in self.of(metric).items()})[metric]

    def of(self, metric: str) -> dict[str, Pair]:
        """client -> (sum, examples), for the clients that were scored."""
        return {c: m[metric] for c, m in self.metrics.items() if metric in m and m[metric][1]}


@dataclass(frozen=True)
class Run:
    """A run as its folder tells it."""

    folder: Path
    """with metrics.jsonl and, of a run of ours, config.yaml"""
    config: Mapping[str, Any]
    """of config.yaml; empty where there is none"""
    records: list[Record]
    """all lines of metrics.jsonl that are whole, in their order"""
    clients: tuple[str, ...] = ()
    """of all records, in the order in which they first occur"""
    rounds: int = 0
    """planned"""
    last_round: int = 0
    """done"""
    is_finished: bool = False
    """did it reach its end?"""
    last: Mapping[str, Record] = field(default_factory=dict)
    """client -> its last record of the kind `client`"""

    @property
    def name(self) -> str:
        """`run.name` of the config, or the folder's name."""
        return str(self.setting("run.name") or self.folder.resolve().name)

    def setting(self, key: str) -> Any:
        """The value of a dotted key of config.yaml, None where there is none."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    @property
    def privacy(self) -> Mapping[str, Any]:
        """What results.json says under `privacy`; empty where nothing was promised, or the run is not over."""
        results = self.of_kind("result")
        return results[-1].get("privacy", {}) if results else {}

    def of_kind(self, kind: str) -> list[Record]:
        """The records of one kind, in their order."""
        return [record for record in self.records if record["kind"] == kind]

    def all_evaluations(self) -> list[Evaluation]:
        """All evaluations, in the order they were made."""
        found: dict[tuple[str, str, int], dict[str, Mapping[str, Pair]]] = {}
        chosen: dict[tuple[str, str, int], int | None] = {}
        for record in self.of_kind("eval"):
            key = (record["label"], record["split"], record["round"])
            chosen[key] = record.get("weights_of")
            found.setdefault(key, {})[record["client"]] = {
                name: (pair[0], pair[1]) for name, pair in record["metrics"].items() if pair[0] is not None
            }
        means = {(r["label"], r["split"], r["round"]): r["metrics"] for r in self.of_kind("eval_total")}
        return [Evaluation(*key, metrics, means.get(key, {}), chosen[key]) for key, metrics in found.items()]

    def last_evaluations(self) -> list[Evaluation]:
        """The last evaluation of every label and split, the one that counts first.

        That is the one labelled `final`, else one on `test`, else the latest.
        """
        latest: dict[tuple[str, str], Evaluation] = {}
        for evaluation in self.all_evaluations():
            latest[(evaluation.label, evaluation.split)] = evaluation
        order = sorted(latest.values(), key=lambda j: (j.label == "final", j.split == "test", j.round), reverse=True)
        return order

    def metric(self) -> str | None:
        """The score that the run is compared by: `eval.select_by`, or the first one recorded; never the loss alone."""
        chosen = self.setting("eval.select_by")
        counting = self.last_evaluations()[:1]
        names = [name for evaluation in counting for metrics in evaluation.metrics.values() for name in metrics]
        names = [name for name in names if name != LOSS] or names
        return chosen if chosen in names else next(iter(names), None)


def read_run(folder: Path) -> Run:
    """Read metrics.jsonl and config.yaml (which may be missing) of `folder`, finished or still growing.

    Raises:
        ConfigError: there is no such run.
    """
    path = folder / records.NAME
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; name the folder of a run, such as runs/my_run")
    config: Any = {}
    if (folder / "config.yaml").is_file():
        try:
            config = yaml.safe_load((folder / "config.yaml").read_text())
        except yaml.YAMLError as error:
            raise ConfigError(f"{folder / 'config.yaml'} is not YAML: {error}") from error
    found = list(records.read(path))
    heads = [record for record in found if record["kind"] in ("run", "resume")]
    clients = [client for record in heads for client in record.get("clients", ())]
    clients += [record["client"] for record in found if "client" in record]
    return Run(
        folder,
        config if isinstance(config, Mapping) else {},
        found,
        clients=tuple(dict.fromkeys(clients)),
        rounds=max((record.get("rounds", 0) for record in heads[-1:]), default=0),
        last_round=max((record["round"] for record in found if record["kind"] == "round"), default=0),
        is_finished=any(record["kind"] == "result" or record.get("label") == "final" for record in found),
        last={record["client"]: record for record in found if record["kind"] == "client"},
    )


def companions(folder: Path) -> list[Path]:
    """The folders of runs inside a run's folder (such as `compare-local`), the untrained model first, else by name."""
    found = (path.parent for path in folder.glob(f"*/{records.NAME}"))
    return sorted(found, key=lambda path: (path.name != f"{BESIDE}start", path.name))
