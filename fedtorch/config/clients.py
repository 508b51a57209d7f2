"""The `clients` section of a config: who takes part in a round, and what happens to those who fail or are late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from fedtorch.core.choices import Named
from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import Count, Positive, Whole

POISSON = "poisson"


@dataclass(frozen=True)
class ClientsConfig:
    """`clients`: who takes part in a round and what happens when one fails."""

    per_round: Literal["all"] | Count = "all"
    """Clients drawn for each round."""
    sampling: Annotated[str | dict[str, Any], Named("uniform")] = "uniform"
    """uniform: without replacement; size_proportional: with replacement, by training size (FedProx);
    numpy_round_seed: legacy numpy generator seeded with the round (FedML); poisson: each client by itself with
    probability `rate`, so that a round can have any number of them; `module:Class`: a `fedtorch.Sampler` of your
    own. As a mapping: its `name` and the fields of its dataclass."""
    rate: Annotated[float, Field(gt=0, le=1)] | None = None
    """Of `sampling: poisson`: the probability with which each client takes part in a round, by itself."""
    min: Count = 1
    """With fewer accepted updates than this the server takes no step in that round."""
    min_silos: Count | None = None
    """With accepted updates of fewer silos than this (ranks that `system.pinned` gives clients to) the server takes no
    step in that round: of one silo alone the sum is its update, and whoever sees the model sees it. null: 2 with
    `fedtorch serve` and `join`, else no limit. Where rounds hide who takes part (`privacy.kind: client`) only a silo
    that is lost counts."""
    on_failure: Literal["skip", "stop"] = "skip"
    """A client whose training fails, whose update is not finite or not what was reported, or whose numbers cannot be
    true: go on without it, or end the run."""
    on_loss: Literal["continue", "restart"] = "restart"
    """A worker's process or machine dies. restart: the run ends, for the launcher to start it again; continue: go on
    without its clients, where the launcher lets the others live (srun, launchers.local), if `min` clients are left."""
    on_repeated_loss: Literal["stop", "skip"] = "stop"
    """A worker's process dies in the same client, at the same place of the same round, three times without a saved
    round between, where `on_loss` is restart. stop: the run ends and names the client; skip: it goes on without it."""
    max_update_norm: Positive | None = None
    """Updates with a larger L2 norm are treated as failed; null: no limit."""
    max_norm_to_median: Annotated[float, Field(gt=1)] | None = None
    """Updates whose L2 norm is more than so many times the median of the round's are treated as failed, where at least
    3 clients send one that is not zero; null: no limit."""
    extra: Whole = 0
    """Clients drawn for each round beyond `per_round`: the first `per_round` that are done count, the others are late
    and treated as failed."""
    deadline: Positive | None = None
    """Seconds after the start of a round's training from which clients that are not done are late; null: none."""
    replay: str | None = None
    """A run's folder or its metrics.jsonl: who came too late there comes too late here, whatever the clocks say, so
    that the result has the same bits."""

    def __post_init__(self) -> None:
        sampling, rate = with_rate(self.sampling, self.rate, self.per_round)
        object.__setattr__(self, "sampling", sampling)
        object.__setattr__(self, "rate", rate)
        if self.per_round != "all" and self.min > self.per_round:
            raise ConfigError(
                f"clients.min is {self.min} but clients.per_round is {self.per_round}, so no round could count; "
                f"set clients.min to at most {self.per_round}"
            )
        if self.min_silos is not None and self.per_round != "all" and self.per_round < self.min_silos:
            raise ConfigError(
                f"clients.min_silos is {self.min_silos} (2 with `fedtorch serve` and `join`, unless it is set) but "
                f"clients.per_round is {self.per_round}, so no round could count; draw more clients, or set "
                "clients.min_silos to 1, if everybody may see the update of one silo"
            )
        if self.extra and self.per_round == "all":
            raise ConfigError(
                f"clients.extra is {self.extra} but clients.per_round is all, of which there are no more; set "
                "clients.per_round to a number"
            )
        if self.max_norm_to_median is not None and self.per_round in (1, 2):
            raise ConfigError(
                f"clients.max_norm_to_median is set but clients.per_round is {self.per_round}, and a median of fewer "
                "than 3 norms tells nothing; set clients.per_round to at least 3, or use clients.max_update_norm"
            )
        if self.per_round == "all" and self.sampling == "size_proportional":
            raise ConfigError(
                "clients.sampling is size_proportional but clients.per_round is all; set clients.per_round to a number"
            )

    @property
    def drawn(self) -> Literal["all"] | int:
        """Clients drawn for a round, with those that may come too late."""
        return "all" if self.per_round == "all" else self.per_round + self.extra


def with_rate(
    sampling: str | dict[str, Any], rate: float | None, per_round: Literal["all"] | int
) -> tuple[str | dict[str, Any], float | None]:
    """`clients.sampling` and `clients.rate`, each of which then has the rate, for Poisson sampling; others as they are.

    Raises:
        ConfigError: the rate is missing, given twice, or given to a sampler that has none.
    """
    fields = {"name": "uniform", **sampling} if isinstance(sampling, dict) else {"name": sampling}
    if fields["name"] != POISSON:
        if rate is not None:
            raise ConfigError(f"clients.rate is {rate} but clients.sampling is {fields['name']}; set it to {POISSON}")
        return sampling, rate
    own: Any = fields.get("rate")
    if own is None and rate is None:
        raise ConfigError("clients.sampling is poisson but clients.rate is not given; give a probability above 0")
    if own is not None and rate is not None and own != rate:
        raise ConfigError(f"clients.rate is {rate} but clients.sampling.rate is {own}; give one of them")
    if per_round != "all":
        raise ConfigError(
            f"clients.per_round is {per_round} but clients.sampling is poisson, whose rounds have any number of "
            "clients; set clients.per_round to all"
        )
    found = rate if own is None else own
    return {**fields, "rate": found}, found
