"""Updates that attackers send in place of what they learned.

An attack that is made of others' updates (IPM, ALIE) is computed by the worker that hosts the attacker: it trains those
that are known once more, as they would train themselves, and so gets their updates to the bit. Nothing but the attack
travels, the round loop knows nothing of it, and it is the same on any number of ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from statistics import NormalDist
from typing import Any, Protocol

import torch
from torch import Tensor

from fedtorch.core.client import Client
from fedtorch.train.attacks.rows import LabelledTask, load_changed
from fedtorch.train.attacks.settings import COLLUDING, OF_ROWS, AttackConfig

log = logging.getLogger(__name__)

Learn = Callable[[Client], Tensor]
"""The update that a client of the round would send."""


class Rows(Protocol):
    """A task whose rows can be attacked; for attacks on labels it is a `LabelledTask` too."""

    def load(self, client: str, split: str) -> Sequence[Any]:
        """The client's examples, ready to be collated."""


class Attackers:
    """The run's attackers, as far as they are on this rank."""

    def __init__(self, attack: AttackConfig, task: Rows, run_seed: int) -> None:
        self.attack, self.task, self.run_seed = attack, task, run_seed
        self._known: tuple[int, Tensor, Tensor] | None = None  # round, mean, standard deviation

    def __contains__(self, client: str) -> bool:
        return client in self.attack.clients

    def load(self, client: str, split: str) -> Sequence[Any]:
        """The client's examples; an attacker's may be others."""
        if client in self and split == "train" and self.attack.kind in OF_ROWS:
            assert isinstance(self.task, LabelledTask)
            return load_changed(self.task, client, self.attack, self.run_seed)
        return self.task.load(client, split)

    def spoil(self, update: Tensor, client: str, *, round: int, drawn: Sequence[Client], learn: Learn) -> None:
        """Write what the attacker sends over what it has learned, shape (n,).

        drawn: the clients of the round. learn: called for those that are known, if the attack is made of them.
        """
        attack = self.attack
        log.warning("client %s ATTACKS, on purpose (%s): its update is not what it should be", client, attack.kind)
        if attack.kind in COLLUDING:
            mean, deviation = self._knowledge(round, drawn, learn)
            liars = sum(one.name in self for one in drawn)
            z = alie_z(len(drawn), liars) if attack.z is None else attack.z
            update.copy_(mean * -attack.factor if attack.kind == "ipm" else mean - z * deviation)
        elif attack.kind == "freeride":
            update.zero_()
        else:
            update.mul_(-attack.factor if attack.kind == "signflip" else attack.factor)

    def _knowledge(self, round: int, drawn: Sequence[Client], learn: Learn) -> tuple[Tensor, Tensor]:
        """Summarise the updates that are known (those of the attackers, if nobody else was drawn), once a round."""
        if self._known is None or self._known[0] != round:
            others = [one for one in drawn if one.name not in self]
            known = others if others and self.attack.knows == "all" else [one for one in drawn if one.name in self]
            self._known = (round, *moments(map(learn, known)))
        return self._known[1:]


def moments(vectors: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """(mean, standard deviation) of at least one vector, number by number, in float64; one is looked at at a time.

    The deviation is that of the population, with 1/n, as in ALIE's code.
    """
    mean = squares = torch.zeros(0)
    count = 0
    for count, vector in enumerate(vectors, start=1):  # noqa: B007  # Welford's recurrence
        if count == 1:
            mean, squares = vector.to(torch.float64, copy=True), torch.zeros(len(vector), dtype=torch.float64)
            continue
        off = vector.double() - mean
        mean = mean + off / count
        squares.addcmul_(off, vector.double() - mean)
    return mean, (squares / max(1, count)).sqrt()


def alie_z(clients: int, attackers: int) -> float:
    """Baruch et al. 2019, algorithm 3: Φ⁻¹((n − f − s) / (n − f)) with s = ⌊n/2⌋ + 1 − f honest ones to win over.

    0 where that has no value: the attackers are the majority already, or need all honest ones.
    """
    honest = clients - attackers
    needed = clients // 2 + 1 - attackers
    if not 0 < needed < honest:
        return 0.0
    return NormalDist().inv_cdf((honest - needed) / honest)
