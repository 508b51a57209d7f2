"""What a round costs on paper, in cases that can be redone by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch

from fedtorch.comm.sums.aggregation import Term
from fedtorch.comm.sums.server_updates import DistributedUpdates
from fedtorch.comm.transport.header import Op
from fedtorch.comm.transport.windows import WINDOW
from fedtorch.planning.cost_model import Constants, ModelSize, Site, memory, seconds
from fedtorch.planning.round_work import Counted, RoundWork, Way

FREE = Constants(
    cores=2,
    add_s=0.0,
    add_sum_s=0.0,
    result_s=0.0,
    client_s=0.0,
    server_step_s=0.0,
    digest_s=0.0,
    send_s=0.0,
    receive_s=0.0,
    flow_s=0.0,
    hop_s=0.0,
    meeting_s=0.0,
    meeting_rank_s=0.0,
    header_s=0.0,
    header_rank_s=0.0,
    client_round_s=0.0,
    report_s=0.0,
    round_s=0.0,
    round_rank_s=0.0,
    process_bytes=0,
)
"""A machine on which nothing takes time; a case sets what it is about."""
MODEL = ModelSize(shared=10, private=2, item_bytes=4, state=2.0, server_state=1, update_bytes=1 << 30)


def work(*hosted: int, numbers: int = 1000, **changes: Any) -> RoundWork:
    return RoundWork(numbers, hosted, tuple(0.0 for _ in hosted), **changes)


def site(ranks: int, per_node: int = 1, bytes_per_s: float = math.inf, cores: int = 2, **changes: Any) -> Site:
    return Site(ranks, per_node, bytes_per_s, cores, **changes)


def test_one_process_exchanges_nothing() -> None:
    alone = replace(work(3), train_s=(5.0,))
    constants = replace(FREE, add_s=1e-3, result_s=1e-4, server_step_s=1e-5, client_s=1e-6, send_s=1.0, meeting_s=1.0)
    assert alone.counted(0) == Counted(0, 0)
    spent = seconds(alone, site(1), constants)
    assert spent.train == pytest.approx(5 + 3 * 1000 * 1e-6)
    assert (spent.down, spent.meetings, spent.headers) == (0, 0, 0)
    assert spent.up == pytest.approx(3 * 1000 * 1e-3 + 1000 * 1e-4) and spent.step == pytest.approx(1e-2)
    assert spent.total == pytest.approx(5.003 + 3.1 + 0.01)


@pytest.mark.parametrize(
    ("hosted", "exchange", "way", "server", "worker"),
    [
        ((0, 1), "auto", "updates", Counted(4000, 4000), Counted(4000, 4000)),
        ((0, 2), "auto", "sums", Counted(8000, 4000), Counted(8000, 4000)),
        ((0, 2, 2), "auto", "sums", Counted(16000, 8000), Counted(8000, 4000)),
        ((0, 2, 2, 2), "auto", "reduce", Counted(24000, 12000), Counted(8000, 4000)),
        ((0, 2, 2, 2), "send", "updates", Counted(24000, 12000), Counted(8000, 4000)),
        ((1, 2, 0), "auto", "sums", Counted(8000, 8000), Counted(0, 4000)),
    ],
)
def test_bytes_of_vectors(hosted: tuple[int, ...], exchange: Any, way: Way, server: Counted, worker: Counted) -> None:
    """A thousand numbers: 4000 bytes down to every rank, a sum of 8000 up, or 4000 for each update."""
    done = work(*hosted, exchange=exchange)
    assert done.way == way
    assert (done.counted(0), done.counted(len(hosted) - 1)) == (server, worker)


def test_bytes_of_messages() -> None:
    """Of 100 bytes each: to the server and its choice to all; or, as often as the fullest rank has some, to all."""
    star = work(1, 2, 1, message="star", message_bytes=100)
    assert [star.counted(rank) for rank in range(3)] == [Counted(300, 200), Counted(200, 100), Counted(100, 100)]
    everywhere = work(1, 2, 1, message="replicated", message_bytes=100)
    assert {everywhere.counted(rank) for rank in range(3)} == {Counted(200, 400)}


def test_flows_of_messages() -> None:
    """Round a ring the fullest rank's three, twice; in slices its pieces and two more, two thirds of five messages."""
    ring = work(1, 3, 0, message="replicated", message_bytes=100)
    assert ring.up == [(0, 1, 600), (1, 2, 600), (2, 0, 600)]
    slices = work(1, 3, 0, message="allreduce", message_bytes=300)
    assert {slices.counted(rank) for rank in range(3)} == {Counted(1000, 1000)}
    assert slices.up == [(0, 1, 500), (0, 2, 500), (1, 0, 500), (1, 2, 500), (2, 0, 500), (2, 1, 500)]


@pytest.mark.parametrize("exchange", ["auto", "reduce", "send"])
def test_sums_travel_as_the_server_decides(exchange: Literal["auto", "reduce", "send"]) -> None:
    ops = {Op.SEND_SUMS: "sums", Op.REDUCE: "reduce", Op.SEND_UPDATES: "updates"}
    for hosted in product(range(4), repeat=4):
        terms = [Term(0, rank, 1.0) for rank, clients in enumerate(hosted) for _ in range(clients)]
        for machines in (None, (0, 0, 1, 1), (0, 1, 1, 1), (0, 1, 2, 2)):
            group = SimpleNamespace(members=range(4), machines=machines)
            server: Any = SimpleNamespace(
                dtype=torch.float32,
                _aggregation=SimpleNamespace(sends_to_server=False, local=SimpleNamespace(device=torch.device("cpu"))),
                _exchange=exchange,
                _group=group,
                sums_only=False,
            )
            done = work(*hosted, exchange=exchange, machines=machines)
            assert done.way == ops[DistributedUpdates._transport(server, terms)]


@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 13])
def test_a_broadcast_reaches_every_rank_once_from_one_that_has_it(ranks: int) -> None:
    has = {0}
    for source, target, amount in work(0, *[1] * (ranks - 1)).down:
        assert source in has and target not in has and amount == 4000
        has.add(target)
    assert has == set(range(ranks))


def test_a_leader_of_a_machine_passes_a_broadcast_on() -> None:
    done = work(0, *[1] * 6, machines=(0, 0, 1, 1, 1, 2, 3))
    assert done.leaders == [0, 2, 5, 6]
    assert {(source, target) for source, target, _ in done.down} == {(0, 2), (0, 5), (2, 6), (0, 1), (2, 3), (2, 4)}


@pytest.mark.parametrize("per_node", [2, 3, 8])
def test_one_sum_leaves_a_machine_and_one_broadcast_reaches_it(per_node: int) -> None:
    """Of two machines; without it every rank's updates and copies are on the wire, or a ring of all ranks."""
    ranks = 2 * per_node
    machines = tuple(rank // per_node for rank in range(ranks))
    done, place = work(0, *[2] * (ranks - 1), machines=machines), site(ranks, per_node)
    assert done.way == "reduce"
    assert (place.carried(done.down), place.carried(done.up)) == (4000, 8000)
    assert [flow for flow in done.up if not done.is_within(flow)] == [(per_node, 0, 8000)]
    assert place.carried(replace(done, machines=None).down) == 4000 * per_node
    assert done.counted(0) == Counted(8000 * (ranks - 1), 4000 * (ranks - 1)), "a copy per rank, however it travels"


def test_more_machines_add_their_sums_in_a_ring_of_leaders() -> None:
    done = work(0, *[2] * 5, machines=(0, 0, 1, 1, 2, 2))
    ring = [flow for flow in done.up if not done.is_within(flow)]
    assert {(source, target) for source, target, _ in ring} == {(0, 2), (2, 4), (4, 0), (2, 0)}
    assert sum(flow.bytes for flow in ring if flow.target == 0) == pytest.approx(2 * 8000 * 2 / 3)


def test_flows_are_the_bytes_that_are_counted() -> None:
    """What arrives at the server is what its meter counts, where no rank hands on what is others'."""
    for changes in ({}, {"exchange": "send"}, {"message": "star", "message_bytes": 64}):
        done = work(1, 2, 2, **changes)
        assert sum(flow.bytes for flow in done.up if flow.target == 0) == done.counted(0).up
    ring = work(0, 2, 2, 2)
    assert sum(flow.bytes for flow in ring.up) == pytest.approx(8000 * 3 + 8000 * 3 / 4)


def test_within_a_node_nothing_is_on_its_wire() -> None:
    done = work(0, 2, 2)
    assert site(3, per_node=3).carried(done.up) == 0
    assert site(3).carried(done.up) == 16000 and site(3, per_node=2).carried(done.up) == 8000
    assert site(3, per_node=3, is_hub=True).carried(done.up) == 16000


def test_a_slow_wire_is_the_limit_and_a_fast_one_is_not() -> None:
    done, constants = work(0, 2, 2), replace(FREE, send_s=1e-6, receive_s=1e-6)
    slow = [seconds(done, site(3, bytes_per_s=1e3 / part), constants).total for part in (1, 2)]
    assert slow[1] == pytest.approx(2 * slow[0]) and slow[0] == pytest.approx(8 + 16)
    fast = seconds(done, site(3), constants)
    assert fast.down == pytest.approx(2 * 4000e-6) and fast.up == pytest.approx(16000e-6)
    assert seconds(done, site(3, bytes_per_s=1e30), constants) == fast


def test_ranks_of_a_node_share_its_cores() -> None:
    done = replace(work(0, 1, 1, 1, 1), train_s=(0.0, 1.0, 1.0, 1.0, 2.0))
    assert seconds(done, site(5, per_node=5, cores=2), FREE).train == 2.5
    assert seconds(done, site(5, per_node=5, cores=8), FREE).train == 2.0
    assert seconds(done, site(5), FREE).train == 2.0


def windows_of_sums(number: int) -> float:
    """Seconds of a sum of two clients: 4 until it is made, 5 on the wire, 3 until it is added."""
    size = number * WINDOW
    constants = replace(FREE, add_s=4 / 2 / size, add_sum_s=3 / size)
    return seconds(work(0, 2, numbers=size), site(2, bytes_per_s=8 * size / 5), constants).up


def test_only_windows_are_beside_each_other() -> None:
    """Of one there is nothing beside it; of more the longest of the three is seen whole, one window of the others."""
    assert windows_of_sums(1) == pytest.approx(4 + 5 + 3)
    assert windows_of_sums(2) == pytest.approx((4 + 5 + 3) / 2 + 5 / 2)
    assert windows_of_sums(100) == pytest.approx((4 + 3) / 100 + 5)


def test_a_short_vector_waits_for_every_step_of_its_way() -> None:
    """A thousand numbers: added and written on the worker, written and added on the server; looked at before a ring."""
    constants = replace(FREE, add_s=1.0, add_sum_s=2.0, result_s=4.0)
    assert seconds(work(0, 2), site(2), constants).up == 1000 * (2 * 1 + 4 + 2 + 4)
    assert seconds(work(0, 1), site(2), constants).up == 1000 * (1 + 4), "an update is sent as it is"
    ring = work(0, 2, 2, 2)
    assert seconds(ring, site(4), constants).up == 1000 * (2 * 1 + 2 + 2 + 2 + 4)  # added, looked at, the ring, again


def test_messages_are_taken_to_be_many_windows() -> None:
    """So the server's digests and additions are seen, 10 entries of each; the worker's digests are beside them."""
    star = work(0, 2, message="star", message_bytes=80)
    constants = replace(FREE, add_s=1.0, digest_s=0.125)
    assert seconds(star, site(2), constants).up == 2 * 80 * 0.125 + 2 * 10 * 1


def test_what_a_round_costs_whatever_is_sent() -> None:
    """Six clients on two workers, the fuller of which has four."""
    constants = replace(FREE, round_s=1.0, round_rank_s=0.5, report_s=0.25, client_round_s=0.125)
    spent = seconds(work(0, 2, 4), site(3), constants)
    assert (spent.fixed, spent.train, spent.total) == (1 + 0.5 + 6 * 0.25, 4 * 0.125, 3.5)
    alone = seconds(work(3), site(1), constants)
    assert (alone.fixed, alone.train) == (0, 3 * 0.125), "one process reports to nobody"


def test_a_ring_waits_for_every_rank_in_every_window() -> None:
    done = work(0, *[2] * 9, numbers=3 * WINDOW)
    assert seconds(done, site(10), replace(FREE, hop_s=1.0)).up == pytest.approx(3 * 9 / 2)


def test_meetings_and_headers_grow_by_the_rank() -> None:
    constants = replace(FREE, meeting_s=1.0, meeting_rank_s=0.5)
    assert [seconds(work(0, *[1] * others), site(others + 1), constants).meetings for others in (1, 2, 31)] == [
        2,
        3,
        32,
    ]
    constants = replace(FREE, header_s=1.0)
    assert seconds(work(0, 2), site(2), constants).headers == 1 + 5 / 2


def test_more_nodes_never_make_the_exchange_faster() -> None:
    constants = Constants(2, *[1e-9] * 9, 1e-4, 1e-3, 1e-4, 1e-3, 1e-4, *[1e-4] * 4, 0)
    before = 0.0
    for nodes in (1, 2, 4, 8, 16, 32, 64):
        done = work(0, *[1] * (8 * nodes - 1), numbers=1 << 22)
        spent = seconds(done, site(8 * nodes, per_node=8, bytes_per_s=25e9 / 8), constants)
        assert spent.total > before
        before = spent.total


def test_memory_of_a_server_and_a_worker() -> None:
    """12 numbers of 4 bytes, 10 of them shared: 96 of model and start, 40 received; a window is the whole sum here."""
    done = work(0, 2, numbers=10)
    assert memory(done, MODEL, FREE, 0) == 96 + 40 + 40 + 40 + 80 + 4 * 80  # sum, momentum, own window, those received
    assert memory(done, MODEL, FREE, 1) == 96 + 40 + 48 * 3 + 2 * 40 + 4 * 80  # gradients and moments, updates, windows
    ring = work(0, 2, 2, 2, numbers=10)  # windows of the sum instead of those received, on every rank
    assert (memory(ring, MODEL, FREE, 0), memory(ring, MODEL, FREE, 1)) == (
        96 + 40 + 80 + 320,
        96 + 40 + 144 + 80 + 320,
    )
    small = replace(MODEL, update_bytes=1)
    assert memory(done, MODEL, FREE, 1) - memory(done, small, FREE, 1) == 40  # one stays in memory, always


def test_initial_weights_take_memory_only_where_they_are_kept() -> None:
    """Private ones are kept always: a client that is trained for the first time begins with them."""
    done, forgets = work(0, 2, numbers=10), replace(MODEL, keeps_initial=False)
    for rank in (0, 1):
        assert memory(done, MODEL, FREE, rank) - memory(done, forgets, FREE, rank) == 4 * MODEL.shared
