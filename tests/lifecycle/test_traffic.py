"""Bytes of a whole run, as results.json tells them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedtorch.compression.compressors import TopK
from fedtorch.compression.payload import HEADER_BYTES
from fedtorch.config.load import load
from fedtorch.core.weights import Layout
from fedtorch.data.synthetic.dialogs import prepare
from fedtorch.main import main

pytestmark = pytest.mark.long

CONFIG = Path("smoke/feda_top50")


@pytest.mark.parametrize("exchange", ["star", "replicated", "allreduce"])
def test_totals_are_the_sums_over_rounds_and_payloads_have_the_formulas_size(
    exchange: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path / "data" / "synthetic_dialog")
    changes = [f"algorithm.exchange={exchange}", "task.max_train=4", "rounds=2", "track.tensorboard=false"]
    changes += ["task.max_dev=2", "task.max_test=2"]
    assert main(["--config", str(CONFIG), "--set", *changes]) == 0
    run = tmp_path / "runs" / "feda_top50"
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rounds = [record for record in records if record["kind"] == "round"]
    (end,) = [record for record in records if record["kind"] == "end"]
    totals = json.loads((run / "results.json").read_text())["traffic"]
    for name in ("bytes_up", "bytes_down", "kv_bytes", "kv_overhead_bytes", "physical_up", "messages_up"):
        assert totals[name] == sum(record.get(name, 0) for record in (*rounds, end)) == end["total"][name]
    assert totals["physical_up"] == 0 < totals["kv_bytes"]
    task = load(CONFIG).task
    weights = {n: p for n, p in task.build_model(0).named_parameters() if n.startswith("assistant.")}
    dense = sum(parameter.numel() for parameter in weights.values())
    assert end["traffic"]["broadcast/bytes_down"] == 6 * 4 * dense  # the best model, to each of six clients
    message = TopK(ratio=0.02).message_bytes(Layout.of(weights)) + HEADER_BYTES
    assert all(record["traffic"]["aggregate/bytes_up"] == 6 * message for record in rounds)
    down = "broadcast/bytes_down" if exchange == "star" else "aggregate/bytes_down"
    assert all(record["traffic"][down] == 6 * message * (5 if exchange == "replicated" else 1) for record in rounds[1:])


def test_a_dry_run_tells_the_bytes_of_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path / "data" / "synthetic_dialog")
    sizes = []
    for ratio in ("0.02", "1.0"):
        changes = ["algorithm.exchange=star", f"algorithm.topk.ratio={ratio}", "task.model.width=64"]
        assert main(["--config", str(CONFIG), "--dry-run", "--set", *changes]) == 0
        text = capsys.readouterr().out
        sizes.append(float(text.split("down and ")[1].split(" MiB up")[0]))
    assert 0 < 10 * sizes[0] < sizes[1]
