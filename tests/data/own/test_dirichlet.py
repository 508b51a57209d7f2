"""The two Dirichlet rules: Flower's sizes and rows, the distribution's moments, and what tells the two apart."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from fedtorch.core.errors import ConfigError
from fedtorch.data.own.dirichlet import per_class_owners, per_client_owners
from fedtorch.data.own.partition import ClientRule, Dirichlet, DirichletClients, deal

NUMBER, ALPHA, DRAWS = 8, 0.5, 2000


def sizes(counts: list[int], *, seed: int = 42, **settings: object) -> list[int]:
    labels = np.repeat(np.arange(len(counts)), counts).tolist()
    rule = ClientRule(dirichlet=Dirichlet(**settings))  # type: ignore[arg-type]
    parts = deal(rule, ids=[str(i) for i in range(len(labels))], labels=labels, owners=None, seed=seed)
    return [len(rows) for rows in parts.values()]


@pytest.mark.parametrize("parity", ["", "flwr"])
@pytest.mark.parametrize(
    ("counts", "number", "alpha", "balanced", "expected"),
    [
        ([1000] * 4, 8, 0.5, False, [605, 545, 566, 686, 460, 356, 420, 362]),
        ([1000] * 4, 8, 0.5, True, [608, 546, 502, 698, 480, 359, 430, 377]),
        ([900, 600, 300], 5, 0.1, False, [205, 857, 18, 173, 547]),
        ([900, 600, 300], 5, 0.1, True, [321, 544, 170, 176, 589]),
    ],
)
def test_sizes_are_those_of_flower(
    counts: list[int], number: int, alpha: float, balanced: bool, expected: list[int], parity: str
) -> None:
    """Computed with numpy by the recipe alone; they depend on the counts of the classes, the same for all rows."""
    assert sizes(counts, number=number, alpha=alpha, balanced=balanced, parity=parity) == expected


@pytest.mark.parametrize(
    ("balanced", "expected", "firsts", "digest"),
    [
        (False, [48, 35, 24, 30, 10, 53], [1, 59, 139, 158, 56, 153], "8371657364206017"),
        (True, [48, 34, 25, 29, 11, 53], [1, 125, 139, 160, 56, 157], "e5da46c0e44e777e"),
    ],
)
def test_parity_gives_the_rows_of_flwr_datasets_in_its_order(
    balanced: bool, expected: list[int], firsts: list[int], digest: str
) -> None:
    """Rows that `DirichletPartitioner` of flwr-datasets 0.6.1 dealt; min_size 5 makes it draw several times."""
    labels = [("a", "b", "c")[i * 7 % 11 % 3] for i in range(200)]
    rule = Dirichlet(alpha=0.3, number=6, min_size=5, balanced=balanced, parity="flwr")
    parts = deal(
        ClientRule(dirichlet=rule), ids=[str(i) for i in range(200)], labels=labels, owners=None, seed=42
    ).values()
    rows = [part.tolist() for part in parts]
    assert [len(part) for part in rows] == expected and [part[0] for part in rows] == firsts
    assert hashlib.sha256(repr(rows).encode()).hexdigest()[:16] == digest


def test_parity_follows_the_order_of_the_rows_and_nothing_else() -> None:
    rule = ClientRule(dirichlet=Dirichlet(alpha=0.5, number=4, min_size=1, parity="flwr"))
    labels = [i % 3 for i in range(90)]
    one = deal(rule, ids=[f"a{i}" for i in range(90)], labels=labels, owners=None, seed=1)
    two = deal(rule, ids=[f"b{i}" for i in range(90)], labels=labels, owners=None, seed=1)
    assert all((one[client] == two[client]).all() for client in one)


def test_shares_of_a_class_have_mean_and_variance_of_the_distribution() -> None:
    rule, count = Dirichlet(alpha=ALPHA, number=NUMBER, min_size=0), np.array([10_000])
    shares = np.stack(
        [
            np.bincount(per_class_owners(rule, count, np.random.default_rng(seed)), minlength=NUMBER) / 10_000
            for seed in range(DRAWS)
        ]
    )
    assert shares.sum(axis=1) == pytest.approx(np.ones(DRAWS))
    # each client by itself: a standard error of 3.2 % with 2000 draws
    assert shares.mean(axis=0) == pytest.approx(np.full(NUMBER, 1 / NUMBER), rel=0.1)
    assert shares.var() == pytest.approx(1 / NUMBER * (1 - 1 / NUMBER) / (NUMBER * ALPHA + 1), rel=0.05)


def test_a_clients_classes_have_mean_and_variance_of_the_distribution() -> None:
    """Of the first client, for which no class runs out. Drawing n rows adds E q(1 − q) / n to the variance."""
    classes, size = 4, 300
    rule, counts = DirichletClients(alpha=ALPHA, number=classes), np.full(classes, size)
    shares = np.stack(
        [
            (per_client_owners(rule, counts, np.random.default_rng(seed)) == 0).reshape(classes, size).mean(axis=1)
            for seed in range(DRAWS)
        ]
    )
    of_q = 1 / classes * (1 - 1 / classes) / (classes * ALPHA + 1)
    assert shares.sum(axis=1) == pytest.approx(np.ones(DRAWS))
    assert shares.mean(axis=0) == pytest.approx(np.full(classes, 1 / classes), rel=0.1)
    assert shares.var() == pytest.approx(of_q + (1 / classes * (1 - 1 / classes) - of_q) / size, rel=0.05)


def test_the_two_rules_differ_in_sizes_and_agree_on_what_a_small_alpha_means() -> None:
    labels = np.repeat(np.arange(5), 400).tolist()
    ids = [str(i) for i in range(2000)]
    per_class, per_client = (
        deal(rule, ids=ids, labels=labels, owners=None, seed=0)
        for rule in (
            ClientRule(dirichlet=Dirichlet(alpha=0.1, number=10, min_size=0)),
            ClientRule(dirichlet_clients=DirichletClients(alpha=0.1, number=10)),
        )
    )
    assert {len(rows) for rows in per_client.values()} == {200}
    assert max(map(len, per_class.values())) > 10 * min(map(len, per_class.values()))
    # the first half, before classes run out: most rows of a client have one class, which by chance would be 0.2
    shares = [np.bincount(np.array(labels)[rows]).max() / 200 for rows in list(per_client.values())[:5]]
    assert np.mean(shares) > 0.6


def test_a_client_that_is_too_small_makes_all_be_drawn_again() -> None:
    rule = {"counts": [60, 60], "number": 4, "alpha": 0.2}
    first = [sizes(**rule, min_size=0, seed=seed) for seed in range(20)]
    again = [sizes(**rule, min_size=5, seed=seed) for seed in range(20)]
    assert all(min(found) >= 5 for found in again)
    assert all(a == f for a, f in zip(again, first) if min(f) >= 5)
    assert any(min(f) < 5 for f in first) and any(min(f) >= 5 for f in first)


@pytest.mark.parametrize(("seed", "fits"), [(22, True), (74, True), (25, False), (38, False)])
def test_all_is_drawn_again_ten_times_and_not_more(seed: int, fits: bool) -> None:
    """With the first two seeds it is the eleventh draw that fits, with the others the twelfth."""
    settings = {"number": 4, "alpha": 0.2, "min_size": 10}
    if fits:
        assert min(sizes([60, 60], seed=seed, **settings)) >= 10
    else:
        with pytest.raises(ConfigError, match="in 11 draws"):
            sizes([60, 60], seed=seed, **settings)


TINY = {"number": 2, "alpha": 1e-9, "balanced": True, "min_size": 0}
"""So uneven that a class goes to one client as a whole."""


def test_only_who_holds_more_than_the_average_is_left_out() -> None:
    found = {tuple(sizes([50, 50], seed=seed, **TINY)) for seed in range(20)}
    assert found == {(50, 50), (0, 100), (100, 0)}  # 50 is the average, and not more


def test_a_class_that_only_full_clients_want_is_drawn_again() -> None:
    """Their shares of it are 0 by then, and so is the sum by which the shares are divided."""
    found = {tuple(sizes([60, 40], seed=seed, **TINY)) for seed in range(20)}
    assert found == {(60, 40), (40, 60)}


def test_a_class_of_which_one_row_is_left_is_still_dealt_by_shares() -> None:
    """Either client wants one class alone, half of them that of the single row: 30 of 60 draws, give or take 3.9."""
    rule = ClientRule(dirichlet_clients=DirichletClients(alpha=1e-3, number=2))
    ids, labels = [str(i) for i in range(100)], [0] + [1] * 99
    draws = [deal(rule, ids=ids, labels=labels, owners=None, seed=seed) for seed in range(60)]
    assert 20 <= sum(0 in next(iter(parts.values())) for parts in draws) <= 40


def test_clients_that_want_nothing_that_is_left_take_it_all_the_same() -> None:
    labels = np.repeat(np.arange(3), [10, 10, 80]).tolist()
    rule = ClientRule(dirichlet_clients=DirichletClients(alpha=1e-9, number=5))
    parts = deal(rule, ids=[str(i) for i in range(100)], labels=labels, owners=None, seed=0)
    assert [len(rows) for rows in parts.values()] == [20] * 5
