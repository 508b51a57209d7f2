"""One process: the same semantics, nothing moves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedtorch.comm.local import LocalCommunicator
from fedtorch.comm.transport.meter import Meter
from fedtorch.comm.wire import Packet
from fedtorch.core.errors import PreflightError
from fedtorch.core.update import Report, UpdateBuffer
from tests.support.combined import combined


@pytest.fixture
def local(tmp_path: Path) -> UpdateBuffer:
    buffer = UpdateBuffer(2, torch.float32, tmp_path, 1 << 20)
    buffer.put("a", torch.tensor([1.0, 2.0]))
    buffer.put("b", torch.tensor([3.0, -4.0]))
    return buffer


REPORTS = [Report("b", norm=5.0, max_abs=4.0), Report("a", norm=5**0.5, max_abs=2.0)]


def test_a_round_a_reader_can_redo(local: UpdateBuffer) -> None:
    with LocalCommunicator(["a", "b"]) as comm:
        assert comm.is_server and not comm.barrier("train", round=1) and comm.barrier("train", round=1, stop=True)
        comm.preflight({"seed": "0"})
        comm.heartbeat(phase="train", round=1)
        comm.broadcast(torch.zeros(2), clients=2)
        gathered = comm.gather_reports(REPORTS, round=1)
        assert [report.client for report in gathered] == ["a", "b"]
        total = combined(comm, local, gathered, lambda updates: updates.weighted_sum([0.5, -0.25]), round=1)
        assert total.tolist() == [-0.25, 2.0]
        median = combined(comm, local, gathered, lambda updates: torch.stack(list(updates)).amax(0), round=1)
        assert median.tolist() == [3.0, 2.0]
        counted = comm.meter.take()
        assert (counted["bytes_down"], counted["aggregate/bytes_up"]) == (16, 32)
        assert counted["physical_up"] == counted["physical_down"] == 0
        assert comm.broadcast_packets([Packet(0, "score")], round=1) == [Packet(0, "score")]


def test_weights_are_checked(local: UpdateBuffer) -> None:
    comm = LocalCommunicator(["a", "b"])
    with pytest.raises(ValueError, match="1 weights were given for 2 updates"):
        combined(comm, local, REPORTS, lambda updates: updates.weighted_sum([1.0]), round=1)
    with pytest.raises(ValueError, match="weight 1 of a weighted sum is nan"):
        combined(comm, local, REPORTS, lambda updates: updates.weighted_sum([1.0, float("nan")]), round=1)


def test_two_reports_of_one_client_are_refused() -> None:
    with pytest.raises(PreflightError, match="client `a` sent two report messages"):
        LocalCommunicator(["a"]).gather_reports([Report("a"), Report("a")], round=1)


def test_client_names_are_distinct() -> None:
    with pytest.raises(ValueError, match="2 client names were given, 1 of them distinct"):
        LocalCommunicator(["a", "a"])


def test_what_cannot_travel_fails_in_one_process_too() -> None:
    with pytest.raises(ValueError, match="does not match"):
        LocalCommunicator(["a"]).gather_reports([Report("a", extra={"Upper case": 1.0})], round=1)


def test_a_meter_counts_totals_and_since_last_taken() -> None:
    meter = Meter()
    meter.count("up", "gather", logical=5, physical=3, messages=1)
    assert meter.take()["bytes_up"] == 5
    meter.count("down", "broadcast", logical=7)
    taken = meter.take()
    assert (taken["bytes_up"], taken["bytes_down"], taken["broadcast/bytes_down"]) == (0, 7, 7)
    assert "gather/bytes_up" not in taken
    assert (meter.totals()["bytes_up"], meter.totals()["messages_up"]) == (5, 1)
