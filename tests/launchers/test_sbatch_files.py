"""The batch files that need no submitit: right shell, right options, right commands, right exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import fake_slurm
import pytest

from fedtorch.main import _parser
from tests.test_main import TINY

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "slurm").glob("*.sbatch"))


def options(path: Path) -> dict[str, str]:
    """The #SBATCH lines as option -> value."""
    found = re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?", path.read_text(), re.MULTILINE)
    return dict(found)


@pytest.mark.processes
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_is_valid_shell_and_asks_for_requeue_and_an_early_signal(path: Path) -> None:
    subprocess.run(["bash", "-n", path], check=True)
    asked = options(path)
    assert asked["signal"] == "USR2@120" and "requeue" in asked and asked["open-mode"] == "append"
    assert int(asked["nodes"]) >= 1 and int(asked["ntasks-per-node"]) >= 1
    assert asked.get("gpus-per-node", asked["ntasks-per-node"]) == asked["ntasks-per-node"]  # one rank per GPU
    assert f"sbatch slurm/{path.name} --config" in path.read_text()  # how to use it, in the file


def test_there_is_a_file_for_each_shape() -> None:
    shapes = {path.stem: options(path) for path in FILES}
    assert set(shapes) == {"one-node-gpus", "several-nodes", "cpu", "seeds"}
    assert shapes["several-nodes"]["nodes"] == "2" and "gpus-per-node" not in shapes["cpu"]
    assert shapes["seeds"]["array"] == "0-2%3" and "%a" in shapes["seeds"]["output"]


@pytest.mark.processes
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_rank_gets_a_command_that_fedtorch_understands(path: Path, tmp_path: Path) -> None:
    environ = fake_slurm.install(tmp_path / "fake", python="/bin/echo") | fake_slurm.job(tasks=3)
    (tmp_path / "fake" / "python").write_text('#!/bin/bash\necho "$RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR" "$@"\n')
    words = ["--config", "some/a.yaml", "--set", "rounds=3"]
    environ |= {"SLURM_ARRAY_JOB_ID": "42", "SLURM_ARRAY_TASK_ID": "7", "FAKE_ARGUMENTS": " ".join(words)}
    done = subprocess.run(["bash", path, *words], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert [line.split()[:4] for line in lines] == [[str(i), str(i), "3", "127.0.0.1"] for i in range(3)]
    words = lines[0].split()[4:]
    assert words[:2] == ["-m", "fedtorch.main"]
    args = _parser("fedtorch.main").parse_args(words[2:])
    assert args.config == [Path("some/a.yaml")] and args.resume == "auto" and "rounds=3" in args.set
    assert path.stem != "seeds" or args.set[1:] == ["run.seed=7", "run.name=a,seed=7"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("code", "state", "attempt", "requeued"),
    [
        (75, "RUNNING", 0, True),
        (75, "RUNNING", 19, True),
        (75, "RUNNING", 20, False),  # no limit is so short that a round never fits into it
        (75, "COMPLETING", 0, False),  # cancelled
        (7, "RUNNING", 9, True),
        (137, "RUNNING", 0, True),
        (137, "COMPLETING", 0, False),
        (0, "RUNNING", 0, False),
        (2, "RUNNING", 0, False),
    ],
)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_only_an_interrupted_or_hung_job_that_nobody_cancels_is_requeued(
    path: Path, code: int, state: str, attempt: int, requeued: bool, tmp_path: Path
) -> None:
    environ = fake_slurm.install(tmp_path / "fake", python="") | fake_slurm.job(tasks=2)
    environ |= {
        "FAKE_STATE": state,
        "SLURM_RESTART_COUNT": str(attempt),
        "SLURM_ARRAY_JOB_ID": "42",
        "SLURM_ARRAY_TASK_ID": "3",
    }
    (tmp_path / "fake" / "python").write_text(f"#!/bin/bash\nexit {code}\n")
    (tmp_path / "runs").mkdir()
    words = ["bash", path, "--config", "a.yaml"]
    assert subprocess.run(words, env=environ, cwd=tmp_path).returncode == code
    calls = tmp_path / "fake" / "scontrol.calls"
    job = "42_3" if path.stem == "seeds" else "4242"
    assert re.findall("requeue .*", calls.read_text() if calls.exists() else "") == [f"requeue {job}"] * requeued


@pytest.mark.processes
def test_a_job_that_hangs_a_fourth_time_is_not_requeued(tmp_path: Path) -> None:
    environ = fake_slurm.install(tmp_path / "fake", python="") | fake_slurm.job(tasks=2)
    (tmp_path / "fake" / "python").write_text("#!/bin/bash\nexit 7\n")
    (tmp_path / "runs").mkdir()
    for _ in range(5):
        subprocess.run(["bash", ROOT / "slurm" / "cpu.sbatch", "--config", "a.yaml"], env=environ, cwd=tmp_path)
    assert (tmp_path / "fake" / "scontrol.calls").read_text().count("requeue 4242") == 3


@pytest.mark.processes
def test_a_job_that_saves_rounds_between_is_requeued_as_often_as_it_hangs(tmp_path: Path) -> None:
    environ = fake_slurm.install(tmp_path / "fake", python="") | fake_slurm.job(tasks=2)
    (tmp_path / "fake" / "python").write_text('#!/bin/bash\n[ $RANK = 0 ] && echo 1 > "$FEDTORCH_SAVED"\nexit 7\n')
    (tmp_path / "runs").mkdir()
    command = ["bash", ROOT / "slurm" / "cpu.sbatch", "--config", "a.yaml"]
    for _ in range(5):
        subprocess.run(command, env=environ, cwd=tmp_path)
    assert (tmp_path / "fake" / "scontrol.calls").read_text().count("requeue 4242") == 5
    (tmp_path / "fake" / "python").write_text("#!/bin/bash\nexit 7\n")
    for _ in range(5):
        subprocess.run(command, env=environ, cwd=tmp_path)
    assert (tmp_path / "fake" / "scontrol.calls").read_text().count("requeue 4242") == 5 + 2, "and one was the last"


@pytest.mark.processes
@pytest.mark.parametrize(("saving", "pauses"), [("0", ["1", "2"]), ("2", ["1", "1", "2"])])
def test_a_rank_that_is_killed_returns_as_often_as_is_said_between_two_saved_rounds(
    saving: str, pauses: list[str], tmp_path: Path
) -> None:
    environ = fake_slurm.install(tmp_path / "fake", python="") | fake_slurm.job(tasks=2)
    lines = ["[ $RANK = 0 ] && exit 0", f"echo >> {tmp_path}/ran", f"n=$(wc -l < {tmp_path}/ran)"]
    lines += [f'[ $n = {saving} ] && echo 1 > "$FEDTORCH_SAVED"']
    (tmp_path / "fake" / "python").write_text("\n".join(["#!/bin/bash", *lines, "kill -9 $$", ""]))
    (tmp_path / "fake" / "sleep").write_text(f"#!/bin/bash\necho $1 >> {tmp_path}/slept\n")
    (tmp_path / "fake" / "sleep").chmod(0o755)
    (tmp_path / "runs").mkdir()
    command = ["bash", ROOT / "slurm" / "cpu.sbatch", "--config", "a.yaml"]
    subprocess.run(command, env=environ | {"RETURNS": "2"}, cwd=tmp_path)
    assert (tmp_path / "slept").read_text().split() == pauses
    assert len((tmp_path / "ran").read_text().splitlines()) == 1 + len(pauses)


@pytest.mark.processes
def test_a_run_that_was_finished_without_a_lost_rank_is_done(tmp_path: Path) -> None:
    environ = fake_slurm.install(tmp_path / "fake", python="") | fake_slurm.job(tasks=2)
    (tmp_path / "fake" / "python").write_text("#!/bin/bash\n[ $RANK = 0 ] || kill -9 $$\n")
    (tmp_path / "runs").mkdir()
    command = ["bash", ROOT / "slurm" / "cpu.sbatch", "--config", "a.yaml"]
    assert subprocess.run(command, env=environ, cwd=tmp_path).returncode == 0
    assert not (tmp_path / "fake" / "scontrol.calls").exists() and not list((tmp_path / "runs").iterdir())


@pytest.mark.processes
def test_the_command_that_continues_names_the_users_own_batch_file(tmp_path: Path) -> None:
    words = ["--config", "a b.yaml", "--set", "rounds=3"]
    environ = fake_slurm.install(tmp_path / "fake", python="") | fake_slurm.job(tasks=1)
    environ |= {"FAKE_ARGUMENTS": " ".join(words), "SLURM_ARRAY_JOB_ID": "42", "SLURM_ARRAY_TASK_ID": "7"}
    (tmp_path / "fake" / "python").write_text('#!/bin/bash\necho "$FEDTORCH_COMMAND"\n')
    for name, array in (("cpu", ""), ("seeds", "--array=7 ")):
        command = ["bash", ROOT / "slurm" / f"{name}.sbatch", *words]
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
        assert done.stdout == f"sbatch {array}/some\\ where/mine.sbatch --config a\\ b.yaml --set rounds=3 \n"


@pytest.mark.processes
@pytest.mark.slow  # every rank is a process of its own that imports torch
def test_the_cpu_file_runs_a_config_on_three_ranks(tmp_path: Path, tiny_data: Path) -> None:
    config = tmp_path / "tiny.yaml"
    config.write_text(TINY.replace("DIR", str(tmp_path / "run")).replace("DATA", str(tiny_data)))
    environ = fake_slurm.install(tmp_path / "fake", python=sys.executable) | fake_slurm.job(tasks=3, number=31)
    done = subprocess.run(
        ["bash", ROOT / "slurm" / "cpu.sbatch", "--config", config], env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((tmp_path / "run" / "env.json").read_text())["ranks"] == 3
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "done"
