"""A round costs a silo far away so many round trips and no more."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
from harness import make_config, make_runner, pinned
from ranks import run_ranks
from toy import Quadratic
from trips import Trips

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.options import Network
from fedtorch.config.schema import CheckpointConfig, EvalConfig, SystemConfig

pytestmark = pytest.mark.processes

CLIENTS = {name: (1.0, float(place), 4) for place, name in enumerate("abcd")}
FULL = {"eval": EvalConfig(), "checkpoint": CheckpointConfig(every=1)}
TRAINED = {"wait for gather": 1, "send_sums": 2}
"""Reports, and who counts; the header of the sum, then the sum and that it is whole."""
RECEIVED = {"wait for broadcast": 1, "broadcast": 1}
"""All are there for the same vector; the vector."""
EVALUATED = {"wait for scores": 1}
"""Scores, and what the server makes of them."""
SAVED = {"wait for files": 1, "wait for saved": 1}
"""What was written, after which a round may begin; what came of it."""
LOSSES = {"broadcast": 1, "send_sums": 1}
"""Was anybody lost in it?"""


AHEAD = {"system": SystemConfig(sum_scale="previous")}
"""What clients send travels while the rank trains, by a thread of its own."""


def counted(folder: str, rounds: int, changes: dict[str, Any], recovers: bool) -> dict[str, int]:
    with pytest.MonkeyPatch.context() as patch:
        trips = Trips(patch)
        apart = Network(shares_memory=False)
        config = make_config(os.path.join(folder, str(rounds)), Quadratic(clients=CLIENTS), rounds=rounds, **changes)
        with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=60, recovers=recovers, network=apart) as comm:
            comm.preflight({})
            trips.counted.clear()  # who comes and who leaves first decides how often ranks look for each other
            pinned(make_runner(config, comm)).run()
            return dict(trips.counted)


def of_a_round(folder: str, ranks: int, changes: dict[str, Any], recovers: bool) -> dict[str, int]:
    """Trips of the last rank in one of two rounds by which runs differ, by phase."""
    few, many = (run_ranks(counted, ranks, folder, rounds, changes, recovers)[-1] for rounds in (3, 5))
    found = Counter(many)
    found.subtract(few)
    assert not any(trips % 2 for trips in found.values()), (few, many)
    return {phase: trips // 2 for phase, trips in found.items() if trips}


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_round_takes_five_round_trips_and_one_that_is_evaluated_and_saved_eight(ranks: int, tmp_path: Any) -> None:
    plain = of_a_round(str(tmp_path / "plain"), ranks, {}, False)
    assert plain == {**RECEIVED, **TRAINED}
    full = of_a_round(str(tmp_path / "full"), ranks, FULL, False)
    assert full == {**RECEIVED, **TRAINED, **EVALUATED, **SAVED}
    assert (sum(plain.values()), sum(full.values())) == (5, 8)


def test_where_the_others_go_on_without_a_lost_rank_two_meetings_find_out_whether_one_is(tmp_path: Any) -> None:
    found = of_a_round(str(tmp_path), 3, FULL, True)
    assert found == dict(sum(map(Counter, (RECEIVED, TRAINED, EVALUATED, SAVED, LOSSES)), Counter()))
    assert sum(found.values()) == 10


def test_what_travels_while_the_rank_trains_is_waited_for_by_nobody_but_a_thread(tmp_path: Any) -> None:
    found = of_a_round(str(tmp_path), 3, AHEAD, False)
    assert found == {**RECEIVED, "wait for gather": 1} and sum(found.values()) == 3
