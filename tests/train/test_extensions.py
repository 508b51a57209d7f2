"""A lock that a killed build has left is named at the start; one that a living process holds is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import file_baton

from fedtorch.train.extensions import extensions_folder, stale_locks
from fedtorch.train.zero import import_deepspeed

HOLD = """
import runpy, sys, time
assert runpy.run_path(sys.argv[1])["FileBaton"](sys.argv[2]).try_acquire()
print("holds", flush=True)
time.sleep(100)
"""


@pytest.mark.processes
def test_only_locks_without_a_living_builder_are_stale(tmp_path: Path) -> None:
    for name in ("py311_cpu/deepspeed_shm_comm", "utils"):
        (tmp_path / name).mkdir(parents=True)
    assert stale_locks(tmp_path) == [] == stale_locks(tmp_path / "nowhere")
    lock = tmp_path / "py311_cpu/deepspeed_shm_comm/lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, file_baton.__file__, str(lock)], stdout=subprocess.PIPE
    ) as builder:
        assert builder.stdout is not None and builder.stdout.readline()
        (tmp_path / "utils/lock").touch()
        assert stale_locks(tmp_path) == [tmp_path / "utils/lock"]
        builder.kill()
    assert stale_locks(tmp_path) == [lock, tmp_path / "utils/lock"]


def test_the_folder_is_torchs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils import cpp_extension

    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    assert extensions_folder() == Path(cpp_extension.get_default_build_root())
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert Path(cpp_extension._get_build_directory("name", False)).parent == extensions_folder() == tmp_path


def test_the_deepspeed_engine_names_the_file_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    pytest.importorskip("deepspeed")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    (tmp_path / "async_io").mkdir()
    (tmp_path / "async_io/lock").touch()
    import_deepspeed(torch.device("cpu"))
    assert f"{tmp_path}/async_io/lock was left by a build" in caplog.text
    assert f"rm -r {tmp_path}{os.sep}async_io" in caplog.text
