"""A script that is begun once and goes on from round to round, around `while fedtorch.client.running():`."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from fedtorch.core.errors import UpdateError

NAME = "fedtorch-script"
"""Of the thread."""


class KeptScript:
    """Runs a script in a thread of its own; between two rounds it waits, with all that it remembers.

    One of the two threads runs at any time. What the script raises is raised in the round that it was in.
    """

    def __init__(self, run: Callable[[], None]) -> None:
        """run: runs the script."""
        self._rounds: queue.Queue[Any] = queue.Queue()
        self._done: queue.Queue[BaseException | None] = queue.Queue()
        self._side: Any = None
        self.has_failed = False
        self._thread = threading.Thread(target=self._whole, args=(run,), daemon=True, name=NAME)

    def round(self, side: Any) -> None:
        """Let the script have one round; returns when it waits for the next one, or has ended.

        Raises:
            UpdateError: it has ended in an earlier round.
        """
        if not self._thread.is_alive():
            if self._thread.ident is not None:
                raise UpdateError("the script has ended, but task.keep is process; put it around `while fl.running():`")
            self._thread.start()
        self._rounds.put(side)
        if (error := self._done.get()) is not None:
            self.has_failed = True
            raise error

    def _whole(self, run: Callable[[], None]) -> None:
        self._side, error = self._rounds.get(), None
        try:
            run()
        except BaseException as raised:
            error = raised
        self._done.put(error)

    def rows(self, source: str | None, clients: Mapping[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._side.rows(source, clients)
        return found

    def receive(self, model: nn.Module) -> nn.Module:
        found: nn.Module = self._side.receive(model)
        return found

    def send(self, model: nn.Module, numbers: Mapping[str, float]) -> None:
        self._side.send(model, numbers)

    def running(self) -> bool:
        """True at the start of each round; the script waits here between two of them."""
        if self._side.running():
            return True
        self._done.put(None)
        self._side = self._rounds.get()
        return bool(self._side.running())

    def step(self) -> None:
        self._side.step()

    def facts(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._side.facts()
        return found
