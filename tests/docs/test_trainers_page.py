"""The three ways of docs/trainers.md give the same bits, and the script alone is a plain one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedtorch.cli.__main__ import main

pytest.importorskip("trl")
FILES = Path(__file__).parents[2] / "docs" / "examples" / "trainers"


@pytest.mark.processes
def test_config_function_and_script_give_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in FILES.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # that of another test
    subprocess.run([sys.executable, "start.py"], check=True, capture_output=True)
    assert "fedtorch" not in Path("alone.py").read_text()
    for words in (["--config", "sft.yaml"], ["--config", "function.yaml"], ["--script", "client.py"]):
        assert main(["run", *words, "--set", "rounds=2"]) == 0
    found = [load_file(f"runs/{name}/model/model.safetensors") for name in ("sft", "function", "client")]
    assert all(torch.equal(found[0][name], other[name]) for other in found[1:] for name in found[0])
