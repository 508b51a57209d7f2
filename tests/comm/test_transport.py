"""Payloads through a device and a group of their own: a second gloo group and copies on the CPU stand in for NCCL."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from narrow import NARROW, narrow_windows
from ranks import expect_exit, run_ranks

from fedtorch.comm import local
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.sums import local_updates, server_updates
from fedtorch.comm.sums.sum_ways import Exchange
from fedtorch.comm.transport import device as transport
from fedtorch.comm.transport import windows
from fedtorch.comm.transport.device import Staged, Staging
from fedtorch.comm.transport.group import Group
from fedtorch.core.errors import DeadlineError, PreflightError
from fedtorch.core.update import Report, UpdateBuffer
from tests.comm.test_exchange import NAMES, in_one_process, one_round, spread

ON_CPU = Staging("gloo", torch.device("cpu"), pin=False)


def join(names: Any, *, staged: bool = True, timeout_s: float = 30, exchange: Exchange = "auto") -> Any:
    comm = DistributedCommunicator.join(names, timeout_s=timeout_s, exchange=exchange, grace_s=0.5)
    comm.preflight({"config": "same"})
    if staged:
        comm.stage(ON_CPU)
    return comm


def round_of_two_windows(*args: Any) -> Any:
    narrow_windows()
    return a_round(*args)


def a_round(hosts: list[int], folder: str, exchange: Exchange, dtype: torch.dtype, size: int, staged: bool) -> Any:
    """What `one_round` gives, and every rank's meter."""
    with join(NAMES, staged=staged, exchange=exchange) as comm:
        return one_round(comm, spread(hosts), folder, size, dtype), comm.meter.totals()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("num_ranks", "hosts", "exchange", "dtype"),
    [
        (2, [1], "reduce", torch.float32),  # each other rank sends its sum
        (3, [0, 1, 2], "send", torch.float32),
        pytest.param(4, [1, 2, 3], "reduce", torch.float64, marks=pytest.mark.slow),
        pytest.param(5, [4, 1], "auto", torch.float32, marks=pytest.mark.slow),
    ],
)
def test_staged_payloads_have_the_bits_and_the_byte_counts_of_direct_ones(
    num_ranks: int, hosts: list[int], exchange: Exchange, dtype: torch.dtype, tmp_path: Path
) -> None:
    size = NARROW + 12_345
    direct, staged = (
        run_ranks(round_of_two_windows, num_ranks, hosts, str(tmp_path / str(flag)), exchange, dtype, size, flag)
        for flag in (False, True)
    )
    alone = in_one_process(size, dtype)
    assert staged == direct
    assert staged[0][0] == alone


def narrow_round(hosts: list[int], folder: str, exchange: Exchange) -> Any:
    """Windows of a sum of 1000 elements, and of the device of 1000 bytes: every operation goes in many pieces."""
    for module in (windows, local_updates, server_updates, local):
        module.WINDOW = 1000  # type: ignore[attr-defined]
    transport.WINDOW_BYTES = 1000
    return a_round(hosts, folder, exchange, torch.float32, 40_321, True)


@pytest.mark.processes
@pytest.mark.parametrize("exchange", ["send", "reduce"])
@pytest.mark.parametrize("hosts", [[0, 1, 1, 1, 1, 1, 2], pytest.param([1, 2, 3], marks=pytest.mark.slow)])
def test_many_windows_pass_in_step(exchange: Exchange, hosts: list[int], tmp_path: Path) -> None:
    alone = in_one_process(40_321)
    assert run_ranks(narrow_round, 4, hosts, str(tmp_path), exchange)[0][0] == alone


def every_type() -> Any:
    """Broadcasts and an all-gather of every dtype, of lengths below, at and above a window, and of nothing."""
    transport.WINDOW_BYTES = 96
    with join(["a", "b", "c"]) as comm:
        found = []
        for dtype in (torch.float32, torch.float64, torch.int64, torch.uint8):
            for length in (0, 1, 12, 24, 25, 101):
                flat = (torch.arange(length) + comm.rank).to(dtype)
                comm.broadcast(flat)
                found.append(flat.tolist())
        local = UpdateBuffer(41, torch.uint8, Path("unused"), 1 << 20)
        local.put("abc"[comm.rank], torch.arange(41, dtype=torch.uint8) * (comm.rank + 1))
        comm.gather_reports([Report("abc"[comm.rank])], round=1)
        everyone = comm.all_gather_updates(local, ["a", "b", "c"], round=1)
        return found, [each.tolist() for each in everyone]


@pytest.mark.processes
def test_every_dtype_and_length_is_moved_whole() -> None:
    results = run_ranks(every_type, 3)
    expected = [list(range(length)) for _ in range(4) for length in (0, 1, 12, 24, 25, 101)]
    assert [found for found, _ in results] == [expected] * 3
    assert [everyone for _, everyone in results] == [
        [[(place * factor) % 256 for place in range(41)] for factor in (1, 2, 3)]
    ] * 3


def dying_round(folder: str, exchange: Exchange) -> None:
    """Rank 2 kills itself in the middle of a payload."""
    if os.environ["RANK"] == "2":
        awaited, calls = Staged._await, iter(range(10_000))

        def deadly(self: Staged, work: Any) -> None:
            if next(calls) == 30:
                os.kill(os.getpid(), signal.SIGKILL)
            awaited(self, work)

        Staged._await = deadly  # type: ignore[method-assign]
    narrow_round([0, 1, 2, 3], folder, exchange)


@pytest.mark.processes
@pytest.mark.parametrize("exchange", [pytest.param("send", marks=pytest.mark.slow), "reduce"])
def test_a_rank_that_dies_within_a_payload_is_named_by_all_others(exchange: Exchange, tmp_path: Path) -> None:
    outcomes = expect_exit(dying_round, 4, str(tmp_path), exchange, timeout=40)
    assert outcomes[2].exit_code == -signal.SIGKILL
    for rank in (0, 1, 3):
        assert "the process of rank 2 is gone" in outcomes[rank].error
        assert outcomes[rank].exit_code == DeadlineError.exit_code


def mismatched() -> None:
    with join(["a"]) as comm:
        comm.broadcast(torch.zeros(10 + (comm.rank == 2)))


@pytest.mark.processes
def test_a_payload_of_another_length_is_refused_before_it_moves() -> None:
    for outcome in expect_exit(mismatched, 3, timeout=30):
        assert "rank 2 has length 11, the server has length 10" in outcome.error
        assert outcome.exit_code == PreflightError.exit_code


class _Never:
    """A work of a group that is told nothing, as NCCL's when a rank of the same machine has died."""

    def is_completed(self) -> bool:
        return False

    def wait(self) -> None:
        raise AssertionError("nobody may wait without an end")


def staged_alone(**options: Any) -> Staged:
    group = SimpleNamespace(rank=lambda: 0, size=lambda: 2, recv=lambda tensors, rank, tag: _Never())
    return Staged(group, torch.device("cpu"), pin=False, **options)


def test_a_window_that_never_comes_ends_with_what_the_watch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_WATCH_EVERY_S", 0.01)

    def watch() -> None:
        raise RuntimeError("rank 1 is gone")

    with pytest.raises(RuntimeError, match="rank 1 is gone"):
        staged_alone(timeout_s=5, watch=watch).receive(torch.zeros(3), 1).wait()


def test_a_window_that_never_comes_ends_after_the_timeout() -> None:
    with pytest.raises(RuntimeError, match=r"did not come within 0\.05 s"):
        staged_alone(timeout_s=0.05, watch=lambda: None).receive(torch.zeros(3), 1).wait()


def test_a_watch_names_a_rank_that_left_or_whose_collective_failed() -> None:
    alive = {"rank": 0, "size": 3, "timeout_s": 5, "beat": lambda: None, "others": [1, 2]}
    for missing, unheard, message in (([2], [1, 2], "rank 2 is gone"), ([], [1], "another rank's collective")):
        liveness = SimpleNamespace(**alive, missing=lambda ranks, m=missing: m, unaccounted=lambda u=unheard: u)
        group = Group(None, liveness, lambda text: None)  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match=message):
            group._watch()
    liveness = SimpleNamespace(**alive, missing=lambda ranks: [], unaccounted=lambda: [1, 2])
    Group(None, liveness, lambda text: None)._watch()  # type: ignore[arg-type]
