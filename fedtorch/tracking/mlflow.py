"""MLflow: the config as parameters, rounds and scores as metrics. Without a `uri` in a folder of files, offline."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedtorch.core.extras import require
from fedtorch.core.files import replace_file
from fedtorch.tracking.plugin import RunStart, RunTracker
from fedtorch.tracking.records import Record, round_of

ID_FILE = "mlflow.id"
"""In the run folder: the id of its run in MLflow, for a resume."""
BATCH, LONGEST = 1000, 500
"""Metrics that MLflow takes at once, and characters of a parameter's value that all its versions take."""


@dataclass
class MLflow(RunTracker):
    """A run of MLflow for each run; a resumed one goes on in it, and rounds that are trained again stand there twice.

    Imported when a run starts, which takes five seconds.
    """

    uri: str = "mlruns"
    """where it is kept: a folder, or whatever MLflow takes, such as `http://host:5000` or `sqlite:///runs.db`"""
    experiment: str = "fedtorch"
    """name of the experiment, made where it is missing"""
    clients: bool = True
    """also every client's loss and scores, up to `track.client_limit` clients"""

    _run: str = field(default="", init=False, repr=False)
    """MLflow's id of the run; empty before `start`"""
    _waiting: list[Any] = field(default_factory=list, init=False, repr=False)
    """metrics that were not sent yet; they go in batches of BATCH"""

    def __post_init__(self) -> None:
        require("run.trackers: mlflow", "mlflow", extra="mlflow")

    def start(self, run: RunStart) -> None:
        """Find the run in MLflow, or make one."""
        # a store of files is what needs no server; it would report its use elsewhere unless told not to
        for name in ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY"):
            os.environ.setdefault(name, "true")
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        uri = self.uri if ":" in self.uri else Path(self.uri).resolve().as_uri()
        self._begun, self._has_times = time.time(), run.has_times
        self._client, self._metric, self._shows_clients = MlflowClient(uri), Metric, self.clients and not run.is_crowded
        kept = run.folder / ID_FILE
        if run.resume_round is not None and kept.is_file():
            self._run = kept.read_text().strip()
            self._client.update_run(self._run, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(self.experiment)
        experiment = self._client.create_experiment(self.experiment) if found is None else found.experiment_id
        name = str(run.config.get("run.name") or run.folder.name)
        self._run = self._client.create_run(experiment, run_name=name).info.run_id
        run.folder.mkdir(parents=True, exist_ok=True)
        replace_file(kept, self._run + "\n")
        params = [Param(_plain(key), str(value)[:LONGEST]) for key, value in run.config.items()]
        for start in range(0, len(params), 100):
            self._client.log_batch(self._run, params=params[start : start + 100])

    def record(self, record: Record) -> None:
        """Collect its numbers."""
        for tag, value in _points(record, self._shows_clients):
            if isinstance(value, int | float):
                step, at = round_of(record), int(1000 * record.get("time", self._begun))
                self._waiting.append(self._metric(_plain(tag), float(value), at, step))

    def flush(self) -> None:
        """Hand over what was collected."""
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            self._client.log_batch(self._run, metrics=batch)

    def end(self, is_done: bool) -> None:
        """Say how the run ended."""
        self.flush()
        at = None if self._has_times else int(1000 * self._begun)
        self._client.set_terminated(self._run, "FINISHED" if is_done else "KILLED", end_time=at)


def _points(record: Record, with_clients: bool) -> Iterator[tuple[str, Any]]:
    """(name, value) of what is drawn of a record."""
    kind, label = record["kind"], record.get("label")
    where = f"{record.get('split')}" if label in ("global", "training") else f"{label}/{record.get('split')}"
    if kind == "round":
        names = ("loss", "examples", "clients_ok", "clients_failed", "update_norm_median", "bytes_up", "bytes_down")
        yield from ((f"round/{name}", record.get(name)) for name in names)
        yield from record["extra"].items()
    elif kind == "eval_total":
        for metric, total in record["metrics"].items():
            yield from ((f"{where}/{metric}/{average}", total[average]) for average in ("macro", "micro"))
    elif kind == "client" and with_clients:
        yield from (
            (f"clients/{record['client']}/{name}", record.get(name)) for name in ("loss_mean", "weight", "norm")
        )
    elif kind == "eval" and with_clients:
        for metric, (total, count) in record["metrics"].items():
            if count and total is not None:
                yield f"clients/{record['client']}/{where}/{metric}", total / count


def _plain(name: str) -> str:
    """A name as MLflow takes it."""
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)[:250]
