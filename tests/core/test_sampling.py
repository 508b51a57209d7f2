"""Samplers: which clients take part in a round, and what a sampler of one's own may draw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fedtorch.core.client import Client
from fedtorch.core.errors import ConfigError, DataError, FedtorchError, QuorumError
from fedtorch.core.sampling import NumpyRoundSeed, Sampler, SizeProportional, Uniform, cohort

CLIENTS = [Client(f"c{i}", i, {"train": 1 + i}) for i in range(20)]


def names(drawn: list[tuple[Client, int]]) -> list[str]:
    return [client.name for client, _ in drawn]


def test_uniform_sampling_depends_on_seed_and_round_alone() -> None:
    one = cohort(CLIENTS, 5, Uniform(), seed=1, round=3)
    torch.manual_seed(7)
    np.random.seed(7)
    assert names(one) == names(cohort(CLIENTS, 5, Uniform(), seed=1, round=3))
    assert len(one) == len(set(names(one))) == 5 and [c.index for c, _ in one] == sorted(c.index for c, _ in one)
    others = {tuple(names(cohort(CLIENTS, 5, Uniform(), seed=s, round=r))) for s in range(3) for r in range(3)}
    assert len(others) == 9


@pytest.mark.parametrize("per_round", [20, 25, "all"])
@pytest.mark.parametrize("sampler", [Uniform(), NumpyRoundSeed()])
def test_all_clients_come_in_index_order(sampler: Sampler, per_round: Any) -> None:
    assert cohort(CLIENTS, per_round, sampler, seed=0, round=0) == [(client, 1) for client in CLIENTS]


def test_uniform_sampling_draws_everyone_alike() -> None:
    counts = Counter(name for r in range(2000) for name in names(cohort(CLIENTS, 5, Uniform(), seed=0, round=r)))
    # binomial(2000, 1/4): standard deviation 19.4
    assert all(abs(count - 500) < 5 * 19.4 for count in counts.values()) and len(counts) == 20


def test_size_proportional_sampling_draws_with_replacement_by_size() -> None:
    counts: Counter[str] = Counter()
    for r in range(2000):
        drawn = cohort(CLIENTS, 5, SizeProportional(), seed=0, round=r)
        assert sum(times for _, times in drawn) == 5
        counts.update({client.name: times for client, times in drawn})
    for client in CLIENTS:
        p = client.sizes["train"] / 210
        assert abs(counts[client.name] - 10_000 * p) < 5 * (10_000 * p * (1 - p)) ** 0.5


def test_the_fedml_scheme_is_numpys_legacy_generator_seeded_with_the_round() -> None:
    np.random.seed(4)
    expected = sorted(np.random.choice(range(20), 5, replace=False).tolist())
    assert [c.index for c, _ in cohort(CLIENTS, 5, NumpyRoundSeed(), seed=99, round=4)] == expected


def test_a_round_can_have_more_draws_than_clients_where_they_are_replaced() -> None:
    drawn = cohort(CLIENTS[:2], 9, SizeProportional(), seed=0, round=0)
    assert sum(times for _, times in drawn) == 9 and names(drawn) == ["c0", "c1"]


def test_the_chance_to_be_drawn() -> None:
    sizes = {"num_clients": 20, "num_examples": 210}
    assert Sampler().chance(CLIENTS[0], 5, **sizes) == Fraction(1, 4)
    assert Sampler().chance(CLIENTS[0], 50, **sizes) == 1
    assert SizeProportional().chance(CLIENTS[20 - 1], 2, **sizes) == 1 - Fraction(190, 210) ** 2


@dataclass(frozen=True)
class Answers(Sampler):
    """Draws what it is told to."""

    answer: Callable[[Sequence[Client]], Any]

    def draw(self, clients: Sequence[Client], count: int, *, seed: int, round: int) -> Any:
        return self.answer(clients)


@dataclass(frozen=True)
class Repeats(Answers):
    """The same, with replacement."""

    with_replacement: ClassVar[bool] = True


def test_a_sampler_of_ones_own_draws_fewer_in_any_order() -> None:
    sampler = Answers(lambda clients: (clients[place] for place in (7, 3)))
    assert cohort(CLIENTS, 5, sampler, seed=0, round=0) == [(CLIENTS[3], 1), (CLIENTS[7], 1)]


def test_a_sampler_with_replacement_draws_a_client_more_than_once() -> None:
    sampler = Repeats(lambda clients: [clients[place] for place in (7, 3, 7)])
    assert cohort(CLIENTS, 5, sampler, seed=0, round=0) == [(CLIENTS[3], 1), (CLIENTS[7], 2)]


def test_clients_that_are_gone_are_not_among_those_that_can_be_drawn() -> None:
    """Places are not indices then."""
    left = CLIENTS[::3]
    assert names(cohort(left, 3, Answers(lambda clients: clients[-2:]), seed=0, round=0)) == ["c15", "c18"]
    with pytest.raises(ConfigError, match="drew client `c1`, which is none of `clients`"):
        cohort(left, 3, Answers(lambda _: CLIENTS[:2]), seed=0, round=0)


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (lambda _: [], QuorumError, "drew nobody; let it draw at least one client"),
        (lambda clients: clients[:6], ConfigError, "drew 6 clients; let it draw at most `count`, here 5"),
        (lambda clients: clients, ConfigError, "drew 20 clients; let it draw at most"),
        (lambda clients: [clients[1], clients[2], clients[1]], ConfigError, "drew client `c1` more than once"),
        (lambda _: [Client("x", 3)], ConfigError, "drew client `x`, which is none of `clients`"),
        (lambda _: [Client("x", 30)], ConfigError, "drew client `x`, which is none of `clients`"),
        (lambda _: [0, 1], ConfigError, "drew 0, which is none of `clients`; let it draw elements of `clients`"),
        (lambda _: ["c1"], ConfigError, "drew 'c1', which is none of `clients`"),
        (lambda _: None, ConfigError, "failed: TypeError: 'NoneType' object is not iterable"),
        (lambda clients: clients[99], ConfigError, "failed: IndexError: list index out of range"),
    ],
)
def test_what_may_not_be_drawn_is_named(answer: Any, error: type[FedtorchError], said: str) -> None:
    with pytest.raises(error) as caught:
        cohort(CLIENTS, 5, Answers(answer), seed=0, round=6)
    assert str(caught.value).startswith("clients.sampling: in round 7 `Answers` ") and said in str(caught.value)


def test_an_error_that_says_what_to_do_is_passed_on() -> None:
    def refuse(_: Sequence[Client]) -> Any:
        raise DataError("no timetable; write one")

    with pytest.raises(DataError, match="no timetable; write one"):
        cohort(CLIENTS, 5, Answers(refuse), seed=0, round=0)
