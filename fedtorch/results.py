"""results.json: what a run came to, for people and for `report`."""

from __future__ import annotations

from typing import Any

from fedtorch.build import Parts
from fedtorch.evaluate import averages
from fedtorch.runner import Result


def table(parts: Parts, result: Result) -> dict[str, Any]:
    """Everything the final table shows, every score with the number of examples behind it."""
    clients = {}
    for name in parts.names:
        report = result.reports.get(name)
        scores = result.scores.get(name)
        if report is None and scores is None:
            continue
        clients[name] = {
            "examples": report.examples if report else 0,
            "status": report.status if report else None,
            "loss": report.loss_mean if report else None,
            "weight": result.weights.get(name),
            "scores": {metric: list(pair) for metric, pair in (scores or {}).items()},
        }
    metrics = sorted({metric for scores in result.scores.values() for metric in scores})
    means = {}
    for metric in metrics:
        macro, micro, count = averages(result.scores, metric)
        means[metric] = {"macro": macro, "micro": micro, "count": count}
    return {
        "rounds": result.rounds,
        "best_round": result.best_round,
        "split": parts.config.eval.final_split,
        "clients": clients,
        "averages": means,
        "digest": result.digest,
        "task": parts.task.record(),
    }
