"""Sizes of clients, and the two rules that give each client a few classes: shards, and a fixed number of classes."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtorch.core.errors import ConfigError
from fedtorch.data.own.client_rule import SECTION, Lognormal, Pathological, Shards

Ints = NDArray[np.int64]


def even_sizes(total: int, number: int) -> Ints:
    """`total` in `number` parts that differ by at most 1, the larger ones first."""
    sizes = np.full(number, total // number, dtype=np.int64)
    sizes[: total % number] += 1
    return sizes


def largest_remainder(weights: NDArray[np.float64], total: int) -> Ints:
    """`total` in whole parts in proportion to `weights`: rounded down, then 1 each to those that lost most by it.

    Of equal remainders the first goes first. Every part differs from the exact one by less than 1.
    """
    exact = weights / weights.sum() * total
    sizes = np.floor(exact).astype(np.int64)
    lost = np.argsort(sizes - exact, kind="stable")
    sizes[lost[: total - int(sizes.sum())]] += 1
    return sizes


def weighted_sizes(
    rule: Literal["linear", "square", "exponential"] | Lognormal,
    number: int,
    total: int,
    generator: np.random.Generator,
) -> Ints:
    """Rows per client, label-blind: client k of 1, 2, ... in proportion to k, k², e^k, or exp(sigma · N(0, 1)).

    The first three as in flwr-datasets (which rounds down and gives the rest to the last client), the log-normal one
    as in FedLab.

    Raises:
        ConfigError: a client would have no row.
    """
    place = np.arange(1, number + 1, dtype=np.float64)
    if isinstance(rule, Lognormal):
        logarithms = rule.lognormal * generator.standard_normal(number)
        weights = np.exp(logarithms - logarithms.max())  # the largest is 1: no overflow
    else:
        weights = {"linear": place, "square": place**2, "exponential": np.exp(place - number)}[rule]
    sizes = largest_remainder(weights, total)
    if not sizes.all():
        raise ConfigError(
            f"{SECTION}.sizes leaves {int((sizes == 0).sum())} of {number} clients without any of the {total} rows; "
            f"lower {SECTION}.number" + (f" or {SECTION}.sizes.lognormal" if isinstance(rule, Lognormal) else "")
        )
    return sizes


def shard_owners(rule: Shards, num_rows: int, generator: np.random.Generator) -> Ints:
    """The owner of each row, rows sorted by class: McMahan et al. 2017 (arXiv 1602.05629), section 3.

    There 60 000 rows are cut into 200 shards of 300, and each of 100 clients gets 2 at random. Where the number of
    rows is no multiple, shards differ by at most 1 row, so all are dealt.

    Raises:
        ConfigError: there are fewer rows than shards.
    """
    num_shards, where = rule.number * rule.per_client, f"{SECTION}.shards"
    if num_rows < num_shards:
        raise ConfigError(
            f"{where} makes {rule.number} · {rule.per_client} = {num_shards} shards of {num_rows} rows; lower "
            f"{where}.number or {where}.per_client until there are at most {num_rows}"
        )
    client_of = np.empty(num_shards, dtype=np.int64)
    client_of[generator.permutation(num_shards)] = np.repeat(np.arange(rule.number), rule.per_client)
    return np.repeat(client_of, even_sizes(num_rows, num_shards))


def pathological_owners(rule: Pathological, counts: Ints, generator: np.random.Generator) -> Ints:
    """The owner of each row, rows sorted by class: each client holds rows of exactly `classes` classes.

    The "#C = c" of Li et al. 2022 (arXiv 2102.02079): a class is divided evenly among its clients. There a client
    draws its classes by chance, so that a class may go to nobody; here all classes have the same number of clients,
    or one more (fewer, where a class has not so many rows), so that every row has an owner.

    counts: rows per class, shape (classes,).

    Raises:
        ConfigError: there are fewer classes than that, too many for all to be dealt, or too few rows.
    """
    where, places = f"{SECTION}.pathological", rule.classes * rule.number
    if rule.classes > len(counts):
        raise ConfigError(
            f"{where}.classes is {rule.classes} but the column `{rule.of}` has {len(counts)} classes; "
            f"set it to at most {len(counts)}"
        )
    if places < len(counts):
        raise ConfigError(
            f"{where} gives {rule.number} clients {rule.classes} classes each, fewer than the {len(counts)} of the "
            f"column `{rule.of}`, so some rows would have no owner; raise {where}.number or {where}.classes"
        )
    most = np.minimum(counts, rule.number)
    if most.sum() < places:
        raise ConfigError(
            f"{where} gives {rule.number} clients {rule.classes} classes each, but some of the {len(counts)} classes "
            f"have fewer rows than would have clients; lower {where}.number or {where}.classes"
        )
    return _divide(counts, _holders(rule, _clients_per_class(most, places, generator), generator))


def _clients_per_class(most: Ints, places: int, generator: np.random.Generator) -> Ints:
    """How many clients hold each class: as even as can be with at most `most` of each, adding up to `places`."""
    clients = np.zeros_like(most)
    while (left := places - int(clients.sum())) > 0:
        is_open = clients < most
        if each := left // int(is_open.sum()):
            clients = np.minimum(clients + each * is_open, most)
        else:  # fewer are left than classes that could have one
            clients[generator.permutation(np.flatnonzero(is_open))[:left]] += 1
    return clients


def _holders(rule: Pathological, wanted: Ints, generator: np.random.Generator) -> list[list[int]]:
    """The clients of each class. wanted: how many, per class; adds up to number · classes, none above number.

    Each client takes the classes that most are still to take, by chance among equals. That always comes out even:
    a class that all remaining clients must take is among those that most are to take.
    """
    holders: list[list[int]] = [[] for _ in wanted]
    left = wanted.copy()
    for client in generator.permutation(rule.number).tolist():
        taken = np.lexsort((generator.random(len(left)), -left))[: rule.classes]
        left[taken] -= 1
        for number in taken.tolist():
            holders[number].append(client)
    return holders


def _divide(counts: Ints, holders: list[list[int]]) -> Ints:
    owners = [
        np.repeat(np.array(sorted(held), dtype=np.int64), even_sizes(count, len(held)))
        for count, held in zip(counts.tolist(), holders, strict=True)
    ]
    return np.concatenate(owners)
