"""Who is told of a run: TensorBoard's hyperparameters, MLflow's store of files, a class of one's own."""

from __future__ import annotations

import csv
import json
import logging
import socket
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from fedtorch.config.load import digest, load
from fedtorch.config.trackers import make_trackers
from fedtorch.core.errors import ConfigError
from fedtorch.core.mechanism import RoundFacts
from fedtorch.core.update import Report
from fedtorch.main import main
from fedtorch.tracking import records
from fedtorch.tracking.plugin import RunStart, RunTracker, flat
from fedtorch.tracking.settings import TrackConfig
from fedtorch.tracking.tensorboard import TensorBoard
from fedtorch.tracking.tracker import Tracker

CONFIG = {"run": {"name": "a", "seed": 3}, "client": {"lr": 0.1, "shuffle": True, "no_decay": ["b"], "clip": None}}
CONFIG |= {"per_client": {"z": {"lr": 0.2}}}


@dataclass
class Told(RunTracker):
    """Keeps what it is told."""

    fails_at: str = ""
    said: list[Any] = field(default_factory=list)

    def tell(self, name: str, *what: Any) -> None:
        if name == self.fails_at:
            raise RuntimeError("no server")
        self.said.append((name, *what))

    def start(self, run: RunStart) -> None:
        self.tell("start", run)

    def record(self, record: dict[str, Any]) -> None:
        self.tell("record", record)

    def flush(self) -> None:
        self.tell("flush")

    def end(self, is_done: bool) -> None:
        self.tell("end", is_done)


def play(folder: Path, *trackers: RunTracker, rounds: range = range(2), done: bool = True, **settings: Any) -> Tracker:
    quiet = TrackConfig(tensorboard=False, progress="off")
    settings = {"settings": quiet, "config": CONFIG, **settings}
    track = Tracker(folder, clients=("x y", "z"), rounds=3, trackers=trackers, **settings)
    for round in rounds:
        reports = [Report(client, examples=4, loss_mean=1.0 / (1 + round)) for client in ("x y", "z")]
        track.round(round, RoundFacts(reports, {"x y": 0.5, "z": 0.5}, {"train": 1.0}, {"bytes_up": 7}))
        track.evaluation(round, "dev", {"x y": {"acc": (1 + round, 4)}, "z": {"acc": (0, 2)}}, "training")
    if done:
        track.evaluation(rounds[-1], "test", {"z": {"acc": (1, 2)}}, "final")
        track.result({"digest": "d"})
    track.close()
    return track


def test_a_tracker_is_told_of_every_record_and_of_the_end(tmp_path: Path) -> None:
    told = Told()
    play(tmp_path, told)
    (first, start), *rest = told.said
    assert first == "start" and start.clients == ("x y", "z") and start.past == [] and start.resume_round is None
    assert start.config["client.lr"] == 0.1 and start.folder == tmp_path
    assert not [key for key in start.config if key.startswith("per_client")]  # there may be one for each client
    assert [what for name, *what in rest if name == "record"] == [[r] for r in records.read(tmp_path / "metrics.jsonl")]
    assert rest[-1] == ("end", True) and ("flush",) in rest


def test_a_resumed_run_hands_over_its_past_and_a_stopped_one_is_not_done(tmp_path: Path) -> None:
    first, second = Told(), Told()
    play(tmp_path, first, done=False)
    assert first.said[-1] == ("end", False)
    play(tmp_path, second, rounds=range(1, 3), resume_round=1)
    start = second.said[0][1]
    assert start.resume_round == 1 and {r.get("round", 0) for r in start.past} == {0, 1}


@pytest.mark.parametrize("at", ["start", "record", "flush", "end"])
def test_a_tracker_that_fails_costs_no_run_and_is_named_once(
    at: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Told()
    play(tmp_path, Told(fails_at=at), other)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1 and said[0].startswith("Told ") and said[0].endswith("no server; training goes on")
    assert other.said[-1] == ("end", True) and json.loads((tmp_path / "results.json").read_text())["digest"] == "d"


def test_hyperparameters_of_runs_can_be_filtered_by_what_differs(tmp_path: Path) -> None:
    """As TensorBoard itself reads them: the plug-in's columns, of runs beside each other."""
    for lr in (0.1, 0.2):
        config = {**CONFIG, "client": {**CONFIG["client"], "lr": lr}}
        play(tmp_path / f"lr={lr}", TensorBoard(), config=config)
    found = EventAccumulator(str(tmp_path / "lr=0.1" / "tensorboard" / "scores"))
    found.Reload()
    content = found.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data
    assert content.plugin_name == "hparams"
    values = metadata.parse_session_start_info_plugin_data(content.content).hparams
    assert (values["client.lr"].number_value, values["client.shuffle"].bool_value) == (0.1, True)
    assert (values["client.no_decay"].string_value, values["client.clip"].string_value) == ('["b"]', "null")
    assert values["run.seed"].number_value == 3 and "run.name" not in values
    assert sorted(found.Tags()["scalars"]) == ["dev/acc/macro", "dev/acc/micro", "final/test/acc/macro",
                                               "final/test/acc/micro"]  # fmt: skip
    assert [event.step for event in found.Scalars("dev/acc/micro")] == [1, 2]
    assert found.Scalars("final/test/acc/micro")[-1].value == 0.5
    columns = hparams_columns(tmp_path)
    assert [name for name, column in columns.items() if column.differs] == ["client.lr"]
    interval = columns["client.lr"].domain_interval
    assert (interval.min_value, interval.max_value) == (0.1, 0.2)


def hparams_columns(logdir: Path) -> dict[str, Any]:
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams.backend_context import Context

    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(logdir))
    multiplexer.Reload()
    context = Context(TBContext(data_provider=MultiplexerDataProvider(multiplexer, str(logdir))))
    ctx = RequestContext()
    found = context.hparams_metadata(ctx, "")
    experiment = context.experiment_from_metadata(ctx, "", True, found, [], None)
    names = {(info.name.group, info.name.tag) for info in experiment.metric_infos}
    assert {tag for _, tag in names} == {"dev/acc/macro", "dev/acc/micro", "final/test/acc/macro",
                                         "final/test/acc/micro"}  # fmt: skip
    return {info.name: info for info in experiment.hparam_infos}


def test_a_resumed_run_draws_its_scores_anew(tmp_path: Path) -> None:
    play(tmp_path, TensorBoard(), done=False)
    play(tmp_path, TensorBoard(), rounds=range(1, 3), resume_round=1)
    found = EventAccumulator(str(tmp_path / "tensorboard" / "scores"))
    found.Reload()
    assert [event.step for event in found.Scalars("dev/acc/micro")] == [1, 2, 3]


def test_nested_keys_become_flat() -> None:
    config = {"a": {"b": 1, "c": {}, "d": {"e": [1, 2]}}, "f": None}
    assert flat(config) == {"a.b": 1, "a.c": "{}", "a.d.e": "[1, 2]", "f": None}


TOLD = f"{__name__}:Told"


@pytest.mark.long
def test_old_configs_have_tensorboard_and_a_switch_for_it(tmp_path: Path) -> None:
    assert [type(tracker) for tracker in make_trackers(load(None))] == [TensorBoard]
    assert make_trackers(load(None, ["track.tensorboard=false"])) == []
    assert make_trackers(load(None, ["run.trackers=[]"])) == []
    config = load(None, [f"run.trackers=[tensorboard, {{name: '{TOLD}', fails_at: end}}]"])
    assert make_trackers(config)[1] == Told(fails_at="end")
    assert digest(config) == digest(load(None))  # who is told changes no result


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("[tensorbord]", "but there is no such tracker; did you mean `tensorboard`?"),
        ("[tensorboard, tensorboard]", "run.trackers has `tensorboard` twice"),
        (f"[{{name: '{TOLD}', fails: 1}}]", "unknown key `run.trackers.0.fails`"),
        (f"[{{name: '{TOLD}', fails_at: 1}}]", "run.trackers.0.fails_at is 1"),
        ("[{fails: 1}]", "run.trackers.0.name is null"),
        ("['pathlib:Path']", "is not a dataclass"),
        ("['fedtorch.algorithms.fedavg:FedAvg']", "is no RunTracker; derive it from `fedtorch.tracking.plugin.RunTrac"),
        ("tensorboard", "run.trackers is 'tensorboard'"),
    ],
)
def test_what_is_no_tracker_is_refused_when_the_config_is_read(value: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, [f"run.trackers={value}"])
    assert said in str(caught.value)


def test_mlflow_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(ConfigError, match=r"run.trackers: mlflow needs mlflow.*pip install 'fedtorch-nlp\[mlflow\]'"):
        load(None, ["run.trackers=[mlflow]"])


@pytest.mark.long
def test_the_tracker_of_the_page_writes_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs" / "examples"))
    monkeypatch.chdir(tmp_path)
    few = ["task.max_train=4", "task.max_dev=2", "task.max_test=2", "rounds=1", "run.dir=run"]
    assert (
        main(["--config", "smoke/fedavg", "--set", *few, 'run.trackers=[{name: "own_tracker:Csv", path: s.csv}]']) == 0
    )
    rows = list(csv.DictReader(Path("run/s.csv").open()))
    assert {(row["model"], row["split"], row["round"]) for row in rows} == {
        ("training", "dev", "1"),
        ("final", "test", "1"),
    }
    assert not Path("run/tensorboard").exists()


@pytest.mark.slow
@pytest.mark.processes  # a library that it imports asks `uname`
@pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed")
def test_mlflow_has_the_run_in_a_folder_and_nothing_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedtorch.tracking.mlflow import ID_FILE, MLflow

    monkeypatch.chdir(tmp_path)
    asked: list[Any] = []
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: asked.append(address))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *address, **_: asked.append(address))
    play(tmp_path / "run", MLflow(), done=False)
    kept = (tmp_path / "run" / ID_FILE).read_text().strip()
    from mlflow.tracking import MlflowClient

    client = MlflowClient((tmp_path / "mlruns").as_uri())
    assert client.get_run(kept).info.status == "KILLED"
    play(tmp_path / "run", MLflow(), rounds=range(1, 3), resume_round=1)
    found = client.get_run(kept)
    assert (found.info.status, found.info.run_name) == ("FINISHED", "a") and not asked
    assert found.data.params["client.lr"] == "0.1" and found.data.params["run.seed"] == "3"
    assert found.data.metrics["final/test/acc/micro"] == 0.5
    assert found.data.metrics["clients/x y/loss_mean"] == pytest.approx(1 / 3)
    assert [m.step for m in client.get_metric_history(kept, "dev/acc/macro")] == [1, 2, 2, 3]  # round 2 was repeated
    assert not (tmp_path / "run" / "mlruns").exists()
