"""`RunResult`: what a run came to, read from its folder."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from fedtorch.api.scores import RunScores
from fedtorch.core.errors import ConfigError
from fedtorch.core.extras import require
from fedtorch.core.scores import COUNT
from fedtorch.lifecycle.status import NAME as STATUS
from fedtorch.lifecycle.status import read_status
from fedtorch.tracking.records import NAME as RECORDS
from fedtorch.tracking.records import read
from fedtorch.tracking.run_folder import Run, read_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


@dataclass(frozen=True)
class RunPaths:
    """Where a run's files are; of a run that is not over some are missing."""

    folder: Path
    """of the run, with all of the others in it"""
    config: Path
    """every key and its value; valid input again"""
    records: Path
    """metrics.jsonl, a JSON object a line"""
    results: Path
    """results.json: the scores of the end"""
    status: Path
    """status.json: what the run does or how it ended, and the command that continues it"""
    model: Path
    """the model that all clients were evaluated with, or a folder for each that has one of its own"""
    checkpoints: Path
    """what a resumed run goes on from"""
    tensorboard: Path
    """curves for `tensorboard --logdir`"""
    log: Path
    """the server's log; `log.rank1.txt` and so on are the others'"""

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Those below a run's folder."""
        names = ("config.yaml", RECORDS, "results.json", STATUS, "model", "checkpoints", "tensorboard", "log.rank0.txt")
        return cls(folder, *(folder / name for name in names))


@dataclass(frozen=True)
class RunResult:
    """A run as its folder tells it, finished or not.

    Scores and digest are what they were when the run ended or was opened; records, charts and models are read when they
    are asked for, so they are another run's where one has been trained in the same folder since.
    """

    paths: RunPaths
    """its files, absolute"""
    results: Mapping[str, Any] | None = field(repr=False, compare=False)
    """what results.json holds; None where the run was not over, or has failed"""

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """The run in a folder, made by whatever command.

        Raises:
            ConfigError: there is none.
        """
        place = Path(folder).absolute()
        if not (place / RECORDS).is_file():
            raise ConfigError(f"{Path(folder) / RECORDS} does not exist; name the folder of a run, such as runs/my_run")
        paths = RunPaths.of(place)
        # a run that begins anew in an old folder leaves the file of the earlier one there till its end
        is_over = paths.results.is_file() and read_status(place).get("code", 0) == 0
        return cls(paths, json.loads(paths.results.read_text()) if is_over else None)

    @cached_property
    def scores(self) -> RunScores:
        """The final scores of every client and of all together, with the examples behind each.

        Raises:
            ConfigError: the run is not over.
        """
        return RunScores.of(self._over(), self._run.metric())

    @property
    def digest(self) -> str:
        """Digest of the final state: equal for runs that came to the same bits.

        Raises:
            ConfigError: the run is not over.
        """
        return str(self._over()["digest"])

    @property
    def records(self) -> DataFrame:
        """metrics.jsonl as a pandas frame, a row per record: `kind` says which, `round` and `client` where it belongs.

        Nested values have columns of their own: `metrics.accuracy.mean` and `metrics.accuracy.examples` in records of
        the kind `eval`, `metrics.accuracy.micro` and so on in those of `eval_total`. The record of the result is left
        out, which is results.json. Read anew each time, so that a run under way can be watched.

        Raises:
            ConfigError: pandas is not installed.
        """
        return frame_of(record for record in read(self.paths.records) if record["kind"] != "result")

    def plot(self, what: str | None = None) -> Figure:
        """A chart of the run as a matplotlib figure; a notebook shows it, `savefig` writes it.

        what: a metric, or the name of one of `fedtorch report`'s charts: `loss_rounds`, `loss_steps`, `weights`,
        `dev_accuracy`. None: the metric by which the run is compared, or the loss where that was scored only once.

        Raises:
            ConfigError: there is no such chart; names those that there are.
        """
        from fedtorch.report.plots import chart_figure, run_charts

        run = self._run
        charts = run_charts(run)
        found = next((stem for stem in self._wanted(what, run) if stem in charts), None)
        found = found or next((stem for stem, chart in charts.items() if chart.y == (what or run.metric())), None)
        if found is None and what is None:
            found = next(iter(charts), None)
        if found is None:
            there = ", ".join(charts) or "none, as no round is over"
            raise ConfigError(f"there is no chart {what or 'at all'}; there are {there}")
        return chart_figure(run, charts[found])

    def load_model(self, client: str | None = None) -> tuple[Any, Any]:
        """The model that clients were evaluated with, in eval mode on the CPU, and its tokenizer.

        client: with models of their own, whose. What the two are, for each task: docs/models.md. For dialogs of two
        sides the model is a dict of both; a network over words has its `Words` in place of a tokenizer.

        Raises:
            ConfigError: no such client; no model; or each client has its own and none is named.
        """
        from fedtorch.core.model_folder import model_folder
        from fedtorch.models.saved import load_saved

        return load_saved(model_folder(self.paths.folder, client, option="client"))

    def __repr__(self) -> str:
        run, folder = self._run, os.path.relpath(self.paths.folder)
        folder = folder if not folder.startswith("..") else str(self.paths.folder)
        if self.results is None:
            done, end = run.last_round, read_status(self.paths.folder).get("state", "unknown")
        else:
            done, end = self.results["rounds"], self.scores.main
        return f"RunResult({folder!r}, {done} of {run.rounds} rounds, {end})"

    def _repr_html_(self) -> str:
        """The table of the end of the run, in a notebook."""
        from fedtorch.core.terminal import WIDTH, PlainConsole
        from fedtorch.tracking.summary import show_results

        console = PlainConsole(record=True, file=StringIO(), width=WIDTH, force_jupyter=False)
        show_results(self.paths.folder, console=console, has_commands=False)
        return console.export_html(inline_styles=True, code_format='<pre style="line-height:1.2">{code}</pre>')

    @property
    def _run(self) -> Run:
        return read_run(self.paths.folder)

    def _over(self) -> Mapping[str, Any]:
        if self.results is None:
            status = read_status(self.paths.folder)
            state = f"was {status['state']} ({status.get('reason')})" if "state" in status else "has no status.json"
            raise ConfigError(f"{self.paths.folder} has no scores: the run {state}; they come with its end")
        return self.results

    @staticmethod
    def _wanted(what: str | None, run: Run) -> list[str]:
        metric = what or run.metric()
        return [*([what] if what else []), f"dev_{metric}", f"test_{metric}"]


def open_run(folder: Path | str) -> RunResult:
    """The run in a folder, made earlier by `run` or by a command; see `RunResult`.

    Raises:
        ConfigError: there is none.
    """
    return RunResult.open(folder)


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
