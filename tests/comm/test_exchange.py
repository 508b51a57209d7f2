"""Weights down, reports and updates up: the same bits for any number of ranks, packing and transport."""

from __future__ import annotations

import os
import signal
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from narrow import NARROW, narrow_windows
from ranks import expect_exit, run_ranks

from fedtorch.comm import local
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.local import LocalCommunicator
from fedtorch.comm.sums import local_updates, reproducible, server_updates
from fedtorch.comm.sums.accepted import AcceptedUpdates
from fedtorch.comm.sums.aggregation import Term
from fedtorch.comm.sums.server_updates import DistributedUpdates
from fedtorch.comm.sums.sum_ways import Exchange
from fedtorch.comm.transport import windows
from fedtorch.comm.transport.group import Group
from fedtorch.comm.transport.header import Op
from fedtorch.comm.transport.pieces import PIECE_BYTES
from fedtorch.comm.transport.windows import WINDOW
from fedtorch.core.errors import DeadlineError, FedtorchError, PreflightError
from fedtorch.core.norms import norm_and_max
from fedtorch.core.seeds import generator_for
from fedtorch.core.update import Report, UpdateBuffer
from fedtorch.core.weights import digest_of
from tests.support.combined import combined

NAMES = tuple(f"client-{k}" for k in range(7))
WEIGHTS = (0.3, -0.1, 0.25, 0.0, 0.2, 1.7, 1e-6)
SIZE = NARROW + 12_345  # two windows, the second one short


def fill(comm: Communicator, homes: dict[str, int], folder: str, size: int, dtype: torch.dtype) -> Any:
    """This rank's buffer (most of it in files) and reports, in another order than the manifest's."""
    local = UpdateBuffer(size, dtype, Path(folder) / str(comm.rank), memory_bytes=2 * size * dtype.itemsize)
    reports = []
    for name in reversed(NAMES):
        if homes[name] == comm.rank:
            place = NAMES.index(name)
            grad = torch.randn(size, generator=generator_for(0, "test", name), dtype=dtype) * 10.0 ** (place - 6)
            local.put(name, grad)
            norm, max_abs = norm_and_max(grad)
            reports.append(Report(name, examples=place, norm=norm, max_abs=max_abs))
    return local, reports


def one_round(comm: Communicator, homes: dict[str, int], folder: str, size: int, dtype: torch.dtype) -> Any:
    """Digest of a weighted sum, of a median, of the updates as they come; order of the reports."""
    local, reports = fill(comm, homes, folder, size, dtype)
    comm.barrier("train", round=3)
    gathered = comm.gather_reports(reports, round=3)

    def combine(updates: AcceptedUpdates) -> torch.Tensor:
        each = [update.clone() for update in updates]
        for update in updates:  # leaving early must not confuse the ranks
            assert torch.equal(update, each[0])
            break
        total = updates.weighted_sum(WEIGHTS)
        for _ in updates:
            assert torch.equal(total, updates.weighted_sum(WEIGHTS))  # while an update is on its way
            break
        middle = torch.stack([update[:1000] for update in each]).median(0).values
        return torch.cat([total, middle, *each])

    total = combined(comm, local, gathered, combine, round=3)
    if total is None:
        return None
    return digest_of({"combined": total}), [report.client for report in gathered], comm.meter.totals()["bytes_up"]


def distributed_round(homes: dict[str, int], folder: str, exchange: Exchange, size: int, dtype: torch.dtype) -> Any:
    with DistributedCommunicator.join(NAMES, timeout_s=30, exchange=exchange) as comm:
        comm.preflight({"config": "same"})
        return one_round(comm, homes, folder, size, dtype)


def round_of_two_windows(*args: Any) -> Any:
    narrow_windows()
    return distributed_round(*args)


def spread(ranks: list[int]) -> dict[str, int]:
    return {name: ranks[place % len(ranks)] for place, name in enumerate(NAMES)}


@cache
def in_one_process(size: int, dtype: torch.dtype = torch.float32) -> Any:
    """What one process gives."""
    with TemporaryDirectory() as folder:
        return one_round(LocalCommunicator(NAMES), spread([0]), folder, size, dtype)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("num_ranks", "hosts", "exchange", "dtype"),
    [
        (1, [0], "send", torch.float32),
        (2, [1], "reduce", torch.float32),  # with fewer than three other ranks that have clients, each sends its sum
        (2, [0, 1], "send", torch.float32),  # the server works too
        (3, [1, 2], "send", torch.float32),
        (3, [2, 2, 1], "reduce", torch.float32),
        (3, [0, 1, 2], "reduce", torch.float64),
        (4, [1, 2, 3], "reduce", torch.float32),
        (5, [4, 1], "auto", torch.float32),  # ranks 2 and 3 are idle
        pytest.param(3, [1, 2], "send", torch.float64, marks=pytest.mark.slow),
        pytest.param(5, [1, 2, 3, 4], "send", torch.float32, marks=pytest.mark.slow),
        pytest.param(5, [1, 2, 3, 4], "reduce", torch.float32, marks=pytest.mark.slow),
    ],
)
def test_any_packing_and_transport_give_the_bits_of_one_process(
    num_ranks: int, hosts: list[int], exchange: Exchange, dtype: torch.dtype, tmp_path: Path
) -> None:
    alone = in_one_process(SIZE, dtype)
    together = run_ranks(round_of_two_windows, num_ranks, spread(hosts), str(tmp_path), exchange, SIZE, dtype)
    assert together == [alone] + [None] * (num_ranks - 1)
    assert alone[1] == list(NAMES)


@pytest.mark.processes
@pytest.mark.parametrize("size", [0, 1, WINDOW])
@pytest.mark.parametrize("exchange", ["send", "reduce"])
def test_edge_sizes(size: int, exchange: Exchange, tmp_path: Path) -> None:
    alone = in_one_process(size)
    found = run_ranks(distributed_round, 3, spread([1, 2]), str(tmp_path), exchange, size, torch.float32)
    assert found[0] == alone


def narrow_round(homes: dict[str, int], folder: str, exchange: Exchange) -> Any:
    """A round in windows of 1000 elements, many more of them than are ever on the way."""
    for module in (windows, local_updates, server_updates, local):
        module.WINDOW = 1000  # type: ignore[attr-defined]
    return distributed_round(homes, folder, exchange, 40_321, torch.float32)


@pytest.mark.processes
@pytest.mark.parametrize("exchange", ["send", "reduce"])
@pytest.mark.parametrize("hosts", [[1], [0, 1, 1, 1, 1, 1, 2], [1, 2, 3]])
def test_many_windows_pass_in_step(exchange: Exchange, hosts: list[int], tmp_path: Path) -> None:
    alone = in_one_process(40_321)
    assert run_ranks(narrow_round, 4, spread(hosts), str(tmp_path), exchange)[0] == alone


def dying_round(exchange: Exchange, folder: str) -> None:
    """Rank 2 kills itself when it has added 20 of 41 windows, with some of them still on the way."""
    homes = spread([0, 1, 2, 3])
    rank = int(os.environ["RANK"])
    if rank == 2 and exchange == "reduce":
        add, calls = reproducible.Accumulator.add, iter(range(1000))

        def deadly(self: reproducible.Accumulator, grad: torch.Tensor, weight: float, **passing: Any) -> None:
            if next(calls) == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            add(self, grad, weight, **passing)

        reproducible.Accumulator.add = deadly  # type: ignore[method-assign]
    elif rank == 2:
        start_send, sent = Group.start_send, iter(range(1000))

        def last_send(self: Group, tensor: torch.Tensor) -> Any:
            if next(sent) == 20 + len(NAMES):  # the updates one by one come first
                os.kill(os.getpid(), signal.SIGKILL)
            return start_send(self, tensor)

        Group.start_send = last_send  # type: ignore[method-assign]
    narrow_round(homes, folder, exchange)


@pytest.mark.processes
@pytest.mark.parametrize("exchange", ["send", "reduce"])
def test_a_rank_that_dies_within_a_sum_is_named_by_all_others(exchange: Exchange, tmp_path: Path) -> None:
    outcomes = expect_exit(dying_round, 4, exchange, str(tmp_path), timeout=40)
    assert outcomes[2].exit_code == -signal.SIGKILL
    for rank in (0, 1, 3):
        assert "the process of rank 2 is gone" in outcomes[rank].error
        assert outcomes[rank].exit_code == DeadlineError.exit_code


@pytest.mark.parametrize(
    ("homes", "exchange", "dtype", "expected"),
    [
        ([], "auto", torch.float32, Op.SEND_SUMS),  # nothing is sent
        ([0, 0], "auto", torch.float32, Op.SEND_SUMS),
        ([0, 1], "auto", torch.float32, Op.SEND_UPDATES),  # 4 bytes of an update against 8 of a sum
        ([1, 1], "auto", torch.float32, Op.SEND_SUMS),  # as many bytes, but rank 1 adds
        ([1, 2], "auto", torch.float32, Op.SEND_UPDATES),
        ([1, 2], "auto", torch.float64, Op.SEND_SUMS),
        ([1, 2] * 3, "auto", torch.float32, Op.SEND_SUMS),
        ([1, 2, 3], "auto", torch.float32, Op.SEND_UPDATES),
        ([1, 2, 3] * 2, "auto", torch.float32, Op.REDUCE),  # 24 bytes would reach the server, about 16 do
        ([1], "reduce", torch.float32, Op.SEND_SUMS),
        ([1, 2, 3], "reduce", torch.float32, Op.REDUCE),
        ([1, 2, 3] * 9, "send", torch.float32, Op.SEND_UPDATES),
    ],
)
def test_the_transport_in_which_the_busiest_rank_moves_least(
    homes: list[int], exchange: Exchange, dtype: torch.dtype, expected: Op, tmp_path: Path
) -> None:
    assert transport(homes, exchange, dtype, tmp_path, is_secret=False) is expected


@pytest.mark.parametrize(
    ("homes", "exchange", "expected"),
    [
        ([1, 2, 3] * 2, "auto", Op.SEND_SUMS),  # in a ring, ranks would see sums of others
        ([1, 2, 3] * 2, "reduce", Op.SEND_SUMS),
        ([1, 2, 3], "auto", Op.SEND_UPDATES),
    ],
)
def test_where_clients_are_hidden_only_the_server_receives(
    homes: list[int], exchange: Exchange, expected: Op, tmp_path: Path
) -> None:
    assert transport(homes, exchange, torch.float32, tmp_path, is_secret=True) is expected


def transport(homes: list[int], exchange: Exchange, dtype: torch.dtype, folder: Path, *, is_secret: bool) -> Op:
    group, local = SimpleNamespace(members=(0, 1, 2, 3), machines=None), UpdateBuffer(3, dtype, folder, 1 << 20)
    stub = SimpleNamespace(local=local, group=group, round=0, sends_to_server=is_secret)
    stub.is_checked = stub.all_send = False
    updates = DistributedUpdates(stub, [], {}, exchange)  # type: ignore[arg-type]
    return updates._transport([Term(place, rank, 1.0) for place, rank in enumerate(homes)])


def small_round(exchange: Exchange, folder: str) -> Any:
    """What an aggregation with no clients, a refused one and one weighted by hand give."""
    with DistributedCommunicator.join(["a", "b"], timeout_s=20, exchange=exchange, grace_s=0.5) as comm:
        local = UpdateBuffer(3, torch.float32, Path(folder), 1 << 20)
        reports = []
        if comm.rank:
            local.put("ab"[comm.rank - 1], torch.tensor([1.0, -2.0, 4.0]) * comm.rank)
            reports = [Report("ab"[comm.rank - 1], norm=21**0.5 * comm.rank, max_abs=4.0 * comm.rank)]
        gathered = comm.gather_reports(reports, round=1)
        both = combined(comm, local, gathered, lambda updates: updates.weighted_sum([0.5, 0.25]), round=1)
        second = combined(comm, local, gathered[1:], lambda updates: updates.weighted_sum([1.0]), round=1)
        nobody = combined(comm, local, [], lambda updates: updates.weighted_sum([]), round=1)
        return [None if tensor is None else tensor.tolist() for tensor in (both, second, nobody)]


@pytest.mark.processes
@pytest.mark.parametrize("exchange", ["send", "reduce"])
def test_sums_a_reader_can_redo(exchange: Exchange, tmp_path: Path) -> None:
    results = run_ranks(small_round, 3, exchange, str(tmp_path))
    assert results[0] == [[1.0, -2.0, 4.0], [2.0, -4.0, 8.0], [0.0, 0.0, 0.0]]
    assert results[1:] == [[None] * 3] * 2


def send_down() -> Any:
    with DistributedCommunicator.join(["a", "b"], timeout_s=20, grace_s=0.5) as comm:
        flats = [torch.arange(5.0) + comm.rank, torch.arange(3) + comm.rank, torch.zeros(0)]
        for flat in flats:
            comm.broadcast(flat, clients=2)
        return [flat.tolist() for flat in flats], comm.meter.totals()


@pytest.mark.processes
def test_broadcast_copies_the_servers_vector_and_counts_it() -> None:
    results = run_ranks(send_down, 3)
    assert [values for values, _ in results] == [[[0.0, 1.0, 2.0, 3.0, 4.0], [0, 1, 2], []]] * 3
    payload = 5 * 4 + 3 * 8
    server, worker, _ = (totals for _, totals in results)
    assert (server["bytes_down"], server["physical_down"], server["messages_down"]) == (2 * payload, 2 * payload, 6)
    assert (worker["bytes_down"], worker["physical_down"]) == (0, payload)


def seen_coming(has_pieces: bool) -> list[int]:
    """Whoever looks at a payload while it comes is told of each piece, once it is there."""
    sent, told = torch.arange(2.5 * PIECE_BYTES / 4), list[int]()
    with DistributedCommunicator.join(["a", "b"], timeout_s=20, grace_s=0.5) as comm:
        comm._store.spans_hosts, comm._store.shares_memory = has_pieces, False
        flat = torch.zeros_like(sent) if comm.rank else sent.clone()

        def came(stop: int) -> None:
            assert torch.equal(flat[:stop], sent[:stop])
            told.append(stop)

        comm.broadcast(flat, came=came)
        comm.broadcast(flat)
    return told


@pytest.mark.processes
@pytest.mark.parametrize("has_pieces", [True, False])
def test_a_payload_is_looked_at_while_it_comes(has_pieces: bool) -> None:
    piece, size = PIECE_BYTES // 4, 5 * PIECE_BYTES // 8
    on_others = [piece, 2 * piece, size, size] if has_pieces else [size]
    assert run_ranks(seen_coming, 3, has_pieces) == [[size], on_others, on_others]
    with LocalCommunicator(["a", "b"]) as alone:
        alone.broadcast(torch.zeros(3), came=lambda stop: pytest.fail("nothing is copied"))


def mismatched(case: str, folder: str) -> None:
    """Rank 2 does something else than the others."""
    with DistributedCommunicator.join(["a", "b"], timeout_s=10, grace_s=0.5) as comm:
        odd = comm.rank == 2
        if case in ("length", "dtype"):
            flat = torch.zeros(10 + (odd and case == "length"), dtype=torch.float64 if odd else torch.float32)
            comm.broadcast(flat if case == "dtype" else flat.float())
        elif case == "order":
            comm.broadcast_packets([], round=1) if odd else comm.broadcast(torch.zeros(10))
        elif case == "skipped":
            if not odd:
                comm.broadcast_packets([], round=1)
            comm.broadcast_packets([], round=2)
        elif case == "round":
            comm.gather([], round=2 if odd else 1)
        else:
            local = UpdateBuffer(4, torch.float32, Path(folder), 1 << 20)
            if comm.rank:
                local.put("ab"[comm.rank - 1], torch.ones(4))
            if case == "twice":
                reports = [Report("a")] if comm.rank else []
            else:
                reports = [Report("ab"[comm.rank - 1], norm=2.0, max_abs=1.0)] if comm.rank else []
            gathered = comm.gather_reports(reports, round=1)
            if odd and case == "missing":
                local.clear()
            if odd and case == "short":
                local._held["b"] = torch.ones(3)
            combined(comm, local, gathered, lambda updates: updates.weighted_sum([0.5, 0.5]), round=1)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("length", "rank 2 has length 11, the server has length 10"),
        ("dtype", "rank 2 has dtype torch.float64, the server has dtype torch.float32"),
        ("order", "rank 2 has operation broadcast_messages, the server has operation broadcast"),
        ("skipped", "rank 2 has round 2, the server has round 1"),
        ("round", "rank 2 came for phase gather of round 2 and the server for phase gather of round 1"),
        ("missing", "rank 2 does not hold the update of a client it reported: client index 1"),
        ("short", "rank 2 holds an update of another length or dtype than agreed: client index 1"),
    ],
)
def test_a_rank_out_of_step_stops_all_ranks_with_one_clear_error(case: str, message: str, tmp_path: Path) -> None:
    for outcome in expect_exit(mismatched, 3, case, str(tmp_path), timeout=30):
        assert message in outcome.error
        assert outcome.exit_code == PreflightError.exit_code


@pytest.mark.processes
def test_two_ranks_that_host_the_same_client_are_refused(tmp_path: Path) -> None:
    for outcome in expect_exit(mismatched, 3, "twice", str(tmp_path), timeout=30):
        assert "client `a` sent two report messages" in outcome.error
        assert outcome.exit_code == PreflightError.exit_code


def failing_combine(folder: str) -> None:
    with DistributedCommunicator.join(["a", "b"], timeout_s=10, grace_s=0.5) as comm:
        local = UpdateBuffer(4, torch.float32, Path(folder), 1 << 20)
        reports = []
        if comm.rank:
            local.put("ab"[comm.rank - 1], torch.ones(4))
            reports = [Report("ab"[comm.rank - 1], norm=2.0, max_abs=1.0)]
        gathered = comm.gather_reports(reports, round=1)

        def combine(updates: AcceptedUpdates) -> torch.Tensor:
            for _ in updates:
                raise ZeroDivisionError("in the middle")
            raise AssertionError

        try:
            combined(comm, local, gathered, combine, round=1)
        except (ZeroDivisionError, FedtorchError) as error:
            assert isinstance(error, FedtorchError if comm.rank else ZeroDivisionError)
            assert not isinstance(error, DeadlineError)
        else:
            raise AssertionError("no error")
        flat = torch.full((2,), float(comm.rank))
        comm.broadcast(flat)  # the ranks are still in step
        assert flat.tolist() == [0.0, 0.0]


@pytest.mark.processes
def test_a_combine_that_raises_ends_the_aggregation_on_every_rank(tmp_path: Path) -> None:
    run_ranks(failing_combine, 3, str(tmp_path))
