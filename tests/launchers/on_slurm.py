"""What the tests on a real SLURM do by hand: submit, look, signal, wait."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedtorch.main import main

ROOT = Path(__file__).parents[2]


def call(*words: object) -> str:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def until(condition: Callable[[], bool], problem: str, limit_s: float = 240) -> None:
    """Wait; on giving up say `problem` and what the logs of the jobs have."""
    give_up_at = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > give_up_at:
            logs = [*Path().glob("**/slurm/*log.*"), *Path("runs").glob("slurm-*.txt")]
            raise TimeoutError(f"{problem}: " + "\n".join(f"{path}: {path.read_text()[-1500:]}" for path in logs))
        time.sleep(0.05)


def queued(number: str) -> str:
    """A job's state in the queue; empty when it is no longer there."""
    done = subprocess.run(["squeue", "-h", "-j", number, "-o", "%T"], capture_output=True, text=True)
    return done.stdout.strip()


def wait_for(run: Path, *states: str) -> None:
    """Until status.json has one of the states."""
    until(lambda: (run / "status.json").exists() and status(run)["state"] in states, f"{run} is not {states}")


def wait_for_a_round(run: Path) -> None:
    metrics = run / "metrics.jsonl"
    until(lambda: metrics.exists() and '"kind":"round"' in metrics.read_text(), f"no round in {run}")


def sbatch(*words: object) -> str:
    """Submit a batch file; its number."""
    found = re.search(r"job (\d+)", call("sbatch", *words))
    assert found
    return found[1]


def shown(number: str) -> dict[str, str]:
    """A job as the controller understood it."""
    text = call("scontrol", "--oneliner", "show", "job", number).strip()
    return dict(re.findall(r"([\w/:]+)=(.*?)(?= +[\w/:]+=|$)", text))


def status(run: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((run / "status.json").read_text())
    return found


def digest(run: Path) -> str:
    found: str = json.loads((run / "results.json").read_text())["digest"]
    return found


def alone(config: Path, *sets: str) -> str:
    """The digest of the same run in this process."""
    folder = config.parent / "alone"
    assert main(["--config", str(config), "--set", *sets, f"run.dir={folder}"]) == 0
    return digest(folder)


def stand_in(text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program in place of fedtorch: the `python` that batch files start. What it `note`s is in the file given."""
    folder = Path("stand-in").absolute()
    folder.mkdir()
    head = [
        f"#!{os.path.realpath(sys.executable)} -SE",  # no site-packages: starts at once
        "import os, signal, sys, time",
        "RANK, ATTEMPT = int(os.environ['RANK']), int(os.environ.get('SLURM_RESTART_COUNT', 0))",
        "def note(*words):",
        f"    with open({str(folder / 'notes')!r}, 'a') as notes: print(*words, file=notes)",
    ]
    (folder / "python").write_text("\n".join([*head, text]))
    (folder / "python").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "notes"
