"""Ranks of one machine exchange through memory that they share; the bits are those of sockets, and nothing is left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from harness import make_config, make_runner
from narrow import NARROW, narrow_windows
from ranks import run_ranks, start_ranks
from toy import Quadratic

from fedtorch.algorithms.fedassistant import FedAssistant
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.options import Network
from fedtorch.comm.transport import machines, shared
from fedtorch.comm.transport.process_group import Direct
from fedtorch.comm.transport.segment import Segment
from fedtorch.comm.transport.shared import SLOT_BYTES, SLOTS, Shared
from fedtorch.compression.compressors import TopK

if not hasattr(os, "memfd_create"):
    pytest.skip("this system has no memory without a name", allow_module_level=True)

CLIENTS = {f"c{i}": (1.0, 0.3 * i, i + 1) for i in range(5)}
# More windows than slots in a sum, pieces of a broadcast that do not fill theirs.
WIDTH = (SLOTS + 1) * NARROW + 7


def join(shares: bool) -> DistributedCommunicator:
    return DistributedCommunicator.join(tuple(CLIENTS), timeout_s=60, network=Network(shares_memory=shares))


def elsewhere() -> int:
    return 1


def unknown() -> int:
    raise FileNotFoundError(2, "No such file or directory", "/proc/sys/kernel/random/boot_id")


def trained(
    folder: str, shares: bool, exchange: Literal["auto", "send"], strange: int | None = None, is_known: bool = True
) -> tuple[str, str]:
    """The digest of a run on this rank, and how payloads travelled.

    strange: a rank that seems to be elsewhere, or (is_known False) cannot find out where it is.
    """
    narrow_windows()
    if strange == int(os.environ["RANK"]):
        machines.machine = elsewhere if is_known else unknown
    network = Network(shares_memory=shares)
    with DistributedCommunicator.join(tuple(CLIENTS), timeout_s=60, exchange=exchange, network=network) as comm:
        task = Quadratic(clients=CLIENTS, start=(0.1,), width=WIDTH, double=False)
        result = make_runner(make_config(Path(folder), task, rounds=2), comm).run()
        return result.digest, type(comm._group._payload).__name__


@pytest.mark.processes
@pytest.mark.parametrize(("size", "exchange"), [(2, "auto"), (3, "send"), (4, "auto")])  # one sum a rank, none, reduced
def test_the_bits_are_those_of_sockets(size: int, exchange: str, tmp_path: Path) -> None:
    (digest, way), *others = run_ranks(trained, size, str(tmp_path / "shared"), True, exchange)
    (expected, sockets), *_ = run_ranks(trained, size, str(tmp_path / "sockets"), False, exchange)
    assert digest == expected
    assert {way, *(way for _, way in others)} == {"Shared"} and sockets == "Direct"


@pytest.mark.processes
@pytest.mark.parametrize("is_known", [True, False])
def test_ranks_that_are_not_on_one_machine_use_sockets(is_known: bool, tmp_path: Path) -> None:
    ranks = run_ranks(trained, 2, str(tmp_path), True, "auto", 1, is_known)
    assert {way for _, way in ranks} == {"Direct"}


def refused(folder: str, is_vector: bool) -> tuple[str, bool]:
    """How payloads travel where one rank cannot open another's memory, or the server's vector; is that shared?"""
    if os.environ["RANK"] == "1":
        made = Segment.__init__

        def denied(self: Segment, size: int, path: str | None = None) -> None:
            if path is not None and (size != SLOTS * SLOT_BYTES) == is_vector:
                raise PermissionError(13, "Permission denied")
            made(self, size, path)

        Segment.__init__ = denied  # type: ignore[method-assign]
    with join(True) as comm:
        runner = make_runner(make_config(Path(folder), Quadratic(clients=CLIENTS, start=(0.1,)), rounds=1), comm)
        runner.run()
        return type(comm._group._payload).__name__, comm.vector.is_shared(runner.context.vectors.flat)


@pytest.mark.processes
@pytest.mark.parametrize(("is_vector", "way"), [(False, "Direct"), (True, "Shared")])
def test_memory_that_cannot_be_opened_is_not_used_by_anybody(is_vector: bool, way: str, tmp_path: Path) -> None:
    assert run_ranks(refused, 3, str(tmp_path), is_vector) == [(way, False)] * 3


def reading(folder: str, shares: bool, compressed: bool) -> tuple[bool, list[float]]:
    """After two rounds: is the server's vector shared, what this rank has of it."""
    with join(shares) as comm:
        task = Quadratic(clients=CLIENTS, start=(0.1,), width=5)
        method = (
            {
                "algorithm": FedAssistant(
                    payload="delta", compression="topk", topk=TopK(ratio=1.0), exchange="replicated"
                )
            }
            if compressed
            else {}
        )
        runner = make_runner(make_config(Path(folder), task, rounds=2, **method), comm)
        runner.run()
        received = runner.context.vectors.flat
        return comm.vector.is_shared(received), received.tolist()


@pytest.mark.processes
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("shares", [False, True])
def test_workers_read_the_servers_vector_where_it_is(shares: bool, compressed: bool, tmp_path: Path) -> None:
    (is_shared, servers), *others = run_ranks(reading, 3, str(tmp_path), shares, compressed)
    assert is_shared == (shares and not compressed), "with messages every rank changes a replica of its own"
    for also, numbers in others:
        assert also == is_shared and numbers == servers


def writing(folder: str) -> None:
    """A worker that changes what it received."""
    with join(True) as comm:
        task = Quadratic(clients=CLIENTS, start=(0.1,), width=5)
        runner = make_runner(make_config(Path(folder), task, rounds=1), comm)
        runner.run()
        if comm.rank:
            runner.context.vectors.flat.add_(1.0)


@pytest.mark.processes
def test_a_worker_cannot_change_the_servers_vector(tmp_path: Path) -> None:
    ranks = start_ranks(writing, 2, str(tmp_path))
    for process in ranks.processes:
        process.join(60)
    assert ranks.processes[1].exitcode == -signal.SIGSEGV


def waits_for_ever(folder: str) -> None:
    """A rank that shares memory and then hangs."""
    narrow_windows()
    with join(True) as comm:
        task = Quadratic(clients=CLIENTS, start=(0.1,), width=WIDTH, double=False)
        make_runner(make_config(Path(folder), task, rounds=1), comm).run()
        (Path(folder) / f"pid{comm.rank}").write_text(str(os.getpid()))
        while True:
            time.sleep(1)


def mapped() -> set[int]:
    """Processes that have such memory."""
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if "memfd:fedtorch" in maps.read_text():
                found.add(int(maps.parent.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def named() -> set[str]:
    """Memory with a name, but for the semaphores of Python's processes, which come and go."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}


@pytest.mark.processes
def test_nothing_is_left_of_ranks_that_were_killed(tmp_path: Path) -> None:
    before = named()
    ranks = start_ranks(waits_for_ever, 3, str(tmp_path))
    end = time.monotonic() + 60
    while len(files := list(tmp_path.glob("pid*"))) < 3:
        assert time.monotonic() < end, "the ranks did not come to their end"
        time.sleep(0.05)
    pids = {int(file.read_text()) for file in files}
    assert pids <= mapped()
    assert named() <= before
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for process in ranks.processes:
        process.join(30)
    assert not pids & mapped()
    assert named() <= before


class Group:
    """Of two ranks in one process: what is sent is there at once."""

    def __init__(self, sent: dict[tuple[int, int], list[torch.Tensor]], rank: int) -> None:
        self.sent, self.rank = sent, rank

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Any:
        self.sent.setdefault((rank, tag), []).append(tensors[0].clone())
        return self

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Any:
        outer = self

        class Work:
            def wait(self) -> None:
                tensors[0].copy_(outer.sent[outer.rank, tag].pop(0))

        return Work()

    def wait(self) -> None:
        """It is sent already."""


def pair() -> tuple[Shared, Shared]:
    """The server and a worker."""
    sent: dict[tuple[int, int], list[torch.Tensor]] = {}
    segments = Segment(SLOTS * SLOT_BYTES), Segment(SLOTS * SLOT_BYTES)
    return (
        Shared(Direct(Group(sent, 0)), segments[0], {1: segments[1]}),
        Shared(Direct(Group(sent, 1)), segments[1], {0: segments[0]}),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8])
def test_windows_arrive_in_the_order_in_which_they_were_sent(dtype: torch.dtype) -> None:
    server, worker = pair()
    windows = [torch.arange(n, dtype=torch.int64).to(dtype) + n for n in (3, 0, 1000, 1)]
    for window in windows:
        worker.send(window, 0).wait()
    for window in windows:
        came = torch.empty_like(window)
        server.receive(came, 1).wait()
        assert came.equal(window)


def test_windows_that_are_lent_are_read_where_they_are() -> None:
    server, worker = pair()
    lent = worker.slots()
    assert len(lent) == SLOTS and all(slot.nbytes == SLOT_BYTES for slot in lent)
    for turn in range(2):
        sent = [lent[place][:24].view(torch.float64).fill_(place + turn) for place in (2, 0)]
        sending = [worker.send(window, 0) for window in sent]
        taking = [server.take(torch.empty(3, dtype=torch.float64), 1) for _ in sent]
        for window, take in zip(sent, taking, strict=True):
            found: Any = take.wait()
            assert found.tolist() == window.tolist() and found.data_ptr() == window.data_ptr()
        told = worker._group.sent[1, shared._READ]
        assert len(told) == 1, "the first was given back when the second was taken"
        server.give_back()
        for each in sending:
            each.wait()
        assert not told
    worker.send(torch.ones(4), 0)  # a copy again, into a slot that nobody reads
    came = torch.empty(4)
    server.receive(came, 1).wait()
    assert came.tolist() == [1.0] * 4


def test_a_full_segment_waits_until_a_slot_was_read() -> None:
    server, worker = pair()
    for number in range(SLOTS):
        worker.send(torch.full((4,), float(number)), 0)
    came = torch.empty(4)
    server.receive(came, 1).wait()
    worker.send(torch.full((4,), 9.0), 0)  # takes the slot of the first
    found = []
    for _ in range(SLOTS):
        server.receive(came, 1).wait()
        found.append(came[0].item())
    assert found == [1.0, 2.0, 3.0, 9.0]


def test_a_slot_that_there_is_not_is_an_error() -> None:
    server, worker = pair()
    worker.tell(SLOTS, 0, shared._SLOT)
    with pytest.raises(RuntimeError, match=f"rank 1 of the group named slot {SLOTS} of {SLOTS}"):
        server.receive(torch.empty(4), 1).wait()


def test_a_sum_is_of_all_ranks() -> None:
    server, worker = pair()
    whole, own = torch.arange(5.0).double(), torch.full((5,), 2.0).double()
    adding = server.reduce(whole)
    worker.reduce(own).wait()
    adding.wait()
    assert whole.tolist() == [2.0, 3.0, 4.0, 5.0, 6.0]


def test_what_is_longer_than_a_slot_goes_over_sockets() -> None:
    server, worker = pair()
    long = torch.ones(SLOT_BYTES // 4 + 1)
    worker.send(long, 0).wait()
    came = torch.empty_like(long)
    server.receive(came, 1).wait()
    assert came.equal(long)
