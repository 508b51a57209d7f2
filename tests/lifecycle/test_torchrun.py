"""What only real processes show: torchrun's restart after a SIGKILL, and a signal to a run in one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranks import run_ranks

from fedtorch.main import main
from tests.test_main import TINY

pytestmark = pytest.mark.processes

SUICIDAL = '''
"""FedAvg whose client `south` kills its rank in the second round of the first attempt."""

import os
import signal
from dataclasses import dataclass

from fedtorch.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class Suicidal(FedAvg):
    def client_update(self, job):
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0" and "RANK" in os.environ
        if first and job.client.name == "south" and job.round == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().client_update(job)
'''


@pytest.fixture
def config(tmp_path: Path, tiny_data: Path) -> Path:
    (tmp_path / "suicidal.py").write_text(SUICIDAL)
    path = tmp_path / "tiny.yaml"
    text = TINY.replace("DIR", str(tmp_path / "run")).replace("DATA", str(tiny_data))
    path.write_text(text.replace("{name: fedavg, weights: lorar}", '{name: "suicidal:Suicidal", weights: lorar}'))
    return path


def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}


def digest(run: Path) -> str:
    found: str = json.loads((run / "results.json").read_text())["digest"]
    return found


def as_torchrun(config: str, folder: str) -> None:
    """torchrun's own agent in this process, which forks two ranks and starts them again."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    sys.path.insert(0, folder)
    job = {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 2, "max_restarts": 1, "monitor_interval": 0.1}
    store = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": folder}
    elastic_launch(LaunchConfig(**job, **store, start_method="fork"), main)(["--config", config])


@pytest.mark.timeout(100)
def test_torchruns_agent_starts_ranks_again_after_a_sigkill_and_they_end_with_the_same_bits(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(config.read_text() + "checkpoint: {every: 1}\n")
    run_ranks(as_torchrun, 1, str(config), str(tmp_path), timeout=90)
    assert "resuming after round 1" in (tmp_path / "run" / "log.rank0.txt").read_text()
    assert json.loads((tmp_path / "run" / "env.json").read_text())["ranks"] == 2
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["--config", str(config), "--set", f"run.dir={tmp_path / 'alone'}"]) == 0
    assert digest(tmp_path / "run") == digest(tmp_path / "alone")


@pytest.mark.slow  # four interpreters; the test above has the same agent and as many ranks
@pytest.mark.timeout(240)
def test_torchrun_restarts_after_a_sigkill_and_ends_with_the_same_bits(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*torchrun, "--max-restarts=1", "-m", "fedtorch.main", "--config", str(config)]
    command += ["--set", "checkpoint.every=1"]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "resuming after round 1" in done.stderr
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["--config", str(config), "--set", f"run.dir={tmp_path / 'alone'}"]) == 0
    assert digest(tmp_path / "run") == digest(tmp_path / "alone")


@pytest.mark.slow  # six interpreters; tests/invariance has as many ranks from a fork server
@pytest.mark.timeout(240)
def test_five_ranks_under_torchrun_give_the_bits_of_one_process(tmp_path: Path) -> None:
    """The README's command, on a smaller job: a server and four workers."""
    config = ["-m", "fedtorch.main", "--config", "smoke/fedavg", "--set", "track.tensorboard=false"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=5", *config]
    command = [*torchrun, f"run.dir={tmp_path / 'five'}"]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((tmp_path / "five" / "env.json").read_text())["ranks"] == 5
    assert main([*config[2:], f"run.dir={tmp_path / 'one'}"]) == 0
    assert digest(tmp_path / "five") == digest(tmp_path / "one")


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_sigterm_saves_and_exits_with_75_and_the_run_resumes_to_the_same_bits(config: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedtorch.main", "--config", str(config), "--set", "rounds=30"]
    process = subprocess.Popen(command, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    metrics = tmp_path / "run" / "metrics.jsonl"
    give_up = time.monotonic() + 100
    while time.monotonic() < give_up and not (metrics.exists() and '"round"' in metrics.read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 75, output
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "interrupted" and "fedtorch.main" in status["command"]
    assert subprocess.run(command, env=environment(tmp_path), capture_output=True, timeout=100).returncode == 0
    whole = [*command, f"run.dir={tmp_path / 'whole'}"]
    assert subprocess.run(whole, env=environment(tmp_path), capture_output=True, timeout=100).returncode == 0
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")
