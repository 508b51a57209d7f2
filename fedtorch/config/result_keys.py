"""Which keys decide about results: what is left out of a config's digest, and what older configs lack."""

from __future__ import annotations

import dataclasses
from typing import Any

from fedtorch.privacy.settings import PrivacyConfig
from fedtorch.train.attacks.settings import AttackConfig

NO_EFFECT = (
    "run.name",  # where the results are kept and what they are called
    "run.dir",
    "run.export",
    "run.published",
    "run.trackers",
    "checkpoint",  # an interrupted run gives the same bits as an uninterrupted one
    "track",  # logging takes no part in training
    "compare",  # another run, with its own digest
    "task.data.prepared",  # where the same rows lie
    "eval.overlap",  # when scores are gathered
    "system.timeout",  # when to give up
    "system.shutdown_grace",
    "system.server_works",  # results do not depend on which rank trains a client,
    "system.backend",
    "system.interface",
    "system.ports",
    "system.start_timeout",
    "system.end_timeout",
    "system.trust_network",
    "system.shared_memory",
    "system.exchange",  # on how the sum travels (it is exact),
    "system.update_memory_mb",  # or on what waits in memory or on disk
    "system.state_memory_mb",
    "system.keep_freed_mb",
    "system.oom_retry",  # a run that has enough memory never needs it,
    "clients.on_loss",  # nor one that loses nobody these,
    "clients.on_repeated_loss",
    "clients.min_silos",  # nor one in whose rounds enough silos count
    "privacy.max_epsilon",  # when to stop
    "privacy.ledger",  # where what was released is kept
)
"""Keys (with everything under them) that do not change results; left out of `digest` and `record_difference`."""

ADDED: dict[str, Any] = {
    "client.shuffle": True,
    "client.schedule_cycles": 1,
    "client.schedule_power": 1.0,
    "eval.metrics": [],
    "client.group_by_length": False,
    "client.max_tokens_per_batch": None,
    "task.client_weight": "examples",
    "task.long": "truncate",
    "task.stride": None,
    "task.pack": False,
    "system.interface": None,
    "system.start_timeout": None,
    "system.end_timeout": None,
    "system.trust_network": False,
    "checkpoint.missing_clients": "refuse",
    "task.em_strings": False,
    "algorithm.second_selection": True,
    "task.model.adapter": None,
    "clients.rate": None,
    **{f"privacy.{known.name}": known.default for known in dataclasses.fields(PrivacyConfig)},
    "privacy.reveal": [],
    "algorithm.robust": None,
    "task.model.adapter.public_rows": None,
    "algorithm.rank_decay": None,
    "algorithm.rank_penalty": 0.0,
    "system.sum_scale": "reports",
    "clients.on_repeated_loss": "stop",
    "clients.extra": 0,
    "clients.deadline": None,
    "clients.replay": None,
    **{f"attack.{known.name}": known.default for known in dataclasses.fields(AttackConfig)},
    "attack.clients": [],
}
"""Keys that configs of version 0.1 lack -> what these have in their place; left out of `digest` where they still have
it, so that digests are as they were, and old runs resume."""
