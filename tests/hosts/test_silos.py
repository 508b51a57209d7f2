"""`fedtorch serve` and `fedtorch join`: one command on each machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hosts import Network
from silos import gate

from fedtorch.main import main
from launchers import join, serve, silo
from launchers.keep import Kept
from tests.setup.test_pinned import digest, keep_only
from tests.test_main import TINY

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
PINNED = {"north": 1, "south": 2, "west": 2}
SECRET = {"FEDTORCH_JOB_SECRET": "known to all ranks of the test"}


def write_config(root: Path, run: Path, data: Path, **system: object) -> str:
    path = root / "silos.yaml"
    system = {"placement": "pinned", "pinned": PINNED, "timeout": 60.0, **system}
    text = TINY.replace("DIR", str(run)).replace("DATA", str(data))
    path.write_text(
        f"{text}algorithm: {{name: ditto}}\ncheckpoint: {{every: 1}}\nsystem: {json.dumps(system)}\n".replace(LORAR, "")
    )
    return str(path)


LORAR = "algorithm: {name: fedavg, weights: lorar}\n"


@pytest.mark.parametrize(
    ("words", "system", "environ", "code", "message"),
    [
        (["--silo", "nort"], {}, SECRET, 2, "--silo is nort, which system.pinned does not have; did you mean `north`?"),
        (
            ["--silo", "north"],
            {},
            {},
            4,
            "FEDTORCH_JOB_SECRET is not set, or empty, and there is no --secret-file; make one (openssl rand",
        ),
        (
            ["--silo", "north"],
            {},
            {"FEDTORCH_JOB_SECRET": ""},
            4,
            "FEDTORCH_JOB_SECRET is not set, or empty, and there",
        ),
        (["--silo", "north"], {}, {"FEDTORCH_JOB_SECRET": "short"}, 4, "FEDTORCH_JOB_SECRET has 5 characters"),
        (["--silo", "north", "--secret-file", "/nowhere"], {}, SECRET, 4, "the secret cannot be read from /nowhere"),
        (["--silo", "north"], {"ports": "1-2"}, SECRET, 2, "system.ports is '1-2'; expected the first and the last"),
        (["--silo", "north"], {"ports": "70000-80000"}, SECRET, 2, "system.ports is '70000-80000'; expected"),
        (["--silo", "north"], {"pinned_to": "node"}, SECRET, 2, "a silo is one rank, so set `placement: pinned`"),
        (
            ["--silo", "north"],
            {"pinned": {"north": 3, "south": 5}},
            SECRET,
            2,
            "system.pinned names ranks 3, 5; number the silos",
        ),
        (
            ["--silo", "north"],
            {"pinned": {"north": 1, "south": 1}},
            SECRET,
            2,
            "clients.min_silos is 2 (2 with `fedtorch serve` and `join`, unless it is set) but system.pinned gives "
            "clients to 1 ranks; add silos there, or set clients.min_silos to 1, if everybody may see the update of "
            "one silo",
        ),
        (["--silo", "north", "--server", "there"], {}, SECRET, 2, "--server is 'there'; expected HOST:PORT, such as"),
        (
            ["--silo", "north", "--server", "198.51.100.1:7"],
            {},
            SECRET,
            4,
            "--server is 198.51.100.1: a public address",
        ),
        (["--silo", "north", "--server", "[2001:db8::1]:7"], {}, SECRET, 4, "join the machines by WireGuard"),
    ],
)
def test_what_a_silo_gets_wrong_is_said_before_it_connects(
    words: list[str],
    system: dict[str, object],
    environ: dict[str, str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("FEDTORCH_JOB_SECRET", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    config = write_config(tmp_path, tmp_path / "run", tmp_path / "data", **system)
    assert join.main(["--server", "10.83.0.1:29500", "--config", config, *words], prog="fedtorch join") == code
    said = capsys.readouterr()
    assert message in said.err and not said.out


SIDES = {"hub": "", "north": "north", "other": "west"}
"""Host -> a client there; the other one has two."""
PLACE = "10.83.0.1:29500"


def prepare(hosts: Network, data: Path, **system: object) -> str:
    at = {"hub": [], "north": ["north"], "other": ["west", "south"], "south": ["south"], "west": ["west"]}
    for name, host in hosts.hosts.items():
        keep_only(data, host.disk / "data", at[name])
    return write_config(hosts.root, hosts.disk / "run", hosts.disk / "data", **system)


def start(
    hosts: Network,
    name: str,
    config: str,
    *settings: str,
    faults: str = "",
    secret: str = "",
    options: tuple[str, ...] = (),
    **pipes: Any,
) -> subprocess.Popen[str]:
    """The command of one side. secret: another one than the others'."""
    given = {"FEDTORCH_JOB_SECRET": secret} if secret else SECRET
    environ = {**os.environ, **given, "PYTHONPATH": str(ROOT), "FEDTORCH_TESTING": "1", "FEDTORCH_FAULTS": faults}
    silo = SIDES.get(name, name)
    place = ["join", "--server", PLACE, "--silo", silo] if silo else ["serve", "--listen", PLACE]
    words = [sys.executable, "-m", "fedtorch.cli", *place, "--config", config, *options]
    return hosts.popen(name, [*words, *(["--set", *settings] if settings else [])], env=environ, **pipes)


def of_one_process(folder: Path, data: Path, *settings: str) -> str:
    """The digest of the same run in this process."""
    keep_only(data, folder / "data", ["west", "north", "south"])
    config = write_config(folder, folder / "run", folder / "data")
    assert main(["--config", config, *(["--set", *settings] if settings else [])]) == 0
    return digest(folder / "run")


def wait_for(path: Path, text: str = "", limit_s: float = 300.0) -> None:
    """Until the file is there, and has the text in it."""
    give_up_at = time.monotonic() + limit_s
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < give_up_at, f"{path} did not come within {limit_s:g} s, or has no {text!r}"
        time.sleep(0.05)


def wait_at(hosts: Network, gate: Path, **ranks: int) -> None:
    """Until these ranks wait at the gate, so that all before it is done. ranks: host -> rank there."""
    for name, rank in ranks.items():
        wait_for(hosts.hosts[name].disk / "run" / f"log.rank{rank}.txt", f"file='{gate}'")


PATIENT: dict[str, object] = {"timeout": 300.0, "start_timeout": 300.0}
"""Of runs in which a rank is held at a gate: nobody takes it for lost, however long a host takes to boot."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_silos_and_a_server_with_one_command_each(
    network: Callable[..., Network], tiny_data: Path, tmp_path: Path
) -> None:
    hosts = network(names=tuple(SIDES))
    config = prepare(hosts, tiny_data)
    sides = [start(hosts, name, config) for name in SIDES]
    assert [side.wait(400) for side in sides] == [0, 0, 0]
    run = hosts.hosts["hub"].disk / "run"
    assert {path.name for path in (hosts.hosts["other"].disk / "run" / "model").iterdir()} == {"south", "west"}
    there = {name: {path.name for path in (host.disk / "run").iterdir()} for name, host in hosts.hosts.items()}
    assert {name for name in there["hub"] if "log." in name} == {"log.rank0.txt"}
    assert not list((run / "checkpoints").glob("clients/*")) and "model" not in there["hub"]
    assert not {"metrics.jsonl", "results.json", "tensorboard"} & (there["north"] | there["other"])
    assert f"serve --listen {PLACE} --config {config}" in json.loads((run / "status.json").read_text())["command"]
    assert digest(run) == of_one_process(tmp_path, tiny_data)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["north", "hub"])
def test_the_others_wait_for_a_side_whose_machine_was_killed(
    name: str, network: Callable[..., Network], tiny_data: Path, tmp_path: Path
) -> None:
    """Nobody but that machine starts anything again; the bits are those of a run that nothing happened to."""
    hosts = network(names=tuple(SIDES))
    config = prepare(hosts, tiny_data, **PATIENT)
    faults, opened = gate(hosts, 1)
    sides = {side: start(hosts, side, config, "rounds=3", faults=faults) for side in SIDES}
    run = hosts.hosts["hub"].disk / "run"
    wait_at(hosts, opened, north=1, other=2)
    hosts.kill(name)
    sides[name].wait(60)
    opened.touch()
    hosts.boot(name)
    sides[name] = start(hosts, name, config, "rounds=3")
    assert [side.wait(500) for side in sides.values()] == [0, 0, 0]
    assert digest(run) == of_one_process(tmp_path, tiny_data, "rounds=3")
    if name == "north":
        assert "rank 1 (north, host `north`) was started anew and waits to be let in" in hosts.log("hub", 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_others_go_on_without_a_silo_which_comes_back_in_a_later_round(
    network: Callable[..., Network], tiny_data: Path
) -> None:
    hosts = network(names=tuple(SIDES))
    config = prepare(hosts, tiny_data, **PATIENT)
    settings = ["clients.on_loss=continue", "clients.min=1", "clients.min_silos=1", "rounds=8"]
    (first, lost), (second, back) = gate(hosts, 1), gate(hosts, 3)
    beside = "sleep:rank=2,phase=train,client=west"  # so that it knocks again, should the server have missed it
    sides = {side: start(hosts, side, config, *settings, faults=f"{first};{second};{beside}") for side in SIDES}
    run = hosts.hosts["hub"].disk / "run"
    wait_at(hosts, lost, north=1, other=2)
    hosts.kill("north")
    sides["north"].wait(60)
    lost.touch()
    wait_for(run / "checkpoints" / "round_000003" / "manifest.json")
    hosts.boot("north")
    sides["north"] = start(hosts, "north", config, *settings)
    wait_for(hosts.hosts["north"].disk / "run" / "log.rank1.txt", "it waits to be let in")
    back.touch()
    assert [side.wait(500) for side in sides.values()] == [0, 0, 0]
    log = hosts.log("hub", 0)
    assert "going on without rank 1: " in log and "rank 1 (north, host `north`)" in log
    assert "rank 1 is back; all go on together" in log and "are not where the clients live" not in log
    status = json.loads((run / "status.json").read_text())
    assert (status["reason"], status["round"]) == ("done", 8)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_of_two_silos_that_are_lost_one_comes_back(network: Callable[..., Network], tiny_data: Path) -> None:
    """What the one that is away has told before is not asked for again."""
    hosts = network(names=("hub", "north", "south", "west"))
    pinned = {"north": 1, "south": 2, "west": 3}
    config = prepare(hosts, tiny_data, **PATIENT, end_timeout=3.0, pinned=pinned)
    settings = ["clients.on_loss=continue", "clients.min=1", "clients.min_silos=1", "rounds=8"]
    (first, lost), (second, back) = gate(hosts, 1), gate(hosts, 3)
    faults = f"{first};{second};sleep:rank=1,phase=train"
    sides = {side: start(hosts, side, config, *settings, faults=faults) for side in hosts.hosts}
    run = hosts.hosts["hub"].disk / "run"
    wait_at(hosts, lost, north=1, south=2, west=3)
    for name in ("south", "west"):
        hosts.kill(name)
        sides.pop(name).wait(60)
    lost.touch()
    wait_for(run / "checkpoints" / "round_000003" / "manifest.json")
    hosts.boot("south")
    sides["south"] = start(hosts, "south", config, *settings)
    wait_for(hosts.hosts["south"].disk / "run" / "log.rank2.txt", "it waits to be let in")
    back.touch()
    assert [side.wait(500) for side in sides.values()] == [0, 0, 0]
    assert "rank 2 is back; all go on together" in hosts.log("hub", 0)
    manifests = sorted((run / "checkpoints").glob("round_*/manifest.json"))
    homes = json.loads(manifests[-1].read_text())["manifest"]["homes"]
    assert homes == {"north": "north", "south": "south", "west": "west"}, "where the states are, of the one away too"
    assert json.loads((run / "status.json").read_text())["reason"] == "done without 1 lost clients: west"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_institution_is_added_and_another_one_removed(network: Callable[..., Network], tiny_data: Path) -> None:
    """Each time all start once with `--resume force`; whoever stays goes on with its states."""
    hosts = network(names=("hub", "north", "south", "west"))
    run = hosts.hosts["hub"].disk / "run"
    prepare(hosts, tiny_data)

    def all_sides(pinned: dict[str, int], *settings: str, options: tuple[str, ...] = ()) -> list[int]:
        config = write_config(hosts.root, hosts.disk / "run", hosts.disk / "data", **PATIENT, pinned=pinned)
        sides = [start(hosts, name, config, *settings, options=options) for name in ("hub", *pinned)]
        return [side.wait(300) for side in sides]

    def states(name: str) -> list[int]:
        found = (hosts.hosts[name].disk / "run" / "checkpoints" / "clients").glob(f"{name}-*")
        return sorted(int(path.stem.rpartition("-r")[2]) for path in found)

    force = ("--resume", "force")
    assert all_sides({"north": 1, "south": 2}, "rounds=2") == [0] * 3
    assert states("north") and not states("west")
    assert all_sides({"north": 1, "south": 2, "west": 3}, "rounds=4", options=force) == [0] * 4
    assert "resuming after round 2" in hosts.log("hub", 0)
    assert states("west")[-1] == 4 == states("north")[-1]
    assert all_sides({"north": 1, "west": 2}, "rounds=6", options=force) == [0] * 3
    assert "resuming after round 4" in hosts.log("hub", 0) and states("west")[-1] == 6
    assert json.loads((run / "status.json").read_text())["round"] == 6


WRONG = "known to nobody else at all"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_silo_with_another_secret_ends_alone_and_the_others_wait_for_the_right_one(
    network: Callable[..., Network], tiny_data: Path, tmp_path: Path
) -> None:
    """At the start, and once more when its machine was switched off and comes back with the old secret."""
    hosts = network(names=tuple(SIDES))
    config = prepare(hosts, tiny_data, **PATIENT)
    faults, opened = gate(hosts, 1)
    sides = {side: start(hosts, side, config, "rounds=3", faults=faults) for side in ("hub", "other")}
    log, run = hosts.hosts["hub"].disk / "run" / "log.rank0.txt", hosts.hosts["hub"].disk / "run"
    for times in (1, 2):
        wrong = start(hosts, "north", config, "rounds=3", secret=WRONG, stderr=subprocess.PIPE)
        assert wrong.wait(300) == 4
        assert wrong.stderr is not None and "is not that of the server at 10.83.0.1:29500" in wrong.stderr.read()
        own = json.loads((hosts.hosts["north"].disk / "run" / "status.json").read_text())
        assert (own["code"], own["silo"], own["state"]) == (4, "north", "failed")
        assert log.read_text().count("rank 1 (north, on host `north`, by its own words) came with another") == times
        assert all(side.poll() is None for side in sides.values()), "the others wait"
        if not (run / "checkpoints").exists():
            sides["north"] = start(hosts, "north", config, "rounds=3", faults=faults)
            wait_at(hosts, opened, north=1, other=2)
            hosts.kill("north")
            sides.pop("north").wait(60)
            opened.touch()
            hosts.boot("north")
    sides["north"] = start(hosts, "north", config, "rounds=3")
    assert [side.wait(500) for side in sides.values()] == [0, 0, 0]
    assert digest(run) == of_one_process(tmp_path, tiny_data, "rounds=3")


def ports(hosts: Network, name: str) -> set[int]:
    """At which a host listens."""
    lines = [line.split() for line in hosts.command(name, "cat /proc/net/tcp /proc/net/tcp6").splitlines()]
    return {int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A"}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("on_loss", ["restart", "continue"])
def test_a_silo_shows_its_rounds_in_plain_words_and_listens_at_known_ports(
    on_loss: str, network: Callable[..., Network], tiny_data: Path
) -> None:
    hosts = network(names=tuple(SIDES))
    config = prepare(hosts, tiny_data, timeout=60.0, start_timeout=90.0, ports="40000-40999")
    settings = ["rounds=3", f"clients.on_loss={on_loss}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    sides = {side: start(hosts, side, config, *settings, **pipes) for side in SIDES}
    found, before = set[int](), set[tuple[str, int]]()
    while any(side.poll() is None for side in sides.values()):
        now = {(name, port) for name in SIDES for port in ports(hosts, name)}
        found |= {port for _, port in now & before}  # gloo's that do not fit are closed in a moment
        before = now
        time.sleep(0.1)
    said = {name: side.communicate()[0] for name, side in sides.items()}
    assert [side.returncode for side in sides.values()] == [0, 0, 0], said
    assert len(found) > 2 and not {port for port in found if not 40000 <= port <= 40999} - {29500}
    for text in said.values():
        assert not [line for line in text.splitlines() if "frame #" in line or "[W" in line or "socket.cpp" in line]
    for name, clients in (("north", "north"), ("other", "south and west")):
        assert all(f"round {number}/3  silo {clients}" in said[name] for number in (1, 2, 3))
        own = json.loads((hosts.hosts[name].disk / "run" / "status.json").read_text())
        assert (own["silo"], own["state"], own["round"], own["code"]) == (clients, "done", 3, 0)
        assert "join --server 10.83.0.1:29500 --silo" in own["command"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_with_one_silo_left_the_run_waits_for_the_others(network: Callable[..., Network], tiny_data: Path) -> None:
    """Of one alone the sum is its update."""
    hosts = network(names=tuple(SIDES))
    config = prepare(hosts, tiny_data, **PATIENT)
    settings = ["clients.on_loss=continue", "rounds=6"]
    faults, opened = gate(hosts, 1)
    sides = {side: start(hosts, side, config, *settings, faults=faults) for side in SIDES}
    run = hosts.hosts["hub"].disk / "run"
    wait_at(hosts, opened, north=1, other=2)
    hosts.kill("north")
    sides["north"].wait(60)
    opened.touch()
    wait_for(run / "log.rank0.txt", "1 silos are left after a loss, but clients.min_silos is 2")
    hosts.boot("north")
    sides["north"] = start(hosts, "north", config, *settings)
    assert [side.wait(500) for side in sides.values()] == [0, 0, 0]
    assert json.loads((run / "status.json").read_text())["reason"] == "done"


def test_a_taken_port_is_said_with_the_option_that_changes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDTORCH_JOB_SECRET", SECRET["FEDTORCH_JOB_SECRET"])
    config = write_config(tmp_path, tmp_path / "run", tmp_path / "data")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert serve.main(["--listen", f"127.0.0.1:{port}", "--config", config], prog="fedtorch serve") == 4
    message = f"port {port} of 127.0.0.1 is taken by another program; set `--listen` to a free one"
    assert message in capfd.readouterr().err
    assert message in json.loads((tmp_path / "run" / "status.json").read_text())["reason"]


class Noted:
    """In place of `Kept`: what a rank would be started with."""

    def __init__(self, into: list[dict[str, str]], environ: dict[str, str]) -> None:
        into.append(environ)

    def run(self, max_restarts: int) -> int:
        return 0


def test_a_secret_from_a_file_is_used_and_the_command_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[dict[str, str]]()
    monkeypatch.delenv("FEDTORCH_JOB_SECRET", raising=False)
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o600)
    monkeypatch.setattr(silo, "Kept", lambda words, environ, *_: Noted(started, environ))
    config = write_config(tmp_path, tmp_path / "run", tmp_path / "data")
    assert serve.main(["--listen", "10.83.0.1:7", "--config", config, "--secret-file", str(path)]) == 0
    assert started[0]["FEDTORCH_JOB_SECRET"] == "0123456789abcdef"
    command = started[0]["FEDTORCH_COMMAND"]
    assert f"--secret-file {path}" in command and "0123456789" not in command


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_silo_that_comes_back_after_the_end_hears_of_it_though_the_server_was_down_meanwhile(
    network: Callable[..., Network], tiny_data: Path
) -> None:
    hosts = network(names=tuple(SIDES))
    config = prepare(hosts, tiny_data, **PATIENT, end_timeout=800.0)
    settings = ["clients.on_loss=continue", "clients.min=1", "clients.min_silos=1", "rounds=3"]
    faults, opened = gate(hosts, 1)
    sides = {side: start(hosts, side, config, *settings, faults=faults) for side in SIDES}
    run, own = hosts.hosts["hub"].disk / "run", hosts.hosts["north"].disk / "run" / "model"
    wait_at(hosts, opened, north=1, other=2)
    hosts.kill("north")
    sides.pop("north").wait(60)
    opened.touch()
    wait_for(run / "unheard.json")
    assert sides.pop("other").wait(60) == 0 and sides["hub"].poll() is None and not own.exists()
    result = (run / "results.json").read_bytes()
    hosts.kill("hub")
    sides.pop("hub").wait(60)
    hosts.boot("north")
    hosts.boot("hub")
    sides = {side: start(hosts, side, config, *settings) for side in ("north", "hub")}
    assert [side.wait(500) for side in sides.values()] == [0, 0]
    assert {path.name for path in own.iterdir()} == {"north"}
    assert json.loads((run / "status.json").read_text())["reason"] == "done without 1 lost clients: north"
    assert (run / "results.json").read_bytes() == result and not (run / "unheard.json").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_losses_with_good_rounds_between_them_end_no_side(
    network: Callable[..., Network], tiny_data: Path, tmp_path: Path
) -> None:
    """North dies in three rounds; every side has two restarts, and gets them back with every saved round."""
    hosts = network(names=tuple(SIDES))
    config = prepare(hosts, tiny_data, **PATIENT)
    gates = [gate(hosts, round) for round in (1, 2, 3)]
    faults = ";".join(fault for fault, _ in gates)
    sides = {side: start(hosts, side, config, "rounds=4", "--max-restarts=2", faults=faults) for side in SIDES}
    run = hosts.hosts["hub"].disk / "run"
    for _, opened in gates:
        wait_at(hosts, opened, north=1, other=2)
        hosts.command("north", "kill -9 $(pgrep -P $(pgrep -o -f fedtorch.cli))")
        opened.touch()
    assert [side.wait(500) for side in sides.values()] == [0, 0, 0]
    assert digest(run) == of_one_process(tmp_path, tiny_data, "rounds=4")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rule", ["stop", "skip"])
def test_a_silo_that_dies_at_the_same_place_each_time_costs_the_others_three_attempts(
    rule: str, network: Callable[..., Network], tiny_data: Path
) -> None:
    hosts = network(names=tuple(SIDES))
    config = prepare(hosts, tiny_data, timeout=30.0, start_timeout=90.0)
    settings = ["rounds=3", f"clients.on_repeated_loss={rule}", "clients.min_silos=1"]  # one goes on alone
    faults = "kill:rank=1,round=1,phase=train,client=north"
    sides = {side: start(hosts, side, config, *settings, faults=faults) for side in SIDES}
    assert [side.wait(500) for side in sides.values()] == [6 if rule == "stop" else 0] * 3
    status = json.loads((hosts.hosts["hub"].disk / "run" / "status.json").read_text())
    if rule == "stop":
        assert (
            "a worker died 3 times while it worked on client `north` (rank 1), each time at the same place"
            in (status["reason"])
        )
    else:
        assert (status["reason"], status["round"]) == ("done without 1 lost clients: north", 3)


def test_a_server_whose_restarts_are_used_up_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTORCH_JOB_SECRET", SECRET["FEDTORCH_JOB_SECRET"])
    monkeypatch.setattr(silo, "Kept", lambda *about: Kept(*about, rank=lambda arguments: 7))
    config = write_config(tmp_path, tmp_path / "run", tmp_path / "data")
    words = ["--listen", "10.83.0.1:7", "--config", config, "--max-restarts", "0"]
    assert serve.main(words, prog="fedtorch serve") == 9
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["code"] == 9 and "no restart is left of 0" in status["reason"]
    assert status["command"].endswith(f"--config {config} --max-restarts 0")


def test_both_sides_say_what_the_other_will_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = list[dict[str, str]]()

    class Started:
        def __init__(self, arguments: object, environ: dict[str, str], *_: object) -> None:
            started.append(environ)

        def run(self, max_restarts: int) -> int:
            return 0

    monkeypatch.setenv("FEDTORCH_JOB_SECRET", SECRET["FEDTORCH_JOB_SECRET"])
    monkeypatch.setattr(silo, "Kept", Started)
    config = write_config(tmp_path, tmp_path / "run", tmp_path / "data")
    assert serve.main(["--listen", "[fd00::1]:7", "--config", config], prog="fedtorch serve") == 0
    assert join.main(["--server", "[fd00::1]:7", "--config", config, "--silo", "west"], prog="fedtorch join") == 0
    said = capsys.readouterr().out
    assert "rank 0 of 3, at [fd00::1]:7; waits for north (rank 1), south and west (rank 2)" in said
    assert "silo south and west, rank 2 of 3, of the server" in said and "from which text can be inferred" in said
    assert "at most 60 s (system.start_timeout), and after the run's end" in said and "at most 60 s (system.end" in said
    assert "every time for the others, at most 60 s" in said and "from before" not in said
    assert [environ.get("FEDTORCH_STAY") for environ in started] == ["60.0", None]
    assert [(environ["MASTER_ADDR"], environ["RANK"]) for environ in started] == [("fd00::1", "0"), ("fd00::1", "2")]
