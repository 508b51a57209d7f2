"""Dry runs of models without values say what those with values do, and take no memory of weights."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from ranks import run_ranks

from fedtorch.config.find import shipped
from fedtorch.config.load import load
from fedtorch.core.errors import ConfigError, DataError
from fedtorch.main import main
from fedtorch.planning.dry_run import describe
from fedtorch.setup.build import build

SOME = ("smoke/fedavg", "smoke/fedmatch", "smoke/esim", "features/quantized")
ALL = sorted(f"{folder}/{path.stem}" for folder in ("smoke", "features")
             for path in (shipped() / folder).glob("[!_]*.yaml"))  # fmt: skip


def differs(name: str, ranks: int) -> str:
    """What is wrong with a config's dry run; empty: nothing, or it is refused with values too."""
    config = load(name)
    try:
        told = describe(build(config, num_ranks=ranks, rank=0), num_ranks=ranks)
    except (ConfigError, DataError):
        return ""
    built = build(config, num_ranks=ranks, rank=0, is_for_count=True)
    if not all(parameter.is_meta for parameter in built.engine.module.parameters()):
        return f"{name} has values"
    return "" if describe(built, num_ranks=ranks) == told else f"{name} is told otherwise"


@pytest.mark.long
def test_figures_are_those_of_models_with_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [found for name in SOME if (found := differs(name, 1))] == []


@pytest.mark.slow
def test_figures_of_all_small_configs_are_those_of_models_with_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert [found for name in ALL for ranks in (1, 4) if (found := differs(name, ranks))] == []


def dry_run(folder: str, words: Sequence[str]) -> tuple[str, int]:
    """Make a dry run of these words: its text, and the bytes by which this process grew at most."""
    os.chdir(folder)
    before, out = status("VmRSS"), io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(words) == 0
    return out.getvalue(), status("VmHWM") - before


def status(name: str) -> int:
    (kb,) = re.findall(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kb) << 10


@pytest.mark.processes
def test_a_dry_run_of_half_a_billion_parameters_takes_a_part_of_their_memory(tmp_path: Path) -> None:
    """A Llama of 24 layers: 478 million numbers in fp32 are 2 GB."""
    rows = [json.dumps({"prompt": f"What is {n}?", "completion": "a number"}) for n in range(40)]
    (tmp_path / "data/openfedllm").mkdir(parents=True)
    (tmp_path / "data/openfedllm/small_sft.jsonl").write_text("\n".join(rows))
    sizes = {"hidden_size": 1152, "intermediate_size": 4224, "num_hidden_layers": 24, "num_attention_heads": 12}
    keys = [f"task.model.{name}={size}" for name, size in sizes.items()]
    ((told, grew_by),) = run_ranks(dry_run, 1, str(tmp_path), ["diloco/small/made", "--dry-run", "--set", *keys])
    assert "traffic: 478," in told and 0 < grew_by < 0.2 * 4 * 478e6, (told, grew_by)
