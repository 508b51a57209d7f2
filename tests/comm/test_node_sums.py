"""Between machines one rank of each exchanges payloads; the bits are those of one process and of sockets."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from harness import make_config, make_runner
from narrow import NARROW, narrow_windows
from ranks import expect_exit, run_ranks
from toy import Quadratic

from fedtorch.comm import local
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.options import Network
from fedtorch.comm.sums import local_updates, reproducible, server_updates
from fedtorch.comm.sums.sum_ways import choose
from fedtorch.comm.transport import device as transport
from fedtorch.comm.transport import machines, pieces, windows
from fedtorch.comm.transport.device import Staging
from fedtorch.comm.transport.header import Op
from fedtorch.comm.transport.machines import numbered
from fedtorch.comm.transport.node_sums import NodeSums
from fedtorch.comm.transport.segment import Segment
from fedtorch.comm.transport.shared import Shared
from fedtorch.core.errors import DeadlineError, PreflightError

if not hasattr(os, "memfd_create"):
    pytest.skip("this system has no memory without a name", allow_module_level=True)

CLIENTS = {f"c{i}": (1.0, 0.3 * i, i + 1) for i in range(7)}
ON_CPU = Staging("gloo", torch.device("cpu"), pin=False)
WIDTH = 4 * NARROW + 7  # more windows than are on the way at once


def join(
    where: str, shares: bool = True, exchange: Literal["auto", "reduce", "send"] = "auto", staged: bool = False
) -> DistributedCommunicator:
    """where: the machine of each rank, a letter each. staged: gloo and copies on the CPU stand in for NCCL."""
    machines.machine = lambda: ord(where[int(os.environ["RANK"])])
    network = Network(shares_memory=shares)
    comm = DistributedCommunicator.join(tuple(CLIENTS), timeout_s=60, exchange=exchange, network=network)
    if staged:
        comm.stage(ON_CPU)
    return comm


def trained(
    folder: str, where: str, shares: bool, exchange: Literal["auto", "reduce", "send"], staged: bool = False
) -> tuple[str, str]:
    """The digest of a run on this rank, and how payloads travelled."""
    narrow_windows()
    with join(where, shares, exchange, staged) as comm:
        task = Quadratic(clients=CLIENTS, start=(0.1,), width=WIDTH, double=False)
        result = make_runner(make_config(Path(folder), task, rounds=2), comm).run()
        payload = comm._group._payload
        between = getattr(payload, "_between", None)
        return result.digest, type(payload).__name__ + (f" {type(between).__name__}" if between and staged else "")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the run in one process."""
    task = Quadratic(clients=CLIENTS, start=(0.1,), width=WIDTH, double=False)
    return make_runner(make_config(tmp_path_factory.mktemp("alone"), task, rounds=2)).run().digest


@pytest.mark.processes
@pytest.mark.parametrize(
    ("where", "exchange"),
    [
        ("aabb", "reduce"),  # the server's machine and another one
        ("abbb", "auto"),  # the server alone
        ("abab", "reduce"),  # in turns
        ("aabbc", "reduce"),  # three: a ring of leaders; one has no others
        ("aab", "auto"),
        ("aabb", "send"),
    ],
)
def test_the_bits_are_those_of_one_process(
    where: str, exchange: Literal["auto", "reduce", "send"], alone: str, tmp_path: Path
) -> None:
    ranks = run_ranks(trained, len(where), str(tmp_path), where, True, exchange)
    assert {way for _, way in ranks} == {"NodeSums"}
    assert ranks[0][0] == alone


@pytest.mark.processes
def test_one_key_turns_it_off(alone: str, tmp_path: Path) -> None:
    ranks = run_ranks(trained, 4, str(tmp_path), "aabb", False, "auto")
    assert {way for _, way in ranks} == {"Direct"} and ranks[0][0] == alone


@pytest.mark.processes
@pytest.mark.parametrize(
    ("where", "exchange", "ways"),
    [
        ("aabb", "reduce", ["NodeSums Staged", "NodeSums", "NodeSums Staged", "NodeSums"]),
        ("aabbc", "reduce", ["NodeSums Staged", "NodeSums", "NodeSums Staged", "NodeSums", "NodeSums Staged"]),
        ("aabb", "send", ["NodeSums Staged", "NodeSums", "NodeSums Staged", "NodeSums"]),
        ("aaa", "reduce", ["Staged"] * 3),  # one machine: what is on GPUs goes from one to the other
        ("abc", "reduce", ["Staged"] * 3),
    ],
)
def test_payloads_through_a_device_go_between_leaders_too(
    where: str, exchange: Literal["auto", "reduce", "send"], ways: list[str], alone: str, tmp_path: Path
) -> None:
    ranks = run_ranks(trained, len(where), str(tmp_path), where, True, exchange, True)
    assert [way for _, way in ranks] == ways
    assert ranks[0][0] == alone


def narrow(folder: str, where: str, spoil: str = "", at: int = 3, rounds: int = 1, staged: bool = False) -> str:
    """The digest of a run in windows of a thousand numbers. spoil: what happens on the rank `at`."""
    for module in (windows, local_updates, server_updates, local):
        module.WINDOW = 1000  # type: ignore[attr-defined]
    pieces.PIECE_BYTES = 4096
    transport.WINDOW_BYTES = 4000  # a window of a sum in two pieces
    if int(os.environ["RANK"]) == at:
        {"": lambda: None, "dies": dies, "misreads": misreads, "loses": loses, "cannot open": denied}[spoil]()
    with join(where, exchange="reduce", staged=staged) as comm:
        task = Quadratic(clients=CLIENTS, start=(0.1,), width=40_321, double=False)
        result = make_runner(make_config(Path(folder), task, rounds=rounds), comm).run()
        return f"{type(comm._group._payload).__name__} {result.digest}"


def dies() -> None:
    """In the middle of its sums, with windows on their way."""
    add, calls = reproducible.Accumulator.add, iter(range(1000))

    def deadly(self: reproducible.Accumulator, grad: torch.Tensor, weight: float, **passing: Any) -> None:
        if next(calls) == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        add(self, grad, weight, **passing)

    reproducible.Accumulator.add = deadly  # type: ignore[method-assign]


def misreads() -> None:
    """A piece of a broadcast."""
    read = Shared.read_next

    def wrong(self: Shared, tensor: torch.Tensor) -> None:
        read(self, tensor)
        tensor.view(torch.uint8)[5] ^= 1

    Shared.read_next = wrong  # type: ignore[method-assign]


def loses() -> None:
    """As a leader half of a window of its machine's sum, on its way to the next machine."""
    cross = NodeSums.cross

    def wrong(self: NodeSums, tensor: torch.Tensor) -> Any:
        tensor[len(tensor) // 2 :] = 0.0
        return cross(self, tensor)

    NodeSums.cross = wrong  # type: ignore[method-assign]


def denied() -> None:
    """It may not open another process's memory."""
    made = Segment.__init__

    def refused(self: Segment, size: int, path: str | None = None) -> None:
        if path is not None:
            raise PermissionError(13, "Permission denied")
        made(self, size, path)

    Segment.__init__ = refused  # type: ignore[method-assign]


def narrow_alone(folder: Path) -> str:
    task = Quadratic(clients=CLIENTS, start=(0.1,), width=40_321, double=False)
    return make_runner(make_config(folder, task, rounds=1)).run().digest


@pytest.mark.processes
@pytest.mark.parametrize(
    ("where", "dead", "staged"),
    [("aabb", 2, False), ("aabb", 3, False), ("aabbcc", 1, False), ("aabbcc", 4, False)]
    + [("aabb", 2, True), ("aabb", 3, True), ("aabbcc", 4, True)],
)
def test_a_rank_that_dies_within_a_sum_is_named_by_all_others(
    where: str, dead: int, staged: bool, tmp_path: Path
) -> None:
    """A leader, one that is led, one beside the server."""
    outcomes = expect_exit(narrow, len(where), str(tmp_path), where, "dies", dead, 1, staged, timeout=110)
    assert outcomes.pop(dead).exit_code == -signal.SIGKILL
    for outcome in outcomes:
        assert f"the process of rank {dead} is gone" in outcome.error
        assert outcome.exit_code == DeadlineError.exit_code


@pytest.mark.processes
def test_a_broadcast_that_was_damaged_within_a_machine_is_named(tmp_path: Path) -> None:
    outcomes = expect_exit(narrow, 4, str(tmp_path), "aabb", "misreads", timeout=60)
    assert "a payload of rank 0 did not arrive as it was sent" in outcomes[3].error and "at rank 3" in outcomes[3].error
    assert outcomes[3].exit_code == PreflightError.exit_code


@pytest.mark.processes
@pytest.mark.parametrize(("where", "staged"), [("aabb", False), ("aabbcc", False), ("aabb", True), ("aabbcc", True)])
def test_a_sum_that_was_damaged_between_machines_is_made_again_of_single_updates(
    where: str, staged: bool, tmp_path: Path
) -> None:
    found = run_ranks(narrow, len(where), str(tmp_path / "ranks"), where, "loses", 2, 1, staged)
    assert found[0] == f"NodeSums {narrow_alone(tmp_path / 'alone')}"


@pytest.mark.processes
def test_memory_that_cannot_be_opened_is_not_used_by_anybody(tmp_path: Path) -> None:
    found = run_ranks(narrow, 4, str(tmp_path / "ranks"), "aabb", "cannot open")
    assert found[0] == f"Direct {narrow_alone(tmp_path / 'alone')}"


def test_ranks_that_do_not_say_where_they_are_count_as_alone() -> None:
    assert numbered([7, 7, 9, 7, 9]) == (0, 0, 1, 0, 1)
    assert numbered([0, 0, 5, 5]) == (0, 1, 2, 2)


@pytest.mark.parametrize(
    ("held", "machines", "way"),
    [
        ((0, 2, 2, 2), (0, 0, 1, 1), Op.REDUCE),  # 8 bytes for each number reach the server's machine, not 16
        ((0, 9, 2, 0), (0, 0, 1, 1), Op.SEND_SUMS),  # as few; what is on the server's machine is on no wire
        ((0, 9, 1, 0), (0, 0, 1, 1), Op.SEND_UPDATES),
        ((0, 2, 2, 2), None, Op.REDUCE),
        ((0, 2, 2), (0, 1, 1), Op.REDUCE),
        ((0, 2, 2), None, Op.SEND_SUMS),
        ((0, 2, 0, 2, 0), (0, 1, 1, 2, 2), Op.SEND_SUMS),  # two sums, or a ring of three
    ],
)
def test_the_way_with_the_fewest_bytes_on_the_servers_wire(
    held: tuple[int, ...], machines: tuple[int, ...] | None, way: Op
) -> None:
    assert choose(held, 4, machines=machines) is way
    assert choose(held, 4, "send", machines=machines) is Op.SEND_UPDATES
    assert choose(held, 4, machines=machines, is_secret=True) is not Op.REDUCE
