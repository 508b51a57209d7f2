"""`fedtorch join --policy`: what is said before any rank meets, what is refused, and what the others hear of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from parties import PARTIES, SYSTEM, make_places, write_config
from ranks import free_port

from fedtorch.cli.__main__ import main
from fedtorch.setup.code import codes_of

pytest.importorskip("cryptography")

POLICY: dict[str, Any] = {
    "may_leave": {
        "parameters": ["*"],
        "reports": ["status", "steps", "examples", "losses", "norms", "seconds", "figures"],
        "scores": True,
    }
}


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A folder for each party, with its rows, key, list of members and config; south has a policy."""
    make_places(tmp_path)
    write_config(tmp_path, run={"dir": "run", "name": "policy"}, system=SYSTEM)
    write_policy(tmp_path)
    return tmp_path


def write_policy(places: Path, **sections: Any) -> None:
    (places / "south" / "policy.yaml").write_text(json.dumps({**POLICY, **sections}))


def dry(places: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of south's `join --policy --dry-run`, whose server is nowhere."""
    monkeypatch.chdir(places / "south")
    where = ["--config", "config.yaml", "--server", "127.0.0.1:1", "--silo", "south"]
    return main(["join", *where, "--policy", "policy.yaml", "--dry-run", *words])


def start(places: Path, name: str, port: int, *words: str) -> subprocess.Popen[str]:
    side = ["serve", "--listen"] if name == "hub" else ["join", "--silo", name, "--server"]
    command = [sys.executable, "-m", "fedtorch", *side, f"127.0.0.1:{port}", "--config", "config.yaml", *words]
    return subprocess.Popen(command, cwd=places / name, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(started: dict[str, subprocess.Popen[str]]) -> dict[str, tuple[int, str]]:
    said = {name: process.communicate(timeout=200)[0] for name, process in started.items()}
    return {name: (process.returncode, said[name]) for name, process in started.items()}


def test_a_dry_run_says_every_line_and_meets_nobody(
    places: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_policy(places, limits={"rounds": 2}, require={"secure_sum": {"parties": 3}})
    assert dry(places, monkeypatch) == 11
    lines = capfd.readouterr().out.splitlines()
    assert any(line.startswith("allowed        may_leave.parameters: updates of bert.") for line in lines)
    assert "refused        require.secure_sum: no secure sum, and 3 are required" in lines
    assert (
        "allowed        limits.rounds: 2 rounds, of at most 2" in lines and lines[-1] == "1 of 11 lines refuse the run"
    )
    assert not (places / "south" / "run").exists()


def test_a_run_that_fits_is_said_to(
    places: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert dry(places, monkeypatch) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "no line refuses the run"


def test_code_that_the_policy_does_not_name_is_not_even_imported(
    places: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (places / "south" / "mine.py").write_text("raise SystemExit('imported')\n")
    write_policy(places, code=[each.digest for each in codes_of([])])
    assert dry(places, monkeypatch, "--set", "algorithm.name=mine:Mine") == 11
    told = capfd.readouterr()
    assert "refused        code: mine.py" in told.out and "policy.yaml:1: code: mine.py" in told.err


@pytest.mark.processes
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--policy", "none.yaml"], "--policy is none.yaml, which cannot be read"),
        (
            ["--policy", "policy.yaml", "--set", "trust.members=null", "trust.key=null"],
            "--policy is given but trust.members is not set",
        ),
        (["--dry-run"], "--dry-run goes with --policy FILE"),
    ],
)
def test_what_cannot_be_ends_with_code_2(
    options: list[str], said: str, places: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(places / "south")
    where = ["--config", "config.yaml", "--server", "127.0.0.1:1", "--silo", "south"]
    assert main(["join", *where, *options]) == 2 and said in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.processes
def test_a_run_goes_through_a_gate_to_its_end_with_the_same_bits(places: Path) -> None:
    digests = set()
    for words in ([], ["--policy", "policy.yaml"]):
        port = free_port()
        started = {name: start(places, name, port, "--resume", "never") for name in PARTIES.values() if name != "south"}
        started["south"] = start(places, "south", port, "--resume", "never", *words)
        found = ended(started)
        assert {name: code for name, (code, _) in found.items()} == dict.fromkeys(started, 0), found
        digests.add(json.loads((places / "hub" / "run" / "results.json").read_text())["digest"])
    assert len(digests) == 1
    decisions = [json.loads(line) for line in (places / "south" / "run" / "policy.jsonl").read_text().splitlines()]
    updates = [each for each in decisions if "root" in each]
    assert [each["at"] for each in updates] == ["round 0", "round 1"] and {each["client"] for each in updates} == {
        "south"
    }
    assert {each["verdict"] for each in decisions} <= {"allowed", "not asked for"}


def children(process: subprocess.Popen[str]) -> dict[str, int]:
    """Process ids of a side's gate and of its rank."""
    found = {}
    for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        is_gate = b"fedtorch.lifecycle.gate" in Path(f"/proc/{pid}/cmdline").read_bytes()
        found["gate" if is_gate else "rank"] = int(pid)
    return found


def killed(places: Path, which: str) -> dict[str, subprocess.Popen[str]]:
    """All sides, of which one process of south's was killed once it had let out an update."""
    port, words = free_port(), ("--set", "rounds=12", "checkpoint.every=1", f"run.dir={places / 'run'}")
    started = {name: start(places, name, port, *words) for name in PARTIES.values() if name != "south"}
    south = started["south"] = start(places, "south", port, *words, "--policy", "policy.yaml")
    written, give_up_at = places / "run" / "policy.jsonl", time.monotonic() + 180
    while not (written.exists() and '"at": "round 1"' in written.read_text()) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    os.kill(children(south)[which], signal.SIGKILL)
    return started


@pytest.mark.slow
@pytest.mark.processes
def test_a_rank_that_was_killed_goes_on_with_the_same_gate(places: Path) -> None:
    found = ended(killed(places, "rank"))
    assert {name: code for name, (code, _) in found.items()} == dict.fromkeys(found, 0), found
    assert "started again" in found["south"][1]
    decisions = [json.loads(line) for line in (places / "run" / "policy.jsonl").read_text().splitlines()]
    assert {each["at"] for each in decisions if "root" in each} == {f"round {number}" for number in range(12)}
    assert "refused" not in {each["verdict"] for each in decisions}


@pytest.mark.slow
@pytest.mark.processes
def test_a_gate_that_was_killed_ends_its_side_and_nothing_leaves_any_more(places: Path) -> None:
    started = killed(places, "gate")
    try:
        code, said = ended({"south": started["south"]})["south"]
        assert code == 11 and "this side's gate has ended" in said, said
        let_out = (places / "run" / "policy.jsonl").read_text()
    finally:
        for process in started.values():
            process.kill()  # the others wait for it, and start again and again
            process.communicate()
    assert (places / "run" / "policy.jsonl").read_text() == let_out


@pytest.mark.slow
@pytest.mark.processes
def test_the_others_hear_that_a_silo_refuses_and_nothing_else(places: Path) -> None:
    write_policy(places, limits={"rounds": 1})
    port = free_port()
    started = {name: start(places, name, port) for name in PARTIES.values() if name != "south"}
    started["south"] = start(places, "south", port, "--policy", "policy.yaml")
    found = ended(started)
    assert {name: code for name, (code, _) in found.items()} == dict.fromkeys(started, 11), found
    assert "policy.yaml:1: limits.rounds: 2 rounds, of at most 1" in found["south"][1]
    for name in ("hub", "north", "west"):
        assert "south refuses by its policy" in found[name][1] and "limits" not in found[name][1], found[name]
    decisions = [json.loads(line) for line in (places / "south" / "run" / "policy.jsonl").read_text().splitlines()]
    assert [each["line"] for each in decisions if each["verdict"] == "refused"] == ["limits.rounds"]
    assert json.loads((places / "south" / "run" / "status.json").read_text())["code"] == 11


@pytest.mark.slow
@pytest.mark.processes
def test_a_silo_that_refuses_ends_by_itself_where_no_server_comes(places: Path) -> None:
    write_policy(places, limits={"rounds": 1})
    south = start(places, "south", free_port(), "--policy", "policy.yaml", "--set", "system.start_timeout=2")
    code, said = ended({"south": south})["south"]
    assert code == 11 and "limits.rounds: 2 rounds, of at most 1" in said


COUNTED: dict[str, Any] = {"labels": {"longest": 5, "width": 4}, "min_count": 2}


def counts(places: Path, **changes: Any) -> None:
    trust = {"members": "members.yaml", "key": "own.key", "verify": "all"}
    run = {"run": {"dir": "run", "name": "policy"}, "system": SYSTEM}
    write_config(places, paradigm="stats", stats={**COUNTED, **changes}, trust=trust, **run)


@pytest.mark.long
def test_a_count_is_asked_for_by_its_numbers_and_its_epsilon(
    places: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    counts(places, privacy={"epsilon": 4.0, "ledger": "ledgers"})
    write_policy(places, require={"privacy": {"kind": "record", "max_epsilon": 3.0, "delta": 1e-5}})
    assert dry(places, monkeypatch) == 11
    said = capfd.readouterr().out
    assert "updates of counts" in said and "refused        require.privacy: " in said and "epsilon 4" in said
    write_policy(places, require={"privacy": {"kind": "record", "max_epsilon": 4.0, "delta": 1e-5}})
    assert dry(places, monkeypatch) == 0


@pytest.mark.slow
@pytest.mark.processes
def test_a_gate_lets_counts_out_that_its_policy_allows(places: Path) -> None:
    counts(places)
    port = free_port()
    words = {"south": ("--policy", "policy.yaml")}
    told = ended({name: start(places, name, port, *words.get(name, ())) for name in PARTIES.values()})
    assert {name: code for name, (code, _) in told.items()} == dict.fromkeys(PARTIES.values(), 0), told
    assert (places / "south" / "run-stats" / "stats.json").is_file()
