"""The launchers and batch files on a real SLURM, started here on this machine; skipped where it is not installed.

Jobs of fedtorch itself are in test_real_slurm_runs; here is what SLURM makes of the jobs, with stand-ins, and one run.
"""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path

import private_slurm
import pytest
from on_slurm import (
    ROOT,
    alone,
    call,
    digest,
    queued,
    sbatch,
    shown,
    stand_in,
    status,
    until,
    wait_for,
    wait_for_a_round,
)

from launchers import slurm, sweep

pytestmark = [pytest.mark.processes, pytest.mark.slurm, pytest.mark.timeout(600)]


def test_a_job_at_its_limit_is_requeued_and_resumes_to_the_same_bits(
    real_slurm: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SLURM's signal is sent by hand, as at the time limit."""
    run = real_slurm / "a folder's run"
    asked = ["--tasks-per-node", "2", "--time", "10"]
    arguments = ["--config", str(config), "--set", "rounds=15", f"run.dir={run}"]
    assert slurm.main([*arguments, *asked]) == 0
    number = (run / "slurm_job").read_text().strip()
    assert f"job {number}: 1 x 2 ranks" in capsys.readouterr().out
    wait_for_a_round(run)
    assert slurm.main([*arguments, *asked]) == 2 and f"job {number} for" in capsys.readouterr().err
    call("scancel", "--signal=USR2", number)
    wait_for(run, "interrupted")
    assert sweep.main(["status", str(run)]) == 0 and "requeued" in capsys.readouterr().out
    wait_for(run, "done", "failed")
    assert "resuming after round" in (run / "log.rank0.txt").read_text()
    assert digest(run) == alone(config, "rounds=15")
    command = ["python", "-m", "launchers.slurm", *asked, *arguments, "--resume", "auto"]
    assert status(run)["command"] == shlex.join(command)
    until(lambda: not queued(number), "the job does not end")
    assert not list((run / "slurm").glob("*.hangs"))


def test_slurm_understands_what_is_asked_for(
    real_slurm: Path, config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_ACCOUNT", "physics")  # the user's own default
    monkeypatch.setenv("SBATCH_PARTITION", "debug")  # which --partition overrides
    monkeypatch.setenv("SLURM_NTASKS", "77")  # of a job that this is started from
    run = real_slurm / "a folder's run"
    options = "--gpus-per-node 3 --cpus-per-task 2 --partition gpu --time 1-02:30 --grace 300"
    more = ["--sbatch", "hold", "mem=2G", "constraint=big", "comment=to be held", "--nodes", "1"]
    sets = ["--set", f"run.dir={run}", "run.name=first try"]
    assert slurm.main(["--config", str(config), *options.split(), *more, *sets]) == 0
    number = (run / "slurm_job").read_text().strip()
    job = shown(number)
    call("scancel", number)
    expected = {"JobState": "PENDING", "JobName": "first try", "Partition": "gpu", "TimeLimit": "1-02:30:00"}
    expected |= {"Account": "physics", "Features": "big", "MinMemoryNode": "2G", "Comment": "to be held"}
    expected |= {"NumNodes": "1-1", "NumTasks": "3", "CPUs/Task": "2", "TresPerNode": "gres:gpu:3", "Requeue": "1"}
    assert {key: job.get(key) for key in expected} == expected
    assert job["StdOut"] == f"{run}/slurm/{number}_0_log.out" and job["WorkDir"] == str(real_slurm)


def test_setup_lines_come_before_the_ranks_and_their_failure_is_the_jobs(real_slurm: Path, config: Path) -> None:
    setup = ["--setup", "export HF_HOME='/some where'", "env > 'env of the job.txt'", "exit 4"]
    assert slurm.main(["--config", str(config), *setup]) == 0
    number = (real_slurm / "run" / "slurm_job").read_text().strip()
    until(lambda: not queued(number), "the job does not end")
    assert shown(number)["JobState"] == "FAILED" and shown(number)["ExitCode"] == "4:0"
    assert "HF_HOME=/some where\n" in (real_slurm / "env of the job.txt").read_text()


PLAIN = """
names = ('LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'FEDTORCH_COMMAND')
note(RANK, *(os.environ[name] for name in names), sys.argv[1:])
"""


@pytest.mark.parametrize("name", ["cpu", "one-node-gpus", "several-nodes", "seeds"])
def test_every_batch_file_starts_its_ranks(name: str, real_slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "several-nodes" and not private_slurm.two_nodes():
        pytest.skip("this machine cannot play two nodes")
    path, notes = ROOT / "slurm" / f"{name}.sbatch", stand_in(PLAIN, monkeypatch)
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", path.read_text(), re.MULTILINE))
    size = int(asked["nodes"]) * int(asked["ntasks-per-node"])
    number = sbatch(path, "--config", "a b.yaml", "--set", "rounds=2")
    until(lambda: not queued(number), "the job does not end")
    lines = sorted(notes.read_text().splitlines(), key=lambda line: int(line.split()[0]))
    places = list(range(size)) * (3 if name == "seeds" else 1)
    assert [int(line.split()[0]) for line in lines] == sorted(places)
    assert [int(line.split()[1]) for line in lines] == [n % int(asked["ntasks-per-node"]) for n in sorted(places)]
    assert {line.split()[2] for line in lines} == {str(size)}
    assert {line.split()[3] for line in lines} == {"n1" if name == "several-nodes" else "127.0.0.1"}
    commands = {re.search(r" (sbatch .*) \[", line)[1] for line in lines}  # type: ignore[index]
    array = [f"--array={seed} " for seed in range(3)] if name == "seeds" else [""]
    assert commands == {rf"sbatch {part}{path} --config a\ b.yaml --set rounds=2 " for part in array}
    own = "'--set', 'run.seed=0', 'run.name=a b,seed=0'" if name == "seeds" else ""
    words = f"['-m', 'fedtorch.main', '--config', 'a b.yaml', '--set', 'rounds=2'{', ' * bool(own)}{own}]"
    assert any(line.endswith(words) for line in lines)


STOPS = """
note(RANK, ATTEMPT)
if ATTEMPT == 0:
    for number in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(75))
    note("ready")
    time.sleep(60)
"""


def test_a_batch_file_told_to_stop_is_requeued_and_goes_on(real_slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = stand_in(STOPS, monkeypatch)
    number = sbatch("--ntasks-per-node=2", ROOT / "slurm" / "cpu.sbatch", "--config", "a.yaml")
    until(lambda: notes.exists() and notes.read_text().count("ready") == 2, "the ranks do not start")
    call("scancel", "--signal=USR2", number)
    until(lambda: queued(number) == "PENDING", "the job is not requeued")
    until(lambda: not queued(number), "the job does not end")
    assert shown(number)["JobState"] == "COMPLETED"
    assert sorted(notes.read_text().splitlines()) == ["0 0", "0 1", "1 0", "1 1", "ready", "ready"]


def test_a_batch_file_that_is_cancelled_saves_and_stays_cancelled(
    real_slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = stand_in(STOPS.replace("sys.exit(75)", "(note('saved'), sys.exit(75))"), monkeypatch)
    number = sbatch("--ntasks-per-node=2", ROOT / "slurm" / "cpu.sbatch", "--config", "a.yaml")
    until(lambda: notes.exists() and notes.read_text().count("ready") == 2, "the ranks do not start")
    call("scancel", number)
    until(lambda: not queued(number), "the job does not end")
    assert shown(number)["JobState"] == "CANCELLED" and notes.read_text().count("saved") == 2


@pytest.mark.slow
def test_of_an_array_only_the_job_that_was_told_to_stop_is_requeued(
    real_slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last job of an array has the number of the whole array as its own."""
    seed = "int(os.environ['SLURM_ARRAY_TASK_ID'])"
    notes = stand_in(
        STOPS.replace("ATTEMPT)", f"ATTEMPT, {seed})").replace("== 0:", f"== 0 and {seed} == 2:"), monkeypatch
    )
    number = sbatch("--ntasks-per-node=1", ROOT / "slurm" / "seeds.sbatch", "--config", "a.yaml")
    until(lambda: notes.exists() and "ready" in notes.read_text(), "the ranks do not start")
    call("scancel", "--signal=USR2", f"{number}_2")
    until(lambda: not queued(number), "the jobs do not end")
    assert sorted(notes.read_text().splitlines()) == ["0 0 0", "0 0 1", "0 0 2", "0 1 2", "ready"]


KILLED = "note(RANK, ATTEMPT); sys.exit(7) if RANK else os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.slow
def test_a_job_whose_rank_hangs_or_is_killed_is_requeued_three_times(
    real_slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = stand_in(KILLED, monkeypatch)
    number = sbatch("--ntasks-per-node=2", ROOT / "slurm" / "cpu.sbatch", "--config", "a.yaml")
    until(lambda: not queued(number), "the job does not end")
    assert sorted(notes.read_text().splitlines()) == [f"{rank} {attempt}" for rank in (0, 1) for attempt in range(4)]
    assert shown(number)["JobState"] == "FAILED" and shown(number)["ExitCode"] == f"{128 + signal.SIGKILL}:0"
