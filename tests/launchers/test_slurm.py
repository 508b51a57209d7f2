"""`launchers.slurm` and the job arrays of `launchers.sweep`: what they refuse, what they ask SLURM for, and real runs
through submitit's debug and local executors."""

from __future__ import annotations

import json
import os
import pickletools
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import fake_slurm
import pytest

from fedtorch.config import load as yaml_config
from fedtorch.core.errors import ConfigError
from fedtorch.lifecycle.signals import StopFlag
from launchers import rank_process, slurm, sweep
from launchers.rank_process import RankProcess
from launchers.resources import Resources, minutes, options_of, resources_of
from tests.test_main import TINY


@pytest.fixture
def config(tmp_path: Path, tiny_data: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY.replace("DIR", str(tmp_path / "run")).replace("DATA", str(tiny_data)))
    return path


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with stand-ins for SLURM's commands, first on PATH."""
    environ = fake_slurm.install(tmp_path / "fake", python=sys.executable)
    for key in ("PATH", "FAKE", "REAL_PYTHON"):
        monkeypatch.setenv(key, environ[key])
    return tmp_path / "fake"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nodes": 0}, "--nodes is 0 but should be at least 1"),
        ({"gpus_per_node": -1}, "--gpus-per-node is -1"),
        ({"tasks_per_node": 0}, "--tasks-per-node is 0"),
        ({"time_min": 0}, "--time is 0"),
        ({"grace_s": 120, "time_min": 2}, "--grace is 120 s but --time is only 2 min"),
        ({"nodes": 2, "executor": "local"}, "--executor local has this machine only"),
        ({"tasks_per_node": 2, "executor": "debug"}, "--executor debug runs in this process, as one rank, but 2"),
        ({"sbatch": ("account=",)}, "--sbatch account=: expected key=value"),
        ({"sbatch": ("time=3",)}, "--sbatch time=3: time has an option of its own, --time"),
        ({"sbatch": ("ntasks-per-node=3",)}, "has an option of its own, --tasks-per-node"),
        ({"sbatch": ("chdir=/tmp",)}, "--sbatch chdir=/tmp: chdir is set by the launcher"),
        ({"max_hangs": -1}, "--max-hangs is -1 but should be at least 0"),
    ],
)
def test_what_no_cluster_can_give_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        Resources(**changes)  # type: ignore[arg-type]


def test_a_rank_per_gpu_unless_asked_otherwise() -> None:
    assert Resources(nodes=2, gpus_per_node=4).ranks == 8
    assert Resources(gpus_per_node=4, tasks_per_node=5).ranks == 5 and Resources(nodes=3).ranks == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90),
        ("90:00", 90),
        ("1:30", 2),  # a minute and a half
        ("1:30:00", 90),
        ("00:00:01", 1),
        ("2-0", 2880),
        ("1-02:30", 1590),
        ("1-02:30:01", 1591),
    ],
)
def test_a_time_limit_is_read_as_sbatch_reads_it(text: str, expected: int) -> None:
    assert minutes(text) == expected


@pytest.mark.processes
@pytest.mark.parametrize("text", ["", "1d", "1:2:3:4", "-5", "1-", "4h", "1.5", "INFINITE"])
def test_a_time_limit_that_sbatch_would_not_read_is_refused(text: str, config: Path) -> None:
    with pytest.raises(ConfigError, match="--time .*expected minutes"):
        minutes(text)
    assert slurm.main(["--config", str(config), f"--time={text}"]) == 2


def test_the_options_of_a_request_ask_for_the_same_again() -> None:
    asked = Resources(nodes=2, gpus_per_node=4, time_min=1590, grace_s=60, sbatch=("hold", "mem=2G"), setup=("a b",))
    words = shlex.split(shlex.join(options_of(asked)))
    assert words[:2] == ["--nodes", "2"] and "a b" in words and "--tasks-per-node" not in words
    args = slurm._parser("slurm").parse_args(["--config", "x", *words])
    assert resources_of(args) == asked and options_of(Resources()) == []


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert slurm.main(arguments) == 2
    return capsys.readouterr().err


@pytest.mark.processes
def test_bad_input_is_refused_before_anything_is_submitted(
    config: Path, cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = ["--config", str(config)]
    assert "config file nowhere.yaml does not exist" in refused(["--config", "nowhere.yaml"], capsys)
    assert "unknown key `rouds`" in refused([*known, "--set", "rouds=3"], capsys)
    few = refused([*known, "--nodes", "4", "--set", "clients.per_round=2"], capsys)
    assert "4 ranks are 3 workers, but a round has only 2 clients" in few
    threes = ["--nodes", "10", "--set", "clients.per_round=2", "system.ranks_per_worker=3"]
    assert "10 ranks are 3 workers" in refused([*known, *threes], capsys)
    assert not (cluster / "sbatch.calls").exists() and not (config.parent / "run").exists()


@pytest.mark.processes
def test_a_machine_without_slurm_says_so(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "sbatch and srun not found on this machine" in refused(["--config", str(config)], capsys)


@pytest.mark.processes
def test_without_submitit_the_package_to_install_is_named(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert "pip install 'fedtorch-nlp[slurm]'" in refused(["--config", str(config)], capsys)


@pytest.mark.processes
def test_what_sbatch_says_reaches_the_user(
    config: Path, cluster: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_REFUSE", "invalid partition specified: gqu")
    text = refused(["--config", str(config), "--partition", "gqu"], capsys)
    assert "sbatch refused the job: sbatch: error: invalid partition specified: gqu" in text


def sbatch_options(cluster: Path) -> dict[str, str]:
    text = (cluster / "script.sh").read_text()
    subprocess.run(["bash", "-n", cluster / "script.sh"], check=True)
    return dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?", text, re.MULTILINE))


@pytest.mark.processes
def test_what_slurm_is_asked_for(config: Path, cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--nodes 2 --gpus-per-node 4 --partition gpu --time 30 --grace 60 --cpus-per-task 3 --sbatch account=me"
    assert slurm.main(["--config", str(config), *options.split()]) == 0
    asked = sbatch_options(cluster)
    expected = {"nodes": "2", "ntasks-per-node": "4", "gpus-per-node": "4", "partition": "gpu", "time": "30"}
    expected |= {"signal": "USR2@60", "cpus-per-task": "3", "account": "me", "requeue": "", "job-name": "tiny"}
    assert {key: asked.get(key) for key in expected} == expected and asked["open-mode"] == "append"
    assert re.search(r"srun .*--kill-on-bad-exit=0 --wait=300 --cpus-per-task=3 ", (cluster / "script.sh").read_text())
    assert "4242" in capsys.readouterr().out


@pytest.mark.processes
def test_the_job_is_put_back_when_a_rank_hung_and_is_given_the_users_lines(config: Path, cluster: Path) -> None:
    dump = pytest.importorskip("submitit.core.utils").cloudpickle_dump
    setup = ["module load cuda", "source my_env/bin/activate"]
    assert slurm.main(["--config", str(config), "--max-hangs", "2", "--setup", *setup]) == 0
    script = (cluster / "script.sh").read_text()
    assert script.index("module load") < script.index("source my_env") < script.index("srun ")
    run_it = script[: script.index("# Parameters")] + "(exit 137)\n" + script[script.index("code=$?") :]
    environ = {**os.environ, **fake_slurm.job(tasks=1)}
    for _ in range(4):
        assert subprocess.run(["bash", "-c", run_it], env=environ).returncode == 137
    assert (cluster / "scontrol.calls").read_text() == "requeue 4242\n" * 2
    array = {"SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "2"}
    assert subprocess.run(["bash", "-c", run_it], env=environ | array).returncode == 137
    assert (cluster / "scontrol.calls").read_text() == "requeue 4242\n" * 2 + "requeue 40_2\n"
    result = config.parent / "run" / "slurm" / "40_3_0_result.pkl"
    for outcome, code, ended in (("success", 137, 0), ("error", 1, 1)):  # rank 0 went on to the end, or failed itself
        dump((outcome, None), result)
        lines = run_it.replace("(exit 137)", f"(exit {code})")
        assert (
            subprocess.run(["bash", "-c", lines], env=environ | array | {"SLURM_ARRAY_TASK_ID": "3"}).returncode
            == ended
        )
    for code, attempt in ((0, 0), (1, 0), (75, 20), (75, 19)):  # of what ends with 75 nobody but SIGTERM asked for it
        lines = run_it.replace("(exit 137)", f"(exit {code})")
        subprocess.run(["bash", "-c", lines], env=environ | {"SLURM_RESTART_COUNT": str(attempt)})
    assert (cluster / "scontrol.calls").read_text().count("requeue") == 4


@pytest.mark.processes
@pytest.mark.parametrize(("number", "array"), [("4242", {}), ("40_2", {"ARRAY_JOB_ID": "40", "ARRAY_TASK_ID": "2"})])
def test_a_saved_round_gives_the_requeues_after_a_hang_back(
    number: str, array: dict[str, str], config: Path, cluster: Path
) -> None:
    assert slurm.main(["--config", str(config), "--max-hangs", "1"]) == 0
    script = (cluster / "script.sh").read_text()
    run_it = script[: script.index("# Parameters")] + "(exit 137)\n" + script[script.index("code=$?") :]
    environ = {**os.environ, **fake_slurm.job(tasks=1), **{f"SLURM_{key}": value for key, value in array.items()}}
    saved = config.parent / "run" / "slurm" / f"{number}.saved"
    for saves in (True, True, True, False, True):
        saved.touch() if saves else None
        subprocess.run(["bash", "-c", run_it], env=environ)
        assert not saved.exists()
    assert (cluster / "scontrol.calls").read_text().split() == ["requeue", number] * 4


def test_rank_0_of_a_job_alone_says_where_it_tells_of_saved_rounds(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    for rank, told in ((0, f"{tmp_path}/4242.saved"), (1, None)):
        with monkeypatch.context() as task:
            task.setattr(os, "environ", {**os.environ})
            for key, value in {**fake_slurm.job(tasks=2), "SLURM_PROCID": str(rank), "SLURM_LOCALID": "0"}.items():
                os.environ[key] = value
            os.environ.update(SLURM_NODEID="0", SUBMITIT_EXECUTOR="slurm", SUBMITIT_FOLDER=str(tmp_path))
            rank_process._join_as_rank()
            assert os.environ.get("FEDTORCH_SAVED") == told


@pytest.mark.processes
def test_a_dry_run_shows_the_batch_script_that_is_submitted_but_no_secret(
    config: Path, cluster: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter1")
    asked = ["--config", str(config), "--nodes", "2", "--partition", "gpu", "--setup", "export A=1 HF_TOKEN=hunter2"]
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("PATH", "/nowhere")
        assert slurm.main([*asked, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "would ask for 2 x 1 ranks" in said and "3 clients on 1 worker" in said and "hunter" not in said
    assert not (config.parent / "run").exists()
    assert slurm.main(asked) == 0
    submitted = (cluster / "script.sh").read_text()
    assert submitted.replace("HF_TOKEN=hunter2", "HF_TOKEN=<masked>") in said
    assert "hunter1" not in submitted


@pytest.mark.processes
def test_where_the_others_go_on_without_a_lost_rank_they_may_take_their_time(config: Path, cluster: Path) -> None:
    assert slurm.main(["--config", str(config), "--set", "clients.on_loss=continue"]) == 0
    assert "--kill-on-bad-exit=0 --wait=0 " in (cluster / "script.sh").read_text()


@pytest.mark.processes
def test_a_folder_that_slurm_would_rename_is_refused(
    config: Path, cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = refused(["--config", str(config), "--set", f"run.dir={config.parent}/50%j"], capsys)
    assert "SLURM reads % in a path as a pattern" in text and not (config.parent / "50%j").exists()


@pytest.mark.processes
def test_the_job_file_is_the_users_own_and_holds_a_reference_and_words(config: Path, cluster: Path) -> None:
    assert slurm.main(["--config", str(config)]) == 0
    folder = config.parent / "run" / "slurm"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    content = (folder / "4242_submitted.pkl").read_bytes()
    names = [argument for code, argument, _ in pickletools.genops(content) if isinstance(argument, str)]
    assert "launchers.rank_process" in names and "RankProcess" in names and "--config" in names
    assert len(content) < 2000  # a class pickled by value, with its code, would take more


@pytest.mark.processes
def test_a_sweep_becomes_one_array_that_leaves_out_what_is_done(
    config: Path,
    cluster: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    arguments = ["run", "--config", str(config), "--seeds", "0", "1", "2", "--dir", str(out), "--executor", "slurm"]
    assert sweep.main([*arguments, "--jobs", "2", "--partition", "cpu", "--tasks-per-node", "3"]) == 0
    assert sbatch_options(cluster)["array"] == "0-2%2" and sbatch_options(cluster)["ntasks-per-node"] == "3"
    assert len(list((out / "slurm").glob("4242_*_submitted.pkl"))) == 3
    assert "job 4242_1  tiny,seed=1" in capsys.readouterr().out
    monkeypatch.setenv("FAKE_QUEUE", "4242_0 4242_1 4242_2")
    assert sweep.main(["status", str(out)]) == 0
    assert "3 waiting" in capsys.readouterr().out
    done = out / "tiny,seed=0"
    (done / "status.json").write_text(json.dumps({"state": "done"}))
    (done / "config.yaml").write_text(yaml_config.to_yaml(yaml_config.load(config, ["run.seed=0"])))
    monkeypatch.setenv("FAKE_QUEUE", "17 4242_1")
    assert sweep.main(arguments) == 0
    said = capsys.readouterr().out
    assert "1 of 3 runs were done before" in said and "in the queue: job 4242_1  tiny,seed=1" in said
    assert "job 4242  tiny,seed=2" in said and "array" not in sbatch_options(cluster)


@pytest.mark.processes
def test_a_run_folder_has_one_job_at_a_time(
    config: Path, cluster: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert slurm.main(["--config", str(config)]) == 0
    monkeypatch.setenv("FAKE_QUEUE", "4242")
    assert f"job 4242 for {config.parent / 'run'} waits or runs already" in refused(["--config", str(config)], capsys)
    monkeypatch.setenv("FAKE_QUEUE", "4241")
    assert slurm.main(["--config", str(config)]) == 0
    monkeypatch.setenv("FAKE_NO_QUEUE", "Unable to contact slurm controller")
    assert "Unable to contact slurm controller" in refused(["--config", str(config)], capsys)


@pytest.mark.processes
def test_the_debug_executor_runs_the_config_here(config: Path) -> None:
    assert slurm.main(["--config", str(config), "--executor", "debug", "--set", "rounds=1"]) == 0
    status = json.loads((config.parent / "run" / "status.json").read_text())
    assert (status["state"], status["round"]) == ("done", 1)
    assert status["command"].startswith("python -m launchers.slurm --executor debug --config ")
    assert "RANK" not in os.environ


@pytest.mark.processes
def test_the_debug_executor_gives_the_runs_exit_code(config: Path, tmp_path: Path) -> None:
    assert slurm.main(["--config", str(config), "--executor", "debug", "--set", f"task.data={tmp_path}"]) == 3


@pytest.mark.parametrize(
    ("by", "handled", "exit_code"),
    [
        (signal.SIGUSR2, True, None),  # submitit's: it requeues
        (None, True, None),  # another rank was told first
        (signal.SIGTERM, False, 75),  # scancel: stays cancelled
        (signal.SIGINT, False, 75),
    ],
)
def test_only_submitits_signal_requeues(
    by: signal.Signals | None, handled: bool, exit_code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[int] = []

    def run(arguments: tuple[str, ...], stop: StopFlag) -> int:
        signal.signal(signal.SIGUSR2, stop)  # type: ignore[arg-type]  # fedtorch's own handlers take the place
        stop.signal = by
        return 75

    monkeypatch.setattr("fedtorch.main.main", run)
    monkeypatch.setenv("FEDTORCH_COMMAND", "")
    monkeypatch.setattr(rank_process, "_join_as_rank", lambda: signal.SIGUSR2)
    before = signal.signal(signal.SIGUSR2, lambda number, frame: received.append(number))
    try:
        if exit_code is None:
            RankProcess(())()
        else:
            with pytest.raises(SystemExit) as ended:
                RankProcess(())()
            assert ended.value.code == exit_code
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert received == ([signal.SIGUSR2] if handled else [])


@pytest.mark.parametrize("by", [signal.SIGUSR2, signal.SIGTERM])
def test_where_saving_takes_too_long_submitit_is_told_before_the_rank_leaves(
    by: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[int] = []

    def run(arguments: tuple[str, ...], stop: StopFlag) -> int:
        stop.signal = by
        assert stop.hand_over is not None
        stop.hand_over()
        return 0

    monkeypatch.setattr("fedtorch.main.main", run)
    monkeypatch.setenv("FEDTORCH_COMMAND", "")
    monkeypatch.setattr(rank_process, "_join_as_rank", lambda: signal.SIGUSR2)
    monkeypatch.setattr(rank_process.time, "sleep", lambda seconds: None)
    before = signal.signal(signal.SIGUSR2, lambda number, frame: received.append(number))
    try:
        RankProcess(())()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert received == ([signal.SIGUSR2] if by == signal.SIGUSR2 else [])


def digest(run: Path) -> str:
    found: str = json.loads((run / "results.json").read_text())["digest"]
    return found


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(280)
def test_the_local_executor_requeues_and_ends_with_the_same_bits(config: Path, tmp_path: Path) -> None:
    """Three ranks; submitit's signal in the middle; requeued by submitit, resumed, and equal to one process."""
    arguments = ["--config", str(config), "--set", "rounds=15"]
    command = [sys.executable, "-m", "launchers.slurm", *arguments, "--executor", "local", "--tasks-per-node", "3"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    run = tmp_path / "run"
    metrics = run / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and '"kind":"round"' in metrics.read_text()):
        time.sleep(0.05)
    (job_file,) = (run / "slurm").glob("*_submitted.pkl")
    children = Path(f"/proc/{job_file.name.split('_')[0]}/task/{job_file.name.split('_')[0]}/children").read_text()
    for child in children.split():
        os.kill(int(child), signal.SIGUSR2)
    output = process.communicate()[0]
    assert process.returncode == 0, output
    log = "".join(path.read_text() for path in (run / "slurm").glob("*_0_log.*"))
    assert "Requeued job" in log and "resuming after round" in log
    alone = tmp_path / "alone"
    assert slurm.main([*arguments, f"run.dir={alone}", "--executor", "debug"]) == 0
    assert digest(run) == digest(alone)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_local_executor_requeues_a_job_that_cannot_save_in_time(config: Path, tmp_path: Path) -> None:
    """A rank sleeps in the second round; all leave after the grace, are requeued and end with the same bits."""
    arguments = ["--config", str(config), "--set", "rounds=3", "system.shutdown_grace=2", "checkpoint.every=1"]
    command = [sys.executable, "-m", "launchers.slurm", *arguments, "--executor", "local", "--tasks-per-node", "3"]
    faults = {"FEDTORCH_TESTING": "1", "FEDTORCH_FAULTS": "sleep:phase=train,rank=1,round=1,seconds=15"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **faults})
    run = tmp_path / "run"
    asleep = run / "log.rank1.txt"
    while process.poll() is None and not (asleep.exists() and "injected" in asleep.read_text()):
        time.sleep(0.05)
    (job_file,) = (run / "slurm").glob("*_submitted.pkl")
    number = job_file.name.split("_")[0]
    for child in Path(f"/proc/{number}/task/{number}/children").read_text().split():
        os.kill(int(child), signal.SIGUSR2)
    output = process.communicate()[0]
    assert process.returncode == 0, output
    log = "".join(path.read_text() for path in (run / "slurm").glob("*_0_log.*"))
    assert "system.shutdown_grace = 2.0 s; 1 rounds are saved" in log
    assert "Requeued job" in log and "resuming after round 1 " in log
    alone = tmp_path / "alone"
    assert slurm.main([*arguments, f"run.dir={alone}", "--executor", "debug"]) == 0
    assert digest(run) == digest(alone)
