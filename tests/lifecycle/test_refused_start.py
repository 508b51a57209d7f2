"""A server that refuses to begin tells the other ranks so: they end at once with its code, and do not wait for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from ranks import start_ranks
from supervisor import as_rank, toy_config

from fedtorch.main import main

pytestmark = pytest.mark.processes

PRIVATE = (
    "privacy={kind: client, clip: 0.5, noise_multiplier: 1.0, delta: 1.0e-3}",
    "clients={sampling: poisson, rate: 0.5, per_round: all}",
    "algorithm.weights=equal",
)


def codes(config: Path, *sets: str, options: tuple[str, ...] = ()) -> list[int | None]:
    """Exit codes of three ranks, which nobody ends but they themselves."""
    words = ["--config", str(config), *options, "--set", "system.timeout=40", *sets]
    return [outcome.exit_code for outcome in start_ranks(as_rank, 3, words).join(100)]


def log(config: Path, rank: int) -> str:
    return (config.parent / "run" / f"log.rank{rank}.txt").read_text()


def test_a_checkpoint_of_another_config_ends_all_ranks_with_8_and_the_others_hear_the_keys(tmp_path: Path) -> None:
    config = toy_config(tmp_path)
    assert main(["--config", str(config), "--set", "rounds=1"]) == 0
    other = ["client.lr=0.0625", "run.seed=11"]
    assert codes(config, *other) == [8, 8, 8]
    for rank in (1, 2):
        assert "the server refused to begin: its checkpoint is of another config or of other code" in log(config, rank)
        assert "`client.lr`" in log(config, rank) and "`run.seed`" in log(config, rank)
        assert "--resume force" in log(config, rank)
        assert "0.0625" not in log(config, rank) and "round_000001" not in log(config, rank), "keys and nothing else"
    assert "client.lr was 0.1 and is now 0.0625" in log(config, 0)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["code"] == 8 and "was written with another config" in status["reason"]
    assert codes(config, *other, options=("--resume", "force")) == [0, 0, 0], "what was told to do helps"


def test_damaged_checkpoints_end_all_ranks_with_8_and_no_path_is_told(tmp_path: Path) -> None:
    config = toy_config(tmp_path)
    assert main(["--config", str(config), "--set", "rounds=1", "checkpoint.keep=1"]) == 0
    (tmp_path / "run" / "checkpoints" / "round_000001" / "server.json").write_text("{}")
    assert codes(config) == [8, 8, 8]
    assert "the server refused to begin; its own log says why" in log(config, 1)
    assert "round_000001" not in log(config, 1) and "is damaged" in log(config, 0)


def test_a_ledger_that_is_gone_ends_all_ranks_with_8(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    config = toy_config(tmp_path)
    assert main(["--config", str(config), "--set", "rounds=1", *PRIVATE]) == 0
    shutil.rmtree(tmp_path / "run" / "privacy")
    assert codes(config, *PRIVATE, options=("--resume", "force")) == [8, 8, 8]
    assert "the server refused to begin; its own log says why" in log(config, 1)
