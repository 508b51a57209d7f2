"""Steps of a run with the privacy of rows or persons in which every unit is a canary: batches, sums, noise; no text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from fedtorch.audit.canary_rounds import EMPTY, TOO_LONG, Canaried, Directions, coins, one_of_several, released
from fedtorch.comm.job.forked_ranks import fork_ranks
from fedtorch.comm.local import LocalCommunicator
from fedtorch.config.schema import ClientConfig, ServerConfig
from fedtorch.privacy.secure_sum.terms import LEAST_PARTIES, threshold_of
from fedtorch.privacy.settings import PrivacyConfig
from fedtorch.setup.bare_rounds import BareTask, bare_config


@dataclass(frozen=True)
class UnitTask(BareTask):
    """Silos whose rows are canaries, each in a direction of its own; those that are left out have no row."""

    canaries: int = 2
    """of all silos, as many of each"""
    seed: int = 0
    """of the coins"""
    length: float = 1.0
    """of a canary's gradient"""

    @property
    def is_in(self) -> Tensor:
        """A fair coin for each, shape (canaries,), bool."""
        return coins(self.canaries, self.seed)

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        """As many as could be there."""
        return {name: {"train": self.canaries // self.clients} for name in super().manifest()}

    def load(self, client: str, split: str) -> Sequence[Any]:
        """Directions of the silo's canaries that are in."""
        each, silo = self.canaries // self.clients, int(client.removeprefix("c"))
        own, is_in = range(silo * each, (silo + 1) * each), self.is_in
        return [place for place in own if bool(is_in[place])]

    def build_model(self, seed: int) -> nn.Module:
        """Zeros."""
        return Directions(self.canaries + EMPTY)

    def collate(self, examples: Sequence[Any], train: bool) -> dict[str, Tensor]:
        """Places, (B,), int64."""
        return {"places": torch.tensor(examples)}

    def loss(self, model: Any, batch: Any) -> tuple[Tensor, int]:
        """Linear, so that a unit's gradient is its canary."""
        picked = model.w.index_select(0, batch["places"])
        return picked.sum() * self.length, len(batch["places"])


def canary_units(*, canaries: int, steps: int, rate: float, promise: PrivacyConfig, seed: int = 0) -> Canaried:
    """Run so many noised steps as a run with this promise takes them, under a simulated key; see `canaries.judged`.

    One silo in this process; with shared noise as many as a secure sum needs, on ranks that are forked. A round is one
    step, whose gradient is released. promise: its noise multiplier must be given. `Canaried.noise` is the deviation
    that all silos' noise has together, `Canaried.rate` the rate that whole batches come to.
    """
    assert promise.noise_multiplier is not None and promise.first_clip
    shared = promise.noise_at == "shared"
    silos = LEAST_PARTIES if shared else 1
    each = max(2, canaries // silos)
    batch = max(1, round(rate * each))
    noise, promise = promise.noise_multiplier, simulated(promise, silos, each, seed)
    if promise.secure_sum is not None:
        noise *= math.sqrt(silos / (threshold_of(promise.secure_sum.threshold, silos) - promise.colluders))
    task = UnitTask(silos, each * silos, seed, TOO_LONG * promise.first_clip)
    with TemporaryDirectory() as folder:
        client = ClientConfig(optimizer="sgd", lr=1.0, batch_size=batch, steps=1)
        sections = {"client": client, "privacy": promise}
        config = bare_config(task, Path(folder), steps, lr=1.0, weights="declared", **sections)
        if shared:
            config = replace(config, server=ServerConfig(optimizer="sgd", lr=1.0))
            found = fork_ranks(silos + 1, partial(one_of_several, config))[0]["released"]
        else:
            found = released(config, LocalCommunicator(tuple(task.manifest())))
    return Canaried(torch.tensor(found, dtype=torch.float64) * batch * silos, task.is_in, noise, batch / each)


def simulated(promise: PrivacyConfig, silos: int, units: int, seed: int) -> PrivacyConfig:
    """The promise about so many silos of so many units, with noise that everybody can compute."""
    most = 0 if promise.secure_sum is None else threshold_of(promise.secure_sum.threshold, silos) - 1
    return replace(
        promise,
        unit="row",
        units={f"c{silo}": units for silo in range(silos)},
        per_silo={},
        epsilon=None,
        delta=1e-9,
        max_epsilon=None,
        ledger=None,
        reveal=(),
        colluders=min(promise.colluders, most) if promise.noise_at == "shared" else 1,
        simulate=True,
        seed=seed,
    )
