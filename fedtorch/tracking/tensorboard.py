"""TensorBoard: records drawn as curves, the same tags in one run folder per client so that they lie in one chart."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtorch.core import histograms
from fedtorch.core.client import folder_name as plain_name
from fedtorch.core.shown import markdown_row
from fedtorch.tracking.event_file import EventFile
from fedtorch.tracking.plugin import RunStart, RunTracker
from fedtorch.tracking.records import Record, round_of

# Numbers of a client's record that get their own tag; further ones (an algorithm's) become `train/<name>`.
CLIENT_TAGS = {
    "loss_mean": "train/loss",
    "weight": "train/weight",
    "norm": "train/update_norm",
    "seconds": "train/seconds",
}
NOT_DRAWN = {
    "kind", "time", "round", "client", "status", "examples", "steps",
    "loss_first", "loss_last", "loss_max", "loss_min", "max_abs",
}  # fmt: skip
ROUND_TAGS = {"update_norm_median": "update/norm_median", "update_norm_max": "update/norm_max"}
Clock = Callable[[], float]
"""Seconds since 1970; stands still where nothing may tell how long a round took."""
QUANTILES = (0, 25, 50, 75, 100)
NUM_WORST = 10
LAYOUT = {
    "Clients": {
        "training loss per round": ["Multiline", [r"^train/loss$"]],
        "training loss per step": ["Multiline", [r"^train_steps/loss$"]],
        "weight in the round": ["Multiline", [r"^train/weight$"]],
        "scores": ["Multiline", [r"^eval/"]],
    },
    "Global": {
        "scores": ["Multiline", [r"^global/eval/"]],
        "norms of the updates": ["Multiline", [r"^update/"]],
        "seconds": ["Multiline", [r"^round/seconds/"]],
    },
}


@dataclass
class TensorBoard(RunTracker):
    """Curves and the table of hyperparameters in `tensorboard/` of the run folder."""

    def start(self, run: RunStart) -> None:
        """Draw the past of a resumed run anew."""
        folder, begun = run.folder / "tensorboard", time.time()
        clock = time.time if run.has_times else lambda: begun
        self._curves = Curves(folder, run.clients, run.client_limit, run.past, clock)
        self._scores = Hyperparameters(folder / "scores", run.config, run.past, clock)

    def record(self, record: Record) -> None:
        """Add its points."""
        self._curves.draw(record)
        self._scores.draw(record)

    def flush(self) -> None:
        """Write out what was drawn; a killed process loses the rest."""
        self._curves.flush()
        self._scores.file.flush()

    def end(self, is_done: bool) -> None:
        """Flush and close."""
        self._curves.close()
        self._scores.close(is_done)


class Hyperparameters:
    """One more event file, for TensorBoard's page HParams: the config's keys, and the scores of all clients.

    Nothing is said about the other runs of a sweep: from what all of them say of themselves TensorBoard makes the
    columns, those that differ first, and what they can be filtered by. The file is apart from the server's, whose
    every curve would else be a column.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], past: Iterable[Record], clock: Clock) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self.file, self._clock = EventFile(folder, clock), clock
        values = {key: value for key, value in config.items() if key not in ("run.name", "run.dir")}
        self.file.session_start({key: "null" if value is None else value for key, value in values.items()})
        for record in past:
            self.draw(record)

    def draw(self, record: Record) -> None:
        """Macro and micro averages of an evaluation."""
        if record["kind"] != "eval_total":
            return
        where = record["split"] if not client_prefix(record["label"]) else f"{record['label']}/{record['split']}"
        for name, total in record["metrics"].items():
            for kind in ("macro", "micro"):
                if isinstance(total[kind], int | float):
                    at = record.get("time", self._clock())
                    self.file.scalar(f"{where}/{name}/{kind}", total[kind], round_of(record), at)

    def close(self, is_done: bool) -> None:
        """Say how it ended."""
        self.file.session_end(is_done)
        self.file.close()


class Curves:
    """The event files below `folder`: `client-<name>` for each client and `server`.

    They are a drawing of metrics.jsonl and are drawn anew when a run is resumed: event files cannot be cut, and
    TensorBoard's own `purge_step` drops every tag from one step on, which cannot be right for tags over rounds and
    tags over optimiser steps at once.
    With more than `client_limit` clients: only quantiles, a histogram and the worst ten, in the server's folder.
    """

    def __init__(
        self, folder: Path, clients: Sequence[str], client_limit: int, past: Iterable[Record], clock: Clock
    ) -> None:
        """clock: of records that have no time."""
        for old in (folder / "server", *folder.glob("client-*")):
            shutil.rmtree(old, ignore_errors=True)
        self.is_crowded = len(clients) > client_limit
        self.folder, self._clock = folder, clock
        self._files: dict[str, EventFile] = {}
        self._of_round: list[Record] = []
        self._file(None).layout(LAYOUT)
        for record in past:
            self.draw(record)
        self.flush()

    def draw(self, record: Record) -> None:
        """Add one record's points."""
        kind = record["kind"]
        if kind in ("client", "eval") and self.is_crowded:
            self._of_round.append(record)
        elif kind == "client":
            tags = {key: CLIENT_TAGS.get(key, f"train/{key}") for key in record if _is_drawn(key)}
            self._scalars(record["client"], record, {tag: record[key] for key, tag in tags.items()})
        elif kind == "steps" and not self.is_crowded:
            file = self._file(record["client"])
            for step, loss in enumerate(record["loss"], record["first_step"]):
                if loss is not None:
                    file.scalar("train_steps/loss", loss, step, self._time(record))
        elif kind == "round":
            self._round(record)
        elif kind == "eval":
            prefix = f"{client_prefix(record['label'])}eval/{record['split']}"
            points = {f"{prefix}/{name}": s / n for name, (s, n) in record["metrics"].items() if n and s is not None}
            self._scalars(record["client"], record, points)
        elif kind == "eval_total":
            self._total(record)

    def flush(self) -> None:
        """Write out what was drawn; a killed process loses the rest."""
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        """Flush and close all files."""
        for file in self._files.values():
            file.close()

    def _file(self, client: str | None) -> EventFile:
        name = "server" if client is None else folder_name(client)
        if name not in self._files:
            self._files[name] = EventFile(self.folder / name, self._clock)
        return self._files[name]

    def _time(self, record: Record) -> float:
        time: float = record.get("time", self._clock())
        return time

    def _scalars(self, client: str | None, record: Record, points: dict[str, float | None]) -> None:
        for tag, value in points.items():
            if isinstance(value, (int, float)):
                self._file(client).scalar(tag, value, round_of(record), self._time(record))

    def _round(self, record: Record) -> None:
        points = {f"round/seconds/{phase}": value for phase, value in record["seconds"].items()}
        for key, value in record.items():
            if key not in ("kind", "time", "round", "seconds", "traffic", "total", "extra"):
                points[ROUND_TAGS.get(key, f"round/{key}")] = value
        points |= {f"total/{key}": value for key, value in record.get("total", {}).items()}
        points |= {key if "/" in key else f"round/{key}": value for key, value in record["extra"].items()}
        self._scalars(None, record, points)
        clients, self._of_round = self._of_round, []
        for key, tag in CLIENT_TAGS.items():
            self._spread(record, tag, [r[key] for r in clients if r["kind"] == "client" and r.get(key) is not None])
        losses = [(r["loss_mean"], r["client"], r["examples"]) for r in clients if r.get("loss_mean") is not None]
        if losses:
            rows = [
                markdown_row([name, f"{loss:.4f}", n]) for loss, name, n in sorted(losses, reverse=True)[:NUM_WORST]
            ]
            table = "\n".join(["| client | loss | examples |", "|---|---|---|", *rows])
            self._file(None).text("train/worst", table, record["round"], self._time(record))

    def _total(self, record: Record) -> None:
        prefix = f"{server_prefix(record['label'])}eval/{record['split']}"
        for name, total in record["metrics"].items():
            points = {f"{prefix}/{name}/{kind}": total[kind] for kind in ("macro", "micro")}
            self._scalars(None, record, points)
            pairs = [r["metrics"][name] for r in self._of_round if r["kind"] == "eval" and name in r["metrics"]]
            self._spread(record, f"{prefix}/{name}", [s / n for s, n in pairs if n and s is not None])
        self._of_round = [r for r in self._of_round if r["kind"] != "eval"]

    def _spread(self, record: Record, tag: str, values: list[float]) -> None:
        if not values:
            return
        ordered = sorted(values)
        points = {f"{tag}/quantile_{q}": ordered[round(q / 100 * (len(ordered) - 1))] for q in QUANTILES}
        self._scalars(None, record, dict(points))
        self._file(None).histogram(f"{tag}/histogram", values, round_of(record), self._time(record))


def folder_name(client: str) -> str:
    """The run folder of a client; a name that is not a plain word gets a safe one."""
    return f"client-{plain_name(client)}"


def client_prefix(label: str) -> str:
    """In front of a client's `eval/` tags; nothing for the scores taken during training."""
    return "" if label in ("global", "training") else f"{label}/"


def server_prefix(label: str) -> str:
    """In front of the server's `eval/` tags."""
    return "global/" if label in ("global", "training") else f"{label}/"


def _is_drawn(key: str) -> bool:
    """Is this number of a client's record a curve over rounds?"""
    return key not in NOT_DRAWN and not key.startswith(histograms.PREFIX)
