"""Does a checkpoint belong to this run? Its config and what else must agree, line by line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedtorch.checkpoint.files import Manifest, to_json
from fedtorch.core.errors import CheckpointError


def check_fits(
    found: Manifest,
    config: Mapping[str, Any],
    difference: Callable[[dict[str, Any], dict[str, Any]], Sequence[str]],
    facts: Mapping[str, Any] | None,
) -> None:
    """Refuse a checkpoint of another config or other code; each difference is a line of the message."""
    now = json.loads(to_json(facts)) if facts else {}
    lines = list(difference(found.config, json.loads(to_json(config))))
    lines += [
        f"{key}: {found.facts[key]!r} -> {value!r}"
        for key, value in now.items()
        if key in found.facts and found.facts[key] != value
    ]
    if lines:
        raise CheckpointError(
            f"{found.folder} was written with another config or by other code; saved -> present:\n  "
            + "\n  ".join(lines)
            + "\nset these back, or begin anew (`--resume never`, or another `run.dir`), or, if the difference is "
            "meant, go on with `--resume force`"
        )
