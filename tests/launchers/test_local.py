"""Ranks on this machine under our own launcher: small programs in place of training, and two real runs."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from ranks import expect_exit
from supervisor import Ended, as_rank, at, toy_config

from fedtorch.core.errors import ConfigError, RestartsError
from fedtorch.main import main
from launchers import job as jobs
from launchers import local, restarts
from launchers.fork_server import ForkServer
from launchers.job import Job
from launchers.local import ranks_of
from launchers.pool import hold

ROOT = Path(__file__).parents[2]
SAVES = "trap 'echo $RANK >> saved; exit 75' TERM; touch ready$RANK; while :; do sleep 0.05; done"


def job(folder: Path, script: str, ranks: int = 3) -> Job:
    return Job(["bash", "-c", f"cd {folder}; {script}"], folder, ranks)


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "GRACE_S", 0.3)
    monkeypatch.setattr(restarts, "PAUSE_S", 0.05)


@pytest.mark.processes
def test_ranks_get_the_environment_of_torchrun_and_each_a_log(tmp_path: Path) -> None:
    script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR $TORCHELASTIC_RESTART_COUNT"
    assert job(tmp_path, script).run(0) == 0
    assert (tmp_path / "output.rank2.txt").read_text() == "2 2 3 127.0.0.1 0\n"
    assert sorted(path.name for path in tmp_path.glob("output*")) == ["output.rank1.txt", "output.rank2.txt"]


@pytest.mark.processes
def test_a_dead_rank_is_restarted_with_all_others(tmp_path: Path) -> None:
    script = '[ "$RANK$TORCHELASTIC_RESTART_COUNT" = 20 ] && kill -9 $$; echo $RANK >> ran; [ $RANK = 0 ] && sleep 0.6'
    assert job(tmp_path, f"{script}; exit 0").run(1) == 0
    assert sorted((tmp_path / "ran").read_text().split()) == ["0", "0", "1", "1", "2"]


@pytest.mark.processes
def test_restarts_are_used_up(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RestartsError, match="no restart is left of 2; the last attempt ended with SIGKILL"):
        job(tmp_path, "echo $RANK >> ran; [ $RANK = 1 ] && kill -9 $$; sleep 100").run(2)
    assert len((tmp_path / "ran").read_text().split()) == 9
    assert "rank 1 ended with SIGKILL (exit code -9, by hand or, if `dmesg` says so, for want of memory)" in (
        capfd.readouterr().err
    )


@pytest.mark.processes
def test_a_saved_round_gives_all_restarts_back(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Rank 0 alone says so; a job has as many attempts as it saves rounds, and its restarts beside."""
    saves = "[ $RANK = 0 ] && [ $TORCHELASTIC_RESTART_COUNT -lt 3 ] && date +%N > $FEDTORCH_SAVED"
    ends = "echo $TORCHELASTIC_RESTART_COUNT$TORCHELASTIC_MAX_RESTARTS:$FEDTORCH_SAVED >> ran$RANK"
    with pytest.raises(RestartsError, match="no restart is left of 1; the last attempt ended with SIGKILL"):
        job(tmp_path, f"{ends}; {saves}; [ $RANK = 0 ] && kill -9 $$; sleep 100").run(1)
    assert [line.partition(":")[0] for line in (tmp_path / "ran0").read_text().split()] == ["01", "12", "23", "34"]
    assert (tmp_path / "ran1").read_text().splitlines()[0] == "01:"
    assert capfd.readouterr().err.count("restart 1 of 1") == 3


@pytest.mark.processes
def test_a_rank_that_returns_alone_has_its_returns_back_with_a_saved_round(tmp_path: Path) -> None:
    """Rank 1 dies four times; the server saves a round before each of the first three."""
    server = 'for n in 1 2 3; do until [ "$(cat ran1 2> /dev/null | wc -l)" -ge $n ]; do sleep 0.02; done; '
    server += "date +%N > $FEDTORCH_SAVED; touch saved$n; done; sleep 1.5; exit 0"
    worker = (
        "echo >> ran1; n=$(cat ran1 | wc -l); until [ -e saved$n ] || [ $n -gt 3 ]; do sleep 0.02; done; kill -9 $$"
    )
    script = f"[ $RANK = 0 ] && {{ {server}; }}; {worker}"
    words = ["bash", "-c", f"cd {tmp_path}; {script}"]
    found = Job(words, tmp_path, 2, goes_on=True, max_returns=1)
    found._is_the_end = lambda rank, code, store, server_lives: rank == 0  # type: ignore[method-assign,assignment]
    assert found.run(0) == 0
    assert len((tmp_path / "ran1").read_text().splitlines()) == 4, "with one return in all it would have been 2"


@pytest.mark.processes
@pytest.mark.parametrize("code", [2, 3, 4, 5, 6, 8, 75])
def test_what_a_restart_would_only_repeat_is_not_restarted(code: int, tmp_path: Path) -> None:
    assert job(tmp_path, f"echo $RANK >> ran; exit {code}").run(3) == code
    assert len((tmp_path / "ran").read_text().split()) == 3


@pytest.mark.processes
def test_a_quorum_lost_with_a_worker_is_restarted(tmp_path: Path) -> None:
    first = "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && { [ $RANK = 2 ] && kill -9 $$; exit 5; }"
    assert job(tmp_path, f"{first}; exit 0").run(1) == 0


@pytest.mark.processes
def test_the_first_signal_reaches_every_rank_once_and_all_save(tmp_path: Path) -> None:
    def stop() -> None:
        while len(list(tmp_path.glob("ready*"))) < 3:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    assert job(tmp_path, SAVES).run(3) == 75
    assert sorted((tmp_path / "saved").read_text().split()) == ["0", "1", "2"]


@pytest.mark.processes
def test_a_run_folder_has_one_job_at_a_time(tmp_path: Path) -> None:
    lock = hold(tmp_path)
    assert lock is not None
    with pytest.raises(ConfigError, match="another process runs"):
        job(tmp_path, "true").run(0)
    os.close(lock)


def start(config: Path, faults: str, *sets: str) -> subprocess.CompletedProcess[str]:
    words = ["--config", str(config), "--ranks", "3", "--max-restarts", "4", "--set", "clients.on_loss=continue", *sets]
    environ = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}",
        "FEDTORCH_TESTING": "1",
        "FEDTORCH_FAULTS": faults,
    }
    command = [sys.executable, "-m", "launchers.local", *words]
    return subprocess.run(command, env=environ, cwd=config.parent, capture_output=True, text=True, timeout=380)


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_a_run_goes_on_without_a_lost_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bits of a run in one process in which the lost worker's clients fail from that round on."""
    config, sets = toy_config(tmp_path), ["clients.per_round=all", "client.optimizer_state=reset", "eval.every=0"]
    done = start(config, at("train", 2), *sets)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "for want of memory); the others decide" in done.stderr and "restart 1" not in done.stderr
    ended = Ended(tmp_path / "run")
    lost = json.loads((tmp_path / "run" / "results.json").read_text())["lost"]
    assert lost and set(lost.values()) == {2} and len(lost) < 4
    asked = f"--config {config} --ranks 3 --max-restarts 4 --set clients.on_loss=continue {' '.join(sets)}"
    assert ended.status["command"] == f"python -m launchers.local {asked}"
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for name in lost:
        mine = [record["status"] for record in records if record.get("client") == name and "status" in record]
        assert mine == ["ok", "failed:Lost"]
    reason = f"done without {len(lost)} lost clients: {', '.join(lost)}"
    assert ended.status["code"] == 0 and ended.status["reason"] == reason
    monkeypatch.setenv("FEDTORCH_TESTING", "1")
    monkeypatch.setenv("FEDTORCH_FAULTS", ";".join(f"raise:client={name},round={n}" for name in lost for n in (1, 2)))
    assert main(["--config", str(config), "--set", *sets, f"run.dir={tmp_path / 'alone'}"]) == 0
    assert ended.digest == Ended(tmp_path / "alone").digest


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_lost_rank_is_started_again_and_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local, "PROGRAM", (sys.executable, "-m", "patient"))
    monkeypatch.setattr(ForkServer, "begin", lambda arguments: None)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests/support'}")
    monkeypatch.setenv("FEDTORCH_TESTING", "1")
    monkeypatch.setenv("FEDTORCH_FAULTS", at("train", 2))
    words = ["--config", str(toy_config(tmp_path)), "--ranks", "3", "--max-returns", "1"]
    assert local.main([*words, "--set", "clients.on_loss=continue", "rounds=5"]) == 0
    said = capfd.readouterr().err
    assert "rank 2 is back; all go on together" in said and "restart 1" not in said
    status = Ended(tmp_path / "run").status
    assert "--max-returns 1" in status["command"] and status["reason"] == "done"


@pytest.mark.processes
@pytest.mark.parametrize("sets", [["clients.on_loss=restart"], ["system.ranks_per_worker=2"]])
def test_only_a_run_that_goes_on_lets_single_ranks_in(
    sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--config", str(toy_config(tmp_path)), "--ranks", "3", "--max-returns", "1", "--set"]
    assert local.main([*words, "clients.on_loss=continue", *sets]) == 2
    assert "--max-returns is for runs that go on without a lost rank" in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_lost_server_is_restarted_to_the_same_bits(tmp_path: Path) -> None:
    config = toy_config(tmp_path)
    done = start(config, at("aggregate", 0))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rank 0 ended with SIGKILL" in done.stderr and "restart 1 of 4" in done.stderr
    assert main(["--config", str(config), "--set", f"run.dir={tmp_path / 'alone'}"]) == 0
    assert Ended(tmp_path / "run").digest == Ended(tmp_path / "alone").digest


@pytest.mark.processes
def test_a_gpu_that_fails_ends_the_run_with_its_client_and_step_and_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDTORCH_TESTING", "1")
    monkeypatch.setenv("FEDTORCH_FAULTS", "gpu:round=1,client=b,step=1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "support"))
    monkeypatch.setattr(jobs, "GRACE_S", 60.0)  # for the server to end by itself
    monkeypatch.setattr(ForkServer, "begin", lambda arguments: None)  # a fork would print to this process's streams
    config, named = toy_config(tmp_path), "the GPU failed in round 2, in step 2 of client b (AcceleratorError: CUDA"
    settings = ["--set", "clients.per_round=all", "--set", "system.server_works=false"]
    assert local.main(["--config", str(config), "--ranks", "3", "--max-restarts", "3", *settings]) == 11
    printed, path = capfd.readouterr().err, tmp_path / "run" / "output.rank1.txt"
    assert f"rank 1 ended with exit code 11 (why: {path})" in printed and named in path.read_text()
    reason = "rank 1 left the job with DeviceError: client `b`, round 1, phase train, step 1; its log has the reason"
    assert f"fedtorch: {reason}" in printed and Ended(tmp_path / "run").status["reason"] == reason
    assert not list(tmp_path.rglob("*attempt1*"))
    faults = {name: os.environ[name] for name in ("FEDTORCH_TESTING", "FEDTORCH_FAULTS")}
    words = ["--config", str(config), "--resume", "never", *settings[:2]]
    (alone,) = expect_exit(as_rank, 1, words, environ=faults)
    assert alone.exit_code == 11 and named in Ended(tmp_path / "run").log(0)
    status = Ended(tmp_path / "run").status
    assert (status["code"], status["state"]) == (11, "failed") and named in status["reason"]


@pytest.mark.parametrize(("gpus", "cores", "ranks"), [(8, 4, 9), (1, 4, 2), (0, 4, 4), (0, 1, 2), (0, None, 2)])
def test_ranks_follow_from_what_the_machine_has(
    gpus: int, cores: int | None, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedtorch.core.devices.names", lambda: [str(number) for number in range(gpus)])
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert ranks_of("auto") == ranks and ranks_of("5") == 5
    with pytest.raises(argparse.ArgumentTypeError, match="'some' is no number; give one, or auto"):
        ranks_of("some")
