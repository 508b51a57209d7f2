"""results.json: what a run came to, for people and for `report`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Any

from fedtorch.config.load import companions
from fedtorch.config.schema import Config
from fedtorch.core.errors import CheckpointError
from fedtorch.core.files import replace_file
from fedtorch.core.scores import COUNT
from fedtorch.rounds.result import Result
from fedtorch.rounds.scoring import averages
from fedtorch.setup.build import BuiltRun
from fedtorch.tracking.memory import Memory
from fedtorch.tracking.run_folder import RESULTS


def table(built: BuiltRun, result: Result, memory: Memory) -> dict[str, Any]:
    """Everything the final table shows, every score with the number of examples behind it.

    memory: of the run's rounds; no file is read, as the disk may have refused it.
    """
    last = memory.last
    clients = {}
    seen = [name for name in {*last, *result.scores} if name in built.names]
    for name in sorted(seen, key=built.names.place):
        client = built.clients.named(name)
        record = last.get(name, {})
        clients[name] = {
            "examples": client.sizes["train"] if client is not None else 0,
            "status": record.get("status"),
            "loss": record.get("loss_mean"),
            "weight": record.get("weight"),
            "scores": {metric: list(pair) for metric, pair in result.scores.get(name, {}).items()},
        }
    metrics = sorted({name for scores in result.scores.values() for name in scores if not name.startswith(COUNT)})
    means = {}
    for metric in metrics:
        macro, micro, count = averages(built.task, result.scores, metric)
        means[metric] = {"macro": macro, "micro": micro, "count": count}
    return {
        "rounds": result.rounds,
        "best_round": result.best_round,
        "split": built.config.eval.final_split,
        "clients": clients,
        "averages": means,
        "traffic": dict(memory.traffic),
        "summary": built.task.summary(result.scores),
        "digest": result.digest,
        "lost": result.lost,
        "task": built.task.record(),
        **({"privacy": _privacy(built, result)} if result.privacy else {}),
        **({"attack": asdict(built.config.attack)} if built.config.attack.clients else {}),
    }


def _privacy(built: BuiltRun, result: Result) -> dict[str, Any]:
    """Promise that was made to clients, with the number of rows only where that is revealed."""
    is_open = "sizes" in built.config.privacy.reveal
    return {**result.privacy, "rows": int(built.clients.train_sizes.sum()) if is_open else None}


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
