"""What a run writes, and where: only below its folder, readable by its owner, without secrets; nothing is unpickled."""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.main import main
from tests.test_main import TINY

SECRETS = ("hunter2-in-the-config", "hunter2-on-the-command-line", "hunter2-in-the-environment")


@dataclass(frozen=True)
class WithToken(FedAvg):
    """FedAvg with a user's own settings."""

    api_token: str = ""
    password: str = ""


def write_config(root: Path, data: Path) -> Path:
    path = root / "c.yaml"
    text = TINY.replace("DIR", str(root / "run")).replace("DATA", str(data)).replace("tensorboard: false", "")
    algorithm = f'{{name: "tests.safety.test_files:WithToken", api_token: {SECRETS[0]}}}'
    path.write_text(text.replace("{name: fedavg, weights: lorar}", algorithm))
    return path


def as_rank(config: str, data: str, *words: str) -> tuple[list[str], list[str]]:
    """One rank of a run that cannot unpickle; files it wrote, and files of clients it read."""
    written: set[str] = set()
    read: set[str] = set()

    def audit(event: str, details: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(details[0], str | bytes | os.PathLike):
            path, (mode, flags) = os.path.abspath(os.fsdecode(details[0])), details[1:]
            writes = any(c in (mode or "") for c in "wax+") or (flags or 0) & (os.O_WRONLY | os.O_RDWR)
            (written if writes else read).add(path)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("something was unpickled")

    sys.addaudithook(audit)
    pickle.Unpickler = pickle.loads = pickle.load = refuse  # type: ignore[assignment, misc]
    assert main(["--config", config, "--set", f"algorithm.password={SECRETS[1]}", *words]) == 0
    return sorted(written), sorted(path for path in read if path.startswith(data) and "tokenizer" not in path)


@pytest.mark.processes
def test_a_run_writes_below_its_folder_only_and_the_server_opens_no_clients_file(
    tmp_path: Path, tiny_data: Path
) -> None:
    config, environ = write_config(tmp_path, tiny_data), {"HF_TOKEN": SECRETS[2], "FEDTORCH_API_KEY": SECRETS[2]}
    arguments = (str(config), str(tiny_data.resolve()))
    first = run_ranks(as_rank, 3, *arguments, timeout=200, environ=environ)
    resumed = run_ranks(as_rank, 3, *arguments, "rounds=3", "--resume", "force", timeout=200, environ=environ)
    folder = tmp_path / "run"
    assert "resuming after round 2" in (folder / "log.rank0.txt").read_text()
    for rank, (written, _) in [*enumerate(first), *enumerate(resumed)]:
        outside = [p for p in written if not Path(p).is_relative_to(folder) and not p.startswith(("/dev/", "/proc/"))]
        assert written and not outside, f"rank {rank}"
    assert [Path(path).name for path in first[0][1]] == ["manifest.json"]
    assert all(any(path.endswith("train.jsonl") for path in read) for _, read in first[1:])
    assert folder.stat().st_mode & 0o077 == 0
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {"config.yaml", "env.json", "status.json", "metrics.jsonl", "log.rank0.txt"} <= {p.name for p in files}
    assert any("tfevents" in path.name for path in files)
    for path in files:
        assert not [secret for secret in SECRETS if secret.encode() in path.read_bytes()], path
