"""Events that ranks share have one order, and a job is one rank's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.job.event_log import EventLog


def test_one_process_has_its_events_in_their_order() -> None:
    log = EventLog()
    log.begin()
    log.add("first")
    log.add("second")
    assert log.read() == ["first", "second"] and log.claim(3) and not log.claim(3) and log.claim(4)
    assert log.count() == 2 and [log.take(), log.take(), log.count()] == [3, 4, 4]
    log.begin()
    assert log.read() == [] and log.count() == 0 and log.claim(3)


def tell_each_other(folder: str) -> Any:
    with DistributedCommunicator.join(("a",), timeout_s=20) as comm:
        found = []
        for part in range(2):
            comm.events.begin()
            comm.barrier("begin", round=part)
            for number in range(5):
                comm.events.add(f"{part} {comm.rank} {number}")
            claims = [comm.events.claim(job) for job in range(4)]
            comm.barrier("all", round=part)
            found.append((comm.events.read(), claims))
        return found


def be_done() -> Any:
    with DistributedCommunicator.join(("a",), timeout_s=20) as comm:
        comm.events.begin()
        comm.barrier("begin", round=0)
        taken = [comm.events.take() for _ in range(4)]
        comm.barrier("all", round=0)
        return taken, comm.events.count()


@pytest.mark.processes
def test_no_two_ranks_take_one_place() -> None:
    ranks = run_ranks(be_done, 3)
    assert sorted(place for taken, _ in ranks for place in taken) == [*range(1, 13)]
    assert {count for _, count in ranks} == {12}


@pytest.mark.processes
def test_ranks_have_all_events_in_one_order(tmp_path: Path) -> None:
    ranks = run_ranks(tell_each_other, 3, str(tmp_path))
    for part in range(2):
        orders = [found[part][0] for found in ranks]
        assert orders[0] == orders[1] == orders[2]
        assert sorted(orders[0]) == sorted(f"{part} {rank} {number}" for rank in range(3) for number in range(5))
        for rank in range(3):
            own = [text for text in orders[0] if text.split()[1] == str(rank)]
            assert own == [f"{part} {rank} {number}" for number in range(5)]
        assert [sum(found[part][1][job] for found in ranks) for job in range(4)] == [1] * 4
