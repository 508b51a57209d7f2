"""A silo that comes back when the run has ended hears of it, writes its last models, and ends with 0."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hosts import Network
from ranks import Ranks
from silos import WHERE, write_config

from fedtorch.config.load import load
from fedtorch.lifecycle.unheard import NAME, remembered

SETTINGS = (
    *("clients.on_loss=continue", "clients.min=1", "rounds=4", "client.optimizer_state=keep"),
    *("system.timeout=60", "system.start_timeout=120"),  # a busy machine takes nobody for lost
)
AWAY = 3
"""The rank that is killed in the second round, on host `b`; rank 2 is there too and has the disk."""


def run_of(hosts: Network, name: str) -> Path:
    return hosts.hosts[name].disk / "run"


def is_done(hosts: Network) -> bool:
    path = run_of(hosts, "a") / "status.json"
    return path.exists() and json.loads(path.read_text())["state"] == "done"


def until(holds: Callable[[], bool], limit_s: float = 90.0) -> None:
    give_up_at = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < give_up_at, "it did not come"
        time.sleep(0.05)


def ended_without(hosts: Network, stays_s: float) -> tuple[Ranks, list[str]]:
    """A job whose server has ended the run without rank AWAY, and stays so long; and its words."""
    words = write_config(hosts, *SETTINGS)
    environ = {"FEDTORCH_STAY": str(stays_s), "FEDTORCH_FAULTS": f"kill:rank={AWAY},round=1,phase=train"}
    ranks = hosts.start(WHERE, words, environ)
    until(lambda: is_done(hosts))
    return ranks, words


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.processes
def test_it_hears_of_the_end_and_writes_its_models(network: Callable[..., Network]) -> None:
    hosts = network()
    ranks, words = ended_without(hosts, 60)
    lost = json.loads((run_of(hosts, "a") / "results.json").read_text())["lost"]
    before = {name: files(run_of(hosts, name) / "model") for name in "ab"}
    of_run = {name: (run_of(hosts, "a") / name).read_bytes() for name in ("results.json", "metrics.jsonl")}
    assert lost and not any(f"{name}/w.json" in before["b"] for name in lost)
    assert [process.exitcode for process in ranks.processes][0] is None, "the server stays"
    begun = time.monotonic()
    again = hosts.start_again(WHERE, AWAY, words)
    assert again.join(60)[0].exit_code == 0 and time.monotonic() - begun < 30
    assert [outcome.exit_code for outcome in ranks.join(30)][:3] == [0, 0, 0]
    assert "the run ended after 4 rounds while this rank was away; its models" in hosts.log("b", AWAY)
    after = {name: files(run_of(hosts, name) / "model") for name in "ab"}
    assert after["a"] == before["a"] and before["b"].items() <= after["b"].items()
    assert {path.partition("/")[0] for path in after["b"].keys() - before["b"].keys()} == set(lost)
    assert of_run == {name: (run_of(hosts, "a") / name).read_bytes() for name in of_run}
    assert is_done(hosts) and not (run_of(hosts, "a") / "unheard.json").exists()


@pytest.mark.processes
def test_one_that_is_killed_while_it_hears_may_come_once_more(network: Callable[..., Network]) -> None:
    hosts = network()
    ranks, words = ended_without(hosts, 60)
    dying = hosts.start_again(WHERE, AWAY, words, {"FEDTORCH_FAULTS": "kill:phase=export"})
    assert dying.join(60)[0].exit_code not in (0, None)
    assert hosts.start_again(WHERE, AWAY, words).join(60)[0].exit_code == 0
    assert [outcome.exit_code for outcome in ranks.join(30)][:3] == [0, 0, 0]
    assert "came back after the run's end was lost again" in hosts.log("a", 0)


@pytest.mark.processes
def test_one_whose_states_are_lost_is_told_so_and_the_server_stays_done(network: Callable[..., Network]) -> None:
    hosts = network()
    ranks, words = ended_without(hosts, 20)
    shutil.rmtree(run_of(hosts, "b") / "checkpoints")
    assert hosts.start_again(WHERE, AWAY, words).join(60)[0].exit_code == 8
    assert [outcome.exit_code for outcome in ranks.join(60)][:3] == [0, 0, 0] and is_done(hosts)
    assert f"rank {AWAY} did not hear that the run has ended" in hosts.log("a", 0)


@pytest.mark.processes
def test_the_server_stays_only_as_long_as_is_said_and_not_when_all_have_heard(network: Callable[..., Network]) -> None:
    hosts = network()
    ranks, words = ended_without(hosts, 1)
    assert [outcome.exit_code for outcome in ranks.join(30)][:3] == [0, 0, 0]
    assert f"rank {AWAY} did not hear that the run has ended; the server stayed for as long as system.end_timeout" in (
        hosts.log("a", 0)
    )
    shutil.rmtree(run_of(hosts, "a"))
    shutil.rmtree(run_of(hosts, "b"))
    begun = time.monotonic()
    ended = hosts.start(WHERE, words, {"FEDTORCH_STAY": "600"}).join(90)
    assert [outcome.exit_code for outcome in ended] == [0] * 4 and time.monotonic() - begun < 60


@pytest.mark.processes
def test_the_wait_for_a_server_that_is_gone_is_bounded_and_says_what_is_here(network: Callable[..., Network]) -> None:
    hosts = network()
    ranks, words = ended_without(hosts, 0)
    assert [outcome.exit_code for outcome in ranks.join(30)][:3] == [0, 0, 0]
    again = hosts.start_again(WHERE, 2, [*words, "system.start_timeout=3"])
    begun = time.monotonic()
    assert again.join(60)[0].exit_code == 4 and time.monotonic() - begun < 30
    said = hosts.log("b", 2)
    assert "rank 2 found no store at MASTER_ADDR=10.83.0.1 MASTER_PORT=29500 within 3 s (system.start_timeout)" in said
    assert "if the server has ended the run it is gone (system.end_timeout)" in said
    assert f"the states of 2 clients after 4 saved rounds are in {hosts.disk}/run/checkpoints, models in" in said


@pytest.mark.processes
def test_a_server_that_is_told_to_stop_while_it_stays_is_done(network: Callable[..., Network]) -> None:
    hosts = network()
    ranks, _ = ended_without(hosts, 600)
    until(lambda: "which missed the end" in hosts.log("a", 0))
    hosts.command("a", "kill -TERM -1")  # all that runs on this host, but for its first process
    assert ranks.join(30)[0].exit_code == 0 and is_done(hosts)
    assert "the server stayed and was told to stop" in hosts.log("a", 0)


@pytest.mark.processes
@pytest.mark.slow  # two starts of ranks, one after the other
@pytest.mark.timeout(900)
def test_a_server_whose_machine_goes_down_while_it_stays_goes_on_staying(network: Callable[..., Network]) -> None:
    """It needs none of those that have heard of the end, trains nothing, and is done as before."""
    hosts = network()
    _, words = ended_without(hosts, 200)
    until(lambda: "which missed the end" in hosts.log("a", 0))
    result = (run_of(hosts, "a") / "results.json").read_bytes()
    hosts.kill("a")
    hosts.boot("a")
    again = hosts.start_again(WHERE, AWAY, words)  # before there is a server
    server = hosts.start_again(WHERE, 0, words, {"FEDTORCH_STAY": "200"})
    assert [again.join(400)[0].exit_code, server.join(400)[0].exit_code] == [0, 0]
    assert "the run ended after 4 rounds while this rank was away; its models" in hosts.log("b", AWAY)
    assert is_done(hosts) and (run_of(hosts, "a") / "results.json").read_bytes() == result
    assert not (run_of(hosts, "a") / "unheard.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"run": 1}', "null"])
def test_a_damaged_note_of_who_missed_the_end_is_none(text: str, tmp_path: Path) -> None:
    config = load(["smoke/fedavg"], [f"run.dir={tmp_path}"])
    assert remembered(config) is None
    (tmp_path / NAME).write_text(text)
    assert remembered(config) is None
