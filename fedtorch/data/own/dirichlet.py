"""Two rules that are both called Dirichlet: shares of each class over clients, or of the classes for each client.

`dirichlet` (per class): for every class, p ~ Dir(alpha · 1_K) over the K clients, and client k gets the share p_k of
the class's rows. Yurochkin et al. 2019 (arXiv 1905.12022), as in flwr-datasets, FedLab and FedNLP; often cited as Hsu
et al. 2019. Label skew and sizes come out together, and the smaller alpha, the more unequal both.

`dirichlet_clients` (per client): every client draws q ~ Dir(alpha · 1_C) over the C classes and takes its rows by q.
Hsu et al. 2019 (arXiv 1909.06335), Reddi et al. 2021 (arXiv 2003.00295), pfl-research. Sizes are equal.

With one alpha the two are not alike: per class, Var p = (1/K)(1 − 1/K)/(K·alpha + 1) depends on the number of clients;
per client, Var q = (1/C)(1 − 1/C)/(C·alpha + 1) on the number of classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtorch.core.errors import ConfigError
from fedtorch.data.own.client_rule import SECTION, Dirichlet, DirichletClients
from fedtorch.data.own.label_skew import even_sizes

Ints = NDArray[np.int64]

MAX_REDRAWS = 10
"""How often `dirichlet` draws again when a client is too small; as in flwr-datasets 0.6.1, so 11 draws in all."""


def per_class_owners(rule: Dirichlet, counts: Ints, generator: np.random.Generator) -> Ints:
    """The owner of each row, rows sorted by class: `dirichlet`.

    Class after class p is drawn; with `balanced`, p_k = 0 where client k holds more than rows / K already, and p is
    divided by its sum; the class is cut at floor(cumsum(p) · n_c). All as in flwr-datasets 0.6.1, bit for bit. (There
    the division by a sum of 0 gives the last client the whole class; here it counts as a draw that does not fit.)

    counts: rows per class, shape (classes,).

    Raises:
        ConfigError: so many rows per client are not there, or did not come about in 11 draws.
    """
    where, num_rows = f"{SECTION}.dirichlet", int(counts.sum())
    if rule.number * rule.min_size > num_rows:
        raise ConfigError(
            f"{where}.min_size is {rule.min_size} for {rule.number} clients but there are {num_rows} rows; "
            f"set it to at most {num_rows // rule.number} or lower {where}.number"
        )
    smallest = 0
    for _ in range(1 + MAX_REDRAWS):
        owners = _draw(rule, counts, generator)
        if owners is None:
            continue
        least = int(np.bincount(owners, minlength=rule.number).min())
        if least >= rule.min_size:
            return owners
        smallest = max(smallest, least)
    raise ConfigError(
        f"{where}.min_size is {rule.min_size}, but in {1 + MAX_REDRAWS} draws some client had fewer rows (at best "
        f"{smallest}) with alpha {rule.alpha:g} and {rule.number} clients; raise {where}.alpha, or lower "
        f"{where}.number or {where}.min_size"
    )


def _draw(rule: Dirichlet, counts: Ints, generator: np.random.Generator) -> Ints | None:
    """One draw of all classes; None where no client that may have more has a share of a class."""
    alphas = np.full(rule.number, float(rule.alpha))
    sizes = np.zeros(rule.number, dtype=np.int64)
    average = counts.sum() / rule.number
    owners = []
    for count in counts.tolist():
        shares = _shares(generator, alphas, f"{SECTION}.dirichlet.alpha")
        if rule.balanced:
            shares[sizes > average] = 0.0
            total = np.cumsum(shares)[-1]  # one after the other as in flwr-datasets; np.sum adds in another order
            if not total > 0:
                return None
            shares = shares / total
        cuts = (np.cumsum(shares) * count).astype(np.int64)[:-1]
        given = np.diff(cuts, prepend=0, append=count)
        owners.append(np.repeat(np.arange(rule.number), given))
        sizes += given
    return np.concatenate(owners)


def per_client_owners(rule: DirichletClients, counts: Ints, generator: np.random.Generator) -> Ints:
    """The owner of each row, rows sorted by class: `dirichlet_clients`.

    Client after client draws q over all classes, then the classes of its rows one by one from q; a class that is used
    up is drawn again, which is the renormalisation of q in Reddi et al. 2021. All rows are dealt, so the last clients
    get what the others left: their classes follow q less closely (so in pfl-research, which evens q out meanwhile).

    counts: rows per class, shape (classes,).
    """
    left, alphas = counts.copy(), np.full(len(counts), float(rule.alpha))
    classes, clients, numbers = [], [], []
    for client, size in enumerate(even_sizes(int(counts.sum()), rule.number).tolist()):
        shares = _shares(generator, alphas, f"{SECTION}.dirichlet_clients.alpha")
        taken = np.zeros_like(left)
        while size:
            open_shares = np.where(left > 0, shares, 0.0)
            if not open_shares.sum() > 0:  # only classes are left of which this client wants none
                open_shares = left / left.sum()
            drawn = np.minimum(generator.multinomial(size, open_shares / open_shares.sum()), left)
            taken, left, size = taken + drawn, left - drawn, size - int(drawn.sum())
        held = np.flatnonzero(taken)
        classes.append(held)
        clients.append(np.full(len(held), client))
        numbers.append(taken[held])
    by_class = np.argsort(np.concatenate(classes), kind="stable")
    return np.repeat(np.concatenate(clients)[by_class], np.concatenate(numbers)[by_class])


def _shares(generator: np.random.Generator, alphas: NDArray[np.float64], key: str) -> NDArray[np.float64]:
    shares = generator.dirichlet(alphas)
    if not 0.99 < shares.sum() < 1.01:  # NaN too: numpy under- or overflows with such numbers
        raise ConfigError(f"{key} is {alphas[0]:g}, with which no shares can be drawn; set it between 1e-3 and 1e6")
    return shares
