"""Scores of the metrics that `eval.metrics` asks for: of one client, and of all of them together."""

from __future__ import annotations

import hashlib
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedtorch.core.errors import ConfigError
from fedtorch.core.scores import COUNT
from fedtorch.metrics.chosen import is_pooled, sums_of
from fedtorch.tasks.base import Scores

Figures = Callable[[Mapping[str, float]], Mapping[str, float]]
"""Sums by name -> a task's own figures that are no means."""

log = logging.getLogger(__name__)


def scores_of(
    chosen: Mapping[str, Any],
    client: str,
    scores: Scores,
    predictions: Sequence[Any],
    references: Sequence[Any],
    figures: Figures,
) -> Scores:
    """One client's figures, each as (figure · rows, rows), so that the mean over clients is that of their figures.

    chosen: name -> a name among `scores` or `figures`, a function, or an object with `sums`, which are among the
    scores too. A metric that fails, or gives NaN or no number, has no score here: a warning names it and the client,
    and the run goes on.
    """
    rows, found = len(references), dict[str, tuple[float, int]]()
    own = figures({name: total for name, (total, _) in scores.items()})
    for name, metric in chosen.items():
        if isinstance(metric, str):
            if metric in own:
                found[name] = own[metric] * rows, rows
            elif metric != name:
                found[name] = scores[metric]
            continue
        try:
            sums = sums_of(metric, predictions, references) if is_pooled(metric) else []
            value = float(metric.score(sums) if is_pooled(metric) else metric(predictions, references))
        except Exception as error:  # of code that is not ours; its text may quote the client's rows
            _warn(name, client, type(error).__name__)
            log.debug("metric %s at client %s", name, client, exc_info=error)
            continue
        if math.isfinite(value):
            found[name] = value * rows, rows
        found |= {f"{COUNT}{name}/{place}": (total, rows) for place, total in enumerate(sums)}
    return found


def pooled_of(chosen: Mapping[str, Any], scores: Mapping[str, Scores], figures: Figures) -> dict[str, float]:
    """name -> the figure of all clients' rows together, of metrics that are no means.

    Raises:
        ConfigError: a metric gave clients different numbers of sums.
    """
    names = {name for client in scores.values() for name in client}
    totals = {
        name: math.fsum(client[name][0] for client in scores.values() if name in client) for name in sorted(names)
    }
    own, found = figures(totals), dict[str, float]()
    for name, metric in chosen.items():
        if isinstance(metric, str):
            if metric in own:
                found[name] = own[metric]
        elif is_pooled(metric):
            lengths = {len(sums) for client in scores.values() if (sums := _sums(client, name))}
            if len(lengths) > 1:
                raise ConfigError(
                    f"the metric `{name}` of eval.metrics gave one client {min(lengths)} sums and another "
                    f"{max(lengths)}; give as many for every client, 0 for what does not occur"
                )
            if lengths:
                value = float(metric.score([totals[key] for key in _keys(name, *lengths)]))
                found |= {name: value} if math.isfinite(value) else {}
    return found


def selectable(chosen: Mapping[str, Any], lower_is_better: Sequence[str]) -> list[str]:
    """The chosen ones of which more is better, by which a best model can be chosen."""
    return [
        name
        for name, metric in chosen.items()
        if metric not in lower_is_better and getattr(metric, "higher_is_better", True)
    ]


def code_of(chosen: Mapping[str, Any]) -> str:
    """Digest of the files that define metrics from outside, to be compared between ranks; empty without any."""
    hasher, found = hashlib.sha256(), False
    for name, metric in sorted(chosen.items()):
        kind = getattr(metric, "__module__", None) if not isinstance(metric, str) else None
        path = getattr(sys.modules.get(kind or ""), "__file__", None)
        if path:
            hasher.update(name.encode() + b"\0" + Path(path).read_bytes())
            found = True
    return hasher.hexdigest()[:16] if found else ""


def _keys(name: str, length: int) -> list[str]:
    return [f"{COUNT}{name}/{place}" for place in range(length)]


def _sums(scores: Scores, name: str) -> list[str]:
    return [key for key in scores if key.startswith(f"{COUNT}{name}/")]


@lru_cache(maxsize=1000)
def _warn(name: str, client: str, error: str) -> None:
    """Once for each metric, client and kind of error."""
    log.warning("the metric %s failed for client %s: %s; it has no score there, training goes on", name, client, error)


def pooled(scores: Mapping[str, Scores]) -> dict[str, float]:
    """Metric -> sum over all clients."""
    totals: dict[str, float] = {}
    for metrics in scores.values():
        for name, (total, _) in metrics.items():
            totals[name] = totals.get(name, 0.0) + total
    return totals
