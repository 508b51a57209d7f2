"""Ranks that missed a run's end, in a file of the server's: so it stays for them when it is started again, too."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedtorch.comm.job.rejoin import unheard
from fedtorch.comm.job.store import JobMember
from fedtorch.config.load import digest
from fedtorch.config.schema import Config
from fedtorch.core.files import replace_file
from fedtorch.setup.pinned_data import check_task, is_pinned

log = logging.getLogger(__name__)

NAME = "unheard.json"


@dataclass(frozen=True)
class Unheard:
    """State that a server needs to let them in."""

    run: str
    """Digest of the config."""
    ranks: tuple[int, ...]
    """Those that missed the end."""
    hosts: tuple[str, ...]
    """Of all ranks."""
    until: float
    """How long it stays, by the clock of the day."""
    clients: dict[str, Any]
    """What the manifests of all clients count, where these lie with their ranks."""

    @property
    def left_s(self) -> float:
        """Seconds for which it stays still. By the clock of the day: the process that wrote the time is gone."""
        return self.until - time.time()

    def known(self, config: Config) -> Config:
        """The config with the sizes of all clients."""
        return replace(config, task=check_task(config).with_entries(self.clients)) if is_pinned(config) else config


def remember(config: Config, member: JobMember, hosts: Sequence[str]) -> None:
    """On the server, after the run's end: who has missed it; nothing where all have heard, or it stays no longer.

    config: with the sizes of all clients.
    """
    store, path = member.store, config.folder / NAME
    ranks, left_s = tuple(unheard(member)), store.stays_s
    if store.stays_until:
        left_s = store.stays_until - time.monotonic()
    try:
        if not ranks or left_s <= 0:
            path.unlink(missing_ok=True)
            return
        clients = check_task(config).prepared["clients"] if is_pinned(config) else {}
        found = Unheard(digest(config), ranks, tuple(hosts), time.time() + left_s, dict(clients))
        replace_file(path, json.dumps(asdict(found)) + "\n")
    except OSError as error:
        log.warning("could not write %s: %s", path, error)


def remembered(config: Config) -> Unheard | None:
    """Who has missed the end of this very run and is still to hear of it."""
    try:
        found = Unheard(**json.loads((config.folder / NAME).read_text()))
        found = replace(found, ranks=tuple(map(int, found.ranks)), hosts=tuple(map(str, found.hosts)))
        return found if found.run == digest(config) and found.left_s > 0 else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        log.warning("%s cannot be read: %s", config.folder / NAME, type(error).__name__)
        return None
