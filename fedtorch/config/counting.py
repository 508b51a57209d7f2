"""A config of `paradigm: stats`: what of the other sections has no meaning where rows are counted and nobody trains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedtorch.config.clients import ClientsConfig
from fedtorch.config.registry import NAMED, attribute, named_class
from fedtorch.config.schema import (
    AttackConfig,
    CheckpointConfig,
    ClientConfig,
    Config,
    EngineConfig,
    EvalConfig,
    ExchangeConfig,
    PartitionConfig,
    PrivacyConfig,
    ServerConfig,
)
from fedtorch.core.errors import ConfigError
from fedtorch.stats.settings import StatsConfig

SUFFIX = "-stats"
"""After the run's name and folder, so that counts lie beside the runs of a config and not in their place."""
_TASK, _PLAN = "fedtorch.tasks.counted:as_counted", "fedtorch.tasks.counted:plan_of"  # which bring torch, as tasks do
CLIP = 1.0
"""Stands where a secure sum asks for a clip; counts have a scale of their own."""


def whole(config: Config) -> Config:
    """The config as it is run: a run of its own folder, whose rounds are those of its tables.

    The same again for one that is so already.

    Raises:
        ConfigError: the task's rows cannot be counted.
    """
    task = attribute(_TASK)(config.task, config.task_name, config.stats)
    plan = attribute(_PLAN)(task, (), config.stats, hides=config.privacy.secure_sum is not None)
    return replace(
        config,
        run=replace(config.run, name=_suffixed(config.run.name), dir=_suffixed(config.run.dir)),
        rounds=plan.rounds,
        task=task,
        algorithm=named_class("algorithm", NAMED["algorithm"][2], "")(),
        algorithm_name=NAMED["algorithm"][2],
        server=ServerConfig(),
        clients=replace(
            ClientsConfig(),
            min=config.clients.min,
            min_silos=config.clients.min_silos,
            on_failure="stop",  # a table without a silo that has rows would be a wrong one
            on_loss=config.clients.on_loss,
        ),
        client=ClientConfig(),
        per_client={},
        engine=EngineConfig(),
        partition=PartitionConfig(),
        exchange=ExchangeConfig(),
        eval=EvalConfig(every=0),
        checkpoint=replace(CheckpointConfig(), every=1),
        privacy=_promise(config),
        stats=_with_ledger(config),
        attack=AttackConfig(),
        compare=None,
        asynchrony=None,
        system=replace(config.system, sum_scale="reports", ranks_per_worker=1),
    )


def _promise(config: Config) -> PrivacyConfig:
    """Keep of the section `privacy` the secure sum."""
    privacy, own = config.privacy, config.stats.privacy
    if privacy.secure_sum is None:
        if own is not None and own.noise_at == "shared":
            raise ConfigError(
                "stats.privacy.noise_at is shared but privacy.secure_sum is not set, which hides a silo's part of the "
                "noise and its counts; set it, for example to {threshold: 1.0}"
            )
        return PrivacyConfig()
    if own is not None and own.noise_at == "local":
        raise ConfigError(
            "stats.privacy.noise_at is local but privacy.secure_sum is set, of which the noise of each silo has no "
            "need; set stats.privacy.noise_at to shared, or privacy.secure_sum to null"
        )
    return PrivacyConfig(clip=CLIP, secure_sum=privacy.secure_sum, colluders=privacy.colluders)


def _with_ledger(config: Config) -> StatsConfig:
    """The section `stats`; with the folder of silos' ledgers that `privacy.ledger` names for trainings."""
    stats, ledger = config.stats, config.privacy.ledger
    if stats.privacy is None or stats.privacy.ledger is not None or config.privacy.kind != "record":
        return stats
    return replace(stats, privacy=replace(stats.privacy, ledger=ledger))


def _suffixed(name: Any) -> Any:
    return name if name is None or str(name).endswith(SUFFIX) else f"{name}{SUFFIX}"
