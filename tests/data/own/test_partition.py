"""Every rule deals each row once, with the sizes it promises, and looks at ids and the seed only."""

from __future__ import annotations

import re
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedtorch.config.validate import validate
from fedtorch.core.errors import ConfigError, DataError
from fedtorch.core.yaml_tree import read
from fedtorch.data.own.label_skew import largest_remainder
from fedtorch.data.own.partition import (
    ClientRule,
    Dirichlet,
    DirichletClients,
    Lognormal,
    Pathological,
    Shards,
    client_names,
    deal,
)

PAGE = Path(__file__).parents[3] / "docs" / "partitions.md"


def names(count: int) -> list[str]:
    return [f"row {i}" for i in range(count)]


def sizes(parts: dict[str, Any]) -> list[int]:
    return [len(rows) for rows in parts.values()]


def from_yaml(text: str) -> tuple[Any, list[str]]:
    tree = read(f"task:\n  data:\n    clients: {text}", "page")
    return validate(ClientRule, tree.data["task"]["data"]["clients"], ("task", "data", "clients"), tree)


def simulated() -> st.SearchStrategy[ClientRule]:
    number, alpha = st.integers(1, 9), st.sampled_from([0.05, 0.5, 5.0])
    return st.one_of(
        st.builds(lambda k: ClientRule(iid=k), number),
        st.builds(
            lambda k, a, m, b: ClientRule(dirichlet=Dirichlet(alpha=a, number=k, min_size=m, balanced=b)),
            number,
            alpha,
            st.integers(0, 3),
            st.booleans(),
        ),
        st.builds(lambda k, a: ClientRule(dirichlet_clients=DirichletClients(alpha=a, number=k)), number, alpha),
        st.builds(lambda k, m: ClientRule(shards=Shards(number=k, per_client=m)), number, st.integers(1, 4)),
        st.builds(lambda k, c: ClientRule(pathological=Pathological(classes=c, number=k)), number, st.integers(1, 4)),
        st.builds(
            lambda k, s: ClientRule(sizes=s, number=k),
            number,
            st.sampled_from(["linear", "square", "exponential", Lognormal(1.5)]),
        ),
    )


@given(
    rule=simulated(),
    labels=st.lists(st.sampled_from("abcd"), min_size=1, max_size=120),
    seed=st.integers(0, 2**40),
    data=st.data(),
)
def test_every_row_has_one_owner_whatever_the_order_of_the_rows(
    rule: ClientRule, labels: list[str], seed: int, data: st.DataObject
) -> None:
    ids = names(len(labels))
    try:
        parts = deal(rule, ids=ids, labels=labels, owners=None, seed=seed)
    except ConfigError:
        parts = None
    order = data.draw(st.permutations(range(len(labels))))
    moved = {"ids": [ids[i] for i in order], "labels": [labels[i] for i in order], "owners": None, "seed": seed}
    if parts is None:
        with pytest.raises(ConfigError):
            deal(rule, **moved)
        return
    assert rule.num_clients is not None and list(parts) == client_names(rule.num_clients)
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(len(labels)))
    assert all(rows.dtype == np.int64 for rows in parts.values())
    again = deal(rule, **moved)
    # also in the same order within a client
    assert {k: [order[i] for i in rows] for k, rows in again.items()} == {k: r.tolist() for k, r in parts.items()}


@given(owners=st.lists(st.sampled_from(["west", "öst", "Süd 1"]), min_size=1, max_size=60), gained=st.integers(0, 5))
@example(owners=["west"], gained=0)
def test_by_gives_each_its_own_and_new_rows_move_nobody_elses(owners: list[str], gained: int) -> None:
    rule = ClientRule(by="hospital")
    parts = deal(rule, ids=[], labels=None, owners=owners, seed=0)
    assert list(parts) == sorted(set(owners))
    assert {client: rows.tolist() for client, rows in parts.items()} == {
        client: [i for i, owner in enumerate(owners) if owner == client] for client in parts
    }
    more = deal(rule, ids=[], labels=None, owners=[*owners, *["öst"] * gained], seed=7)
    assert all(more[client].tolist() == rows.tolist() for client, rows in parts.items() if client != "öst")


LABELS = ["b", "a", "c", "a", "b", "a", "c", "a", "a", "b", "a", "c"]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (ClientRule(iid=5), [3, 3, 2, 2, 2]),
        (ClientRule(sizes="linear", number=4), [1, 2, 4, 5]),  # 1.2 2.4 3.6 4.8
        (ClientRule(sizes="square", number=3), [1, 3, 8]),  # 0.86 3.43 7.71
        (ClientRule(sizes="exponential", number=3), [1, 3, 8]),  # 1.08 2.94 7.98
        (ClientRule(sizes=Lognormal(0.0), number=5), [3, 3, 2, 2, 2]),
        (ClientRule(dirichlet_clients=DirichletClients(alpha=1.0, number=5)), [3, 3, 2, 2, 2]),
        (ClientRule(shards=Shards(number=3)), [4, 4, 4]),
        (ClientRule(dirichlet_clients=DirichletClients(alpha=1.0, number=12)), [1] * 12),  # as many as there are rows
        (ClientRule(sizes=Lognormal(0.0), number=12), [1] * 12),
    ],
    ids=lambda value: value.rule if isinstance(value, ClientRule) else "",
)
def test_sizes_are_as_asked(rule: ClientRule, expected: list[int]) -> None:
    assert sizes(deal(rule, ids=names(12), labels=LABELS, owners=None, seed=3)) == expected


@given(
    weights=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20),
    total=st.integers(0, 10**6),
)
@example(weights=[1.0, 2.0, 3.0], total=6)
@example(weights=[1.0] * 7, total=7 * 10**5)
def test_largest_remainder_adds_up_and_rounds_each_to_a_neighbour(weights: list[float], total: int) -> None:
    parts = largest_remainder(np.array(weights), total)
    exact = np.array(weights) / sum(weights) * total
    assert parts.sum() == total and (abs(parts - exact) < 1).all()
    up = parts > exact
    if up.any() and (~up).any():  # who was rounded up had lost at least as much as who was not
        assert (exact - np.floor(exact))[up].min() >= (exact - np.floor(exact))[~up].max() - 1e-6


def test_largest_remainder_by_hand() -> None:
    assert largest_remainder(np.array([1.0, 1.0, 1.0]), 5).tolist() == [2, 2, 1]
    assert largest_remainder(np.array([5.0, 3.0, 2.0]), 7).tolist() == [4, 2, 1]  # 3.5 2.1 1.4
    assert largest_remainder(np.array([1.0, 2.0, 3.0]), 60).tolist() == [10, 20, 30]


def test_lognormal_sizes_have_the_deviation_that_was_asked_for() -> None:
    found = sizes(
        deal(ClientRule(sizes=Lognormal(0.5), number=400), ids=names(40_000), labels=None, owners=None, seed=0)
    )
    # 400 draws: a standard error of 3.5 % of sigma
    assert np.log(found).std() == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize(
    ("rule", "least", "most"),
    [
        # of 1000 rows client k has 632 · e^(k - 800): the last seven half a row or more, and what is left over some
        (ClientRule(sizes="exponential", number=800), 785, 794),
        (ClientRule(sizes=Lognormal(2000.0), number=4), 3, 3),
    ],
)
def test_sizes_far_apart_are_refused_and_no_power_of_e_overflows(rule: ClientRule, least: int, most: int) -> None:
    with np.errstate(over="raise", invalid="raise"), pytest.raises(ConfigError) as caught:
        deal(rule, ids=names(1000), labels=None, owners=None, seed=0)
    found = re.search(r"leaves (\d+) of (\d+) clients without any of the 1000 rows", str(caught.value))
    assert found is not None and least <= int(found[1]) <= most and int(found[2]) == rule.number


def test_a_shard_client_sees_few_classes() -> None:
    labels = [i % 10 for i in range(600)]
    parts = deal(ClientRule(shards=Shards(number=10)), ids=names(600), labels=labels, owners=None, seed=1)
    # 20 shards of 30 cut 10 classes of 60 without rest: each shard has one class, each client at most two
    assert sizes(parts) == [60] * 10
    assert all(len({labels[i] for i in rows}) <= 2 for rows in parts.values())
    # dealt, not in turn: not everybody holds both shards of a class
    assert any(len({labels[i] for i in rows}) == 2 for rows in parts.values())


@pytest.mark.parametrize(("classes", "number"), [(1, 10), (2, 5), (2, 7), (3, 20), (10, 3)])
def test_a_pathological_client_has_just_so_many_classes(classes: int, number: int) -> None:
    labels = [i % 10 for i in range(1000)]
    rule = ClientRule(pathological=Pathological(classes=classes, number=number))
    parts = deal(rule, ids=names(1000), labels=labels, owners=None, seed=5)
    held = [Counter(labels[i] for i in rows) for rows in parts.values()]
    assert all(len(own) == classes for own in held)
    holders = Counter(label for own in held for label in own)
    assert max(holders.values()) - min(holders.values()) <= 1 and len(holders) == 10
    for label in range(10):  # even among its clients
        shares = [own[label] for own in held if label in own]
        assert max(shares) - min(shares) <= 1


def test_a_rare_class_goes_to_as_many_clients_as_it_has_rows() -> None:
    labels = ["rare"] * 2 + ["one"] * 50 + ["two"] * 50
    rule = ClientRule(pathological=Pathological(classes=1, number=9))
    parts = deal(rule, ids=names(102), labels=labels, owners=None, seed=0)
    assert sorted(Counter(labels[rows[0]] for rows in parts.values()).values()) == [2, 3, 4]


GOLDEN = {
    ClientRule(iid=3): [[0, 9, 4, 7], [2, 1, 10, 3], [8, 11, 5, 6]],
    ClientRule(dirichlet=Dirichlet(alpha=0.5, number=3, min_size=1)): [[0, 9, 5, 10], [8, 6, 7, 3], [2, 11, 1, 4]],
    ClientRule(dirichlet_clients=DirichletClients(alpha=0.5, number=3)): [[1, 10, 4, 3], [0, 2, 11, 6], [9, 8, 5, 7]],
    ClientRule(shards=Shards(number=3)): [[2, 11, 4, 6], [0, 9, 10, 3], [8, 1, 5, 7]],
    ClientRule(pathological=Pathological(classes=2, number=3)): [[11, 1, 10, 6, 7], [9, 2, 4], [0, 8, 5, 3]],
    ClientRule(sizes=Lognormal(1.0), number=3): [[0, 9, 2, 8, 1, 6, 3], [4], [11, 5, 10, 7]],
}


@pytest.mark.parametrize("rule", GOLDEN, ids=lambda rule: rule.rule)
def test_the_draw_is_the_same_in_every_process(rule: ClientRule) -> None:
    """Written down once: nothing that differs between processes, such as the order of a set, may reach the draw."""
    parts = deal(rule, ids=names(12), labels=LABELS, owners=None, seed=11)
    assert [rows.tolist() for rows in parts.values()] == GOLDEN[rule]
    other = deal(rule, ids=names(12), labels=LABELS, owners=None, seed=13)
    assert [rows.tolist() for rows in other.values()] != GOLDEN[rule]


def test_ids_may_be_bytes() -> None:
    rule = ClientRule(iid=3)
    texts = deal(rule, ids=names(9), labels=None, owners=None, seed=1)
    raw = deal(rule, ids=[name.encode() for name in names(9)], labels=None, owners=None, seed=1)
    assert all((texts[client] == raw[client]).all() for client in texts)


def test_names_sort_as_numbers() -> None:
    assert client_names(2) == ["client_000", "client_001"]
    assert client_names(1000)[-1] == "client_999"
    assert client_names(1001)[0] == "client_0000" and client_names(1001) == sorted(client_names(1001))


@pytest.mark.parametrize("line", re.findall(r"^\| `(\{.+?\})` \|", PAGE.read_text(), re.MULTILINE))
def test_each_line_of_the_page_is_a_rule_that_deals(line: str) -> None:
    rule, problems = from_yaml(line)
    assert problems == []
    owners = ["a", "b"] * 5000
    parts = deal(rule, ids=names(10_000), labels=[i % 4 for i in range(10_000)], owners=owners, seed=2)
    assert sum(sizes(parts)) == 10_000 and len(parts) == (rule.num_clients or 2)
    assert (rule.label_column == "label") == (rule.rule in ("dirichlet", "dirichlet_clients", "shards", "pathological"))


def test_the_page_has_a_line_for_every_rule() -> None:
    assert len(re.findall(r"^\| `\{", PAGE.read_text(), re.MULTILINE)) == 11


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "task.data.clients: exactly one rule says who owns a row, found none; give one of by, iid"),
        ("{by: a, iid: 3}", "found by and iid; give one of by, iid, dirichlet"),
        ("{sizes: linear}", "task.data.clients.sizes needs task.data.clients.number"),
        ("{iid: 3, number: 3}", "task.data.clients.number is 3 but belongs to `sizes` only"),
        ("{iid: 0}", "task.data.clients.iid is 0 in page:3 but should be an integer at least 1"),
        ("{by: ''}", "task.data.clients.by is empty"),
        ("{dirichlet: {alpha: 0, number: 3}}", "task.data.clients.dirichlet.alpha is 0"),
        ("{dirichlet: {number: 3}}", "task.data.clients.dirichlet.alpha is not given"),
        (
            "{dirichlet: {alpha: 1, number: 3, parity: fedlab}}",
            "parity is 'fedlab' in page:3 but should be empty or flwr",
        ),
        ("{pathological: {classes: 0, number: 3}}", "task.data.clients.pathological.classes is 0"),
        ("{sizes: {lognormal: -1}, number: 3}", "lognormal is -1"),
        ("{sizes: cubic, number: 3}", "task.data.clients.sizes is 'cubic' in page:3"),
        ("{dirichlet: {alpha: 1, numbr: 3}}", "did you mean `number`?"),
    ],
)
def test_a_wrong_section_is_named(text: str, said: str) -> None:
    rule, problems = from_yaml(text)
    assert rule is None and said in "\n".join(problems)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Dirichlet(alpha=0.0, number=2),
        lambda: Dirichlet(alpha=float("nan"), number=2),
        lambda: Dirichlet(alpha=1.0, number=0),
        lambda: Dirichlet(alpha=1.0, number=2, min_size=-1),
        lambda: Dirichlet(alpha=1.0, number=2, of=""),
        lambda: DirichletClients(alpha=-1.0, number=2),
        lambda: Shards(number=2, per_client=0),
        lambda: Pathological(classes=0, number=2),
        lambda: Lognormal(float("inf")),
        lambda: ClientRule(iid=0),
        lambda: ClientRule(sizes="linear", number=0),
    ],
)
def test_numbers_that_cannot_be_are_refused_without_a_config_too(make: Any) -> None:
    with pytest.raises(ValueError, match="set it to|name a column"):
        make()


ROWS = 12


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (ClientRule(iid=13), r"task\.data\.clients\.iid is 13 but there are 12 rows; set it to at most 12"),
        (ClientRule(sizes="linear", number=13), r"task\.data\.clients\.number is 13 but there are 12 rows"),
        (ClientRule(shards=Shards(number=13)), r"shards\.number is 13 but there are 12 rows"),
        (ClientRule(shards=Shards(number=5, per_client=3)), r"5 · 3 = 15 shards of 12 rows"),
        (ClientRule(sizes="exponential", number=9), r"leaves 6 of 9 clients without any of the 12 rows"),
        (ClientRule(sizes=Lognormal(9.0), number=9), r"or task\.data\.clients\.sizes\.lognormal"),
        (ClientRule(dirichlet=Dirichlet(alpha=1.0, number=2)), r"min_size is 10 for 2 .* 12 rows; set it to at most 6"),
        (
            ClientRule(dirichlet=Dirichlet(alpha=0.01, number=4, min_size=3)),
            r"min_size is 3, but in 11 draws some client had fewer rows \(at best [012]\)",
        ),
        (ClientRule(dirichlet=Dirichlet(alpha=1e308, number=4, min_size=0)), r"alpha is 1e\+308"),
        (ClientRule(pathological=Pathological(classes=4, number=3)), r"classes is 4 but the column `label` has 3"),
        (ClientRule(pathological=Pathological(classes=1, number=2)), r"fewer than the 3 of the column `label`"),
        (ClientRule(pathological=Pathological(classes=2, number=8)), r"have fewer rows than would have clients"),
    ],
    ids=lambda value: value.rule if isinstance(value, ClientRule) else "",
)
def test_a_rule_that_cannot_be_met_is_refused(rule: ClientRule, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        deal(rule, ids=names(ROWS), labels=LABELS, owners=None, seed=0)


@pytest.mark.parametrize(
    ("rule", "given", "error", "said"),
    [
        (ClientRule(iid=2), {"ids": []}, DataError, "there are no rows"),
        (ClientRule(iid=2), {"ids": ["a", "b", "c", "b"]}, DataError, "rows 2 and 4 have the same id"),
        (
            ClientRule(shards=Shards(number=1)),
            {"labels": None},
            ConfigError,
            r"shards\.of is label, but the rows have no",
        ),
        (ClientRule(shards=Shards(number=1)), {"labels": ["x", None, "y"]}, DataError, "row 2: the class .* NoneType"),
        (ClientRule(shards=Shards(number=1)), {"labels": [1, 2, 0.5]}, DataError, "row 3: the class .* a float"),
        (ClientRule(shards=Shards(number=1)), {"labels": [1, "2", 3]}, DataError, "both numbers and texts"),
        (ClientRule(by="ward"), {"owners": []}, DataError, "there are no rows"),
        (ClientRule(by="ward"), {"owners": None}, ConfigError, "the rows come without the column `ward`"),
        (ClientRule(by="file"), {"owners": None}, ConfigError, "the rows come without the files' names"),
        (ClientRule(by="ward"), {"owners": ["a", "", "b"]}, DataError, "row 2 has no client"),
        (ClientRule(by="ward"), {"owners": ["a", "b", None]}, DataError, "row 3 has no client"),
        (ClientRule(by="ward"), {"owners": ["Atis", "ATIS", "b"]}, DataError, "look alike"),
        (ClientRule(by="ward"), {"owners": ["a/b", "b", "b"]}, DataError, "is refused"),
    ],
)
def test_bad_rows_are_named_and_not_quoted(rule: ClientRule, given: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        deal(rule, **{"ids": ["p", "q", "r"], "labels": ["secret"] * 3, "owners": None, "seed": 0} | given)


def large(number: int) -> list[ClientRule]:
    return [
        ClientRule(iid=number),
        ClientRule(dirichlet=Dirichlet(alpha=1.0, number=number, min_size=0)),
        ClientRule(dirichlet=Dirichlet(alpha=1.0, number=number, min_size=0, parity="flwr")),
        ClientRule(dirichlet_clients=DirichletClients(alpha=1.0, number=number)),
        ClientRule(shards=Shards(number=number)),
        ClientRule(pathological=Pathological(classes=2, number=number)),
        ClientRule(sizes=Lognormal(0.5), number=number),
    ]


@pytest.mark.slow
def test_a_million_rows_are_dealt_in_seconds() -> None:
    """Two to four seconds each on two cores; a loop over rows and clients would take minutes."""
    ids, labels = names(10**6), (np.arange(10**6) % 10).tolist()
    for rule in [*large(1000), ClientRule(by="hospital")]:
        started = time.process_time()
        parts = deal(rule, ids=ids, labels=labels, owners=["a", "b"] * (len(ids) // 2), seed=0)
        assert sum(sizes(parts)) == 10**6
        assert time.process_time() - started < 30, rule.rule


@pytest.mark.slow
@pytest.mark.parametrize("rule", large(20_000), ids=lambda rule: rule.rule)
def test_memory_is_that_of_the_rows(rule: ClientRule) -> None:
    """Eight bytes per row and array. A table of 20 000 clients and 500 classes, 80 MB, would be seen."""
    ids, labels = names(200_000), (np.arange(200_000) % 500).tolist()
    tracemalloc.start()
    try:
        parts = deal(rule, ids=ids, labels=labels, owners=None, seed=0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(sizes(parts)) == 200_000
    assert peak < 60 << 20
