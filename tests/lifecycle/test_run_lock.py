"""One run folder, one run: the second one ends before it has touched anything, whatever has started it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from supervisor import supervise, toy_config

import fedtorch
from fedtorch.config.load import load
from fedtorch.core.errors import ConfigError, DeadlineError
from fedtorch.lifecycle import run_lock
from fedtorch.lifecycle.exit import note_end
from fedtorch.lifecycle.run_lock import NAME, held, is_held
from fedtorch.main import main
from launchers import restarts
from launchers.job import Job
from launchers.keep import Kept
from launchers.pool import Command, Pool, is_locked

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "PATIENCE_S", 0.2)


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its time and content."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def start(*words: str, folder: Path) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, *words], env=environ, cwd=folder, stderr=subprocess.PIPE)


@pytest.mark.processes
@pytest.mark.slow  # the next one is about the same, with torchrun
@pytest.mark.timeout(120)
def test_of_two_runs_in_one_folder_the_first_ends_as_if_alone(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    config = toy_config(tmp_path)
    assert main(["--config", str(config), "--set", f"run.dir={tmp_path / 'alone'}"]) == 0
    words = ["-m", "fedtorch.main", "--config", str(config)]
    first = start(*words, "--set", "rounds=100", folder=tmp_path)
    request.addfinalizer(first.kill)
    run = tmp_path / "run"
    while not (run / "metrics.jsonl").exists():
        assert first.poll() is None
        time.sleep(0.02)
    first.send_signal(signal.SIGSTOP)
    before = everything(run)
    second = start(*words, "--set", "run.seed=7", folder=tmp_path)
    said = second.communicate(timeout=60)[1].decode()
    assert second.returncode == 2
    assert f"another process runs {run}; it is process {first.pid} of " in said
    assert "wait for it, or set run.name or run.dir" in said
    assert everything(run) == before
    assert is_locked(run)  # which `fedtorch sweep status` shows, though no launcher has started it
    first.send_signal(signal.SIGCONT)
    assert first.wait(60) == 0
    assert "seed: 7" not in (run / "config.yaml").read_text()
    assert json.loads((run / "status.json").read_text())["code"] == 0


@pytest.mark.processes
def test_whatever_starts_the_second_run_it_ends_with_2_and_touches_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = toy_config(tmp_path)
    run, words = tmp_path / "run", ["--config", str(config)]
    assert main(words) == 0
    before = everything(run)
    with held([run]):
        assert main([*words, "--resume", "never"]) == 2
        with pytest.raises(ConfigError, match="another process runs"):
            fedtorch.run(config, resume="never")
        with pytest.raises(ConfigError, match="another process runs"):
            Job([sys.executable, "-c", ""], run, 2).run(0)
        told: list[str] = []
        codes, _ = Pool(1, lambda slot: {}, lambda name, event, code: told.append(event)).run(
            [Command("a", ["true"], run)]
        )
        assert (codes, told) == ({}, ["locked"])
    present = {path: content for path, content in everything(run).items() if not path.endswith(NAME)}
    assert present == {path: content for path, content in before.items() if not path.endswith(NAME)}
    assert capfd.readouterr().err.count("another process") == 1


@pytest.mark.processes
def test_a_side_that_is_kept_running_ends_with_2_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fedtorch serve`, which starts the server as this does."""
    monkeypatch.setattr(restarts, "PAUSE_S", 0.0)
    config, said = toy_config(tmp_path), list[str]()
    with held([tmp_path / "run"]):
        server = Kept(["--config", str(config)], {"RANK": "0", "WORLD_SIZE": "1"}, tmp_path / "run", said.append)
        assert server.run(3) == 2
    assert said == []
    assert not (tmp_path / "run" / "status.json").exists()


@pytest.mark.processes
def test_on_ranks_the_second_run_ends_with_2_too(tmp_path: Path) -> None:
    config = toy_config(tmp_path)
    with held([tmp_path / "run"]):
        ended = supervise(config, 2, max_restarts=0, sets=["rounds=3"], grace_s=1.0)
    assert ended.codes[0][0] == 2 and ended.codes[0][1]
    assert not (tmp_path / "run" / "status.json").exists()


@pytest.mark.processes
@pytest.mark.slow  # the one before is the same, without what torchrun prints
@pytest.mark.timeout(120)
def test_under_torchrun_the_second_run_ends_with_the_message(tmp_path: Path) -> None:
    config = toy_config(tmp_path)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    with held([tmp_path / "run"]):
        second = start(*torchrun, "-m", "fedtorch.main", "--config", str(config), folder=tmp_path)
        said = second.communicate(timeout=100)[1].decode()
    assert second.returncode
    assert "fedtorch: another process" in said and "exitcode  : 2" in said
    assert not (tmp_path / "run" / "status.json").exists()


def test_the_folders_of_companions_are_the_runs_too(tmp_path: Path) -> None:
    config = toy_config(tmp_path, compare="[local]")
    with held([tmp_path / "run" / "compare-local"]):
        assert main(["--config", str(config)]) == 2
    assert main(["--config", str(config)]) == 0


@pytest.mark.processes
def test_a_lock_whose_owner_died_is_no_obstacle(tmp_path: Path) -> None:
    config, run = toy_config(tmp_path), tmp_path / "run"
    script = (
        "import sys, time; from pathlib import Path; from fedtorch.lifecycle.run_lock import held\n"
        "with held([Path(sys.argv[1])]): print(end='there', flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", script, run], stdout=subprocess.PIPE)
    assert owner.stdout is not None and owner.stdout.read(5) == b"there"
    assert is_held(run) and main(["--config", str(config)]) == 2
    owner.kill()
    owner.wait()
    assert not is_held(run) and main(["--config", str(config)]) == 0


def test_a_run_waits_for_one_that_was_just_told_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "PATIENCE_S", 30.0)
    before = held([tmp_path])
    before.__enter__()
    monkeypatch.setattr(run_lock.time, "sleep", lambda seconds: before.__exit__(None, None, None))
    with held([tmp_path]) as remarks:
        assert remarks == []


def test_another_machines_lock_is_waited_for_longer_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "ELSEWHERE_S", 0.5)
    monkeypatch.setattr(run_lock, "PATIENCE_S", 0.0)
    with held([tmp_path]):
        (tmp_path / NAME).write_text("process 7 of another\n")
        begun = time.monotonic()
        with pytest.raises(ConfigError, match=rf"process 7 of another.*gone for good, remove {tmp_path / NAME}"):
            held([tmp_path]).__enter__()
    assert time.monotonic() - begun >= 0.5


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_warned_of(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(handle: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", none)
    config = toy_config(tmp_path)
    assert main(["--config", str(config)]) == 0
    log = (tmp_path / "run" / "log.rank0.txt").read_text()
    assert f"WARNING fedtorch: the file system of {tmp_path / 'run'} has no locks ({os.strerror(number)})" in log


@pytest.mark.parametrize(
    ("mount", "found"),
    [
        ("server:/home /data nfs4 rw,vers=4.2,local_lock=none 0 0", ""),
        ("server:/home /data nfs rw,vers=3,nolock,local_lock=all 0 0", "nfs (nolock)"),
        ("server:/home /data nfs4 rw,local_lock=flock 0 0", "nfs4 (local_lock=flock)"),
        ("mgs@tcp:/fs /data lustre rw,localflock 0 0", "lustre (localflock)"),
        ("mgs@tcp:/fs /data lustre rw,flock 0 0", ""),
        ("me@host: /data fuse.sshfs rw 0 0", "fuse.sshfs"),
        ("server:/home /other nfs rw,nolock 0 0", ""),
        ("server:/home /data/my\\040runs nfs rw,nolock 0 0", "nfs (nolock)"),
    ],
)
def test_a_network_file_system_whose_locks_are_local_is_warned_of(mount: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text(f"/dev/vda / ext4 rw 0 0\n{mount}\n")
    assert run_lock._of_one_machine(Path("/data/my runs/run"), tmp_path / "mounts") == found


def test_a_rank_that_waited_for_a_refused_server_writes_nothing_into_the_folder_of_the_run_that_is_there(
    tmp_path: Path,
) -> None:
    config, error = load(toy_config(tmp_path)), DeadlineError("rank 0 (the server) was never there", ranks=(0,))
    with held([config.folder]):
        note_end(config, error, 1, "", begun=time.time())
        assert not (config.folder / "status.json").exists()
    note_end(config, error, 1, "", begun=time.time())
    assert json.loads((config.folder / "status.json").read_text())["code"] == DeadlineError.exit_code


def test_other_ranks_take_no_lock(tmp_path: Path) -> None:
    with held([]) as remarks:
        assert remarks == []
    assert list(tmp_path.iterdir()) == []
