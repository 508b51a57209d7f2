"""What a run has in another way than a published row's config, for every paper and every kind of setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedtorch.config.load import load, to_yaml
from fedtorch.report.find_runs import find_runs
from fedtorch.report.published.changed import changed
from fedtorch.tracking.run_folder import Run
from fedtorch.tracking.settings import TrackConfig
from fedtorch.tracking.tracker import Tracker

# row -> of each kind that the paper has one key: data, sizes, rounds, optimiser, rate, lengths, model, teacher, scores
CHANGES: dict[str, dict[str, str]] = {
    "lorar/fedopt_lorar": {
        "task.data": "synthetic (row: data/text2sql)",
        "task.max_train": "400 (row: null)",
        "rounds": "5 (row: 60)",
        "client.optimizer": "adamw (row: adafactor)",
        "per_client.yelp.lr": "0.002 (row: 0.0001)",
        "task.output_max_length": "80 (row: 512)",
        "task.model.name": "t5-small (row: t5-base)",
        "algorithm.weights": "size (row: lorar)",
        "task.em_normalise": "false (row: true)",
    },
    "fedmatch/fm_h_lr": {
        "task.data": "synthetic (row: data/fedqa)",
        "task.max_train": "200 (row: null)",
        "rounds": "5 (row: 10)",
        "client.optimizer": "adam (row: adamw)",
        "client.lr": "0.001 (row: 2e-05)",
        "task.client_lengths.medquad": "[12, 40] (row: [25, 480])",
        "task.model.name": "minilm (row: bert-base-uncased)",
        "eval.select_by": "map (row: mrr)",
    },
    "fedparsing/fedparsing_ema_1000": {
        "task.data": "synthetic (row: data/wikisql)",
        "task.server_labelled": "500 (row: 1000)",
        "rounds": "3 (row: 30)",
        "client.optimizer": "adamw (row: sgd)",
        "client.lr": "0.1 (row: 0.01)",
        "task.max_length": "64 (row: 96)",
        "task.encoder.name": "minilm (row: roberta-base)",
        "algorithm.teacher.lam": "0.9 (row: 0.99)",
        "eval.select_by": "sel (row: overall)",
    },
    "fewfedweight/ffw_full": {
        "task.data": "synthetic (row: data/crossfit)",
        "task.max_train": "16 (row: null)",
        "rounds": "4 (row: 20)",
        "client.optimizer": "adam (row: adamw)",
        "client.lr": "0.001 (row: 3e-05)",
        "task.input_max_length": "48 (row: 512)",
        "task.model.name": "t5-random (row: models/bart-base)",
        "algorithm.top_k": "3 (row: 7)",
        "task.strip": "false (row: true)",
    },
    "fedassistant/feda_top50": {
        "task.data": "synthetic (row: data/dialog)",
        "task.max_train": "150 (row: null)",
        "rounds": "9 (row: 2250)",
        "server.beta2": "0.99 (row: 0.999)",
        "server.lr": "0.01 (row: 3e-05)",
        "task.max_length": "96 (row: 1024)",
        "task.model.name": "gpt2-random (row: microsoft/DialoGPT-small)",
        "algorithm.topk.ratio": "0.04 (row: 0.02)",
        "eval.final_split": "test (row: test_all)",
    },
}


def run_of(folder: Path, row: str, settings: list[str]) -> Run:
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(load(row, settings)))
    Tracker(folder, clients=("a",), rounds=1, settings=TrackConfig(tensorboard=False, progress="off")).close()
    ((_, run),) = find_runs([folder]).runs
    return run


@pytest.mark.parametrize("row", CHANGES)
def test_every_key_that_a_run_changed_is_listed_and_no_other(row: str, tmp_path: Path) -> None:
    assert changed(run_of(tmp_path / "same", row, ["run.seed=7", "system.timeout=77"]), row) == ""
    expected = CHANGES[row]
    settings = [f"{key}={text.partition(' (row')[0]}" for key, text in expected.items()]
    start, _, listed = changed(run_of(tmp_path / "other", row, settings), row).partition(": ")
    assert start == f"differs from {row}"
    assert [f"{key} {text}" for key, text in expected.items() if f"{key} {text}" not in listed] == []
    assert listed.count(" (row: ") == len(expected), listed
