"""Settings that would do nothing: a mistake ends with 2 and says what to do, what may be meant is a line of the log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from supervisor import toy_config

from fedtorch.config.load import load
from fedtorch.core.errors import ConfigError
from fedtorch.main import main
from fedtorch.setup.build import build
from fedtorch.setup.plan import Plan
from fedtorch.setup.remarks import about_evaluation, about_neutral, about_rates
from tests.test_main import TINY


def plan(folder: Path, *sets: str) -> Plan:
    return Plan.of(load([toy_config(folder)], sets), 1)


REFUSED = {
    "eval.split=validation": "eval.split is validation but the task `toy:Quadratic` has the splits train, dev, test",
    "eval.final_split=Test": "eval.final_split is Test but the task `toy:Quadratic` has the splits train, dev, test",
    "system.pinned_to=node": "system.pinned_to is node but system.placement is balanced",
    "compare=[{}]": "compare.0 changes nothing",
    "compare={}": "compare changes nothing",
    "attack={kind: scaled, clients: [a]}": "attack.kind is scaled but attack.factor is 1",
    "eval={every: 0, overlap: true}": "eval.overlap is true but eval.every is 0",
    "partition.frozen=[nothing*]": "`partition.frozen` pattern 'nothing*' matches none of the 2 parameters",
    "partition.private=[nothing*]": "`partition.private` pattern 'nothing*' matches none of the 2 parameters",
    "per_client={e: {lr: 0.1}}": "per_client",
    "eval={merge: false, best: per_client}": "eval.merge is false but eval.best is per_client",
    "algorithm={robust: median}": "of one update every rule makes that update",
    "eval.select_by=accuracy": "eval.select_by is accuracy but the task `toy:Quadratic` measures nearness",
}


@pytest.mark.parametrize("override", REFUSED)
def test_what_would_do_nothing_ends_with_2_and_says_what_to_do(
    override: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [override, *(["clients.per_round=1"] if "robust" in override else [])]
    assert main(["--config", str(toy_config(tmp_path)), "--set", *sets]) == 2
    told = capsys.readouterr().err
    assert REFUSED[override] in told
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_local_runs_have_no_norms_to_limit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"clients.max_update_norm is 2.0 but paradigm is local"):
        load([toy_config(tmp_path)], ["paradigm=local", "clients.max_update_norm=2"])
    load([toy_config(tmp_path)], ["compare=[local]", "clients.max_update_norm=2"])  # which drops it


@pytest.fixture
def no_dev(monkeypatch: pytest.MonkeyPatch) -> None:
    from toy import Quadratic

    def manifest(self: Quadratic) -> dict[str, dict[str, int]]:
        return {name: {"train": n, "dev": 0, "test": min(n, 3)} for name, (_, _, n) in self.clients.items()}

    monkeypatch.setattr(Quadratic, "manifest", manifest)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["eval.patience=2"], "eval.patience is 2 but no client has a row of eval.split, which is dev"),
        (["eval.best=per_client"], "eval.best is per_client but no client has a row of eval.split"),
    ],
)
def test_who_waits_for_scores_that_never_come_is_refused(
    sets: list[str], said: str, no_dev: None, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"{said}.*set eval.split to one of train, test"):
        build(load([toy_config(tmp_path)], sets), num_ranks=1, rank=0)


def test_without_rows_of_dev_a_run_says_so_and_goes_on(no_dev: None, tmp_path: Path) -> None:
    config = toy_config(tmp_path)
    assert main(["--config", str(config)]) == 0
    log = (tmp_path / "run" / "log.rank0.txt").read_text()
    assert (
        "eval.split is dev, of which no client has a row, so no best round is chosen; there are rows of train, test"
        in log
    )


@pytest.mark.parametrize("sets", [["eval.every=0"], ["rounds=0"]])
def test_nothing_is_said_of_a_split_that_nobody_asked_for(sets: list[str], no_dev: None, tmp_path: Path) -> None:
    assert list(about_evaluation(plan(tmp_path, *sets))) == []


def test_a_patience_that_is_never_used_up_is_said(tmp_path: Path) -> None:
    (line,) = about_evaluation(plan(tmp_path, "eval.patience=3"))
    assert line == "eval.patience is 3 but there are 3 evaluations, so it never ends the run"
    assert list(about_evaluation(plan(tmp_path, "eval.patience=2"))) == []


def test_rates_of_nothing_are_said_and_allowed(tmp_path: Path) -> None:
    """A control in a sweep has them."""
    assert list(about_rates(plan(tmp_path, "client.lr=0", "server={optimizer: adam, lr: 0}"))) == [
        "client.lr is 0 for all clients, so their training changes nothing",
        "server.lr is 0 and server.optimizer adam, so the server never takes a step",
    ]
    assert list(about_rates(plan(tmp_path, "client.lr=0", "per_client.a.lr=0.1"))) == []
    assert list(about_rates(plan(tmp_path, "client.lr=0", "rounds=0"))) == []


SPILL, DRAWN = "client.accumulation_rule=spill", "clients={sampling: numpy_round_seed, per_round: all}"


def test_a_key_that_another_ones_value_makes_idle_is_said_and_allowed(tmp_path: Path) -> None:
    """A sweep over `client.accumulation`, or over `clients.per_round`, comes past that value."""
    assert list(about_neutral(plan(tmp_path, SPILL, DRAWN))) == [
        "client.accumulation_rule is spill and client.accumulation 1, so no group of micro-batches is incomplete and "
        "nothing spills",
        "clients.sampling is numpy_round_seed and clients.per_round all, so nobody is drawn",
    ]
    assert list(about_neutral(plan(tmp_path, SPILL, "client.accumulation=2"))) == []
    assert list(about_neutral(plan(tmp_path, SPILL, "per_client.a.accumulation=2"))) == [], "one does spill"
    assert list(about_neutral(plan(tmp_path, SPILL, DRAWN, "rounds=0"))) == []
    assert main(["--config", str(toy_config(tmp_path)), "--set", SPILL, DRAWN, "rounds=1"]) == 0
    assert "nothing spills" in (tmp_path / "run" / "log.rank0.txt").read_text()


def test_keys_of_the_clock_that_nobody_asks_are_said_and_allowed(tmp_path: Path) -> None:
    by_clock = ["checkpoint.every=auto", "checkpoint.lose=5", "checkpoint.cost=0.1"]
    assert list(about_neutral(plan(tmp_path, *by_clock))) == []
    assert list(about_neutral(plan(tmp_path, *by_clock, "checkpoint.every=3"))) == [
        "checkpoint.cost is 0.1 and checkpoint.every 3, so nothing goes by the clock",
        "checkpoint.lose is 5 and checkpoint.every 3, so nothing goes by the clock",
    ]
    assert list(about_neutral(plan(tmp_path, "checkpoint.every=3"))) == []


def test_where_nothing_spills_the_bits_are_those_of_the_exact_rule(tmp_path: Path, tiny_data: Path) -> None:
    """Of a task that counts the terms of its loss, too."""
    found = set()
    for rule in ("exact", "spill"):
        folder = tmp_path / rule
        folder.mkdir()
        (folder / "x.yaml").write_text(TINY.replace("DIR", str(folder / "run")).replace("DATA", str(tiny_data)))
        words = ["--config", str(folder / "x.yaml"), "--set", "rounds=1", f"client.accumulation_rule={rule}"]
        assert main(words) == 0
        found.add(json.loads((folder / "run" / "results.json").read_text())["digest"])
    assert len(found) == 1


def test_a_rate_of_0_goes_with_every_schedule(tmp_path: Path) -> None:
    (line,) = about_rates(plan(tmp_path, "client.lr=0", "client.schedule=polynomial"))
    assert line == "client.lr is 0 for all clients, so their training changes nothing"


def test_a_private_run_says_that_nobody_is_evaluated(tmp_path: Path) -> None:
    private = [
        "privacy={kind: client, clip: 0.5, noise_multiplier: 1.0, delta: 1.0e-3}",
        "clients={sampling: poisson, rate: 0.5, per_round: all}",
        "algorithm.weights=equal",
    ]
    found = list(about_evaluation(plan(tmp_path, *private)))
    assert [line.split(",")[0] for line in found] == ["eval.split is dev", "eval.final_split is test"]
    assert "only clients that train have rows" in found[0]
    assert list(about_evaluation(plan(tmp_path, *private, "privacy.reveal=[scores]"))) == []


@pytest.mark.parametrize(
    "sets",
    [
        ["client.lr=0", "rounds=0"],
        ["client.lr=0", "per_client.a.lr=0.1"],
        ["server.lr=0", "paradigm=local"],
        ["checkpoint.every=100"],
        ["eval.every=100"],
        ["client.weight_decay=0", "client.no_decay=[w]"],
        ["client.schedule_span=run"],  # as where a sweep goes over client.schedule
        ["eval.split=train", "eval.final_split=dev"],
    ],
)
def test_what_may_be_meant_is_let_be(sets: list[str], tmp_path: Path) -> None:
    build(load([toy_config(tmp_path)], sets), num_ranks=1, rank=0)
