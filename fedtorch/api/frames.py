"""Records as a pandas frame."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fedtorch.core.extras import require
from fedtorch.core.scores import COUNT

if TYPE_CHECKING:
    from pandas import DataFrame


def frame_of(records: Iterable[Mapping[str, Any]]) -> DataFrame:
    """A row per record; nested values in columns named `outer.inner`.

    Raises:
        ConfigError: pandas is not installed.
    """
    require("records as a frame", "pandas", extra="notebook", instead="read metrics.jsonl, a JSON object a line")
    import pandas

    return pandas.DataFrame([_flat(record) for record in records])


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in record.items():
        if name == "metrics" and record["kind"] == "eval":
            value = {metric: _mean(*pair) for metric, pair in value.items() if not metric.startswith(COUNT)}
        _put(flat, name, value)
    return flat


def _mean(total: float | None, examples: int) -> dict[str, Any]:
    return {"mean": total / examples if examples and total is not None else math.nan, "examples": examples}


def _put(flat: dict[str, Any], name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        flat[name] = value
        return
    for inner, item in value.items():
        _put(flat, f"{name}.{inner}", item)
