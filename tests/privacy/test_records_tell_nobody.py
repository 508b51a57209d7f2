"""Nothing that a private run records goes with the number of clients that took part, least of all a time."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from torch import Tensor, nn
from toy import Quadratic

from fedtorch.main import main
from fedtorch.privacy.accounting import Accountant
from fedtorch.privacy.client_level import ClientLevel
from fedtorch.privacy.secure_sum.openings import Openings
from fedtorch.report.command_line import main as report
from fedtorch.tracking.mlflow import MLflow
from fedtorch.tracking.plugin import RunStart

pytestmark = pytest.mark.long

ROUNDS, CLIENTS = 256, 20
LIMIT = 4 / ROUNDS**0.5
PRIVACY = "{kind: client, clip: 0.5, noise_multiplier: 1.0, delta: 1.0e-3}"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Paced(Quadratic):
    """One whose clients take a while, so that a round's time tells how many took part."""

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
        """After a while."""
        time.sleep(0.002)
        return super().loss(model, batch)


@dataclass(frozen=True)
class Told:
    """A private run, and what nobody may know of it."""

    folder: Path
    """of the run"""
    sizes: np.ndarray[Any, Any]
    """clients of each round"""
    begun: np.ndarray[Any, Any]
    """when each round began"""
    printed: str
    """on the terminal"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """A run of many rounds."""
    folder, sizes, begun = tmp_path_factory.mktemp("private"), dict[int, int](), dict[int, float]()
    task = {
        "name": f"{__name__}:Paced",
        "clients": {f"client_{i}": [1.0, i / 10 - 1, 2 + i % 3] for i in range(CLIENTS)},
        "start": [0.3, -0.7, 1.0],
        "double": False,
    }
    changes = {
        "run": f"{{name: private, dir: {folder / 'run'}}}",
        "rounds": str(ROUNDS),
        "task": json.dumps(task),
        "clients": "{sampling: poisson, rate: 0.3}",
        "algorithm": "{name: fedavg, weights: equal}",
        "server": "{optimizer: sgd, lr: 1.0}",
        "client": "{optimizer: sgd, lr: 0.1, batch_size: 4}",
        "privacy": PRIVACY,
        "checkpoint": "{every: 64}",
        "eval": "{every: 0}",
        "track": "{progress: lines, tensorboard: true}",
    }
    own = ClientLevel.draw

    def draw(self: ClientLevel, clients: Any, round: int, *rest: Any) -> Any:
        drawn = own(self, clients, round, *rest)
        sizes[round], begun[round] = len(drawn), time.monotonic()
        return drawn

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientLevel, "draw", draw)
        patch.setattr(Accountant, "epsilon", lambda self, releases: releases / 10)  # which takes longer than a round
        patch.setattr("fedtorch.privacy.ledger.os.urandom", lambda size: sha256(b"a key").digest()[:size])
        config = folder / "private.yaml"
        config.write_text("".join(f"{key}: {value}\n" for key, value in changes.items()))
        out = folder / "printed"
        with out.open("w") as file:
            patch.setattr("sys.stdout", file)
            assert main(["--config", str(config)]) == 0
    order = sorted(sizes)
    assert order == list(range(ROUNDS))
    yield Told(
        folder / "run", np.array([sizes[r] for r in order]), np.array([begun[r] for r in order]), out.read_text()
    )


def correlation(values: Sequence[float], sizes: np.ndarray[Any, Any]) -> float:
    """The largest |ρ| with the sizes of a series, and of its differences from one round to the next, either way."""
    series = np.array(values, dtype=float)
    steps = np.diff(series)
    found = [0.0]
    for told, of in ((series, sizes), (steps, sizes[1:]), (steps, sizes[:-1])):
        if len(set(told)) > 1:
            found.append(abs(spearmanr(told, of).statistic))
    return max(found)


def flat(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of nested data, by its place."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f"{path}/{key}")
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from flat(item, f"{path}/{place}")
    elif isinstance(value, int | float):
        yield path, float(value)


def check(name: str, by_round: dict[int, float], sizes: np.ndarray[Any, Any]) -> None:
    """A number that every round has."""
    if set(by_round) >= set(range(1, ROUNDS + 1)):
        found = correlation([by_round[round] for round in range(1, ROUNDS + 1)], sizes)
        assert found < LIMIT, f"{name}: {found}"


def test_times_would_tell(told: Told) -> None:
    """That the following tests can fail."""
    assert spearmanr(np.diff(told.begun), told.sizes[:-1]).statistic > LIMIT
    assert correlation(told.begun.tolist(), told.sizes) > LIMIT


def test_no_number_of_metrics_jsonl_tells(told: Told) -> None:
    series: dict[str, dict[int, float]] = {}
    for line in (told.folder / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert "time" not in record and not record.get("seconds")
        lines = series.setdefault("lines of a round", {})
        if "round" in record:
            lines[record["round"]] = lines.get(record["round"], 0) + 1
            series.setdefault(f"length of {record['kind']}", {})[record["round"]] = len(line)
            for place, number in flat(record):
                series.setdefault(f"{record['kind']}{place}", {})[record["round"]] = number
    assert len(series) > 3
    for name, by_round in series.items():
        check(name, by_round, told.sizes)
    assert "client_" not in (told.folder / "metrics.jsonl").read_text()


def test_no_event_of_tensorboard_tells(told: Told) -> None:
    files = sorted((told.folder / "tensorboard").rglob("events.*"))
    assert len(files) == 2
    for path in files:
        series: dict[str, dict[int, float]] = {}
        events = list(EventFileLoader(str(path)).Load())
        assert len({event.wall_time for event in events}) == 1
        for event in events:
            for value in event.summary.value:
                if value.tag and value.tensor.float_val:
                    series.setdefault(value.tag, {})[event.step] = value.tensor.float_val[0]
            assert b"end_time_secs" not in event.SerializeToString()
        for name, by_round in series.items():
            check(name, by_round, told.sizes)


def rounds_in(text: str) -> dict[int, tuple[str, int]]:
    """round -> its line, and how many lines there are since the round before."""
    found: dict[int, tuple[str, int]] = {}
    since = 0
    for line in text.splitlines():
        since += 1
        if match := re.search(r"round +(\d+)/\d+ ", line):
            found[int(match[1])] = line, since
            since = 0
    return found


@pytest.mark.parametrize("what", ["log", "terminal"])
def test_no_line_of_the_log_and_the_terminal_tells(what: str, told: Told) -> None:
    text = (told.folder / "log.rank0.txt").read_text() if what == "log" else told.printed
    assert not re.search(r"\d\d:\d\d:\d\d", text)
    found = rounds_in(text)
    assert len(found) == ROUNDS
    check("length", {round: len(line) for round, (line, _) in found.items()}, told.sizes)
    check("lines", {round: since for round, (_, since) in found.items()}, told.sizes)
    numbers = {round: NUMBER.findall(line) for round, (line, _) in found.items()}
    for place in range(min(map(len, numbers.values()))):
        check(f"number {place}", {round: float(each[place]) for round, each in numbers.items()}, told.sizes)
    assert "client_" not in text.replace("clients", "")


def test_status_and_results_have_no_time(told: Told) -> None:
    assert json.loads((told.folder / "status.json").read_text())["time"] is None
    names = [place for place, _ in flat(json.loads((told.folder / "results.json").read_text()))]
    assert not [name for name in names if "time" in name or "seconds" in name]


def test_mlflow_is_told_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    tracker = MLflow(uri=str(tmp_path / "mlruns"))
    tracker.start(RunStart(tmp_path / "run", config={"run.name": "private"}, has_times=False))
    for round in (1, 2, 3):
        tracker.record({"kind": "round", "round": round, "loss": 0.5, "extra": {"privacy/epsilon": float(round)}})
        time.sleep(0.01)
    tracker.end(True)
    (kept,) = (tmp_path / "mlruns").rglob("epsilon")
    assert len({line.split()[0] for line in kept.read_text().splitlines()}) == 1
    (meta,) = [path for path in (tmp_path / "mlruns").rglob("meta.yaml") if "end_time" in path.read_text()]
    (end,) = re.findall(r"end_time: (\d+)", meta.read_text())
    assert end == kept.read_text().split()[0]


def test_openings_name_nobody_and_are_equally_long(tmp_path: Path) -> None:
    path = tmp_path / "openings.jsonl"
    sets = ([], ["a"], [f"client_{i}" for i in range(9)])
    openings = Openings(path, b"k" * 32)
    for round, names in enumerate(sets):
        openings.open((round, 0), names)
    lines = path.read_text().splitlines()
    assert len({len(line) for line in lines}) == 1 and "client" not in path.read_text()
    again = Openings(path, b"k" * 32)
    for round, names in enumerate(sets):
        assert again.may_open((round, 0), [*reversed(names)]) and not again.may_open((round, 0), [*names, "z"])
    assert not Openings(path, b"l" * 32).may_open((1, 0), ["a"])  # who has not the key cannot compare


def test_openings_of_an_older_run_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "openings.jsonl"
    Openings(path).open((0, 0), ["b", "a"])
    assert "clients" in path.read_text()
    again = Openings(path, b"k" * 32)
    assert again.may_open((0, 0), ["a", "b"]) and not again.may_open((0, 0), ["a"])


def test_the_report_reads_a_ledger_of_any_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fedtorch.privacy.data_ledger import DataLedger
    from fedtorch.privacy.release import Release

    terms = {"rate": 0.3, "clients": 20, "noise_multiplier": 1.0, "delta": 1e-3}
    path = tmp_path / "epsilon of our patients"
    ledger = DataLedger(path)
    ledger.begin("one", terms, tmp_path / "one", [Release(0, 0, "a"), Release(1, 0, "b")], is_known=False)
    ledger.begin("two", terms, tmp_path / "two", [Release(0, 0, "c")], is_known=False)
    assert report(["privacy", str(path), "--out", str(tmp_path)]) == 0
    assert f"**all 2 in {path}** | 3 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no run in it"),
        ("a,b\n1,2\n", "is no ledger of data"),
        ('{"form": 1, "rate": 0.5}\n', "is the ledger of one run; name the run's folder"),
        ('{"some": "thing"}\n', "is damaged"),
    ],
)
def test_a_file_that_is_no_ledger_of_data_is_refused(
    content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path := tmp_path / "x").write_text(content)
    path.chmod(0o600)
    assert report(["privacy", str(path)]) in (2, 8)
    assert f"{path}" in (told := capsys.readouterr().err) and said in told


def test_a_ledger_that_is_not_there_is_not_an_empty_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(["privacy", str(tmp_path / "d.privacy.jsonl")]) == 2
    assert "does not exist" in capsys.readouterr().err
