"""Reading a run folder: its config, its records, and the scores that count."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedtorch.core import yaml_tree
from fedtorch.core.errors import ConfigError
from fedtorch.core.scores import LOSS
from fedtorch.tracking import records
from fedtorch.tracking.memory import Memory
from fedtorch.tracking.records import Record

Pair = tuple[float, int]  # sum over examples, examples

RESULTS = "results.json"
"""In a run's folder: what it came to."""
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
    own_rounds: Mapping[str, int] = field(default_factory=dict)
    """client -> the round that it has chosen for itself, whose weights it was evaluated with"""

    shared: frozenset[str] = frozenset()
    """clients that have the same rows, which count once in averages"""

    def average(self, metric: str) -> Mapping[str, Any]:
        """macro, micro and count over the clients; where they were not recorded, the means."""
        if metric in self.averages:
            return self.averages[metric]
        scores = {client: {metric: pair} for client, pair in self.of(metric).items()}
        return records.totals(scores, self.shared)[metric]

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
    """client -> its last record of the kind `client`; where records are missing, what results.json has of it"""
    gap: str = ""
    """which records are missing, in words; empty where none is"""

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
        """Part `privacy` of results.json; empty where nothing was promised, or the run is not over."""
        return self._of_results("privacy")

    @property
    def trust(self) -> Mapping[str, Any]:
        """Part `trust` of results.json; empty where nobody checked the server, or the run is not over."""
        return self._of_results("trust")

    def _of_results(self, part: str) -> Mapping[str, Any]:
        results = self.of_kind("result")
        return results[-1].get(part, {}) if results else {}

    @property
    def trained(self) -> tuple[str, ...]:
        """The clients with rows to train on, drawn or not; nobody where records may not name them."""
        heads = [record for record in self.records if record["kind"] == "run"]
        return tuple(heads[0].get("clients", ())) if heads else ()

    @property
    def examples(self) -> dict[str, int]:
        """client -> rows of train, as far as it is known: of clients that were drawn or scored."""
        found = {name: record["examples"] for name, record in self.last.items() if "examples" in record}
        told = self.of_kind("result")[-1:]
        known = {name: entry for record in told for name, entry in record.get("clients", {}).items()}
        return {name: entry["examples"] for name, entry in known.items() if entry.get("examples") is not None} | found

    @property
    def mean_weights(self) -> dict[str, float]:
        """client -> weight in the combined update, the mean over all rounds; empty where nothing was combined."""
        results = self.of_kind("result")[-1:] if self.gap else []
        if results:  # of rounds whose records are missing too
            told = {name: entry.get("mean_weight") for name, entry in results[0].get("clients", {}).items()}
        else:
            memory = Memory()
            for record in self.records:
                memory.see(record)
            told = {name: memory.mean_weight(name) for name in dict.fromkeys((*self.trained, *memory.last))}
        return {name: weight for name, weight in told.items() if weight is not None}

    @property
    def chosen_round(self) -> int | None:
        """The round whose weights were scored at the end, where one was chosen for all clients."""
        final = [e.weights_of for e in self.all_evaluations() if e.label == "final"]
        return final[-1] if final else None

    def of_kind(self, kind: str) -> list[Record]:
        """The records of one kind, in their order."""
        return [record for record in self.records if record["kind"] == kind]

    def all_evaluations(self) -> list[Evaluation]:
        """All evaluations, in the order they were made."""
        found: dict[tuple[str, str, int], dict[str, Mapping[str, Pair]]] = {}
        own: dict[tuple[str, str, int], dict[str, int]] = {}
        shared: dict[tuple[str, str, int], set[str]] = {}
        for record in self.of_kind("eval"):
            key = (record["label"], record["split"], record["round"])
            if (of := record.get("weights_of")) is not None:
                own.setdefault(key, {})[record["client"]] = of
            found.setdefault(key, {})[record["client"]] = {
                name: (pair[0], pair[1]) for name, pair in record["metrics"].items() if pair[0] is not None
            }
            if record.get("shared"):
                shared.setdefault(key, set()).add(record["client"])
        totals = {(r["label"], r["split"], r["round"]): r for r in self.of_kind("eval_total")}
        return [
            _evaluation(key, metrics, totals.get(key, {}), own.get(key, {}), frozenset(shared.get(key, ())))
            for key, metrics in found.items()
        ]

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


def _evaluation(
    key: tuple[str, str, int],
    metrics: Mapping[str, Mapping[str, Pair]],
    total: Record,
    of: Mapping[str, int],
    shared: frozenset[str],
) -> Evaluation:
    """total: the record of all clients; of: client -> the round whose weights it was evaluated with."""
    chosen = total.get("weights_of")  # one for all
    return Evaluation(*key, metrics, total.get("metrics", {}), chosen, {} if chosen is not None else of, shared)


def read_run(folder: Path) -> Run:
    """Read metrics.jsonl and config.yaml (which may be missing) of `folder`, finished or still growing.

    Where results.json says that records are missing, what the end of the run came to is read there.

    Raises:
        ConfigError: there is no such run, or its config.yaml cannot be read.
    """
    path = folder / records.NAME
    results = _results_beside_a_gap(folder)
    if not path.is_file() and not results:
        raise ConfigError(f"{path} does not exist; name the folder of a run, such as runs/my_run")
    settings = folder / "config.yaml"
    config = yaml_tree.read_file(settings, "the run's config", 1 << 26)[0].data if settings.is_file() else {}
    found = list(records.read(path)) if path.is_file() else []
    last_round = max((record["round"] for record in found if record["kind"] == "round"), default=0)
    if last_round > results.get("rounds", 0):
        results = {}  # of an earlier end: it has gone on since
    if results and not any(record["kind"] == "result" for record in found):
        found += _rebuilt(results)
    heads = [record for record in found if record["kind"] in ("run", "resume")]
    clients = [client for record in heads for client in record.get("clients", ())]
    clients += [record["client"] for record in found if "client" in record]
    return Run(
        folder,
        config,
        found,
        clients=tuple(dict.fromkeys(clients)),
        rounds=max((record.get("rounds", 0) for record in heads[-1:]), default=results.get("rounds", 0)),
        last_round=max(last_round, results.get("rounds", 0)),
        is_finished=any(record["kind"] == "result" or record.get("label") == "final" for record in found),
        last={r["client"]: r for r in found if r["kind"] == "client"} | _last_of(results),
        gap=_gap(found, last_round, results),
    )


def is_run(folder: Path) -> bool:
    """Has `folder` what `read_run` reads?"""
    return (folder / records.NAME).is_file() or bool(_results_beside_a_gap(folder))


def _results_beside_a_gap(folder: Path) -> dict[str, Any]:
    """results.json, where it says that records are missing; else nothing."""
    try:
        found = json.loads((folder / RESULTS).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and found.get("records") else {}


def _rebuilt(results: Mapping[str, Any]) -> list[Record]:
    """The records of the end of a run, from what it came to."""
    base = {"round": results["rounds"], "split": results["split"], "label": "final"}
    if (chosen := results.get("best_round")) is not None:
        base["weights_of"] = chosen
    clients = {client: found for client, found in results["clients"].items() if found["scores"]}
    return [
        *(
            {
                "kind": "eval",
                **base,
                **_own_round(found),
                **_shared(found),
                "client": client,
                "metrics": found["scores"],
            }
            for client, found in clients.items()
        ),
        {"kind": "eval_total", **base, **_shared(results), "metrics": results["averages"]},
        {"kind": "result", **results},
    ]


def _own_round(found: Mapping[str, Any]) -> dict[str, int]:
    return {"weights_of": of} if (of := found.get("best_round")) is not None else {}


def _shared(found: Mapping[str, Any]) -> dict[str, bool]:
    return {"shared": True} if found.get("shared") else {}


def _last_of(results: Mapping[str, Any]) -> dict[str, Record]:
    """client -> what is known of its last round."""
    clients = results.get("clients", {})
    return {
        client: {"examples": found["examples"], "loss_mean": found["loss"], **found}
        for client, found in clients.items()
        if found["status"] is not None
    }


def _gap(found: list[Record], last_round: int, results: Mapping[str, Any]) -> str:
    if results:
        return records.about_gap(results["records"])
    missing = records.missing_rounds(found, last_round)
    gap = {"missing_rounds": records.as_ranges(missing), "reason": "they are not in the file"}
    return records.about_gap(gap) if missing else ""


def companions(folder: Path) -> list[Path]:
    """The folders of runs inside a run's folder (such as `compare-local`), the untrained model first, else by name."""
    found = (path.parent for path in folder.glob(f"*/{records.NAME}"))
    return sorted(found, key=lambda path: (path.name != f"{BESIDE}start", path.name))
