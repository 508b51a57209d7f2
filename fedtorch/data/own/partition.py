"""Who owns a row: dealing rows to clients, as a function of a rule, a seed and the rows' ids."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtorch.core.errors import ConfigError, DataError
from fedtorch.core.seeds import seed_for
from fedtorch.data.own.client_rule import (
    SECTION,
    ClientRule,
    Dirichlet,
    DirichletClients,
    Lognormal,
    Pathological,
    Shards,
)
from fedtorch.data.own.dirichlet import per_class_owners, per_client_owners
from fedtorch.data.own.label_skew import even_sizes, pathological_owners, shard_owners, weighted_sizes
from fedtorch.data.own.row_ids import by_digest, row_ids
from fedtorch.data.paths import check_client_names

__all__ = [
    "ClientRule",
    "Dirichlet",
    "DirichletClients",
    "Lognormal",
    "Pathological",
    "Shards",
    "client_names",
    "deal",
    "row_ids",
]

Ints = NDArray[np.int64]


def deal(
    rule: ClientRule,
    *,
    ids: Sequence[bytes | str],
    labels: Sequence[int | str] | None,
    owners: Sequence[str] | None,
    seed: int,
) -> dict[str, Ints]:
    """Which rows each client has; every row belongs to exactly one client.

    Args:
        ids: one per row, all different, see `row_ids`. Only counted with `parity: flwr`, and ignored with `by`, for
            which the list may be empty.
        labels: the class of each row, for the rules with `rule.label_column`; else ignored.
        owners: the name of each row's client, for `by`; else ignored.
        seed: of the run; `parity: flwr` seeds its generator with it as flwr-datasets does (there 42 by default).

    Returns:
        client -> row numbers, int64, all of them views of one array. For `by` the clients are the sorted names and a
        client's rows ascend. Otherwise the clients are `client_names(number)` and a client's rows ascend by the digest
        of their ids, an order that does not depend on the order of the rows either and in which classes are mixed.
        With `parity: flwr` they are in the order in which flwr-datasets has them.

    The draw depends on the seed and the rows' ids, not on their order: rows sorted by the digest of their ids are
    shuffled with the seed, sorted by class, and then divided. The exception is `parity: flwr`. Sizes depend on the
    seed and the number of rows per class alone.

    Raises:
        ConfigError: the rule cannot be met with so many rows or classes, or lacks labels or owners.
        DataError: there are no rows, a row has no owner or label, an owner cannot name a client, or two ids are equal.
    """
    if rule.by is not None:
        return _by_owner(rule.by, owners)
    num_rows = len(ids)
    number = _number(rule, num_rows)
    codes, counts = _classes(rule, labels, num_rows)
    if rule.dirichlet is not None and rule.dirichlet.parity == "flwr":
        return _parity(rule.dirichlet, codes, counts, seed)
    rows = _by_digest(ids)
    generator = np.random.Generator(np.random.PCG64(seed_for(seed, "partition", rule.rule)))
    shuffled = generator.permutation(num_rows)
    places = shuffled[np.argsort(codes[rows[shuffled]], kind="stable")]  # class after class, in each a random order
    owner = np.empty(num_rows, dtype=np.int64)
    owner[places] = _owners(rule, number, counts, seed, generator)
    return _parts(rows, owner, number)


def client_names(number: int) -> list[str]:
    """Names of simulated clients: `client_000`, ...; wider for more than 1000, so that they sort as numbers do."""
    width = max(3, len(str(number - 1)))  # at least 3: a client keeps its name when 8 become 20
    return [f"client_{k:0{width}d}" for k in range(number)]


def _number(rule: ClientRule, num_rows: int) -> int:
    number = rule.num_clients
    assert number is not None
    key = {"iid": "iid", "sizes": "number"}.get(rule.rule, f"{rule.rule}.number")
    if not num_rows:
        raise DataError(f"there are no rows to deal to {number} clients; see that the files are not empty")
    if num_rows < number:
        raise ConfigError(f"{SECTION}.{key} is {number} but there are {num_rows} rows; set it to at most {num_rows}")
    return number


def _owners(rule: ClientRule, number: int, counts: Ints, seed: int, generator: np.random.Generator) -> Ints:
    """The owner of each row, as a client's number; rows sorted by class. counts: rows per class, shape (classes,)."""
    num_rows = int(counts.sum())
    if rule.dirichlet is not None:
        # a generator of its own, seeded as in flwr-datasets: without parity the clients have Flower's sizes too
        return per_class_owners(rule.dirichlet, counts, np.random.default_rng(seed))
    if rule.dirichlet_clients is not None:
        return per_client_owners(rule.dirichlet_clients, counts, generator)
    if rule.shards is not None:
        return shard_owners(rule.shards, num_rows, generator)
    if rule.pathological is not None:
        return pathological_owners(rule.pathological, counts, generator)
    if rule.sizes is not None:
        return np.repeat(np.arange(number), weighted_sizes(rule.sizes, number, num_rows, generator))
    return np.repeat(np.arange(number), even_sizes(num_rows, number))


def _parity(rule: Dirichlet, codes: Ints, counts: Ints, seed: int) -> dict[str, Ints]:
    """As flwr-datasets 0.6.1: rows of a class in their order, one generator for the shares and for the shuffling."""
    generator = np.random.default_rng(seed)
    rows = np.argsort(codes, kind="stable")
    parts = _parts(rows, per_class_owners(rule, counts, generator), rule.number)
    for part in parts.values():
        generator.shuffle(part)  # the same draws as for a list, which flwr-datasets shuffles
    return parts


def _by_owner(column: str, owners: Sequence[str] | None) -> dict[str, Ints]:
    """One client per distinct name, sorted; a client's rows in their order, so others' rows do not touch them."""
    if owners is None:
        what = "the files' names" if column == "file" else f"the column `{column}`"
        raise ConfigError(f"{SECTION}.by is {column}, but the rows come without {what}; name a column that they have")
    if not len(owners):
        raise DataError("there are no rows to deal; see that the files are not empty")
    for number, owner in enumerate(owners, start=1):
        if not isinstance(owner, str) or not owner:
            found = "an empty text" if owner == "" else f"a {type(owner).__name__}"
            raise DataError(
                f"row {number} has no client: {SECTION}.by is {column} and it has {found} there; add a name"
            )
    names = check_client_names(sorted(set(owners)))
    codes = _codes(names, owners)
    return _parts(np.arange(len(codes)), codes, len(names), names)


def _classes(rule: ClientRule, labels: Sequence[int | str] | None, num_rows: int) -> tuple[Ints, Ints]:
    """The class of each row, as its place among the sorted labels, and the number of rows of each class."""
    column = rule.label_column
    if column is None:
        return np.zeros(num_rows, dtype=np.int64), np.array([num_rows])
    key = f"{SECTION}.{rule.rule}.of"
    if labels is None:
        raise ConfigError(f"{key} is {column}, but the rows have no such column; name the one that holds their classes")
    if len(labels) != num_rows:
        raise ValueError(f"{len(labels)} labels for {num_rows} rows; expected one each")
    kinds = {kind: "number" if issubclass(kind, Integral) else "text" for kind in set(map(type, labels))}
    for kind in kinds:
        if not issubclass(kind, Integral | str):
            place = next(place for place, label in enumerate(labels, start=1) if type(label) is kind)
            raise DataError(
                f"row {place}: the class in column `{column}` ({key}) is a {kind.__name__}; expected a text or a whole "
                f"number; correct the row or name another column"
            )
    if len(set(kinds.values())) > 1:
        raise DataError(f"the column `{column}` ({key}) holds both numbers and texts; write all classes the same way")
    found = sorted(set(labels))
    codes = _codes(found, labels)
    return codes, np.bincount(codes, minlength=len(found))


def _codes(values: Sequence[Any], rows: Sequence[Any]) -> Ints:
    """The place of each row's value among `values`; by a dict, because an array of texts is as wide as the longest."""
    place = {value: number for number, value in enumerate(values)}
    return np.fromiter((place[value] for value in rows), dtype=np.int64, count=len(rows))


def _by_digest(ids: Sequence[bytes | str]) -> Ints:
    """Row numbers sorted by the digest of their ids.

    Raises:
        DataError: two ids are equal.
    """
    order, again = by_digest(ids)
    if len(again):
        first, second = sorted((int(order[again[0] - 1]) + 1, int(order[again[0]]) + 1))
        raise DataError(f"rows {first} and {second} have the same id; give every row an id of its own")
    return order


def _parts(rows: Ints, owner: Ints, number: int, names: Sequence[str] | None = None) -> dict[str, Ints]:
    """client -> its rows in the order of `rows`. owner: the client's number of each of `rows`."""
    grouped = rows[np.argsort(owner, kind="stable")]
    ends = np.cumsum(np.bincount(owner, minlength=number))
    return dict(zip(names or client_names(number), np.split(grouped, ends[:-1]), strict=True))
