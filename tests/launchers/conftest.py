"""The SLURM that the tests of a session share, started at its first use."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import private_slurm
import pytest
from supervisor import toy_config

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def slurm_variables() -> Iterator[dict[str, str]]:
    """What a user of the cluster has in the environment, the present python first on PATH."""
    if missing := private_slurm.missing():
        pytest.skip(f"not installed: {', '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix="sl") as folder, private_slurm.cluster(Path(folder) / "c") as found:
        path = f"{Path(sys.executable).parent}:{found['PATH']}"
        yield {
            "SLURM_CONF": found["SLURM_CONF"],
            "PATH": path,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}",
            "OMP_NUM_THREADS": "1",
        }


@pytest.fixture
def real_slurm(slurm_variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be on the cluster, in an empty folder with `runs` in it."""
    for key, value in slurm_variables.items():
        monkeypatch.setenv(key, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    return tmp_path


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four clients, rounds of 0.3 s with rank 1 and of an instant in one process; the run is in `run` beside it."""
    monkeypatch.setenv("FEDTORCH_TESTING", "1")
    monkeypatch.setenv("FEDTORCH_FAULTS", "sleep:phase=payload,rank=1,seconds=0.3")
    return toy_config(tmp_path)
