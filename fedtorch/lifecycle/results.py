"""results.json: what a run came to, for people and for `report`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedtorch.core.scores import COUNT
from fedtorch.rounds.runner import Result
from fedtorch.rounds.scoring import averages
from fedtorch.setup.build import BuiltRun
from fedtorch.tracking.records import counted
from fedtorch.tracking.run_folder import read_run


def table(built: BuiltRun, result: Result) -> dict[str, Any]:
    """Everything the final table shows, every score with the number of examples behind it."""
    run = read_run(built.config.folder)  # from the records, which a resumed run has too
    last = run.last
    sizes = {client.name: client.sizes["train"] for client in built.clients}
    clients = {}
    for name in built.names:
        if name not in last and name not in result.scores:
            continue
        record = last.get(name, {})
        clients[name] = {
            "examples": sizes.get(name, 0),
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
        "traffic": _traffic([*run.of_kind("round"), *run.of_kind("end")]),
        "summary": built.task.summary(result.scores),
        "digest": result.digest,
        "lost": result.lost,
        "task": built.task.record(),
    }


def _traffic(records: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Bytes and messages of the whole run; see `Meter` for what is counted."""
    total: Counter[str] = Counter()
    for record in records:
        total.update(counted(record))
    return dict(total)
