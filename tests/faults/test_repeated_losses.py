"""A client in which workers die at the same place each time costs nobody more than three attempts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from supervisor import Ended, supervise, toy_config

from fedtorch.config.load import load
from fedtorch.core.errors import Death, LostRankError
from fedtorch.lifecycle.losses import NAME, Losses, note_losses, read_losses
from fedtorch.main import main

DIES = "kill:round=1,phase=train,client=a"
"""Wherever this client is trained: who is trained by rank 2 may be another one once a round has been measured."""
SETS = ("system.timeout=20", "clients.per_round=all", "client.optimizer_state=reset", "eval.every=0")


@pytest.mark.processes
def test_the_run_ends_once_and_names_the_client(tmp_path: Path) -> None:
    config = toy_config(tmp_path)
    ended = supervise(config, faults=DIES, sets=SETS, max_restarts=5, timeout=200)
    assert [codes.count(6) for codes in ended.codes] == [0, 0, 0, 3, 3, 3], "torchrun starts that again too"
    reason = ended.status["reason"]
    assert ended.status["code"] == 6 and "a worker died 3 times while it worked on client `a`" in reason
    assert "each time at the same place after 1 saved rounds" in reason
    assert "clients.on_repeated_loss: skip" in reason
    again = supervise(config, faults=DIES, sets=SETS, max_restarts=1, timeout=200)
    assert [codes.count(6) for codes in again.codes] == [0, 0], "who starts it by hand may have mended it"
    assert supervise(config, sets=SETS, max_restarts=0).code == 0


SLOW = [pytest.param("b", "true", marks=pytest.mark.slow), pytest.param("a", "false", marks=pytest.mark.slow)]


@pytest.mark.processes
@pytest.mark.parametrize(("client", "works"), [("a", "true"), ("b", "false"), *SLOW])
def test_the_others_go_on_without_it(client: str, works: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bits of a run in one process in which this client fails from that round on.

    works: does the server train clients too, so that one of them may be its death?
    """
    config = toy_config(tmp_path)
    sets = (*SETS, "clients.on_repeated_loss=skip", f"system.server_works={works}")
    faults = f"kill:round=1,phase=train,client={client}"
    ended = supervise(config, faults=faults, sets=sets, max_restarts=3, timeout=300)
    assert ended.code == 0, ended.codes
    lost = json.loads((tmp_path / "run" / "results.json").read_text())["lost"]
    assert lost == {client: 1} and ended.status["reason"] == f"done without 1 lost clients: {client}"
    assert read_losses(tmp_path / "run").left_out == lost
    monkeypatch.setenv("FEDTORCH_TESTING", "1")
    monkeypatch.setenv("FEDTORCH_FAULTS", ";".join(f"raise:client={name},round={n}" for name in lost for n in (1, 2)))
    assert main(["--config", str(config), "--set", *SETS[1:], f"run.dir={tmp_path / 'alone'}"]) == 0
    assert ended.digest == Ended(tmp_path / "alone").digest
    assert main(["--config", str(config), "--set", *SETS[1:], "--resume", "never"]) == 0
    assert not (tmp_path / "run" / NAME).exists(), "who is left out of a run is not left out of another one"


def death(client: str = "a", round: int = 1, phase: str = "train", process: str = "1") -> Death:
    return Death(client, round, phase, process)


@pytest.mark.parametrize(("ranks", "noted"), [((2,), 0), ((0,), 1), ((0, 2), 1)])
def test_a_worker_remembers_where_the_server_died_and_nobody_else(
    ranks: tuple[int, ...], noted: int, tmp_path: Path
) -> None:
    """Twice the same: every worker that has seen it says so."""
    config = load([toy_config(tmp_path)], ())
    config.folder.mkdir()
    for _ in range(2):
        note_losses(config, LostRankError("gone", ranks, (death(),)), is_server=False, saved=1)
    assert len(read_losses(config.folder).deaths) == noted
    note_losses(config, LostRankError("gone", ranks, (death(process="2"),)), is_server=True, saved=1)
    assert len(read_losses(config.folder).deaths) == noted + 1


def test_nothing_is_remembered_where_the_others_go_on(tmp_path: Path) -> None:
    config = load([toy_config(tmp_path)], ["clients.on_loss=continue"])
    config.folder.mkdir()
    note_losses(config, LostRankError("gone", (2,), (death(),)), is_server=True, saved=1)
    assert not (config.folder / NAME).exists()


def test_only_deaths_at_one_place_without_a_saved_round_between_count() -> None:
    three = tuple(death(process=str(number)) for number in range(3))
    assert Losses(1, three).to_blame() == {"a": 3}
    assert Losses(1, three).since(1).to_blame() == {"a": 3} and Losses(1, three).since(2).to_blame() == {}
    assert Losses(1, three[:2]).to_blame() == {}
    assert Losses(1, (*three[:2], death("b", process="9"))).to_blame() == {}
    assert Losses(1, (*three[:2], death(round=2, process="9"))).to_blame() == {}
    assert Losses(1, (*three[:2], death(phase="evaluate", process="9"))).to_blame() == {}
    assert Losses(1, tuple(death("", process=str(number)) for number in range(9))).to_blame() == {}
    assert Losses(1, three, {"a": 0}).to_blame() == {}


DAMAGED = ["", "[]", "{", '{"saved": 1}', '{"saved": "x", "deaths": [], "left_out": {}, "has_ended": false}', "null"]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file_is_no_loss(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_losses(tmp_path) == Losses() and not caplog.records
    (tmp_path / NAME).write_text(text)
    assert read_losses(tmp_path) == Losses() and "no loss is remembered" in caplog.text
