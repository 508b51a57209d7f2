"""A rank that takes no part says so where it meets the others: all hear its words, and end with its code."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ranks import run_ranks

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.job import rendezvous
from fedtorch.comm.job.notes import MOST_TOLD, read_note
from fedtorch.core.errors import FedtorchError, PreflightError, TrustError, WrongWorkError

TOLD = "south refuses by its policy"
NAMES = ("north", "south")


def refused(who: int, after: int) -> tuple[int, str]:
    """The code and the words with which this rank ends, where rank `who` refuses at a meeting after some others."""
    try:
        with DistributedCommunicator.join(NAMES, timeout_s=20.0) as comm:
            comm.preflight({"config": "the same"})
            for number in range(after):
                comm.barrier("before", round=number)
            if comm.rank == who:
                comm.refuse(TOLD, 11)
                return 11, TOLD
            comm.barrier("work", round=after)
    except FedtorchError as error:
        return error.exit_code, str(error)
    return 0, "went on"


@pytest.mark.processes
@pytest.mark.parametrize(("who", "after"), [(2, 0), (1, 2), (0, 1)])
def test_all_end_with_its_code_and_its_words(who: int, after: int) -> None:
    assert run_ranks(refused, 3, who, after) == [(11, TOLD)] * 3


@pytest.mark.parametrize(
    "note",
    [
        {"refuses": "", "code": 11},
        {"refuses": "x" * (MOST_TOLD + 1), "code": 11},
        {"refuses": TOLD, "code": 0},
        {"refuses": TOLD, "code": 256},
        {"refuses": TOLD},
        {"refuses": ["a"], "code": 11},
    ],
)
def test_a_refusal_that_cannot_be_is_none(note: dict[str, Any]) -> None:
    with pytest.raises(PreflightError, match="the note of rank 2"):
        read_note(json.dumps(note), 2)
    assert read_note(json.dumps({"refuses": TOLD, "code": 11}), 2)["refuses"] == TOLD


def left_by(who: int, size: int) -> str:
    """The words with which this rank ends, where rank `who` leaves with an error that ends all."""
    rendezvous._LAST_S = 60.0  # whoever waited for a last word would wait until the server's process has ended
    names = [f"{number}" for number in range(1, size)]
    try:
        with DistributedCommunicator.join(names, timeout_s=400.0, grace_s=20.0) as comm:
            comm.preflight({"config": "the same"})
            comm.barrier("before", round=0)
            if comm.rank == who:
                raise WrongWorkError("the sum is wrong")
            comm.barrier("work", round=1)
    except TrustError as error:
        return str(error)
    return "went on"


@pytest.mark.processes
def test_all_hear_who_left_first_though_the_server_has_left_too() -> None:
    """The server keeps the store until the others have read there why; they do not wait for a last word of it."""
    first, *others = sorted(run_ranks(left_by, 6, 3, 6), key=lambda text: text != "the sum is wrong")
    assert first == "the sum is wrong"
    assert len(others) == 5 and all(text.startswith("rank 3") for text in others), others
