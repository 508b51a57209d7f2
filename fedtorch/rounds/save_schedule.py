"""After which rounds a checkpoint is written: each so many of them, or by the server's clock, as it tells all ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from fedtorch.config.schema import Config

log = logging.getLogger(__name__)

SAVES = "saves"
"""number of the server's word on a round: 1, a checkpoint is written after it; 0, none is"""


def why_every_round(config: Config, *, is_stateful: bool) -> str:
    """Why `checkpoint.every: auto` is every round in this run; empty: it goes by the clock.

    There what was saved last is used for more than going back to it. is_stateful: do clients keep anything?
    """
    if config.privacy.kind != "none":
        return f"privacy.kind is {config.privacy.kind}, and a release that is on the ledger is not to be made anew"
    if config.privacy.secure_sum is not None:
        return "privacy.secure_sum is set, and a sum that was opened is not to be opened anew"
    if config.checkpoint.saves_steps:
        return "checkpoint.every_steps (or every_seconds) is set, which saves what comes after the last checkpoint"
    if config.clients.on_loss == "continue" and is_stateful:
        return "clients.on_loss is continue, and a client that is back goes on from its state as it was saved last"
    return ""


class SaveSchedule:
    """Which rounds are saved, the same on all ranks. With `auto` only the server reads a clock, and tells the others.

    By the clock a checkpoint is due when the next one could come too late: when the seconds since the one before, and
    those of another round, are more than `checkpoint.lose`. But it waits until writing, as it took the last time, is at
    most `checkpoint.cost` of the time since the one before began. What the first one takes is not known before, so it
    only goes by `lose`. After one that failed the next round is saved.
    """

    def __init__(self, config: Config, *, is_stateful: bool, clock: Callable[[], float]) -> None:
        """clock: seconds that never go back; read on the server."""
        self._settings, self.clock = config.checkpoint, clock
        every = config.checkpoint.every
        self.reason = why_every_round(config, is_stateful=is_stateful) if every == "auto" else ""
        """why `auto` is every round here; empty: it is not, or is not set"""
        self.every: int | None = 1 if self.reason else None if every == "auto" else every
        """rounds between checkpoints; None: the server's clock decides"""
        self.told = False
        """by the clock: has the server said that the round under way is saved?"""
        self._since = self._round_began = clock()
        self._round_s = self._cost_s = 0.0
        self._has_failed = False
        self._said_s = config.checkpoint.lose

    def is_due(self, round: int) -> bool:
        """Is there a checkpoint after so many rounds? On all ranks; by the clock only of the round under way."""
        return self.told if self.every is None else round % self.every == 0

    def begin_round(self) -> None:
        """A round begins; called on all ranks."""
        now = self.clock()
        self._round_s, self._round_began = now - self._round_began, now  # before the first one the server may train
        self.told = False

    def word(self) -> dict[str, int]:
        """On the server, towards a round's end: what it tells all ranks about saving it; {} where all know it."""
        return {SAVES: int(self._is_time())} if self.every is None else {}

    def hear(self, word: Mapping[str, float]) -> None:
        """Take the server's word on the round under way, on all ranks."""
        self.told = bool(word.get(SAVES, 0))

    def _is_time(self) -> bool:
        now, settings = self.clock(), self._settings
        passed = now - self._since
        another = max(self._round_s, now - self._round_began)
        if self._has_failed or passed + another <= settings.lose:
            return self._has_failed
        if self._cost_s <= settings.cost * passed:
            return True
        if (pause_s := self._cost_s / settings.cost) > self._said_s:
            self._said_s = 2 * pause_s
            log.info(
                "a checkpoint took %.1f s and may take %g %% of the time (checkpoint.cost), so the next one is due "
                "%.0f s after it; a crash until then costs that much work",
                self._cost_s,
                100 * settings.cost,
                pause_s,
            )
        return False

    def saved(self, began: float, seconds: float, *, is_whole: bool) -> None:
        """On the server: a checkpoint was written. began: by its clock. seconds: that writing took, without waiting.

        is_whole: False where the disk refused.
        """
        self._has_failed = not is_whole
        if is_whole:
            self._since, self._cost_s = began, seconds

    def __str__(self) -> str:
        """When checkpoints are written, and what a crash costs."""
        if self.every == 1:
            when = f"after every round{f', as {self.reason}' if self.reason else ''}"
            return f"{when}; a crash costs the round under way"
        if self.every is not None:
            return f"after every {self.every} rounds, and at the end; a crash costs at most {self.every} rounds"
        lose, cost = self._settings.lose, self._settings.cost
        return (
            f"by the server's clock, and at the end; a crash costs at most about {lose:g} s of work, or a round; more "
            f"where checkpoints would take more than {100 * cost:g} % of the time"
        )
