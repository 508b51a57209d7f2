"""The launchers and batch files on a real SLURM, started here on this machine; skipped where it is not installed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import private_slurm
import pytest
from test_main import TINY

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(private_slurm.missing()), reason=f"not installed: {', '.join(private_slurm.missing())}"),
]
Environ = Mapping[str, str]


@pytest.fixture(scope="module")
def environ() -> Iterator[Environ]:
    with tempfile.TemporaryDirectory(prefix="sl") as folder, private_slurm.cluster(Path(folder) / "c") as found:
        python = Path(sys.executable).parent  # batch files say `python`
        yield {**found, "PATH": f"{python}:{found['PATH']}", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def config(tmp_path: Path, tiny_data: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY.replace("DIR", str(tmp_path / "run")).replace("DATA", str(tiny_data)))
    return path


def call(environ: Environ, *words: object, cwd: Path) -> str:
    done = subprocess.run(list(map(str, words)), env=dict(environ), cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wait_for(run: Path, states: set[str], limit_s: float = 400) -> str:
    """The state in status.json, once it is one of `states`."""
    give_up_at = time.monotonic() + limit_s
    while time.monotonic() < give_up_at:
        if (run / "status.json").exists():
            state: str = json.loads((run / "status.json").read_text())["state"]
            if state in states:
                return state
        time.sleep(0.2)
    logs = [path.read_text()[-1500:] for path in run.glob("slurm/*.err")]
    raise TimeoutError(f"{run} did not come to {states}: " + "\n".join(logs))


def digest(run: Path) -> str:
    found: str = json.loads((run / "results.json").read_text())["digest"]
    return found


def alone(environ: Environ, config: Path, *sets: str) -> str:
    folder = config.parent / "alone"
    words = [sys.executable, "-m", "fedtorch.main", "--config", config, "--set", *sets, f"run.dir={folder}"]
    call(environ, *words, cwd=config.parent)
    return digest(folder)


def test_three_ranks_through_submitit_give_the_bits_of_one_process(environ: Environ, config: Path) -> None:
    words = [sys.executable, "-m", "launchers.slurm", "--config", config, "--tasks-per-node", 3, "--time", 10]
    assert "job " in call(environ, *words, cwd=config.parent)
    assert wait_for(config.parent / "run", {"done", "failed"}) == "done"
    assert json.loads((config.parent / "run" / "env.json").read_text())["ranks"] == 3
    assert digest(config.parent / "run") == alone(environ, config, "rounds=2")


def begin(environ: Environ, config: Path, *words: object) -> None:
    """Submit, and wait for the first round."""
    call(environ, *words, cwd=config.parent)
    metrics = config.parent / "run" / "metrics.jsonl"
    give_up_at = time.monotonic() + 200
    while not (metrics.exists() and '"kind":"round"' in metrics.read_text()):
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


def job_number(environ: Environ, config: Path) -> str:
    return call(environ, "squeue", "-h", "-o", "%A", cwd=config.parent).split()[0]


@pytest.mark.parametrize("how", ["submitit", "batch file"])
def test_a_job_at_its_limit_is_requeued_and_resumes_to_the_same_bits(how: str, environ: Environ, config: Path) -> None:
    """SLURM's signal is sent by hand, as at the time limit; it holds a requeued job for about two minutes."""
    (config.parent / "runs").mkdir()
    submitit = [sys.executable, "-m", "launchers.slurm", "--config", config, "--tasks-per-node", 3, "--time", 10]
    batch = ["sbatch", "--ntasks-per-node=3", ROOT / "slurm" / "cpu.sbatch", config]
    begin(environ, config, *(submitit if how == "submitit" else batch), "--set", "rounds=60")
    number = job_number(environ, config)
    call(environ, "scancel", "--signal=USR2", number, cwd=config.parent)
    wait_for(config.parent / "run", {"interrupted"}, 60)
    assert job_number(environ, config) == number  # the same job waits to start again
    assert wait_for(config.parent / "run", {"done", "failed"}) == "done"
    assert "resuming after round" in (config.parent / "run" / "log.rank0.txt").read_text()
    assert digest(config.parent / "run") == alone(environ, config, "rounds=60")


@pytest.mark.parametrize("how", ["submitit", "batch file"])
def test_a_cancelled_job_saves_and_stays_cancelled(how: str, environ: Environ, config: Path) -> None:
    (config.parent / "runs").mkdir()
    submitit = [sys.executable, "-m", "launchers.slurm", "--config", config, "--tasks-per-node", 3, "--time", 10]
    batch = ["sbatch", "--ntasks-per-node=3", ROOT / "slurm" / "cpu.sbatch", config]
    begin(environ, config, *(submitit if how == "submitit" else batch), "--set", "rounds=300")
    call(environ, "scancel", job_number(environ, config), cwd=config.parent)
    wait_for(config.parent / "run", {"interrupted"}, 60)
    time.sleep(10)  # longer than KillWait
    assert not call(environ, "squeue", "-h", cwd=config.parent).strip()


def test_a_sweep_is_one_array_and_its_second_call_has_nothing_to_do(environ: Environ, config: Path) -> None:
    out = config.parent / "out"
    words = [sys.executable, "-m", "launchers.sweep", "run", "--config", config, "--seeds", 0, 1, "--dir", out]
    words += ["--executor", "slurm", "--tasks-per-node", 2, "--time", 10, "--set", "rounds=1"]
    assert "tiny,seed=1" in call(environ, *words, cwd=config.parent)
    for seed in (0, 1):
        assert wait_for(out / f"tiny,seed={seed}", {"done", "failed"}) == "done"
    assert "2 of 2 runs were done before" in call(environ, *words, cwd=config.parent)
