"""A tracker of one's own: `run.trackers: [tensorboard, {name: "own_tracker:Csv", path: scores.csv}]`."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtorch import RunStart, RunTracker


@dataclass
class Csv(RunTracker):
    """The scores of all clients together, a line for each evaluation."""

    path: str = "scores.csv"
    """file in the run folder"""

    def start(self, run: RunStart) -> None:
        self.file = (run.folder / Path(self.path)).open("w", newline="")
        self.table = csv.writer(self.file)
        self.table.writerow(["round", "split", "model", "metric", "macro", "micro", "rows"])
        for record in run.past:  # of a run that is resumed
            self.record(record)

    def record(self, record: dict[str, Any]) -> None:
        if record["kind"] == "eval_total":
            head = [record["round"], record["split"], record["label"]]
            for metric, total in record["metrics"].items():
                self.table.writerow([*head, metric, total["macro"], total["micro"], total["count"]])

    def flush(self) -> None:
        self.file.flush()

    def end(self, is_done: bool) -> None:
        self.file.close()
