"""The benchmark of GPUs rehearses on a CPU, and says what it could not run. Nothing here is timed."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from pretended_nccl import install_nccl
from ranks import run_ranks
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks/ is not part of the package

from benchmarks.gpu import main, table
from benchmarks.gpu_exchange import ACROSS, RESIDENT, one_rank
from benchmarks.gpu_models import PAPERS
from benchmarks.gpu_part import Setting, run_limited
from benchmarks.workloads import WORKLOADS, shrunk
from fedtorch.comm.transport import group
from fedtorch.config.load import load


@pytest.mark.processes
def test_a_rehearsal_writes_rows_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--device", "cpu", "--small", "--parts", "copies", "--limit", "60", "--out", str(tmp_path)]
    assert main(words) == 0, (tmp_path / "copies.log").read_text()
    rows = [json.loads(line) for line in (tmp_path / "copies.jsonl").read_text().splitlines()]
    assert {"up, windows", "down, plain"} < {row["what"] for row in rows} and all(row["gb_per_s"] > 0 for row in rows)
    assert (tmp_path / "table.md").read_text() in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.processes
def test_without_a_gpu_the_exchange_says_what_was_left_out(tmp_path: Path) -> None:
    words = ["--device", "cpu", "--small", "--parts", "exchange", "--limit", "90", "--out", str(tmp_path)]
    assert main(words) == 0, (tmp_path / "exchange.log").read_text()
    rows = [json.loads(line) for line in (tmp_path / "exchange.jsonl").read_text().splitlines()]
    assert {row["what"]: row["outcome"] for row in rows} == {
        "on devices": "left out",
        "between GPUs": "left out",
        "ranks: 1, through the host": "ok",
    }
    assert rows[-1]["seconds"] > 0 == rows[-1]["up_mb"] == rows[-1]["down_mb"]


def exchanged(way: str) -> tuple[dict[str, Any], int, str]:
    """A rank's figures on a pretended device, its vectors' bytes, and how payloads travelled."""
    install_nccl()
    ways, connect = list[str](), group.connect

    def connected(*how: Any, **about: Any) -> Any:
        payload = connect(*how, **about)
        ways.append(type(payload).__name__)
        return payload

    group.connect = connected
    with sdpa_kernel(SDPBackend.MATH):
        figures = one_rank("cpu", way, True)  # the device is the pretended one all the same
    model = shrunk(WORKLOADS["c"]).task.build_model(0)
    return figures, 4 * sum(p.numel() for p in model.parameters()), ways[0]


@pytest.mark.processes
def test_the_exchange_counts_what_crosses_between_host_and_devices() -> None:
    resident, across = (run_ranks(exchanged, 3, way, timeout=120) for way in (RESIDENT, ACROSS))
    assert [way for *_, way in resident + across] == ["Staged"] * 3 + ["Shared"] * 3
    for place, (figures, size, _) in enumerate(resident):
        least = size if place == 0 else 0  # the server steps on the host; batches are beside the vectors
        assert least <= figures.get("up", 0) < least + size / 4, (place, figures, size)
        assert least <= figures.get("down", 0) < least + size / 4, (place, figures, size)
    up, down = (sum(figures.get(way, 0) for figures, *_ in across) for way in ("up", "down"))
    assert min(up, down) >= 4 * across[0][1]  # four clients, each of which is loaded, and its update taken down


@pytest.mark.processes
def test_a_part_that_runs_past_its_limit_is_in_the_table(tmp_path: Path) -> None:
    words = ["--device", "cpu", "--small", "--parts", "copies", "--limit", "0.01", "--out", str(tmp_path)]
    assert main(words) == 1
    assert "| copies | the part itself | ran past 0.01 s |" in (tmp_path / "table.md").read_text()


@pytest.mark.processes
def test_a_process_past_its_limit_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time; child = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        "print(subprocess.Popen(child, start_new_session=True).pid, flush=True); time.sleep(60)"
    )
    ended = run_limited([sys.executable, "-c", code], 1.0, tmp_path / "log")
    assert ended.code is None and ended.seconds < 20
    give_up_at = time.monotonic() + 5
    child = int(ended.text)
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


@pytest.mark.processes
def test_an_error_is_a_row_and_the_next_case_goes_on(tmp_path: Path) -> None:
    setting = Setting("copies", "cpu", True, tmp_path, 1)
    with setting.noting("first"):
        raise RuntimeError("CUDA out of memory | 3 GiB")
    with setting.noting("second") as figures:
        figures["gb_per_s"] = 2.0
    rows = [json.loads(line) for line in (tmp_path / "copies.jsonl").read_text().splitlines()]
    assert [row["outcome"] for row in rows] == ["out of memory", "ok"]
    shown = table([{"part": "copies", **row} for row in rows]).splitlines()
    assert "memory \\| 3 GiB" in shown[2] and shown[3].endswith("gb per s 2 |")


@pytest.mark.parametrize("name", PAPERS)
def test_a_papers_sizes_are_keys_of_its_config(name: str) -> None:
    config, sizes = PAPERS[name]
    load(config, [*sizes, "rounds=1", "eval.every=1", "engine.precision=bf16", "eval.patience=null"])


@pytest.mark.processes
def test_an_unknown_part_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--parts", "facts,soup", "--out", str(tmp_path)])
    assert "there is no part soup; there are facts, tests" in capsys.readouterr().err
