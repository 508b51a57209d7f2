"""Interface of trackers beside metrics.jsonl: TensorBoard, MLflow, or a class of one's own. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedtorch.tracking.records import Record

TRACKERS = {
    "tensorboard": "fedtorch.tracking.tensorboard:TensorBoard",
    "mlflow": "fedtorch.tracking.mlflow:MLflow",
}
"""Names that `run.trackers` may have -> their classes."""


@dataclass(frozen=True)
class RunStart:
    """A run as it begins or is resumed."""

    folder: Path
    """the run's, which exists"""
    clients: Sequence[str] = ()
    """names of all that train"""
    rounds: int = 0
    """planned"""
    config: Mapping[str, Any] = field(default_factory=dict)
    """dotted key -> value, secrets masked"""
    resume_round: int | None = None
    """rounds done in the checkpoint that it goes on from; None: it begins anew"""
    past: Sequence[Record] = ()
    """of a resumed run: the records that are kept, those of later rounds are dropped"""
    client_limit: int = 50
    """with more clients than this, show no single ones (`track.client_limit`)"""
    has_times: bool = True
    """False where nothing may tell how long a round took (`privacy.kind: client`): records then have no `time`"""

    @property
    def is_crowded(self) -> bool:
        """Are there too many clients to show each?"""
        return len(self.clients) > self.client_limit


@dataclass
class RunTracker:
    """Is told of one run, on the server only. Derive from it; the fields of the dataclass are keys in YAML.

    1. `start`, once the run's folder is there; on a resume with what is kept of the past.
    2. `record`, for every record as metrics.jsonl has it (its kinds: `fedtorch/tracking/records.py`), at once.
    3. `flush`, after every round and evaluation: what a killed process must not lose is to be handed over.
    4. `end`.

    What one of them raises costs the run nothing: there is a warning, and this tracker is told nothing more. The run
    waits for each call, so one that talks to a slow server should collect and send on `flush`.
    """

    def start(self, run: RunStart) -> None:
        """The run begins, or goes on."""

    def record(self, record: Record) -> None:
        """A line of metrics.jsonl."""

    def flush(self) -> None:
        """Hand over what was collected."""

    def end(self, is_done: bool) -> None:
        """The run is over, or stopped with an error or a signal and may be resumed later."""


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys of nested data; lists as JSON, null as such."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple | Mapping):
            found[f"{prefix}{key}"] = json.dumps(value)
        else:
            found[f"{prefix}{key}"] = value
    return found
