"""Payloads that are not what was reported, or do not arrive as they were sent: named and left out."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import expect_exit, run_ranks

from fedtorch.comm import local
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.local import LocalCommunicator
from fedtorch.comm.options import Network
from fedtorch.comm.sums import local_updates, reproducible, server_updates
from fedtorch.comm.sums.accepted import AcceptedUpdates
from fedtorch.comm.sums.checks import SumCheck, projection
from fedtorch.comm.sums.reproducible import SumScale
from fedtorch.comm.transport import digests, windows
from fedtorch.comm.transport.digests import WindowDigest, sums_of_bits, window_digest
from fedtorch.comm.transport.group import Group
from fedtorch.comm.transport.header import Op
from fedtorch.core.errors import FedtorchError, PreflightError
from fedtorch.core.norms import norm_and_max
from fedtorch.core.seeds import generator_for
from fedtorch.core.update import Report, UpdateBuffer
from tests.support.combined import combined

NAMES = ("a", "b", "c", "d", "e", "f")
SIZE = 3217  # four windows of 1000, the last one short
WEIGHTS = {name: 0.1 * (place + 1) for place, name in enumerate(NAMES)}
BAD = "f"  # at the last rank; its weight and update are the largest
TRANSPORTS = {  # how clients' updates reach the server -> (ranks, where the clients are, exchange)
    "send_updates": (3, [1, 1, 1, 2, 2, 2], "send"),
    "send_sums": (3, [1, 1, 1, 2, 2, 2], "reduce"),
    "reduce": (4, [1, 1, 2, 2, 3, 3], "reduce"),
}


def update_of(name: str) -> torch.Tensor:
    return torch.randn(SIZE, generator=generator_for(0, "test", name)) * (NAMES.index(name) + 1)


def expected_sum(names: tuple[str, ...] = NAMES) -> torch.Tensor:
    """Of these clients' updates, right to fp32."""
    return sum((WEIGHTS[name] * update_of(name).double() for name in names), torch.zeros(SIZE).double()).float()


def held(comm: Any, homes: list[int], folder: str) -> tuple[UpdateBuffer, list[Report]]:
    """This rank's updates, and reports that are true."""
    buffer, reports = UpdateBuffer(SIZE, torch.float32, Path(folder), 1 << 20), []
    for name, home in zip(NAMES, homes, strict=True):
        if home == comm.rank:
            update = update_of(name)
            buffer.put(name, update)
            norm, max_abs = norm_and_max(update)
            reports.append(Report(name, examples=1, norm=norm, max_abs=max_abs))
    return buffer, reports


def weighted(updates: AcceptedUpdates) -> torch.Tensor:
    return updates.weighted_sum([WEIGHTS[report.client] for report in updates.reports])


def one_by_one(updates: AcceptedUpdates) -> torch.Tensor:
    return torch.stack([WEIGHTS[r.client] * u for r, u in zip(updates.reports, updates, strict=True)]).sum(0)


def combine(comm: Any, buffer: UpdateBuffer, reports: list[Report], how: Any) -> tuple[dict[str, str], list[float]]:
    """(refused clients, the sum without them), as the round loop does it."""
    refused: dict[str, str] = {}
    while True:
        try:
            total = combined(comm, buffer, [r for r in reports if r.client not in refused], how, round=1)
        except FedtorchError as error:
            if not hasattr(error, "reasons"):
                raise
            assert comm.rank or error.reasons
            refused |= error.reasons
        else:
            return refused, [] if total is None else total.tolist()


SPOILT: dict[str, Callable[[torch.Tensor], object]] = {
    "nan": lambda update: update[-1:].fill_(math.nan),
    "infinite": lambda update: update[1500:1501].fill_(math.inf),
    "exploded": lambda update: update.mul_(1e6),
    "doubled": lambda update: update.mul_(2.0),
    "halved": lambda update: update.mul_(0.5),
}


def lying_ranks(transport: str, folder: str) -> dict[str, Any]:
    """Every way in which a client's update can differ from its report, each in a combination of its own."""
    for module in (windows, local_updates, server_updates, local):
        module.WINDOW = 1000  # type: ignore[attr-defined]
    _, homes, exchange = TRANSPORTS[transport]
    found: dict[str, Any] = {}
    with DistributedCommunicator.join(NAMES, timeout_s=20, exchange=exchange) as comm:  # type: ignore[arg-type]
        buffer, own = held(comm, homes, folder)
        reports = comm.gather_reports(own, round=1)
        found["true"] = combine(comm, buffer, reports, weighted)
        for kind, spoil in SPOILT.items():
            if BAD in buffer:
                spoil(buffer.get(BAD))
            found[kind] = combine(comm, buffer, reports, weighted)
            found[f"{kind} singly"] = combine(comm, buffer, reports, one_by_one)
            if BAD in buffer:
                buffer.get(BAD).copy_(update_of(BAD))
    return found


@pytest.mark.processes
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_update_that_is_not_what_was_reported_is_found_and_left_out(transport: str, tmp_path: Path) -> None:
    found = run_ranks(lying_ranks, TRANSPORTS[transport][0], transport, str(tmp_path))[0]
    whole, without = expected_sum(), expected_sum(NAMES[:-1])
    assert found.pop("true") == ({}, pytest.approx(whole.tolist(), rel=1e-6, abs=1e-6))
    for kind, (refused, total) in found.items():
        if transport != "send_updates" and kind in ("doubled", "halved"):
            continue  # within what all clients together reported: see the next test
        assert list(refused) == [BAD], kind
        word = "is not finite" if kind.split()[0] in ("nan", "infinite") else "has the norm"
        assert word in refused[BAD]
        # added up in another order
        assert total == pytest.approx(without.tolist(), rel=1e-5, abs=1e-5), kind


@pytest.mark.processes
def test_the_bits_of_a_sum_without_a_client_are_those_of_one_in_which_it_never_was(tmp_path: Path) -> None:
    found = run_ranks(lying_ranks, 3, "send_sums", str(tmp_path / "ranks"))[0]
    with LocalCommunicator(NAMES) as comm:
        buffer, reports = held(comm, [0] * len(NAMES), str(tmp_path / "one"))
        assert found["nan"][1] == combined(comm, buffer, reports[:-1], weighted, round=1).tolist()
        assert found["true"][1] == combined(comm, buffer, reports, weighted, round=1).tolist()


def half(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[: len(tensor) // 2]


def other_dtype(tensor: torch.Tensor) -> torch.Tensor:
    """The same number of bytes, but integers."""
    return tensor.to(torch.int32 if tensor.dtype == torch.float32 else torch.int64)


def one_bit(tensor: torch.Tensor) -> torch.Tensor:
    damaged = tensor.clone()
    damaged.view(torch.uint8)[5] ^= 1
    return damaged


def in_place(tensor: torch.Tensor) -> torch.Tensor:
    """Where the server reads it as it is."""
    tensor.view(torch.uint8)[5] ^= 1
    return tensor


SOCKETS = {"half": half, "other_dtype": other_dtype, "one_bit": one_bit}
SHARED = {"in_place": in_place, "one_bit": one_bit}


def damaging_ranks(transport: str, folder: str, shares: bool) -> dict[str, Any]:
    """The last rank's windows are damaged on their way; only those of sums, or all that it sends."""
    for module in (windows, local_updates, server_updates, local):
        module.WINDOW = 1000  # type: ignore[attr-defined]
    size, homes, exchange = TRANSPORTS[transport]
    start_send, found = Group.start_send, {}
    network = Network(shares_memory=shares)
    with DistributedCommunicator.join(NAMES, 20, exchange, network=network) as comm:  # type: ignore[arg-type]
        buffer, own = held(comm, homes, folder)
        reports = comm.gather_reports(own, round=1)
        for kind, damage in (SHARED if shares else SOCKETS).items():
            for only_sums in (True,) if damage is in_place else (True, False):

                def send(self: Group, tensor: torch.Tensor, _d: Any = damage, _only: bool = only_sums) -> Any:
                    is_meant = comm.rank == size - 1 and (tensor.dtype == torch.float64 or not _only)
                    return start_send(self, _d(tensor) if is_meant else tensor)

                Group.start_send = send  # type: ignore[method-assign]
                found[f"{kind} {'sums' if only_sums else 'all'}"] = combine(comm, buffer, reports, weighted)
        Group.start_send = start_send  # type: ignore[method-assign]
    return found


@pytest.mark.processes
@pytest.mark.parametrize(("transport", "shares"), [("send_updates", False), ("send_sums", False), ("send_sums", True)])
def test_a_window_that_was_damaged_on_its_way_never_counts(transport: str, shares: bool, tmp_path: Path) -> None:
    found = run_ranks(damaging_ranks, 3, transport, str(tmp_path), shares)[0]
    whole, without = expected_sum(), expected_sum(NAMES[:3])
    for kind, (refused, total) in found.items():
        if kind.endswith("all"):
            assert list(refused) == ["d", "e", "f"], kind
            assert all("did not arrive as it was sent" in reason for reason in refused.values())
            assert total == pytest.approx(without.tolist(), rel=1e-5, abs=1e-5), kind
        else:  # then the updates are taken one by one, and arrive
            assert refused == {} and total == pytest.approx(whole.tolist(), rel=1e-5, abs=1e-5), kind


def damaged_reduce(folder: str) -> Any:
    """On the last rank half of a window of its sum is lost on its way into the reduce."""
    start_reduce = Group.start_reduce

    def reduce(self: Group, tensor: torch.Tensor) -> Any:
        if os.environ["RANK"] == "3":
            tensor[len(tensor) // 2 :] = 0.0
        return start_reduce(self, tensor)

    Group.start_reduce = reduce  # type: ignore[method-assign]
    _, homes, exchange = TRANSPORTS["reduce"]
    with DistributedCommunicator.join(NAMES, timeout_s=20, exchange=exchange) as comm:  # type: ignore[arg-type]
        buffer, own = held(comm, homes, folder)
        return combine(comm, buffer, comm.gather_reports(own, round=1), weighted)


@pytest.mark.processes
def test_a_sum_that_was_damaged_within_a_reduce_is_made_again_of_single_updates(tmp_path: Path) -> None:
    refused, total = run_ranks(damaged_reduce, 4, str(tmp_path))[0]
    assert refused == {} and total == pytest.approx(expected_sum().tolist(), rel=1e-5, abs=1e-5)


def too_long(where: str, folder: str) -> None:
    """Rank 2 is about to send more than was agreed, in one window or altogether, or says so beforehand."""
    partial, start_send, agree = reproducible.Accumulator.partial, Group.start_send, Group.agree
    if os.environ["RANK"] == "2" and where == "window":
        reproducible.Accumulator.partial = lambda self, n, goes: torch.cat([partial(self, n, goes)] * 2)  # type: ignore
    elif os.environ["RANK"] == "2" and where == "all":
        Group.start_send = lambda self, tensor: [start_send(self, tensor) for _ in range(2)][1]  # type: ignore
    elif os.environ["RANK"] == "2":

        def more(self: Group, op: Op, *, num_bytes: int = 0, **rest: Any) -> Any:
            return agree(self, op, num_bytes=2 * num_bytes if op is Op.SEND_SUMS else num_bytes, **rest)

        Group.agree = more  # type: ignore[method-assign, assignment]
    with DistributedCommunicator.join(NAMES, timeout_s=20, exchange="reduce") as comm:
        buffer, own = held(comm, [1, 1, 1, 2, 2, 2], folder)
        combined(comm, buffer, comm.gather_reports(own, round=1), weighted, round=1)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("window", "about to send 6434 numbers in place of the agreed 3217"),
        ("all", "rank 2 was about to send 25736 bytes more than it announced"),
    ],
)
def test_more_than_was_agreed_is_not_sent_and_aborts_nobody(where: str, message: str, tmp_path: Path) -> None:
    outcomes = expect_exit(too_long, 3, where, str(tmp_path), timeout=40)
    assert message in outcomes[2].error and outcomes[2].exit_code == PreflightError.exit_code
    for outcome in outcomes[:2]:
        assert outcome.exit_code not in (0, -signal.SIGABRT)
        assert "rank 2 left the job with PreflightError" in outcome.error


@pytest.mark.processes
def test_a_length_other_than_the_servers_is_refused_on_all_ranks(tmp_path: Path) -> None:
    for outcome in expect_exit(too_long, 3, "announced", str(tmp_path), timeout=40):
        assert "rank 2 is about to send 51472 bytes, the server expects 25736" in outcome.error
        assert outcome.exit_code == PreflightError.exit_code


def damaged_broadcast() -> list[float]:
    payload = torch.arange(2000.0)
    wait = Group.wait
    if os.environ["RANK"] == "1":

        def damaging(self: Group, transfer: Any) -> None:
            wait(self, transfer)
            payload[1234] += payload[1234] == 1234.0

        Group.wait = damaging  # type: ignore[method-assign]
    with DistributedCommunicator.join(["a"], timeout_s=10) as comm:
        comm.broadcast(payload)
    return payload.tolist()


@pytest.mark.processes
def test_weights_that_were_damaged_on_their_way_end_the_rank_that_got_them() -> None:
    outcomes = expect_exit(damaged_broadcast, 2, timeout=30)
    assert "a payload of rank 0 did not arrive as it was sent" in outcomes[1].error
    assert outcomes[1].exit_code == PreflightError.exit_code


# --- the checks by themselves


def test_a_digest_depends_on_bytes_length_and_dtype() -> None:
    zeros = torch.zeros(8)
    found = {window_digest(t) for t in (zeros, zeros[:4], zeros.to(torch.int32), zeros[:4].double(), zeros.byte())}
    assert len(found) == 5 and window_digest(zeros) == window_digest(zeros.clone())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8])
def test_sums_of_bits_notice_every_bit_and_places_that_are_exchanged(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (digests, windows):
        monkeypatch.setattr(module, "WINDOW", 100)
    payload = (torch.randn(250, generator=generator_for(0, "test"), dtype=torch.float64) * 100).to(dtype)
    found = sums_of_bits(payload)
    assert len(found) == 3 and found == sums_of_bits(payload.clone()) and sums_of_bits(payload[:0]) == []
    for place in (0, 99, 100, 249):
        for bit in range(8 * payload.itemsize):
            changed = payload.clone()
            changed.view(torch.uint8)[place * payload.itemsize + bit // 8] ^= 1 << bit % 8
            other = sums_of_bits(changed)
            assert [one != two for one, two in zip(found, other, strict=True)] == [k == place // 100 for k in range(3)]
    swapped = payload.clone()
    swapped[:2] = payload[:2].flip(0)
    assert payload[0] == payload[1] or sums_of_bits(swapped) != found


@pytest.mark.parametrize("size", [0, 1, 4096, 9000])
def test_a_projection_of_a_sum_is_the_sum_of_the_projections(size: int) -> None:
    parts = [(torch.randn(size, generator=generator_for(k, "test")) * 1e9).double().round() for k in range(3)]
    found = projection(torch.stack(parts).sum(0))
    # whole numbers, added in another order
    assert found == pytest.approx(sum(map(projection, parts)), rel=1e-9, abs=1e-3)
    if size > 1:
        assert projection(parts[0].flip(0)) != pytest.approx(projection(parts[0]), rel=1e-3)


def test_a_bound_that_the_server_knows_takes_the_place_of_the_reported_norms(tmp_path: Path) -> None:
    """As where every client clips by itself and no norm is reported that could be believed."""
    with LocalCommunicator(["a", "b"]) as comm:
        buffer = UpdateBuffer(2, torch.float32, tmp_path, 1 << 20)
        buffer.put("a", torch.tensor([3.0, 4.0]))
        buffer.put("b", torch.tensor([0.0, 1.0]))
        reports = [Report("a", norm=5.0, max_abs=4.0), Report("b", norm=1.0, max_abs=1.0)]

        def bounded(limit: float) -> Any:
            return combined(comm, buffer, reports, lambda u: u.weighted_sum([0.5, 0.5], max_norm=limit), round=1)

        assert bounded(2.92).tolist() == [1.5, 2.5]  # its norm is 2.915
        with pytest.raises(FedtorchError, match="larger than the clients reported"):
            bounded(2.91)


def test_honest_sums_of_any_size_pass() -> None:
    """What is rounded to whole numbers may weigh more than the update itself, where another one is far larger."""
    generator = generator_for(0, "honest")
    for power in (-40, -20, -8, 0, 8, 30):
        vectors = [torch.randn(1000, generator=generator), torch.randn(1000, generator=generator) * 10.0**power]
        reports = [Report(str(k), norm=n, max_abs=m) for k, (n, m) in enumerate(map(norm_and_max, vectors))]
        scale = SumScale.of([0.5, 0.5], [report.max_abs for report in reports])
        check = SumCheck([(report, 0.5) for report in reports], scale, 1000)
        total = reproducible.Accumulator(1000)
        total.reset(scale)
        for report, vector in zip(reports, vectors, strict=True):
            came = WindowDigest(1000, vector.dtype)
            total.add(vector, 0.5, incoming=came)
            check.see_client(report.client, came.squares)
            assert came.digest == window_digest(vector)
        out = total.result(torch.empty(1000))
        check.see_sum(total.squares, out)
        assert not check.problems, power
