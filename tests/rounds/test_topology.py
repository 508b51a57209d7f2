"""Who trains whom: balanced, deterministic, and independent of the order in which it is asked."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtorch.rounds.topology import FEW, Topology, WorkerRow

names = st.text("abcdefgh", min_size=1, max_size=4)
costs = st.dictionaries(names, st.floats(0, 1e6), max_size=30)


def test_the_server_does_not_train_unless_it_is_told_to_or_alone() -> None:
    assert Topology(1).workers == ((0,),)
    assert Topology(3).workers == ((1,), (2,))
    assert Topology(3, server_works=True).workers == ((0,), (1,), (2,))
    assert Topology(5, ranks_per_worker=2).workers == ((1, 2), (3, 4))
    assert [Topology(5, ranks_per_worker=2).worker_of(rank) for rank in range(5)] == [None, 0, 0, 1, 1]
    assert Topology(5, ranks_per_worker=(1, 3)).workers == ((1,), (2, 3, 4))
    assert [Topology(5, ranks_per_worker=(1, 3)).worker_of(rank) for rank in range(5)] == [None, 0, 1, 1, 1]
    assert Topology(5, ranks_per_worker=2).sizes == (2, 2)


@pytest.mark.parametrize(("ranks", "width"), [(0, 1), (4, 2), (3, 0), (4, (2, 2)), (4, (2,)), (4, (3, 0)), (1, ())])
def test_ranks_that_cannot_be_shared_out_are_refused(ranks: int, width: int | tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        Topology(ranks, ranks_per_worker=width)


def test_homes_a_reader_can_redo() -> None:
    # 5 → worker 0; 4 → 1; 3 → 1 (4 < 5); 3 → 0 (5 < 7); 1 → 1 (7 < 8)
    assert Topology(3).homes({"e": 1, "d": 3, "c": 3, "b": 4, "a": 5}) == {"e": 1, "d": 0, "c": 1, "b": 1, "a": 0}


def test_clients_without_cost_are_spread_too() -> None:
    assert Topology(3).homes(dict.fromkeys("abcd", 0.0)) == {"a": 0, "b": 1, "c": 0, "d": 1}


@given(costs, st.integers(1, 8), st.randoms(use_true_random=False))
def test_homes_do_not_depend_on_order_and_are_balanced(costs: dict[str, float], num_ranks: int, random: object) -> None:
    topology = Topology(num_ranks)
    homes = topology.homes(costs)
    shuffled = list(costs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert topology.homes({name: costs[name] for name in shuffled}) == homes
    assert list(homes) == list(costs)
    loads = [0.0] * len(topology.workers)
    for name, worker in homes.items():
        loads[worker] += costs[name]
    if costs:  # longest first to the least loaded: the gap is at most one client
        assert max(loads) - min(loads) <= max(costs.values()) * (1 + 1e-9)


def test_few_clients_are_split_as_well_as_can_be() -> None:
    # the longest first: 3 + 2 + 2 = 7 beside 3 + 2
    homes = Topology(3).homes({"a": 3, "b": 3, "c": 2, "d": 2, "e": 2})
    assert homes == {"a": 0, "b": 0, "c": 1, "d": 1, "e": 1}


@given(st.lists(st.integers(0, 50), min_size=1, max_size=7), st.integers(1, 3))
def test_no_split_of_few_clients_has_a_smaller_largest_load(costs: list[int], num_workers: int) -> None:
    homes = Topology(num_workers + 1).homes({f"c{place}": float(cost) for place, cost in enumerate(costs)})

    def longest(workers: Iterable[int]) -> float:
        loads = [0.0] * num_workers
        for cost, worker in zip(costs, workers, strict=True):
            loads[worker] += cost
        return max(loads)

    every = itertools.product(range(num_workers), repeat=len(costs))
    assert longest(homes.values()) == min(map(longest, every))


def test_the_search_for_a_split_ends() -> None:
    costs = {f"c{k:02d}": 1.0 + 1e-3 * (k * 7 % 16) for k in range(FEW)}
    start = time.process_time()
    homes = Topology(6).homes(costs)
    assert time.process_time() - start < 2  # 0.02 s on an idle core
    assert sorted(Counter(homes.values()).values()) == [3, 3, 3, 3, 4]


def test_with_more_workers_than_clients_the_rest_are_idle() -> None:
    topology = Topology(6)
    costs = {"a": 1.0, "b": 2.0}
    table = topology.describe(costs, topology.homes(costs))
    assert table[:2] == [WorkerRow(0, (1,), ("b",), 2.0), WorkerRow(1, (2,), ("a",), 1.0)]
    assert [row.clients for row in table[2:]] == [()] * 3


def test_a_cohort_with_state_goes_home_and_one_without_is_balanced() -> None:
    topology = Topology(3)
    homes = {"a": 1, "b": 1, "c": 0}
    assert topology.assign({"b": 1.0, "a": 1.0}, homes) == {"b": 1, "a": 1}
    assert topology.assign({"b": 1.0, "a": 1.0}, None) == {"b": 1, "a": 0}
    with pytest.raises(ValueError, match="client `d` has no home"):
        topology.assign({"d": 1.0}, homes)


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf")])
def test_impossible_costs_are_refused(cost: float) -> None:
    with pytest.raises(ValueError, match="client `a`"):
        Topology(2).homes({"a": cost})


def test_a_hundred_thousand_clients_take_well_under_a_second_each_way() -> None:
    costs = {f"c{k:06d}": float(k * 7919 % 1000) for k in range(100_000)}
    start = time.process_time()
    homes = Topology(65).homes(costs)
    assert time.process_time() - start < 2  # 0.2 s on an idle core
    assert len(set(homes.values())) == 64
