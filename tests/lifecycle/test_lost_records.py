"""A run whose files are taken away or refused: it ends with its results, and what its records lack is named."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ranks import expect_exit, run_ranks
from supervisor import as_rank, toy_config

from fedtorch import RunTracker
from fedtorch.main import main
from fedtorch.report.command_line import main as report
from fedtorch.tracking.records import Record

pytestmark = pytest.mark.long

NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000  # CLONE_NEWNS and CLONE_NEWUSER of <linux/sched.h>
ROUNDS = 5


@dataclass
class Saboteur(RunTracker):
    """Does something to a file of the run after its second round."""

    path: str = "metrics.jsonl"
    """in the run folder"""
    how: str = "remove"
    """what is done"""

    def start(self, run: Any) -> None:
        """Note where it is."""
        self._file = run.folder / self.path

    def record(self, record: Record) -> None:
        """After the second round."""
        if record["kind"] != "round" or record["round"] != 2:
            return
        if self._file.is_dir():
            shutil.rmtree(self._file)
        self._file.unlink(missing_ok=True)
        if self.how == "folder":
            (self._file / "in it").mkdir(parents=True)
        elif self.how == "full":
            self._file.symlink_to("/dev/full")


def sabotaged(tmp_path: Path, path: str, how: str) -> tuple[int, Path]:
    config = toy_config(tmp_path, rounds=str(ROUNDS))
    tracker = f'run.trackers=[tensorboard, {{name: "{__name__}:Saboteur", path: "{path}", how: {how}}}]'
    return main(["--config", str(config), "--set", tracker, "track.tensorboard=true"]), tmp_path / "run"


def results(run: Path) -> dict[str, Any]:
    """Without bytes: what a client reports of its seconds has more digits or fewer."""
    found: dict[str, Any] = json.loads((run / "results.json").read_text())
    assert found["traffic"]["bytes_up"] > 1000
    return {**found, "traffic": {name: n for name, n in found["traffic"].items() if not name.startswith("bytes")}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of a run whose files nobody touches."""
    config = toy_config(tmp_path_factory.mktemp("whole"), rounds=str(ROUNDS))
    assert main(["--config", str(config)]) == 0
    return results(config.parent / "run")


@pytest.mark.parametrize("how", ["remove", "full"])
def test_records_that_are_removed_are_written_anew(how: str, whole: dict[str, Any], tmp_path: Path) -> None:
    code, run = sabotaged(tmp_path, "metrics.jsonl", how)
    assert code == 0 and results(run) == whole
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines if line["kind"] == "round"] == [1, 2, 3, 4, 5]
    assert lines[-1]["kind"] == "result"


def test_without_records_the_results_are_the_same_and_name_the_gap(
    whole: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, run = sabotaged(tmp_path, "metrics.jsonl", "folder")
    found = results(run)
    gap = found.pop("records", None)
    assert code == 0 and found == whole
    assert gap == {"missing_rounds": [[1, ROUNDS]], "reason": "Is a directory"}
    said = f"{run}/metrics.jsonl: records of rounds 1 to {ROUNDS} are missing (Is a directory)"
    assert said in (run / "log.rank0.txt").read_text().splitlines()[-1]
    shown = capsys.readouterr().out
    assert "records: records of rounds 1 to 5 are missing" in shown and "test nearness" in shown
    assert report([str(run), "--no-plots"]) == 0
    told = capsys.readouterr()
    assert f"{run}: records of rounds 1 to {ROUNDS} are missing" in told.err
    assert "| test |" in told.out
    assert report([str(run), "--html"]) == 0
    assert "are missing (Is a directory)" in (run / "report" / "report.html").read_text()


def test_rounds_before_a_resume_whose_records_are_gone_are_named(whole: dict[str, Any], tmp_path: Path) -> None:
    config, run = toy_config(tmp_path, rounds=str(ROUNDS)), tmp_path / "run"
    assert main(["--config", str(config), "--set", "rounds=3"]) == 0
    (run / "metrics.jsonl").unlink()
    assert main(["--config", str(config), "--resume", "force"]) == 0
    found = results(run)
    assert found["records"] == {
        "missing_rounds": [[1, 3]],
        "reason": "they are not in the file",
        "unknown_rounds": [[1, 3]],
    }
    assert found["digest"] == whole["digest"] and found["averages"] == whole["averages"]


@pytest.mark.processes
def test_a_run_that_begins_anew_has_no_results_of_the_one_before(tmp_path: Path) -> None:
    config, run = toy_config(tmp_path), tmp_path / "run"
    assert main(["--config", str(config)]) == 0
    faults = {"FEDTORCH_TESTING": "1", "FEDTORCH_FAULTS": "kill:phase=train,round=1"}
    (killed,) = expect_exit(as_rank, 1, ["--config", str(config), "--resume", "never"], environ=faults)
    assert killed.exit_code == -9
    assert not (run / "results.json").exists()


@pytest.mark.parametrize(
    ("path", "how", "code"),
    [
        ("config.yaml", "full", 0),
        ("env.json", "full", 0),
        ("status.json", "full", 0),
        ("status.json", "folder", 0),
        ("results.json", "folder", 8),
        ("log.rank0.txt", "full", 0),
        ("log.rank0.txt", "folder", 0),
        ("tensorboard/server", "folder", 0),
        ("tensorboard", "full", 0),
        ("checkpoints", "full", 8),
    ],
)
def test_a_run_ends_with_its_result_or_with_a_reason_whatever_file_is_refused(
    path: str, how: str, code: int, whole: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, run = sabotaged(tmp_path, path, how)
    said = capsys.readouterr().err
    assert found == code, said
    assert "Traceback" not in said
    if code == 0:
        assert results(run)["digest"] == whole["digest"]
    else:
        assert path in said and "free some space" in said


def on_a_small_disk(run: Path, kilobytes: int, words: list[str], said: Path) -> int:
    """The exit code of a run on a disk of its own, which is copied to `kept` beside it; what it says goes to `said`."""
    libc, ids = ctypes.CDLL(None, use_errno=True), (os.geteuid(), os.getegid())
    if libc.unshare(NEW_USER | NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "this process gets no namespaces")
    Path("/proc/self/setgroups").write_text("deny")
    for name, number in zip(("uid_map", "gid_map"), ids):
        Path("/proc/self", name).write_text(f"0 {number} 1")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(run)], check=True)
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
    code = main(words)
    shutil.copytree(run, run.parent / "kept")
    return code


@pytest.mark.processes
@pytest.mark.parametrize("kilobytes", [44, 60, 80, 104])
def test_on_a_disk_that_fills_up_a_run_has_its_results_or_ends_with_8(
    kilobytes: int, whole: dict[str, Any], tmp_path: Path
) -> None:
    mount = f"mount -t tmpfs -o size={kilobytes}k tmpfs {tmp_path / 'run'}"
    config = toy_config(tmp_path, rounds=str(ROUNDS))
    (tmp_path / "run").mkdir()
    kept, told = tmp_path / "kept", tmp_path / "stderr.txt"
    if shutil.which("unshare") is None:
        pytest.skip("no unshare, by which a tmpfs is mounted")
    if (tried := subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, text=True)).returncode:
        pytest.skip(f"this machine lets nobody mount a tmpfs: {tried.stderr}")
    (code,) = run_ranks(on_a_small_disk, 1, tmp_path / "run", kilobytes, ["--config", str(config)], told)
    said = told.read_text()
    assert code in (0, 8), said
    if code == 8:
        assert "free some space" in said
        return
    found = results(kept)
    gap = found.pop("records", None)
    assert found == whole
    lines = [json.loads(line) for line in (kept / "metrics.jsonl").read_text().splitlines()]
    assert (gap is None) == ([line["round"] for line in lines if line["kind"] == "round"] == [1, 2, 3, 4, 5])
