"""What `--dry-run` says of rounds that wait for nobody."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import make_config
from toy import Quadratic

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.config.asynchrony import AsyncConfig, ClockConfig, DurationConfig
from fedtorch.config.schema import ClientConfig, ClientsConfig, SystemConfig
from fedtorch.planning.asynchrony import busy_shares, describe_plan
from fedtorch.planning.dry_run import describe
from fedtorch.setup.build import BuiltRun, build

TASK = Quadratic(clients={name: (1.0, 1.0, 4) for name in "abcd"})
TABLE = DurationConfig(kind="table", seconds={"a": 2.0, "b": 3.0, "c": 5.0, "d": 7.0})
BY_TABLE = AsyncConfig(buffer=2, concurrent=3, starts="longest", clock=ClockConfig(duration=TABLE))


def built(folder: Path, **changes: Any) -> BuiltRun:
    settings = {"asynchrony": BY_TABLE, "system": SystemConfig(sum_scale="previous"), "rounds": 6, **changes}
    return build(make_config(folder, TASK, FedAvg(), **settings), num_ranks=1, rank=0)


def test_the_plan_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    """The specification's table: steps to 16 s, τ 0 0 1 0 0 2 1 1 0 0 1 2.

    Four workers: a b c d from 0; a from 1; b c a from 2; b c a from 4 and d from 3: 12 jobs in four times four.
    """
    run = built(tmp_path)
    assert describe_plan(run).splitlines() == [
        "asynchronous rounds: 6 versions of 2 updates, 3 clients at a time",
        "  virtual clock: the last version after 16.0 s",
        "  staleness: 0.67 on average, 2 at most",
        "  versions kept: at most 3, the newest included",
        "  share of time busy, by number of workers: 1 1.00  2 1.00  4 0.75  8 0.38",
        f"  digest of the plan: {run.facts()['plan of asynchronous rounds']}",
    ]
    assert describe_plan(run) in describe(run, num_ranks=1)
    assert "bytes up, 2 clients" in describe(run, num_ranks=2)


def test_what_is_dropped_is_counted(tmp_path: Path) -> None:
    text = describe_plan(built(tmp_path, asynchrony=replace(BY_TABLE, max_staleness=1)))
    assert "the last version after 20.0 s" in text and "1 at most, 2 dropped" in text


def test_by_the_real_clock_there_is_no_plan(tmp_path: Path) -> None:
    text = describe_plan(built(tmp_path, asynchrony=replace(BY_TABLE, clock=ClockConfig(kind="real"))))
    assert text.startswith("asynchronous rounds: 6 versions of 2 updates, 3 clients at a time, by the real clock")
    assert text.endswith("from arrivals.jsonl") and "\n" not in text


@pytest.mark.parametrize("changes", [{"asynchrony": None}, {"rounds": 0}])
def test_where_there_is_no_plan_nothing_is_said(changes: dict[str, Any], tmp_path: Path) -> None:
    assert describe_plan(built(tmp_path, **changes)) == ""
    assert "asynchronous" not in describe(built(tmp_path, **changes), num_ranks=1)


def test_clients_that_keep_something_train_at_home(tmp_path: Path) -> None:
    """Alone a version is as fast as any worker; with homes, two of a version's clients may share one."""
    free = busy_shares(built(tmp_path), built(tmp_path).jobs.plan)  # type: ignore[union-attr]
    keeping = built(tmp_path, client=ClientConfig(optimizer="adamw", lr=0.1, optimizer_state="keep"))
    for run in (keeping, built(tmp_path, clients=ClientsConfig(on_loss="continue"))):
        at_home = busy_shares(run, run.jobs.plan)  # type: ignore[union-attr]
        assert at_home[1] == free[1] == 1.0 and at_home[2] == pytest.approx(12 / 14) and free[2] > 0.9
