"""Sparse messages summed in slices: the bits of the other exchanges, nothing lost, and how many bytes move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import expect_exit, run_ranks
from thread_peers import run_threads
from torch import Tensor

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.local import LocalCommunicator
from fedtorch.comm.sparse import allreduce, peers
from fedtorch.comm.sparse.allreduce import LeftOut, SparseSum, all_reduce, move
from fedtorch.comm.sparse.messages import sum_of_messages
from fedtorch.comm.transport import device as transport
from fedtorch.compression import eight_bits, slices
from fedtorch.compression.compressors import TopK, with_feedback
from fedtorch.compression.payload import HEADER_BYTES, decode
from fedtorch.core.errors import PreflightError, RefusedUpdatesError
from fedtorch.core.norms import norm_and_max
from fedtorch.core.seeds import generator_for
from fedtorch.core.update import Report, UpdateBuffer
from fedtorch.core.weights import Layout, digest_of
from tests.comm.test_transport import ON_CPU

LAYOUT = Layout(("a", "b", "c"), ((40,), (3, 7), (1,)))
SIZE = LAYOUT.size


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "BLOCK", 3)
    monkeypatch.setattr(eight_bits, "STRETCH", 7)  # blocks of several owners, and several of an owner


def rule_of(top: TopK, layout: Layout, *, selects: bool = True, keeps: bool = True) -> SparseSum:
    selection = top.kept(layout) if selects else None
    length = top.message_bytes(layout) + HEADER_BYTES
    return SparseSum(layout.size, layout.dtype, lambda m: decode(m, layout.size), selection, length, keeps and selects)


def reports_of(messages: Sequence[Tensor], size: int) -> list[Report]:
    claims = [norm_and_max(decode(message, size).dense(torch.float64)) for message in messages]
    return [Report(f"c{i}", norm=norm, max_abs=largest) for i, (norm, largest) in enumerate(claims)]


VECTORS = st.lists(
    st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-30, 1e30]) | st.floats(width=32, allow_nan=False, max_value=9,
    min_value=-9), min_size=SIZE, max_size=SIZE).map(torch.tensor), min_size=1, max_size=6,
)  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(VECTORS, st.integers(1, 5), st.sampled_from(["fp32", "bf16", "int8"]), st.sampled_from([0.1, 0.5, 1.0]))
def test_a_sum_in_slices_is_the_sum_of_the_messages(
    vectors: list[Tensor], count: int, values: Any, ratio: float
) -> None:
    top = TopK(ratio=ratio, values=values)
    messages = [top.compress(vector, LAYOUT, seed=place) for place, vector in enumerate(vectors)]
    weights = [0.3 - 0.2 * place for place in range(len(messages))]
    expected = sum_of_messages(messages, weights, lambda m: decode(m, SIZE), torch.empty(SIZE))
    hosted = {rank: messages[rank::count] for rank in range(count)}
    order = [place for rank in range(count) for place in range(len(messages))[rank::count]]
    reports = reports_of([messages[place] for place in order], SIZE)
    given_weights = [weights[place] for place in order]
    rule = rule_of(top, LAYOUT, selects=False)
    found = run_threads(
        tuple(range(count)), hosted, lambda each: all_reduce(each, reports, given_weights, rule, LeftOut())
    )
    for each in found:
        assert torch.equal(each.step, expected) and each.count == int((expected != 0).sum())


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 99), st.lists(st.integers(1, 5), min_size=3, max_size=3), st.sampled_from(["fp32", "fp16", "int8"])
)
def test_with_a_second_selection_the_step_is_the_servers_and_nothing_is_lost(
    seed: int, counts: list[int], values: Any
) -> None:
    """Over three rounds on any numbers of ranks; the residual moves to the owners that there are then."""
    generator = torch.Generator().manual_seed(seed)
    top = TopK(ratio=0.15, values=values)
    rule = replace(rule_of(top, LAYOUT), seed=seed)
    weights = [0.25] * 4
    residual: Tensor | None = None
    left = {0: LeftOut()}
    for count in counts:
        messages = [top.compress(torch.randn(SIZE, generator=generator), LAYOUT, seed=seed) for _ in range(4)]
        mean = sum_of_messages(messages, weights, lambda m: decode(m, SIZE), torch.empty(SIZE))
        total = mean if residual is None else residual + mean
        message, residual = with_feedback(top, mean, residual, True, LAYOUT, seed=seed)
        assert residual is not None
        members = tuple(range(count))
        dealt = left[0].members
        old = {rank: left.get(rank, LeftOut(dealt)) for rank in range(max(count, len(dealt)))}

        def work(each: Any, old: Any = old, members: Any = members, messages: Any = messages) -> Any:
            return move(each, old[each.rank], SIZE, members)

        moved = run_threads(tuple(old), {}, work)
        hosted = {rank: messages[rank::count] for rank in members}
        reports = reports_of([m for own in hosted.values() for m in own], SIZE)

        def reduce(each: Any, moved: Any = moved, reports: Any = reports) -> Any:
            return all_reduce(each, reports, weights, rule, moved[each.rank])

        found = run_threads(members, hosted, reduce)
        for each in found:
            assert torch.equal(each.step, decode(message, SIZE).dense(torch.float32))
        left = {rank: each.left_out for rank, each in enumerate(found)}
        home = run_threads(members, {}, lambda each, left=left: move(each, left[each.rank], SIZE, (0,)))
        assert home[0].values is not None and torch.equal(home[0].values, residual)
        assert all(each.values is None for each in home[1:])
        if values in ("fp32", "int8"):  # of numbers that are rounded to a step as large, see tests/compression
            assert torch.equal(found[0].step + home[0].values, total)


def test_the_slices_of_ranks_that_are_gone_are_lost_and_the_others_stay(caplog: pytest.LogCaptureFixture) -> None:
    whole = torch.arange(1.0, 13.0)  # owners have 1-3, 4-6, 7-9, and 10-12
    parts = {rank: LeftOut((0, 1, 2, 3), whole[3 * rank : 3 * rank + 3]) for rank in range(4)}
    found = run_threads((0, 1, 3), {}, lambda each: move(each, parts[each.rank], 12, (0, 1, 3)))
    home = run_threads((0, 1, 3), {}, lambda each: move(each, found[each.rank - each.rank // 3], 12, (0,)))
    assert home[0].values is not None and home[0].values.tolist() == [1, 2, 3, 4, 5, 6, 0, 0, 0, 10, 11, 12]
    assert "in the slices of ranks [2] is lost" in caplog.text


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda message: message[:8].add_(1), "cannot be read"),
        (lambda message: message[-4:].view(torch.float32).mul_(1e6), "it reported"),
        (lambda message: message[-4:].view(torch.float32).fill_(torch.nan), "not finite"),
    ],
)
def test_a_message_that_is_none_or_not_what_was_reported_is_refused_by_all(spoil: Any, reason: str) -> None:
    top = TopK(ratio=1.0, encoding="index32")
    messages = [top.compress(torch.full((SIZE,), 1.0 + place), LAYOUT) for place in range(3)]
    reports = reports_of(messages, SIZE)
    spoil(messages[1])

    def work(each: Any) -> dict[str, str]:
        with pytest.raises(RefusedUpdatesError) as found:
            all_reduce(each, reports, [1.0] * 3, rule_of(top, LAYOUT), LeftOut())
        return found.value.reasons

    found = run_threads((0, 1, 2), {rank: [message] for rank, message in enumerate(messages)}, work)
    assert list(found[0]) == ["c1"] and reason in found[0]["c1"] and found == [found[0]] * 3


# --- on ranks


def top_of(encoding: Any, values: Any) -> TopK:
    return TopK(ratio=0.02, encoding=encoding, values=values)


NUMBERS = 60_000
NAMES = tuple(f"c{i}" for i in range(5))


def share(comm: Any, top: TopK, layout: Layout, folder: str, *, clustered: bool = False) -> tuple[UpdateBuffer, Any]:
    """One message per client; client i is at rank i modulo the number of ranks."""
    names = NAMES if comm.size == 1 else NAMES[: comm.size]
    messages = {}
    for name in names:
        vector = torch.randn(layout.size, generator=generator_for(0, "test", name))
        if clustered:  # large numbers lie where the slice of one rank is
            vector[torch.arange(layout.size) // slices.BLOCK % comm.size != 1] *= 1e-3
        messages[name] = top.compress(vector, layout)
    local = UpdateBuffer(len(messages[names[0]]), torch.uint8, Path(folder), 1 << 24)
    reports = reports_of(list(messages.values()), layout.size)
    mine = [r for place, r in enumerate(reports) if place % comm.size == comm.rank]
    for report in mine:
        local.put(report.client, messages[report.client])
    return local, (reports, mine)


def reduce_on(comm: Any, top: TopK, folder: str, *, selects: bool = True, clustered: bool = False) -> Any:
    layout = Layout(("w",), ((NUMBERS,),))
    local, (reports, mine) = share(comm, top, layout, folder, clustered=clustered)
    before = comm.meter.totals()
    comm.gather_reports(mine, round=1)
    rule = rule_of(top, layout, selects=selects)
    found = all_reduce(comm.peers(local, round=1), reports, [0.2] * len(reports), rule, LeftOut())
    after = comm.meter.totals()
    moved = {name: after.get(name, 0) - before.get(name, 0) for name in after}
    return found, moved


def step_of(folder: str, case: tuple[str, str, bool, bool]) -> Any:
    encoding, values, staged, selects = case
    slices.BLOCK, eight_bits.STRETCH = 3, 7
    if staged:
        transport.WINDOW_BYTES = 1000  # pieces go in many windows
    with DistributedCommunicator.join(NAMES, timeout_s=30, grace_s=0.5) as comm:
        comm.preflight({"config": "same"})
        if staged:
            comm.stage(ON_CPU)
        found, _ = reduce_on(comm, top_of(encoding, values), folder, selects=selects)
        return digest_of({"step": found.step}), found.count


CASES = [("auto", "fp32", False, True), ("auto", "fp32", True, False), ("bitmap", "int8", False, True)]


@pytest.mark.processes
@pytest.mark.parametrize("case", CASES, ids=["direct", "staged", "int8"])
def test_ranks_move_pieces_whole_over_either_transport(case: Any, tmp_path: Path) -> None:
    ranks = run_ranks(step_of, 5, str(tmp_path), case)
    alone, _ = reduce_on(LocalCommunicator(NAMES), top_of("auto", case[1]), str(tmp_path), selects=case[3])
    assert ranks == [(digest_of({"step": alone.step}), alone.count)] * 5


def bytes_of(folder: str) -> Any:
    with DistributedCommunicator.join(NAMES, timeout_s=30, grace_s=0.5) as comm:
        found = {}
        for one_in in (12, 50):
            found[one_in] = reduce_on(comm, TopK(ratio=1 / one_in), folder)[1]
        return found, reduce_on(comm, TopK(ratio=0.02), folder, clustered=True)[1]


@pytest.mark.processes
@pytest.mark.parametrize("count", [2, 4])
def test_a_rank_receives_less_than_the_formula_and_more_than_the_bound(count: int, tmp_path: Path) -> None:
    ranks = run_ranks(bytes_of, count, str(tmp_path))
    for one_in in (12, 50):
        k = TopK(ratio=1 / one_in).kept(Layout(("w",), ((NUMBERS,),))).counts[0]
        share = 4 * k * (count - 1) / count  # bytes of as many numbers
        headers = 2 * count * (HEADER_BYTES + 8)
        moved = [rank[0][one_in] for rank in ranks]
        for each in moved:
            assert each["aggregate/physical_down"] <= 6 * share + headers
            if one_in == 50:  # a bitmap is less than a number per index, which the bound counts
                assert each["aggregate/physical_down"] > 2 * share
            assert 0 < each["select/physical_down"] < 20 * 128
        sent, came = (sum(each[f"aggregate/physical_{way}"] for each in moved) for way in ("up", "down"))
        assert sent <= came  # what is gathered is handed over once
        message = TopK(ratio=1 / one_in).message_bytes(Layout(("w",), ((NUMBERS,),))) + HEADER_BYTES
        assert moved[0]["aggregate/bytes_up"] == moved[0]["aggregate/bytes_down"] == count * message
    if count == 4:  # where one rank owns all that is large, the others still receive no more of what is kept
        k = 1200
        others = [rank[1]["aggregate/physical_down"] for place, rank in enumerate(ranks) if place != 1]
        assert max(others) <= 4 * k * 4 * 3 / 4 + 16 * (HEADER_BYTES + 8)


def greedy(folder: str, how: str) -> None:
    """Rank 1 announces more than there can be, or sends something else than it announced."""
    with DistributedCommunicator.join(NAMES, timeout_s=20, grace_s=0.5) as comm:
        if comm.rank == 1 and how == "damage":
            peers.window_digest = lambda part: 1  # type: ignore[assignment]
        if comm.rank == 1 and how == "size":
            allreduce.encode = lambda sparse: torch.zeros(10**7, dtype=torch.uint8)  # type: ignore[assignment]
        reduce_on(comm, TopK(ratio=0.02), folder)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("how", "message"), [("size", "rank 1 is about to send 10000000 bytes"), ("damage", "a payload of rank 1 did not")]
)
def test_pieces_that_cannot_be_are_refused(how: str, message: str, tmp_path: Path) -> None:
    outcomes = expect_exit(greedy, 3, str(tmp_path), how, timeout=30)
    assert message in outcomes[0].error and outcomes[0].exit_code == PreflightError.exit_code
