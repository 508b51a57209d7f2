"""Ranks of one machine add up slices of all updates where they are: the bits of one process, or the way as ever."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from ranks import expect_exit, run_ranks

from fedtorch.comm import distributed
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.local import LocalCommunicator
from fedtorch.comm.options import Network
from fedtorch.comm.sums import checks, local_updates, sum_slices
from fedtorch.comm.sums.accepted import AcceptedUpdates
from fedtorch.comm.sums.server_updates import DistributedUpdates
from fedtorch.comm.transport import update_memory
from fedtorch.comm.transport.header import Op
from fedtorch.comm.transport.update_memory import NOWHERE, UpdateMemory
from fedtorch.comm.transport.windows import slice_of
from fedtorch.core.errors import FedtorchError, RefusedUpdatesError
from fedtorch.core.norms import norm_and_max
from fedtorch.core.seeds import generator_for
from fedtorch.core.update import Report, UpdateBuffer
from fedtorch.core.weights import digest_of
from tests.support.combined import combined

NAMES = tuple(f"client-{k}" for k in range(7))
WEIGHTS = (0.3, -0.1, 0.25, 0.0, 0.2, 1.7, 1e-6)
SIZE = (1 << 18) + 12_345  # just longer than what is sent in any case; no number of ranks divides it


def fill(comm: Communicator, local: UpdateBuffer, homes: dict[str, int], scale: float) -> list[Report]:
    """This rank's updates, as the round loop makes them, and true reports."""
    local.clear()
    reports = []
    for place, name in enumerate(NAMES):
        if homes[name] == comm.rank:
            update = local.blank()
            drawn = torch.randn(local.size, generator=generator_for(0, "test", name))
            update.copy_(scale * drawn * 10.0 ** (place - 6))
            local.put(name, update)
            norm, max_abs = norm_and_max(update)
            reports.append(Report(name, examples=1, norm=norm, max_abs=max_abs))
    return reports


def rounds(comm: Communicator, homes: dict[str, int], folder: str, size: int, room: int, own: Any = None) -> Any:
    """Of three rounds: (digest of the sum, or who was refused; how it was asked for), traffic.

    room: updates that stay in memory.
    """
    spill, lender = Path(folder) / str(comm.rank), comm.memory.lend
    local = UpdateBuffer(size, torch.float32, spill, memory_bytes=4 * size * room, lender=lender)
    requested: list[Op] = []
    if isinstance(comm, DistributedCommunicator):
        inner = DistributedUpdates._sum_in_slices

        def noted(self: Any, terms: Any, scale: Any, into: Any, otherwise: Op) -> bool:
            is_done = inner(self, terms, scale, into, otherwise)
            requested.append(Op.SUM_SLICES if is_done else otherwise)
            return is_done

        DistributedUpdates._sum_in_slices = noted  # type: ignore[method-assign]
    found: list[Any] = []
    for round in range(3):
        reports = fill(comm, local, homes, 1.0 + round)
        comm.barrier("train", round=round)
        gathered = comm.gather_reports(reports, round=round)

        def combine(updates: AcceptedUpdates) -> torch.Tensor:
            if own is not None:
                updates.fix_scale(*own)
                return updates.weighted_sum([a / sum(own[1]) for a in own[1]])
            return updates.weighted_sum(WEIGHTS)

        try:
            total = combined(comm, local, gathered, combine, round=round)
            found.append(None if total is None else digest_of({"sum": total}))
        except RefusedUpdatesError as error:
            found.append(sorted(error.reasons))
        comm.barrier("next", round=round)
    return found, requested, comm.meter.totals()


def on_ranks(
    homes: dict[str, int],
    folder: str,
    size: int,
    room: int,
    shares: bool = True,
    own: Any = None,
    exchange: str = "auto",
) -> Any:
    joined = DistributedCommunicator.join(
        NAMES,
        timeout_s=30,
        exchange=exchange,  # type: ignore[arg-type]
        network=Network(shares_memory=shares),
    )
    with joined as comm:
        comm.preflight({"config": "same"})
        return rounds(comm, homes, folder, size, room, own)


def spread(ranks: list[int]) -> dict[str, int]:
    return {name: ranks[place % len(ranks)] for place, name in enumerate(NAMES)}


@cache
def in_one_process(size: int = SIZE, own: Any = None) -> Any:
    """Digests of the rounds in one process."""
    with TemporaryDirectory() as folder:
        return rounds(LocalCommunicator(NAMES), spread([0]), folder, size, 7, own)[0]


@pytest.mark.processes
@pytest.mark.parametrize(("num_ranks", "hosts"), [(2, [0, 1]), (2, [1]), (3, [1, 2]), (3, [0, 0, 2]), (5, [4, 1])])
def test_slices_give_the_bits_of_one_process(num_ranks: int, hosts: list[int], tmp_path: Path) -> None:
    alone = in_one_process()
    together = run_ranks(on_ranks, num_ranks, spread(hosts), str(tmp_path), SIZE, 7)
    assert together[0][:2] == (alone, [Op.SUM_SLICES] * 3)
    assert len(set(alone)) == 3  # three different rounds


@pytest.mark.processes
def test_a_scale_fixed_before_the_round_reaches_all_ranks_with_its_divisor(tmp_path: Path) -> None:
    own = (20, (3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0))
    alone = in_one_process(SIZE, own)
    found = run_ranks(on_ranks, 3, spread([1, 2]), str(tmp_path), SIZE, 7, True, own)[0]
    assert found[:2] == (alone, [Op.SUM_SLICES] * 3)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("size", "room", "exchange", "shares"),
    [
        (1000, 7, "auto", True),  # too short
        (SIZE, 2, "auto", True),  # some wait in files
        (SIZE, 7, "reduce", True),
        (SIZE, 7, "send", True),
        (SIZE, 7, "auto", False),
    ],
)
def test_what_cannot_be_read_where_it_is_travels_as_ever(
    size: int, room: int, exchange: str, shares: bool, tmp_path: Path
) -> None:
    alone = in_one_process(size)
    (sums, requested, _), *_ = run_ranks(on_ranks, 3, spread([1, 2]), str(tmp_path), size, room, shares, None, exchange)
    assert sums == alone
    assert Op.SUM_SLICES not in requested and len(requested) == 3


@pytest.mark.processes
def test_traffic_is_counted_as_if_it_had_been_sent(tmp_path: Path) -> None:
    for hosts in ([1, 2], [0, 1, 2, 2, 2], [0, 0, 1]):
        in_place, sent = (
            [traffic for *_, traffic in run_ranks(on_ranks, 3, spread(hosts), str(tmp_path), SIZE, 7, shares)]
            for shares in (True, False)
        )
        assert in_place == sent
        assert in_place[0]["aggregate/physical_up"] > 0


def lying(homes: dict[str, int], folder: str) -> Any:
    """Rank 1's first client changes its update after its report."""
    inner = local_updates.answer_requests

    def changed(aggregation: Any) -> None:
        if aggregation.group.rank == 1:
            aggregation.local.get(NAMES[1]).mul_(3)
        inner(aggregation)

    distributed.answer_requests = changed
    return on_ranks(homes, folder, SIZE, 7)


@pytest.mark.processes
def test_a_client_whose_update_is_not_what_it_reported_is_named(tmp_path: Path) -> None:
    homes = spread([2])
    homes |= {NAMES[1]: 1, NAMES[5]: 1}
    (found, requested, _), *_ = run_ranks(lying, 3, homes, str(tmp_path))
    assert found == [[NAMES[1]]] * 3 and requested[0] is Op.SUM_SLICES


def writing_wrong(homes: dict[str, int], folder: str) -> Any:
    """Rank 2 writes another slice than it says."""
    inner = sum_slices._add

    def wrong(found: Any, terms: Any, start: int, stop: int) -> Any:
        numbers = inner(found, terms, start, stop)
        if start == slice_of(SIZE, 3, 2)[0]:
            found.out[start + 7 : start + 5000] *= 2
        return numbers

    sum_slices._add = wrong
    return on_ranks(homes, folder, SIZE, 7)


@pytest.mark.processes
def test_a_slice_that_is_not_what_its_rank_says_does_not_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alone = in_one_process()
    (found, requested, _), *_ = run_ranks(writing_wrong, 3, spread([1, 2]), str(tmp_path))
    assert found == alone  # of updates that were sent one by one
    assert requested == [Op.SUM_SLICES] * 3


def when_there(path: Path, act: Callable[[], None]) -> threading.Thread:
    """A thread that acts once the file is there."""

    def wait() -> None:
        end = time.monotonic() + 60
        while not path.exists() and time.monotonic() < end:
            time.sleep(0.002)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def writing_late(homes: dict[str, int], folder: str) -> Any:
    """Rank 1 changes what it wrote once the server has checked it, before the server uses it."""
    checked, written = Path(folder) / "checked", Path(folder) / "written"
    if os.environ["RANK"] == "1":
        inner = sum_slices._add

        def remembered(found: Any, *args: Any) -> Any:
            def change() -> None:
                found.out[slice(*slice_of(SIZE, 3, 1))] *= 1e6
                written.touch()

            when_there(checked, change)
            return inner(found, *args)

        sum_slices._add = remembered
    if os.environ["RANK"] == "0":
        see_sum = checks.SumCheck.see_sum

        def slow(self: Any, *args: Any) -> None:
            see_sum(self, *args)
            checked.touch()
            when_there(written, lambda: None).join()

        checks.SumCheck.see_sum = slow  # type: ignore[method-assign]
    return on_ranks(homes, folder, SIZE, 7)


@pytest.mark.processes
def test_what_is_changed_after_the_check_does_not_count(tmp_path: Path) -> None:
    alone = in_one_process()
    (found, requested, _), *_ = run_ranks(writing_late, 3, spread([1, 2]), str(tmp_path))
    assert (tmp_path / "written").exists()
    assert found == alone and requested == [Op.SUM_SLICES] * 3


def reporting(homes: dict[str, int], folder: str, wrong: float, at: int) -> Any:
    """Rank 2 reports an impossible number of its slice."""
    if os.environ["RANK"] == "2":
        inner = sum_slices._add

        def lies(*args: Any) -> list[float]:
            numbers = inner(*args)
            numbers[at] = wrong
            return numbers

        sum_slices._add = lies
    caught: list[str] = []
    logging.getLogger("fedtorch.comm.sums.accepted").addHandler(Kept(caught))
    return on_ranks(homes, folder, SIZE, 7), caught


class Kept(logging.Handler):
    """Keeps messages."""

    def __init__(self, kept: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append(record.getMessage())


@pytest.mark.processes
@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("wrong", [-1.0, -math.inf, math.nan, math.inf, 1e308])
def test_a_number_of_a_slice_that_cannot_be_does_not_count(wrong: float, at: int, tmp_path: Path) -> None:
    alone = in_one_process()
    ((found, requested, _), caught), *_ = run_ranks(reporting, 3, spread([1, 2]), str(tmp_path), wrong, at)
    assert found == alone  # of updates that were sent one by one
    assert requested == [Op.SUM_SLICES] * 3 and len(caught) == 3
    if wrong < 0:
        assert all(f"rank 2 reported {wrong:.6g} as a sum of squares in its slice" in text for text in caught)
    elif at == -1:
        assert all("that of rank 2, did not arrive" in text for text in caught)


def dying(homes: dict[str, int], folder: str) -> Any:
    """Rank 1 is killed while others read its updates."""
    inner = sum_slices._add

    def killed(found: Any, terms: Any, start: int, stop: int) -> Any:
        if start == slice_of(SIZE, 3, 1)[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return inner(found, terms, start, stop)

    sum_slices._add = killed
    try:
        on_ranks(homes, folder, SIZE, 7)
    except FedtorchError as error:
        return str(error)
    return "no error"


@pytest.mark.processes
def test_a_rank_that_is_killed_among_its_slices_is_named(tmp_path: Path) -> None:
    server, killed, other = expect_exit(dying, 3, spread([1, 2]), str(tmp_path))
    assert killed.exit_code == -signal.SIGKILL
    assert "rank 1" in server.result and "rank 1" in other.result


@pytest.mark.processes
def test_a_rank_that_cannot_reach_memory_turns_all_to_the_other_way(tmp_path: Path) -> None:
    alone = in_one_process()
    (found, requested, _), *_ = run_ranks(unreachable, 3, spread([1, 2]), str(tmp_path))
    assert found == alone and Op.SUM_SLICES not in requested


def unreachable(homes: dict[str, int], folder: str) -> Any:
    """Rank 2 finds nothing."""
    if os.environ["RANK"] == "2":
        update_memory.path_of = lambda process, file: "/nowhere"
    return on_ranks(homes, folder, SIZE, 7)


def test_memory_is_lent_again_when_nobody_has_it() -> None:
    memory = UpdateMemory(lambda: True)
    if (first := memory.lend(SIZE, torch.float32, 2)) is None:
        pytest.skip("this system has no memory without a name")
    second = memory.lend(SIZE, torch.float32, 2)
    assert second is not None and memory.lend(SIZE, torch.float32, 2) is None  # there are two
    assert memory.lend(SIZE - 5000, torch.float32, 2) is None  # another length
    place, part = memory.place(first), first[5:9]
    assert memory.place(second) != place and memory.place(torch.zeros(3)) == NOWHERE
    del first
    assert memory.lend(SIZE, torch.float32, 2) is None  # a part of it is in use
    del part
    again = memory.lend(SIZE, torch.float32, 2)
    assert again is not None and memory.place(again) == place


def test_what_another_rank_says_of_its_memory_is_checked() -> None:
    memory, other = UpdateMemory(lambda: True), UpdateMemory(lambda: True)
    if (vector := memory.lend(SIZE, torch.float32, 1)) is None:
        pytest.skip("this system has no memory without a name")
    vector.fill_(3.0)
    process, file, num_bytes, start = memory.place(vector)
    found = other.find((process, file, num_bytes, start), SIZE, torch.float32)
    assert found is not None and torch.equal(found, vector)
    for place in (
        NOWHERE,
        (process, file, num_bytes, start + 2),
        (-process, file, num_bytes, start),
        (process, file, num_bytes, num_bytes - 8),
        (process, file, num_bytes, -8),
        (0, 1, 2, 3),
    ):
        assert other.find(place, SIZE, torch.float32) is None
    assert other.find((process, 10_000, num_bytes, start), SIZE, torch.float32) is None


def test_nothing_is_kept_of_ranks_of_another_group() -> None:
    memory, other = UpdateMemory(lambda: True), UpdateMemory(lambda: True)
    if (vector := memory.lend(SIZE, torch.float32, 1)) is None:
        pytest.skip("this system has no memory without a name")
    other.begin(0)
    assert other.find(place := memory.place(vector), SIZE, torch.float32) is not None
    other.begin(0)
    assert len(other._others) == 1
    other.begin(1)
    assert not other._others
    assert other.find(place, SIZE, torch.float32) is not None


def test_nothing_is_lent_where_memory_is_not_shared_or_a_vector_is_short() -> None:
    assert UpdateMemory(lambda: False).lend(SIZE, torch.float32, 2) is None
    assert UpdateMemory(lambda: True).lend(1000, torch.float32, 2) is None
