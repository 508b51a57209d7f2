"""Keys that do not decide about results, and are left out of a config's digest."""

from __future__ import annotations

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
    "privacy.per_silo.*.max_epsilon",
    "trust",  # who signs what is said
    "privacy.ledger",  # where what was released is kept
)
"""Keys that do not change results, with everything under them; `*` is any name. `digest` and `record_difference` leave
them out."""
