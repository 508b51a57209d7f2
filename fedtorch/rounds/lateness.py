"""Who comes too late: when enough clients are done, or after a deadline; or who did in a run that is replayed.

A client that is late fails with the status `failed:Late`, so that nothing else has to know of it: its update does not
count, its state stays as it was, and its record says so. Who is late depends on clocks; the record of a run is enough
to do it again with the same bits (`clients.replay`).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

from fedtorch.comm.job.arrivals import Arrivals
from fedtorch.config.schema import ClientsConfig
from fedtorch.core.errors import ConfigError, DataError, UpdateError
from fedtorch.tracking import records

LATE = "failed:Late"
LOOK_EVERY_S = 0.1  # between two questions to the store while a client trains


class Late(UpdateError):
    """The round goes on without this client; its class name is what its report says."""


class Lateness:
    """Lateness of the clients of one rank."""

    def __init__(self, config: ClientsConfig, arrivals: Arrivals, clock: Callable[[], float] = time.monotonic) -> None:
        """arrivals: that all ranks share.

        Raises:
            ConfigError: there is nothing to replay.
        """
        self.enough = config.per_round if config.extra and config.per_round != "all" else None
        self.deadline_s, self.replayed = config.deadline, None if config.replay is None else late_in(config.replay)
        self._arrivals, self._clock = arrivals, clock
        self._round, self._began, self._looked = 0, 0.0, 0.0

    def begin(self, round: int) -> None:
        """Begin a round, numbered from 0; called by all ranks alike."""
        self._round, self._began, self._looked = round, self._clock(), float("-inf")
        self._arrivals.begin()

    def check(self, client: str) -> None:
        """While it trains, and before that.

        Raises:
            Late: it is.
        """
        if self.replayed is not None:
            if client in self.replayed.get(self._round, ()):
                raise Late("it came too late in the run that is replayed")
            return
        now = self._clock()
        if self.deadline_s is not None and now - self._began > self.deadline_s:
            raise Late(f"clients.deadline: it was not done after {self.deadline_s:g} s")
        if self.enough is not None and now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            if self._arrivals.count() >= self.enough:
                raise Late(f"clients.extra: {self.enough} others were done")

    def arrive(self, client: str) -> None:
        """It has trained.

        Raises:
            Late: it is, though it was not in `check`.
        """
        if self.replayed is not None or self.enough is None:
            return
        if self._arrivals.arrive() > self.enough:
            raise Late(f"clients.extra: {self.enough} others were done")


def late_in(where: str) -> Mapping[int, set[str]]:
    """Round, from 0 -> who came too late in it, by the records of a run. where: its folder, or its metrics.jsonl.

    Raises:
        ConfigError: there are none, or they cannot be read.
    """
    path = Path(where) / records.NAME if Path(where).is_dir() else Path(where)
    found: dict[int, set[str]] = defaultdict(set)
    try:
        for record in records.read(path):
            if record.get("kind") == "client" and record.get("status") == LATE:
                found[int(record["round"]) - 1].add(str(record["client"]))
    except (OSError, ValueError, KeyError, TypeError, DataError) as error:
        raise ConfigError(
            f"clients.replay is {where}, whose records cannot be read ({error}); give the folder of a run, or its "
            f"{records.NAME}"
        ) from None
    return found
