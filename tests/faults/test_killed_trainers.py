"""SIGKILL of a worker or of the server while a trainer of others trains: the run starts again, with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from harness import make_runner
from supervisor import at, supervise
from trained_otherwise import ARGS, config_of, task_of

from fedtorch.config.load import load
from fedtorch.train.settings import TrainerConfig

TRAINER = TrainerConfig("transformers", {**ARGS, "lr_scheduler_type": "cosine"})
GOES_ON = {"steps": 3, "optimizer_state": "keep", "schedule_span": "run"}


@pytest.mark.processes
@pytest.mark.parametrize("victim", [2, pytest.param(0, marks=pytest.mark.slow)], ids=["worker", "server"])
def test_a_rank_killed_within_a_training_costs_no_bit(
    victim: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    task = task_of(tmp_path)
    whole = make_runner(config_of(tmp_path / "whole", TRAINER, rounds=3, task=task, client=GOES_ON)).run().digest
    config = {
        "run": {"dir": str(tmp_path / "run")},
        "rounds": 3,
        "task": {
            "name": "causal_lm",
            "data": {
                "source": str(tmp_path / "rows.jsonl"),
                "prepared": str(task.folder.resolve()),
                "clients": {"by": "home"},
                "splits": {"dev": 0.25, "test": 0.25},
                "tokenizer_size": 270,
            },
            "model": dict(task.model),
            "max_length": 64,
        },
        "client": {**GOES_ON, "trainer": {"name": "transformers", "args": dict(TRAINER.args)}},
        "algorithm": {"name": "fedavg"},
        "eval": {"every": 0},
        "checkpoint": {"every": 1},
    }
    path = tmp_path / "killed.yaml"
    path.write_text(yaml.safe_dump(config))
    assert load(path).task.model == task.model
    ended = supervise(path, faults=at("train", victim), timeout=150.0)
    assert ended.codes[0][victim] == -9 and ended.code == 0, ended.codes
    assert ended.digest == whole
