"""Runs that count: exact, on any number of ranks, with masks and noise, through kills; nothing rare in any file."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from own_rows import BERT, CLIENTS, weather, write_rows
from ranks import run_ranks

from fedtorch.config import load as yaml_config
from fedtorch.core.errors import ConfigError, DataError
from fedtorch.main import main
from fedtorch.setup.counting import units_of
from fedtorch.stats.counting import words_of
from fedtorch.stats.settings import PersonUnit, StatsPrivacy, Words
from fedtorch.stats.table import Stats
from fedtorch.tasks.counted import Counted

pytest.importorskip("cryptography")
CANARY = "xylophonist"
SECRET = {"clip": 1.0, "secure_sum": {"threshold": 1.0}}


def prepare(folder: Path, **changes: Any) -> Path:
    """Rows of three silos, one of them with a word that nobody else has, and a config; the folder."""
    rows = weather(90)
    for number, row in enumerate(rows):
        row |= {"patient": f"{row['home']}{number % 9}", "label": row["label"].upper() if number % 3 else row["label"]}
    rows[4]["text"] += f" {CANARY}"
    write_rows(folder / "rows.jsonl", rows)
    task = {"name": "text_classification", "model": BERT, "max_length": 8}
    data = {"source": str(folder / "rows.jsonl"), "clients": {"by": "home"}, "splits": {"dev": 0.2, "test": 0.2}}
    config: dict[str, Any] = {
        "task": {**task, "data": data},
        "paradigm": "stats",
        "run": {"dir": str(folder / "run"), "name": "count"},
        "stats": {"labels": {"longest": 6, "width": 8}, "words": {"longest": 6, "width": 128}},
        "track": {"progress": "lines", "tensorboard": False},
        "algorithm": {"name": "fedassistant", "topk": {"ratio": 0.1}},
        "client": {"batch_size": 4},
    }
    for key, value in changes.items():
        config[key] = {**config.get(key, {}), **value} if isinstance(value, dict) else value
    (folder / "count.yaml").write_text(yaml.safe_dump(config))
    return folder


def counted(folder: Path, *words: str) -> Stats:
    os.chdir(folder)  # where data are prepared
    assert main(["--config", str(folder / "count.yaml"), *words]) == 0
    return Stats.read(folder / "run-stats")


def as_rank(folder: str) -> int:
    os.chdir(folder)
    return main(["--config", str(Path(folder) / "count.yaml")])


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where data are prepared; the working directory is put back."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def exact(here: Path) -> Stats:
    return counted(prepare(here, stats={"min_count": 1}))


def test_without_noise_every_number_is_that_of_the_pooled_rows(exact: Stats, here: Path) -> None:
    rows = [json.loads(line) for line in (here / "rows.jsonl").read_text().splitlines()]
    labels, words = exact.table("labels"), exact.table("words")
    assert labels is not None and words is not None
    assert dict(zip(labels.cells, labels.pooled, strict=True)) == Counter(row["label"] for row in rows)
    for silo, own in labels.silos.items():
        said = Counter(row["label"] for row in rows if row["home"] == silo)
        assert dict(zip(labels.cells, own, strict=True)) == {**dict.fromkeys(labels.cells, 0), **said}
    every = Counter(word.decode() for row in rows for word in words_of([row["text"]], Words()))
    assert dict(zip(words.cells, words.pooled, strict=True)) == {w: n for w, n in every.items() if len(w) <= 6}
    splits = exact.table("rows")
    assert splits is not None and splits.pooled == (54.0, 18.0, 18.0) and set(splits.silos) == set(CLIENTS)


@pytest.mark.processes
@pytest.mark.parametrize("changes", [{}, {"privacy": SECRET}, {"stats": {"privacy": {"epsilon": 8.0}}}])
def test_the_same_numbers_on_any_ranks_and_under_masks(here: Path, exact: Stats, changes: dict[str, Any]) -> None:
    one = exact
    if "stats" in changes:
        prepare(here, stats={"min_count": 1, **changes["stats"]}, run={"dir": str(here / "noised"), "name": "n"})
        assert main(["--config", str(here / "count.yaml")]) == 0
        one = Stats.read(here / "noised-stats")
    other = {"stats": {"min_count": 1, **changes.get("stats", {})}, "run": {"dir": str(here / "ranks"), "name": "r"}}
    prepare(here, **{**changes, **other})
    size = 4 if "privacy" in changes else 3
    assert run_ranks(as_rank, size, str(here), timeout=120) == [0] * size
    found = Stats.read(here / "ranks-stats")
    assert [table.pooled for table in found.tables] == [table.pooled for table in one.tables]
    assert [table.cells for table in found.tables] == [table.cells for table in one.tables]
    assert found.table("labels").silos.keys() == (set() if "privacy" in changes else set(CLIENTS))  # type: ignore[union-attr]


def test_a_word_of_one_row_is_in_no_file_of_the_run(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = counted(prepare(here, stats={"min_count": 2, "words": {"longest": 12, "width": 64}}))
    words = found.table("words")
    assert words is not None and "storm" in words.cells and CANARY not in words.cells
    said = capfd.readouterr()
    assert CANARY not in said.out + said.err
    for path in (here / "run-stats").rglob("*"):
        assert not path.is_file() or CANARY.encode() not in path.read_bytes(), path


def test_small_numbers_and_those_that_would_give_them_away_are_not_shown(here: Path) -> None:
    found = counted(prepare(here, stats={"min_count": 13}))
    for table in found.tables:
        for silo in table.silos.values():
            assert all(number is None or number >= 13 for number in silo)
    rows = found.table("rows")
    assert rows is not None and rows.silos["north"] == (18.0, None, None) and rows.pooled == (54.0, 18.0, 18.0)


@pytest.mark.processes
@pytest.mark.parametrize("round", [1, 4])
def test_a_run_that_is_killed_goes_on_with_the_same_noise_and_no_further_release(here: Path, round: int) -> None:
    promise = {"stats": {"privacy": {"epsilon": 8.0, "unit": {"column": "patient"}, "ledger": str(here / "ledgers")}}}
    prepare(here, **promise, run={"dir": str(here / "whole"), "name": "w"})
    assert main(["--config", str(here / "count.yaml")]) == 0
    ledger = here / "ledgers" / "north" / "ledger.jsonl"
    ends = {json.loads(line)["end"] for line in ledger.read_text().splitlines()[1:]}
    prepare(here, **promise, run={"dir": str(here / "cut"), "name": "c"})
    pid = os.fork()
    if not pid:
        import fedtorch.privacy.counts as counts

        release, calls = counts.NoisedCounts.release, [0]

        def dies(self: Any, *args: Any) -> None:
            release(self, *args)
            calls[0] += 1
            if calls[0] == 3 * round + 2:  # a silo's line is on the disk, and its numbers have not left
                os.kill(os.getpid(), signal.SIGKILL)

        counts.NoisedCounts.release = dies  # type: ignore[method-assign]
        os._exit(main(["--config", str(here / "count.yaml")]))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert main(["--config", str(here / "count.yaml")]) == 0
    one, other = (Stats.read(here / name) for name in ("whole-stats", "cut-stats"))
    assert one.tables == other.tables
    assert {json.loads(line)["end"] for line in ledger.read_text().splitlines()[1:]} == ends


def test_units_are_rows_persons_or_clients(here: Path) -> None:
    unit = {"column": "patient"}
    promise = {"noise_multiplier": 2.0, "unit": unit, "ledger": str(here / "ledgers")}
    assert counted(prepare(here, stats={"privacy": promise, "words": None})).unit == "person (column patient)"
    task = Counted(yaml_config.load(here / "count.yaml").task)
    whose = [{row["patient"] for row in map(json.loads, (here / "rows.jsonl").read_text().splitlines())
              if row["home"] == name} for name in CLIENTS]  # fmt: skip
    for name, persons in zip(CLIENTS, whose, strict=True):
        found = units_of(StatsPrivacy(epsilon=1.0, unit=PersonUnit("patient")), task, name, 30)
        assert len(found) == len(persons) and sorted(at for unit in found for at in unit) == list(range(30))
    assert units_of(StatsPrivacy(epsilon=1.0, unit="client"), task, "north", 30) == [range(30)]
    assert units_of(None, task, "north", 2) == [(0,), (1,)]


def test_a_budget_that_is_used_up_ends_with_code_10(here: Path) -> None:
    promise = {"epsilon": 4.0, "max_epsilon": 4.0, "ledger": str(here / "ledgers")}
    counted(prepare(here, stats={"privacy": promise, "labels": {"longest": 2}, "words": None}))
    prepare(here, stats={"privacy": {**promise, "noise": "discrete"}, "labels": {"longest": 2}, "words": None})
    code = main(["--config", str(here / "count.yaml"), "--set", f"run.dir={here / 'again'}"])
    assert code == 10


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"stats": {"privacy": {"epsilon": 1.0, "noise_at": "shared"}}}, "privacy.secure_sum is not set"),
        ({"stats": {"privacy": {"epsilon": 1.0}}, "privacy": SECRET}, "set stats.privacy.noise_at to shared"),
        ({"stats": {"privacy": {"delta": 1e-5}}}, "needs one of epsilon and noise_multiplier; give one"),
        ({"stats": {"privacy": {"epsilon": 1.0, "noise_multiplier": 1.0}}}, "remove one"),
        ({"stats": {"privacy": {"noise_multiplier": 0.01}}}, "below 0.1 next to nothing"),
        ({"stats": {"privacy": {"epsilon": 2.0, "max_epsilon": 1.0}}}, "stats.privacy.max_epsilon is 1.0"),
        ({"stats": {"most_cells": {"labels": 2}}}, "stats.most_cells is set but stats.privacy is not"),
        ({"stats": {"most_cells": {"cats": 2}, "privacy": {"epsilon": 1.0}}}, "names 'cats'"),
        ({"stats": {"by_silo": True}, "privacy": SECRET}, "stats.by_silo is true but privacy.secure_sum is set"),
    ],
)
def test_what_cannot_be_counted_is_refused_before_anybody_meets(here: Path, changes: dict[str, Any], said: str) -> None:
    folder = prepare(here, **changes)
    with pytest.raises(ConfigError, match=said):
        yaml_config.load(folder / "count.yaml")


def test_other_tasks_and_columns_that_are_not_there_are_refused(here: Path) -> None:
    with pytest.raises(ConfigError, match="is for tasks with task.data.source"):
        yaml_config.load("smoke/fedavg", ["paradigm=stats"])
    promise = {"epsilon": 1.0, "unit": {"column": "person"}}
    assert main(["--config", str(prepare(here, stats={"privacy": promise}) / "count.yaml")]) == 2
    with pytest.raises(ConfigError, match=r"has no column `person`.*did you mean `patient`|has no column `person`"):
        yaml_config.load(here / "count.yaml").task.folder  # noqa: B018


def test_a_config_that_counts_is_the_same_once_more(here: Path) -> None:
    prepare(here, stats={"privacy": {"epsilon": 8.0}})
    once = yaml_config.load(here / "count.yaml")
    assert once.rounds == 8 and once.run.name == "count-stats" and str(once.folder).endswith("run-stats")
    assert once.algorithm_name == "fedavg" and once.tells_times is False
    assert yaml_config.load(yaml_config.to_dict(once)) == once


def test_a_file_of_something_else_is_named(here: Path) -> None:
    (here / "stats.json").write_text('{"form": 1, "tables": 3}')
    with pytest.raises(DataError, match="is no file of `fedtorch stats`"):
        Stats.read(here)
    with pytest.raises(DataError, match="cannot be read"):
        Stats.read(here / "nothing")
