"""`launchers.sweep` with real runs on this machine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launchers import sweep
from launchers.sweep import _environment, _Told
from tests.test_main import TINY


@pytest.fixture
def config(tmp_path: Path, tiny_data: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY.replace(", dir: DIR", "").replace("DATA", str(tiny_data)))
    return path


def state(run: Path) -> str:
    found: str = json.loads((run / "status.json").read_text())["state"]
    return found


@pytest.mark.processes
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--jobs", "0"], "--jobs is 0 but should be at least 1"),
        (["--ranks", "0"], "--ranks is 0; give 1 or more"),
        (["--ranks", "2", "--executor", "slurm"], "with --executor slurm --tasks-per-node instead"),
        (["--grid", "client.lr"], "--grid client.lr: expected key=a,b,c"),
        (["--grid", "client.lr=1e-3,fast"], "client.lr"),
        (["--set", "rouds=3"], "unknown key `rouds`"),
    ],
)
def test_bad_input_starts_nothing(
    options: list[str], said: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep.main(["run", "--config", str(config), "--dir", str(tmp_path / "out"), *options]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.processes
def test_a_dry_run_lists_the_runs(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "--config", str(config), "--seeds", "0", "1", "--dir", str(tmp_path / "out"), "--dry-run"]
    assert sweep.main(arguments) == 0
    assert capsys.readouterr().out.split() == ["would", "run", "tiny,seed=0", "would", "run", "tiny,seed=1"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("seen", "slots", "shares"),
    [
        ("0,1,2,3", 2, ["0,2", "1,3"]),
        ("4,5", 3, ["4", "5", "4"]),
        ("", 2, [None, None]),  # the user hides all GPUs, and they stay hidden
    ],
)
def test_runs_side_by_side_share_out_the_gpus(
    seen: str, slots: int, shares: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    assert [_environment(slot, slots).get("CUDA_VISIBLE_DEVICES") for slot in range(slots)] == shares


def test_every_line_says_which_run_of_how_many_it_is_how_long_it_took_and_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    folders = {f"a,seed={seed}": tmp_path / str(seed) for seed in range(12)}
    told = _Told(folders, 2, clock=lambda: now)
    told("a,seed=0", "started", 0)
    told("a,seed=1", "started", 0)
    now = 40.0
    told("a,seed=0", "ended", 0)
    told("a,seed=2", "locked", 0)
    now = 60.0
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "status.json").write_text('{"state": "failed", "reason": "no data"}')
    told("a,seed=1", "ended", 3)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "started       1/12  a,seed=0",
        "started       2/12  a,seed=1",
        "done          1/12  a,seed=0  40s  left 4m",  # 11 more of 40 s, two at a time
        "left out      3/12  a,seed=2: another process runs it",
        "failed        2/12  a,seed=1: no data  60s  left 4m",  # 9 more of 50 s
    ]


@pytest.mark.processes
@pytest.mark.slow  # every run is a process of its own that imports torch
@pytest.mark.timeout(280)
def test_failed_runs_do_not_stop_others_and_done_ones_are_not_made_again(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    (tmp_path / "aaa.yaml").write_text(f"base: [tiny.yaml]\ntask: {{data: {tmp_path / 'no_data'}}}\n")
    both = [str(tmp_path / "aaa.yaml"), str(config)]
    arguments = ["run", "--config", *both, "--dir", str(out), "--set", "rounds=1"]
    assert sweep.main([*arguments, "--jobs", "1"]) == 1
    assert (state(out / "aaa"), state(out / "tiny")) == ("failed", "done")
    assert "1 failed, 1 done" in capsys.readouterr().out
    finished = (out / "tiny" / "results.json").stat().st_mtime_ns
    assert sweep.main(arguments) == 1
    assert "1 of 2 runs were done before" in capsys.readouterr().out
    assert (out / "tiny" / "results.json").stat().st_mtime_ns == finished


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(280)
def test_ctrl_c_saves_all_runs_and_the_same_command_finishes_them(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["run", "--config", config, "--seeds", "0", "1", "--dir", out, "--set", "rounds=20", "--jobs", "2"]
    command = [sys.executable, "-m", "launchers.sweep", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    runs = [out / "tiny,seed=0", out / "tiny,seed=1"]

    def begun(run: Path) -> bool:
        return (run / "metrics.jsonl").exists() and '"kind":"round"' in (run / "metrics.jsonl").read_text()

    while process.poll() is None and not all(begun(run) for run in runs):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output = process.communicate()[0]
    assert process.returncode == 75 and "the same command goes on" in output, output
    states = [state(run) for run in runs]
    assert set(states) <= {"interrupted", "done"} and "interrupted" in states
    assert sweep.main([*map(str, words)]) == 0
    assert [state(run) for run in runs] == ["done", "done"]
    assert "resuming after round" in (out / f"tiny,seed={states.index('interrupted')}" / "log.rank0.txt").read_text()
