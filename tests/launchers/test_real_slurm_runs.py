"""Whole runs of fedtorch on a real SLURM: sweeps, two nodes, cancelled and hung jobs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import private_slurm
import pytest
from on_slurm import ROOT, alone, call, digest, queued, sbatch, shown, status, until, wait_for, wait_for_a_round

from launchers import slurm, sweep

pytestmark = [pytest.mark.processes, pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(600)]


def submit(how: str, config: Path, rounds: int, *more: str, ranks: int = 2) -> str:
    """By the launcher or by a batch file; the job's number."""
    sets = ["--set", f"rounds={rounds}", *more]
    if how == "batch file":
        return sbatch(f"--ntasks-per-node={ranks}", ROOT / "slurm" / "cpu.sbatch", "--config", config, *sets)
    assert slurm.main(["--config", str(config), "--tasks-per-node", f"{ranks}", "--time", "10", *sets]) == 0
    return (config.parent / "run" / "slurm_job").read_text().strip()


def test_a_batch_file_is_requeued_and_resumes_to_the_same_bits(real_slurm: Path, config: Path) -> None:
    run = real_slurm / "run"
    number = submit("batch file", config, 15)
    wait_for_a_round(run)
    call("scancel", "--signal=USR2", number)
    wait_for(run, "interrupted")
    wait_for(run, "done", "failed")
    assert "resuming after round" in (run / "log.rank0.txt").read_text()
    assert digest(run) == alone(config, "rounds=15")
    file = ROOT / "slurm" / "cpu.sbatch"
    assert status(run)["command"] == f"sbatch {file} --config {config} --set rounds=15"


@pytest.mark.parametrize(
    ("how", "partition"), [("launcher", "debug"), ("batch file", "debug"), ("launcher", "gpu"), ("batch file", "gpu")]
)
def test_a_job_that_a_more_urgent_one_displaces_comes_back_and_resumes(
    how: str, partition: str, real_slurm: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """debug grants 60 s and leaves it at that; gpu requeues the job itself and kills it after 5 s."""
    monkeypatch.setenv("SBATCH_PARTITION", partition)
    number, run = submit(how, config, 30), real_slurm / "run"
    wait_for_a_round(run)
    (real_slurm / "urgent").write_text("#!/bin/bash\n#SBATCH --output=/dev/null\nsleep 3\n")
    words = ["--partition=urgent", f"--nodes={1 + private_slurm.two_nodes()}", "--exclusive"]
    urgent = sbatch(*words, real_slurm / "urgent")
    until(lambda: queued(urgent) == "RUNNING", "the urgent job does not run")
    assert status(run)["state"] != "done"
    wait_for(run, "done", "failed")
    assert "resuming after round" in (run / "log.rank0.txt").read_text()
    assert digest(run) == alone(config, "rounds=30") and shown(number)["Restarts"] == "1"


def test_slurm_itself_sends_the_signal_before_the_limit(real_slurm: Path, config: Path) -> None:
    """Between 40 and 100 s after the start: it looks every half a minute, and sends rather too early."""
    run = real_slurm / "run"
    asked = ["--tasks-per-node", "2", "--time", "3", "--grace", "80", "--set", "rounds=400"]
    assert slurm.main(["--config", str(config), *asked]) == 0
    wait_for(run, "interrupted")
    call("scancel", (run / "slurm_job").read_text().strip())
    assert shown((run / "slurm_job").read_text().strip())["Restarts"] == "1"


@pytest.mark.parametrize("how", ["launcher", "batch file"])
def test_a_cancelled_job_saves_and_stays_cancelled(how: str, real_slurm: Path, config: Path) -> None:
    number = submit(how, config, 150)
    wait_for_a_round(real_slurm / "run")
    call("scancel", number)
    until(lambda: not queued(number), "the job does not end")
    assert status(real_slurm / "run")["state"] == "interrupted" and shown(number)["JobState"] == "CANCELLED"


@pytest.mark.parametrize("how", ["launcher", "batch file"])
def test_a_rank_that_hangs_and_is_killed_costs_no_round(how: str, real_slurm: Path, config: Path) -> None:
    """The rank is stopped; the server ends with 7 and names it; srun kills it 300 s later, here we do."""
    number, run = submit(how, config, 15, "system.timeout=8"), real_slurm / "run"
    wait_for_a_round(run)
    (hung,) = ranks_of(number, 1)
    os.kill(hung, signal.SIGSTOP)
    wait_for(run, "failed")
    assert status(run)["code"] == 7 and "rank 1 gave no sign of life" in status(run)["reason"]  # type: ignore[comparison-overlap]
    os.kill(hung, signal.SIGKILL)
    wait_for(run, "done")
    assert digest(run) == alone(config, "rounds=15", "system.timeout=8")
    assert int(shown(number)["Restarts"]) == 1


@pytest.mark.parametrize("how", ["launcher", "batch file"])
def test_the_others_go_on_without_a_rank_that_is_killed(
    how: str, real_slurm: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a run in one process in which the lost rank's clients fail from that round on."""
    sets = ["clients.on_loss=continue", "clients.per_round=all", "client.optimizer_state=reset", "eval.every=0"]
    monkeypatch.setenv("FEDTORCH_TESTING", "1")
    monkeypatch.setenv("FEDTORCH_FAULTS", "kill:rank=1,phase=train,round=1")
    number, run = submit(how, config, 3, *sets, ranks=3), real_slurm / "run"
    wait_for(run, "done", "failed")
    until(lambda: not queued(number), "the job does not end")
    assert shown(number)["JobState"] == "COMPLETED" and shown(number)["Restarts"] == "0"
    lost = json.loads((run / "results.json").read_text())["lost"]
    assert lost and set(lost.values()) == {2} and f"done without {len(lost)} lost" in status(run)["reason"]
    fails = [f"raise:client={client},round={done}" for client in lost for done in (1, 2)]
    monkeypatch.setenv("FEDTORCH_FAULTS", ";".join(fails))
    assert digest(run) == alone(config, "rounds=3", *sets)


@pytest.mark.parametrize(
    ("file", "options", "rank"),
    [
        ("cpu", ["--ntasks-per-node=3"], 1),
        ("several-nodes", ["--ntasks-per-node=2", "--gpus-per-node=1", "--cpus-per-task=1"], 3),
    ],
)
def test_a_rank_that_is_killed_comes_back_while_the_others_go_on(
    file: str, options: list[str], rank: int, real_slurm: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one on another node than the server's."""
    if file == "several-nodes" and not private_slurm.two_nodes():
        pytest.skip("this machine cannot play two nodes")
    monkeypatch.setenv("RETURNS", "1")
    monkeypatch.setenv("FEDTORCH_TESTING", "1")
    monkeypatch.setenv("FEDTORCH_FAULTS", f"kill:rank={rank},phase=train,round=1")
    patient = "import os\nif os.environ.get('RANK') == '0':\n    import patient; patient.wait_for_return()\n"
    (real_slurm / "sitecustomize.py").write_text(patient)
    monkeypatch.setenv("PYTHONPATH", f"{real_slurm}:{os.environ['PYTHONPATH']}")
    words = ["--config", config, "--set", "rounds=5", "clients.on_loss=continue"]
    number, run = sbatch(*options, ROOT / "slurm" / f"{file}.sbatch", *words), real_slurm / "run"
    wait_for(run, "done", "failed")
    until(lambda: not queued(number), "the job does not end")
    assert status(run)["reason"] == "done" and shown(number)["Restarts"] == "0"
    log = (run / "log.rank0.txt").read_text()
    assert f"going on without rank {rank}" in log and f"rank {rank} is back; all go on together" in log


def ranks_of(number: str, rank: int) -> list[int]:
    """Processes that are this rank of this job."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environ = (process / "environ").read_bytes().split(b"\0")
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        mine = {f"SLURM_JOB_ID={number}".encode(), f"SLURM_PROCID={rank}".encode()} <= {*environ}
        if mine and (b"fedtorch.main" in command or b"submitit.core._submit" in command):
            found.append(int(process.name))
    return found


def test_a_sweep_is_one_array_and_its_second_call_has_nothing_to_do(
    real_slurm: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = real_slurm / "out"
    arguments = ["run", "--config", str(config), "--seeds", "0", "1", "--dir", str(out), "--executor", "slurm"]
    arguments += ["--tasks-per-node", "2", "--time", "10", "--set", "rounds=1"]
    assert sweep.main(arguments) == 0
    assert "toy,seed=1" in capsys.readouterr().out
    for seed in (0, 1):
        wait_for(out / f"toy,seed={seed}", "done", "failed")
    assert sweep.main(["status", str(out)]) == 0
    assert "2 done" in capsys.readouterr().out
    assert sweep.main(arguments) == 0
    assert "2 of 2 runs were done before" in capsys.readouterr().out


@pytest.mark.skipif(not private_slurm.two_nodes(), reason="this machine cannot play two nodes")
@pytest.mark.parametrize("how", ["launcher", "batch file"])
def test_two_nodes_give_the_bits_of_one_process(how: str, real_slurm: Path, config: Path) -> None:
    path = ROOT / "slurm" / "several-nodes.sbatch"
    if how == "launcher":
        asked = ["--nodes", "2", "--gpus-per-node", "1", "--partition", "gpu", "--time", "10"]
        assert slurm.main(["--config", str(config), *asked]) == 0
    else:
        sbatch("--ntasks-per-node=1", "--gpus-per-node=1", path, "--config", config)
    wait_for(real_slurm / "run", "done", "failed")
    assert json.loads((real_slurm / "run" / "env.json").read_text())["ranks"] == 2
    assert digest(real_slurm / "run") == alone(config)
