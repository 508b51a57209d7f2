"""Who says in status.json how a run ended."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fedtorch.config.load import load
from fedtorch.core.errors import CheckpointError, DeadlineError, FedtorchError, Interrupted, error_of_code
from fedtorch.lifecycle.exit import note_end
from fedtorch.lifecycle.status import agent_words, ended_with, read_status, write_status

pytestmark = pytest.mark.long

LOST = DeadlineError("rank 0 (the server) left the job", ranks=(0,))


def ends(folder: Path, error: FedtorchError, rank: int) -> None:
    config = load("smoke/fedavg", {"run.dir": folder})
    note_end(config, error, rank, "the command", begun=time.time() - 5)


@pytest.mark.parametrize("code", [8, 75])
def test_what_the_server_said_stays_though_others_have_lost_it(code: int, tmp_path: Path) -> None:
    write_status(tmp_path, code=code, reason="the disk refuses", command="")
    ends(tmp_path, LOST, 1)
    assert read_status(tmp_path)["reason"] == "the disk refuses"


def test_a_server_that_died_without_a_word_is_spoken_for(tmp_path: Path) -> None:
    ends(tmp_path, LOST, 1)
    assert ended_with(tmp_path) == 7
    write_status(tmp_path, code=None, reason="running", command="")
    ends(tmp_path, LOST, 2)
    assert ended_with(tmp_path) == 7


@pytest.mark.parametrize("code", [0, 8, 75])
def test_what_was_said_of_an_earlier_attempt_does_not_count(code: int, tmp_path: Path) -> None:
    write_status(tmp_path, code=code, reason="before", command="")
    os.utime(tmp_path / "status.json", (1, 1))
    ends(tmp_path, LOST, 1)
    assert ended_with(tmp_path) == 7


def test_a_rank_that_has_lost_another_one_or_fails_itself_says_nothing(tmp_path: Path) -> None:
    for error in (DeadlineError("rank 2 is gone", ranks=(2,)), CheckpointError("full")):
        ends(tmp_path, error, 1)
    assert read_status(tmp_path) == {} and ended_with(tmp_path) is None


def test_an_exit_code_becomes_the_error_that_it_stands_for() -> None:
    for kind in (CheckpointError, DeadlineError, Interrupted):
        error = error_of_code(kind.exit_code, "why")
        assert (type(error), error.exit_code, str(error)) == (kind, kind.exit_code, "why")
    killed = error_of_code(-9, "why")
    assert (type(killed), killed.exit_code, FedtorchError.exit_code) == (FedtorchError, -9, 1)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "python -m torch.distributed.run --nnodes=2 --rdzv-conf is_host=1 -m fedtorch.main --config a.yaml",
            "torchrun --nnodes=2 --rdzv-conf is_host=1",
        ),
        ("python /env/bin/torchrun --nnodes 2 --node-rank=0 -m fedtorch.main", "torchrun --nnodes 2 --node-rank=0"),
        ("slurmstepd: [7.0]", ""),
        ("torchrun a_script.py", ""),
    ],
)
def test_a_job_of_several_machines_goes_on_by_the_options_of_its_agent(words: str, expected: str) -> None:
    assert agent_words(words.split()) == expected.split()
