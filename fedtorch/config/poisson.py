"""`clients.rate`, which is a field of the sampler that it belongs to."""

from __future__ import annotations

from typing import Any, Literal

from fedtorch.core.errors import ConfigError

POISSON = "poisson"


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
