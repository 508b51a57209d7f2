"""The `trust` section of a config: who the parties are, where they do not all share one secret. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from fedtorch.core.errors import ConfigError


@dataclass(frozen=True)
class TrustConfig:
    """`trust`: the parties of a federation sign what they say, each with a key of its own."""

    members: str | None = None
    """File that names the members and their public keys, the same at all parties; null: whoever knows the job's secret
    is believed, whoever he says he is."""
    key: str | None = None
    """File with this party's own key, as `fedtorch keys new` makes it; another one on each machine, so it is the one
    key that parties do not compare: `--set trust.key=north.key`."""

    verify: Literal["all"] | Annotated[float, Field(gt=0, lt=1)] | None = None
    """What silos check of the server's work in each round. all: the whole sum, by tags that the server cannot make, and
    the server's step, which each silo takes too. 0.05: the same of so many leaves of 4,096 numbers, which the server
    cannot foresee; m false ones are found with probability 1 − (1 − 0.05)^m. null: nothing; that all got the same
    weights is checked anyway."""
    unopened: Annotated[int, Field(ge=0)] = 1
    """How many rounds may end without an answer to that, as where the server was killed, before a silo goes on no
    more."""

    keep: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Which share of the sum's leaves a silo keeps under `verify: all`, for `fedtorch verify` later: 0.05 of 10 million
    numbers are 4 MB in each round. With `verify: 0.05` those that were looked at are kept, all of them."""

    def __post_init__(self) -> None:
        if self.key is not None and self.members is None:
            raise ConfigError("trust.key is set but trust.members is not; name the file with all members' public keys")
        if self.verify is not None and self.members is None:
            raise ConfigError(
                "trust.verify is set but trust.members is not; only parties with keys of their own can check"
            )
