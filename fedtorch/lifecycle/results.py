"""results.json: what a run came to, for people and for `report`."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from fedtorch.config.load import companions
from fedtorch.config.schema import Config
from fedtorch.core.errors import CheckpointError
from fedtorch.core.files import replace_file
from fedtorch.core.scores import COUNT, are_shared_by_all, number_behind, told
from fedtorch.rounds.result import Result
from fedtorch.rounds.scoring import averages, summary
from fedtorch.setup.build import BuiltRun
from fedtorch.tracking.memory import Memory
from fedtorch.tracking.run_folder import RESULTS


def table(built: BuiltRun, result: Result, memory: Memory) -> dict[str, Any]:
    """Everything the final table shows, every score with the number of examples behind it.

    `shared`: all clients, or those whose entry has it, have the same rows of the split, which count once in sums.
    memory: of the run's rounds; no file is read, as the disk may have refused it.
    """
    last, split = memory.last, built.config.eval.final_split
    shared = built.task.sharing(split)
    behind = {name: built.task.behind(scores) for name, scores in result.scores.items()}
    clients = {}
    seen = [name for name in {*last, *result.scores} if name in built.names]
    for name in sorted(seen, key=built.names.place):
        client = built.clients.named(name)
        record = last.get(name, {})
        clients[name] = {
            "examples": (client.sizes["train"] if client is not None else 0) if _shows_sizes(built) else None,
            "status": record.get("status"),
            "loss": record.get("loss_mean"),
            "weight": record.get("weight"),
            "mean_weight": memory.mean_weight(name),
            "scores": {
                metric: list(pair) for metric, pair in told(result.scores.get(name, {}), behind.get(name, {})).items()
            },
            **({"shared": True} if name in shared and name in result.scores else {}),
            **({"best_round": result.client_rounds[name]} if name in result.client_rounds else {}),
        }
    return {
        "rounds": result.rounds,
        "best_round": result.best_round,
        "split": split,
        **({"shared": True} if are_shared_by_all(result.scores, shared) else {}),
        "clients": clients,
        "averages": _averages(built, result, behind, shared),
        "traffic": dict(memory.traffic),
        "summary": summary(built.task, result.scores, split),
        "digest": result.digest,
        "lost": result.lost,
        "task": built.task.record() if built.config.privacy.kind == "none" else built.task.public_record(),
        **({"privacy": _privacy(built, result)} if result.privacy else {}),
        **({"trust": result.trust} if result.trust else {}),
        **({"attack": asdict(built.config.attack)} if built.config.attack.clients else {}),
    }


def _averages(
    built: BuiltRun, result: Result, behind: Mapping[str, Mapping[str, int]], shared: Collection[str]
) -> dict[str, Any]:
    """metric -> macro, micro and count over the clients. behind, shared: see `number_behind`."""
    means = {}
    for metric in sorted({name for scores in result.scores.values() for name in scores}):
        if not metric.startswith(COUNT):
            macro, micro, count = averages(built.task, result.scores, metric, built.config.eval.final_split)
            means[metric] = {"macro": macro, "micro": micro, "count": number_behind(metric, behind, count, shared)}
    return means


def _privacy(built: BuiltRun, result: Result) -> dict[str, Any]:
    """Promise that was made to clients, with the number of rows only where that is revealed."""
    return {**result.privacy, "rows": int(built.clients.train_sizes.sum()) if _shows_sizes(built) else None}


def _shows_sizes(built: BuiltRun) -> bool:
    """May the number of rows that clients train on be told?"""
    privacy = built.config.privacy
    return privacy.kind == "none" or "sizes" in privacy.reveal


def show_beside(config: Config) -> None:
    """Put what the companions of a run came to under `compare` into its results.json, each by what it is called.

    Raises:
        CheckpointError: the disk refuses.
    """
    beside = {}
    for label, other in companions(config).items():
        found = json.loads((other.folder / RESULTS).read_text())
        pooled = found["summary"].get("pooled")
        beside[label] = {
            "folder": os.path.relpath(other.folder, config.folder),
            **{key: found[key] for key in ("rounds", "best_round", "split", "averages", "digest")},
            **({} if pooled is None else {"pooled": pooled}),
        }
    if not beside:
        return
    path = config.folder / RESULTS
    results = json.loads(path.read_text())
    try:
        replace_file(path, json.dumps({**results, "compare": beside}, indent=1) + "\n")
    except OSError as error:
        raise CheckpointError(f"could not write {path} ({error}); free some space, and start the run again") from error
