"""Ranks on this machine under our own launcher: small programs in place of training, and two real runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from test_main import TINY

from fedtorch.errors import ConfigError, RestartsError
from launchers import local
from launchers.local import Job
from launchers.pool import hold

SAVES = "trap 'echo $RANK >> saved; exit 75' TERM; touch ready$RANK; while :; do sleep 0.05; done"


def job(folder: Path, script: str, ranks: int = 3) -> Job:
    return Job(["bash", "-c", f"cd {folder}; {script}"], folder, ranks)


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "GRACE_S", 0.3)


def test_ranks_get_the_environment_of_torchrun_and_each_a_log(tmp_path: Path) -> None:
    script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR $TORCHELASTIC_RESTART_COUNT"
    assert job(tmp_path, script).run(0) == 0
    assert (tmp_path / "output.rank2.txt").read_text() == "2 2 3 127.0.0.1 0\n"
    assert sorted(path.name for path in tmp_path.glob("output*")) == ["output.rank1.txt", "output.rank2.txt"]


def test_a_dead_rank_is_restarted_with_all_others(tmp_path: Path) -> None:
    script = '[ "$RANK$TORCHELASTIC_RESTART_COUNT" = 20 ] && kill -9 $$; echo $RANK >> ran; [ $RANK = 0 ] && sleep 0.6'
    assert job(tmp_path, f"{script}; exit 0").run(1) == 0
    assert sorted((tmp_path / "ran").read_text().split()) == ["0", "0", "1", "1", "2"]


def test_restarts_are_used_up(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RestartsError, match="no restart is left of 2; the last attempt ended with SIGKILL"):
        job(tmp_path, "echo $RANK >> ran; [ $RANK = 1 ] && kill -9 $$; sleep 100").run(2)
    assert len((tmp_path / "ran").read_text().split()) == 9
    assert "rank 1 ended with SIGKILL (exit code -9, by hand or, if `dmesg` says so, for want of memory)" in (
        capfd.readouterr().err
    )


@pytest.mark.parametrize("code", [2, 3, 4, 5, 6, 8, 75])
def test_what_a_restart_would_only_repeat_is_not_restarted(code: int, tmp_path: Path) -> None:
    assert job(tmp_path, f"echo $RANK >> ran; exit {code}").run(3) == code
    assert len((tmp_path / "ran").read_text().split()) == 3


def test_a_quorum_lost_with_a_worker_is_restarted(tmp_path: Path) -> None:
    first = "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && { [ $RANK = 2 ] && kill -9 $$; exit 5; }"
    assert job(tmp_path, f"{first}; exit 0").run(1) == 0


def test_the_first_signal_reaches_every_rank_once_and_all_save(tmp_path: Path) -> None:
    def stop() -> None:
        while len(list(tmp_path.glob("ready*"))) < 3:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    assert job(tmp_path, SAVES).run(3) == 75
    assert sorted((tmp_path / "saved").read_text().split()) == ["0", "1", "2"]


def test_a_run_folder_has_one_job_at_a_time(tmp_path: Path) -> None:
    lock = hold(tmp_path)
    assert lock is not None
    with pytest.raises(ConfigError, match="another process runs"):
        job(tmp_path, "true").run(0)
    os.close(lock)


SUICIDAL = '''
import os
import signal
from dataclasses import dataclass

from fedtorch.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class Suicidal(FedAvg):
    """Its client `south`, or its server, kills its rank in the second round of the first attempt."""

    victim: str = "south"

    def client_update(self, job):
        self.die(job.client.name, job.round)
        return super().client_update(job)

    def weigh(self, reports):
        if os.path.exists("weighed"):
            self.die("server", 1)
        open("weighed", "w").close()
        return super().weigh(reports)

    def die(self, who, round):
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0" and "RANK" in os.environ
        if first and who == self.victim and round == 1:
            os.kill(os.getpid(), signal.SIGKILL)
'''


def start(folder: Path, data: Path, *words: str, victim: str) -> subprocess.CompletedProcess[str]:
    (folder / "suicidal.py").write_text(SUICIDAL)
    text = TINY.replace("DIR", str(folder / "run")).replace("DATA", str(data))
    algorithm = f'{{name: "suicidal:Suicidal", weights: lorar, victim: {victim}}}'
    (folder / "tiny.yaml").write_text(text.replace("{name: fedavg, weights: lorar}", algorithm))
    command = [sys.executable, "-m", "launchers.local", "--config", "tiny.yaml", "--ranks", "3", *words]
    environ = {**os.environ, "PYTHONPATH": f"{folder}:{Path.cwd()}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=380)


@pytest.mark.timeout(600)
def test_a_run_goes_on_without_a_lost_worker(tmp_path: Path, tiny_data: Path) -> None:
    done = start(tmp_path, tiny_data, "--set", "clients.on_loss=continue", "rounds=3", victim="south")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "for want of memory); the others decide" in done.stderr and "restart 1" not in done.stderr
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    lost = [record for record in records if record.get("client") == "south" and "status" in record]
    assert [record["status"] for record in lost] == ["ok", "failed:Lost"]
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    lost_clients = results["lost"]  # south, and who lives at the same worker
    assert results["rounds"] == 3 and lost_clients["south"] == 2
    assert set(lost_clients.values()) == {2} and len(lost_clients) < 3
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    names = ", ".join(lost_clients)
    assert status["code"] == 0 and status["reason"] == f"done without {len(lost_clients)} lost clients: {names}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_lost_server_is_restarted_to_the_same_bits(tmp_path: Path, tiny_data: Path) -> None:
    done = start(tmp_path, tiny_data, "--set", "clients.on_loss=continue", "rounds=2", victim="server")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "rank 0 ended with SIGKILL" in done.stderr and "restart 1 of 3" in done.stderr
    alone = [sys.executable, "-m", "fedtorch.main", "--config", "tiny.yaml", "--set", "run.dir=alone", "rounds=2"]
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    assert subprocess.run([*alone, "clients.on_loss=continue"], env=environ, cwd=tmp_path, timeout=200).returncode == 0
    digests = [json.loads((tmp_path / run / "results.json").read_text())["digest"] for run in ("run", "alone")]
    assert digests[0] == digests[1]
