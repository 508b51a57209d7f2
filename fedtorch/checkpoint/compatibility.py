"""Does a checkpoint belong to this run? Its config and what else must agree, line by line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedtorch.checkpoint.files import Manifest, to_json
from fedtorch.core.errors import CheckpointError

Changes = Callable[[dict[str, Any], dict[str, Any]], Sequence[tuple[str, str, str]]]
"""(saved config, present config) -> (key, its value in the saved one, in the present one) of every key that differs"""
_SHOWN = 10  # keys that other ranks are told


def check_fits(
    found: Manifest,
    config: Mapping[str, Any],
    changes: Changes,
    facts: Mapping[str, Any] | None,
) -> None:
    """Refuse a checkpoint of another config or other code; each difference is a line of the message."""
    now = json.loads(to_json(facts)) if facts else {}
    found_changes = changes(found.config, json.loads(to_json(config)))
    lines = [(key, f"{key} was {before} and is now {after}") for key, before, after in found_changes]
    lines += [
        (key, f"{key}: {found.facts[key]!r} -> {value!r}")
        for key, value in now.items()
        if key in found.facts and found.facts[key] != value
    ]
    if lines:
        advice = (
            "set these back, or begin anew (`--resume never`, or another `run.dir`), or, if the difference is meant, "
            "go on with `--resume force`"
        )
        names = list(dict.fromkeys(key for key, _ in lines))
        keys = ", ".join(f"`{key}`" for key in names[:_SHOWN])
        keys += f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise CheckpointError(
            f"{found.folder} was written with another config or by other code; saved -> present:\n  "
            + "\n  ".join(line for _, line in lines)
            + f"\n{advice}",
            told=f"its checkpoint is of another config or of other code: {keys} differ; on all sides {advice}",
        )
