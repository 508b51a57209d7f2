"""Whether a round may go on without those who are late."""

from __future__ import annotations

from fedtorch.core.errors import ConfigError
from fedtorch.rounds.lateness import late_in
from fedtorch.setup.plan import Plan


def clients_may_be_late(plan: Plan) -> None:
    """Not where who is late must stay unknown, where draws repeat, or where ranks train in lock step."""
    config = plan.config.clients
    set_keys = [key for key in ("extra", "deadline", "replay") if getattr(config, key)]
    if not set_keys:
        return
    key = f"clients.{set_keys[0]} is {getattr(config, set_keys[0])}"
    if plan.config.privacy.kind != "none":
        raise ConfigError(f"{key} but privacy.kind is client, and who is late depends on clients' data; remove it")
    if plan.sampler.with_replacement:
        raise ConfigError(
            f"{key} but clients.sampling is {type(plan.sampler).__name__}, which draws clients more than once; remove "
            "it, or set clients.sampling to uniform"
        )
    if max(plan.topology.sizes) > 1:
        raise ConfigError(
            f"{key} but system.ranks_per_worker is {plan.config.system.ranks_per_worker}, whose ranks must come to one "
            "end of a client's training; remove it, or set system.ranks_per_worker to 1"
        )
    if config.replay is not None:
        late_in(config.replay)
