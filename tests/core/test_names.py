"""Names and clients of which there may be a million: made when asked for, found without a dictionary."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from fedtorch.core import clients as module
from fedtorch.core.client import Client
from fedtorch.core.clients import Clients, DealtSizes
from fedtorch.core.names import Names
from fedtorch.core.sampling import SizeProportional, Uniform, cohort

MANY = 100_000


def manifest(number: int) -> DealtSizes:
    """So many clients of 1 to 7 examples, and one part."""
    names = Names(["part0"], head="client", numbered=number)
    return DealtSizes(names, np.arange(number, dtype=np.int32) % 7 + 1, [{"dev": 4, "test": 5}])


@pytest.mark.parametrize("number", [1, 10, 11, 100])
def test_numbered_names_are_those_of_a_tuple(number: int) -> None:
    width = len(str(number - 1))
    expected = (*(f"c{place:0{width}}" for place in range(number)), "x", "c")
    names = Names(["x", "c"], head="c", numbered=number)
    assert names == expected and tuple(names) == expected and len(names) == number + 2
    assert [names.place(name) for name in expected] == list(range(number + 2))
    assert names[-1] == "c" and names[:2] == expected[:2]


@pytest.mark.parametrize("name", ["c10", "c1", "c001", "c-1", "c0x", "c²1", "d01", ""])
def test_a_name_that_is_not_there_is_not_found(name: str) -> None:
    names = Names(["x"], head="c", numbered=10 + 1)
    is_there = name in tuple(names)
    assert (name in names) is is_there
    if not is_there:
        with pytest.raises(KeyError):
            names.place(name)


@pytest.mark.parametrize("others", [["a", "a"], ["c03"], ["x", "c10"]])
def test_a_name_that_is_there_twice_is_refused(others: list[str]) -> None:
    with pytest.raises(ValueError, match="distinct"):
        Names(others, head="c", numbered=11)


def test_clients_of_dealt_sizes_are_those_of_the_same_dictionary() -> None:
    dealt = manifest(25)
    plain = {name: dict(sizes) for name, sizes in dealt.items()}
    assert dict(dealt) == plain
    ours, theirs = Clients(dealt), Clients(plain)
    assert [*ours] == [*theirs] and [*ours.names()] == [*theirs.names()] and len(ours) == 25
    assert ours.train_sizes.tolist() == theirs.train_sizes.tolist()
    assert ours.named("part0") is None and ours.named("nobody") is None and ours.named("client03") == theirs[3]
    gone = ours.without(["client03", "nobody"])
    assert [client.name for client in gone] == [name for name in plain if name not in {"client03", "part0"}]
    assert gone.place_of(3) is None and gone.place_of(4) == 3
    for sampler in (Uniform(), SizeProportional()):
        assert cohort(ours, 5, sampler, seed=0, round=1) == cohort([*theirs], 5, sampler, seed=0, round=1)


def test_a_client_needs_few_bytes_and_a_round_makes_only_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(*args: Any) -> Client:
        made.append(args[0])
        return Client(*args)

    monkeypatch.setattr(module, "Client", counted)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        clients = Clients(manifest(MANY))
        taken = (tracemalloc.get_traced_memory()[0] - before) / MANY
    finally:
        tracemalloc.stop()
    assert taken < 16
    assert not made
    cohort(clients, 5, Uniform(), seed=0, round=0)
    cohort(clients, 5, SizeProportional(), seed=0, round=0)
    assert len(made) <= 4 * (5 + 5)
