"""Hosts without a common disk: states stay where their clients live, and a resume gives the same bits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hosts import Network
from silos import DITTO, digest, run, write_config
from supervisor import TOY, at

from fedtorch.lifecycle import export
from fedtorch.main import main

pytestmark = pytest.mark.processes


def states(hosts: Network, name: str) -> set[str]:
    """The clients whose states are on a host's disk."""
    return {path.name.partition("-")[0] for path in (hosts.hosts[name].disk / "run").glob("checkpoints/clients/*")}


def test_states_stay_with_their_clients_and_a_resume_gives_the_same_bits(
    network: Callable[..., Network], alone: str
) -> None:
    hosts = network()
    words = write_config(hosts)
    codes = run(hosts, words, "kill:rank=3,round=2,phase=train,attempt=0")
    assert codes[3] not in (0, None) and codes[:3] == [7, 7, 7]
    assert run(hosts, words) == [0, 0, 0, 0]
    a, b = (host.disk / "run" for host in hosts.hosts.values())
    assert digest(a) == alone
    assert states(hosts, "a") and states(hosts, "b") and not states(hosts, "a") & states(hosts, "b")
    assert "resuming after round 2" in (a / "log.rank0.txt").read_text()


STOP = "term:rank=0,round=2,phase=broadcast,attempt=0"


def stopped(hosts: Network, *settings: str) -> list[str]:
    """Words that go on with a run that was stopped after two of three rounds."""
    words = write_config(hosts, *settings)
    assert run(hosts, words, STOP) == [75] * 4
    return words


def reason(hosts: Network) -> str:
    found: str = json.loads((hosts.hosts["a"].disk / "run" / "status.json").read_text())["reason"]
    return found


def test_the_disk_of_a_host_is_lost(network: Callable[..., Network]) -> None:
    hosts = network()
    words = stopped(hosts)
    lost = sorted(states(hosts, "b"))
    shutil.rmtree(hosts.hosts["b"].disk / "run")
    assert run(hosts, words) == [8] * 4
    assert f"after 2 rounds the states of {len(lost)} clients are not where the clients live" in reason(hosts)
    assert all(f"client `{name}` on host `b` (rank " in reason(hosts) for name in lost)
    assert f"{hosts.disk}/run/checkpoints/clients/{lost[0]}-" in reason(hosts)
    assert "start anew with `checkpoint.missing_clients: restart`" in reason(hosts)
    assert run(hosts, [*words, "checkpoint.missing_clients=restart"]) == [0] * 4
    assert f"clients are not where the clients live: client `{lost[0]}` on host `b`" in hosts.log("a", 0)
    assert "these clients start anew (checkpoint.missing_clients)" in hosts.log("a", 0)
    assert states(hosts, "b")


@pytest.mark.parametrize("mode", ["refuse", "restart"])
def test_a_server_restored_from_a_backup_says_that_it_is_older_and_deletes_nothing(
    mode: str, network: Callable[..., Network]
) -> None:
    hosts = network()
    settings = ["checkpoint.keep=1", f"checkpoint.missing_clients={mode}"]
    words = stopped(hosts, *settings)
    run_dir, backup = hosts.hosts["a"].disk / "run", hosts.root / "backup"
    shutil.copytree(run_dir, backup)
    assert run(hosts, words) == [0] * 4
    shutil.rmtree(run_dir)
    shutil.copytree(backup, run_dir)
    there = {path.name for path in (hosts.hosts["b"].disk / "run").glob("checkpoints/clients/*")}
    assert run(hosts, words) == [8] * 4
    assert "the server's newest checkpoint is of round 2: its run folder is an older copy" in reason(hosts)
    assert "(host `b`)" in reason(hosts) and "after 3 saved rounds" in reason(hosts)
    assert not [word for word in ("missing_clients", "--resume never", "--resume force") if word in reason(hosts)]
    assert {path.name for path in (hosts.hosts["b"].disk / "run").glob("checkpoints/clients/*")} == there


def test_a_silo_restored_from_a_backup_is_called_the_older_side(network: Callable[..., Network]) -> None:
    hosts = network()
    words = write_config(hosts, "checkpoint.keep=1")
    assert run(hosts, words, "term:rank=0,round=1,phase=broadcast,attempt=0") == [75] * 4
    folder, backup = hosts.hosts["b"].disk / "run" / "checkpoints", hosts.root / "backup"
    shutil.copytree(folder, backup)
    assert run(hosts, words, "term:rank=0,round=2,phase=broadcast,attempt=0") == [75] * 4
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    assert run(hosts, words) == [8] * 4
    assert ", where there is one of round 1, so that this disk is the older side" in reason(hosts)


def test_a_client_that_moved_or_whose_state_is_damaged_is_named(network: Callable[..., Network]) -> None:
    hosts = network()
    words = stopped(hosts)
    files = sorted((hosts.hosts["b"].disk / "run").glob("checkpoints/clients/*-r000002*"))
    files[0].write_bytes(files[0].read_bytes()[:-1])
    assert run(hosts, words) == [8] * 4
    client = files[0].name.partition("-")[0]
    assert f"the states of 1 clients are not where the clients live: client `{client}` on host `b`" in reason(hosts)
    ended = hosts.start(["a", "a", "a", "b"], words).join()
    assert [outcome.exit_code for outcome in ended] == [8] * 4
    assert "on host `a` (rank 2): " in reason(hosts) and "saved on host `b`" in reason(hosts)


def test_states_of_kept_rounds_and_models_stay_on_the_disk_of_the_silo(
    network: Callable[..., Network], capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = network()
    for host in hosts.hosts.values():  # of an earlier run
        (host.disk / "run" / "checkpoints" / "clients").mkdir(parents=True)
        (host.disk / "run" / "checkpoints" / "clients" / "old-00000000-r000009.safetensors").touch()
        (host.disk / "run" / "model" / "a").mkdir(parents=True)
    assert run(hosts, ["--resume", "never", *write_config(hosts, "checkpoint.keep=1")]) == [0] * 4
    models = {name: {path.name for path in (hosts.hosts[name].disk / "run/model").iterdir()} for name in "ab"}
    assert (
        models["a"] | models["b"] == set("abcd") and states(hosts, "b") <= models["b"] and models["a"] and models["b"]
    )
    assert not models["a"] & models["b"], "a model of an earlier run, or of another host's client"
    for host in hosts.hosts.values():
        saved = [path.name.partition("-r")[0] for path in (host.disk / "run").glob("checkpoints/clients/*")]
        assert saved and len(saved) == len(set(saved)) and "old-00000000" not in saved
    manifest = json.loads(next((hosts.hosts["a"].disk / "run").glob("checkpoints/*/manifest.json")).read_text())
    assert manifest["manifest"]["homes"] == dict.fromkeys(sorted(states(hosts, "b")), "b")
    assert not list((hosts.hosts["b"].disk / "run").glob("canary*"))
    away = sorted(states(hosts, "b"))[0]
    assert export.main([str(hosts.hosts["a"].disk / "run"), "--client", away]) == 8
    assert f"`{away}` on `b`; their models are in model of the run's folder there" in capsys.readouterr().err


def test_clients_without_a_state_need_no_common_disk_to_resume(network: Callable[..., Network]) -> None:
    hosts = network()
    path = hosts.root / "toy.yaml"
    path.write_text(TOY.replace(", optimizer_state: keep", "").replace("DIR", str(hosts.disk / "run")))
    words = ["--config", str(path), "--set", "system.timeout=8"]
    assert run(hosts, words, STOP) == [75] * 4
    assert run(hosts, words) == [0] * 4
    assert "resuming after round 2" in hosts.log("a", 0) and not states(hosts, "b")


@pytest.mark.slow
def test_a_round_is_saved_once_every_host_has_saved_it(network: Callable[..., Network], tmp_path: Path) -> None:
    hosts = network()
    settings = ["task.width=1000", "rounds=5", "checkpoint.save_retries=1"]
    words = write_config(hosts, *settings)
    full = "diskfull:phase=checkpoint,round=2,rank=3,bytes=12000"  # a state has more, logs have less
    assert run(hosts, words, full) == [8] * 4
    assert "round 2 is not saved" in hosts.log("a", 0) and "could not write a client's state" in hosts.log("a", 0)
    assert run(hosts, words) == [0] * 4
    assert "resuming after round 1" in hosts.log("a", 0)
    path = tmp_path / "toy.yaml"
    path.write_text(DITTO.replace("DIR", str(tmp_path / "run")))
    assert main(["--config", str(path), "--set", *settings]) == 0
    assert digest(hosts.hosts["a"].disk / "run") == digest(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "rank"), [("train", 3), ("checkpoint", 0), ("checkpoint", 3)])
def test_with_a_common_disk_clients_may_live_elsewhere_after_a_resume(
    phase: str, rank: int, network: Callable[..., Network], alone: str
) -> None:
    hosts = network(has_common_disk=True)
    words = write_config(hosts)
    assert run(hosts, words, at(phase, rank))[rank] not in (0, 7, None)
    assert [outcome.exit_code for outcome in hosts.start(["a", "b", "b"], words).join()] == [0, 0, 0]
    assert digest(hosts.hosts["a"].disk / "run") == alone
    assert "the run folder is not common" not in hosts.log("a", 0)
