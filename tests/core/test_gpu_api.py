"""The script that looks at torch's CUDA build asks for everything that the package uses of it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def api() -> ModuleType:
    """The script."""
    spec = importlib.util.spec_from_file_location("gpu_api", ROOT / "tests" / "gpu" / "api.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_function_of_a_gpu_that_is_called_is_looked_for(api: ModuleType) -> None:
    text = (ROOT / "fedtorch" / "core" / "devices.py").read_text()
    called = set(re.findall(r"(?:torch\.cuda|_module\(device\))\.(\w+)(?:\.\w+)?\(", text)) - {"Stream", "Event"}
    known = {name.removeprefix("torch.cuda.").partition(".")[0] for name in api.CALLS if name.startswith("torch.cuda.")}
    assert called and called <= known
    assert {"Stream", "Event"} <= known


def test_every_operation_of_a_group_is_looked_for(api: ModuleType) -> None:
    folder = ROOT / "fedtorch" / "comm" / "transport"
    text = "".join(path.read_text() for path in (folder / "process_group.py", folder / "trial.py", folder / "group.py"))
    used = set(re.findall(r"(?:self\._group|made\[0\]|group)\.(\w+)\(\[", text)) | {"eager_connect_single_device"}
    known = {name.rpartition(".")[2] for name in api.MEMBERS}
    assert used and used - {"gather"} <= known  # numbers alone are gathered, over gloo


@pytest.mark.skipif(torch.version.cuda is not None, reason="this build is for CUDA")
def test_another_build_is_refused(api: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert api.main() == 1
    assert "is not built for CUDA" in capsys.readouterr().out


def test_what_is_missing_is_named(api: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(api, "CALLS", {"torch.cuda.nothing": (), "torch.manual_seed": ("seed", "twice")})
    monkeypatch.setattr(api, "VARIABLES", ("NO_LIBRARY_READS_THIS_WORD",))
    said = list(api.problems())
    assert said[:2] == ["torch.cuda.nothing is not there", "torch.manual_seed has no argument twice; it has seed"]
    assert said[-1] == "no library reads NO_LIBRARY_READS_THIS_WORD"
