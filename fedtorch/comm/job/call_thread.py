"""A thread that makes calls one after the other, each of which may hang."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

Answer = tuple[Any, str]  # value, or what went wrong


class CallThread:
    """Makes calls in their order; whoever waits for an answer may give up, which stops nobody else."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Answer]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def start(self, job: Callable[[], Any]) -> queue.SimpleQueue[Answer]:
        """Where the answer will be; of this call alone: one that was given up answers nobody else."""
        answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._jobs.put((job, answers))
        return answers

    def _run(self) -> None:
        while True:
            job, answers = self._jobs.get()
            try:
                answers.put((job(), ""))
            except Exception as error:  # for the caller; the text only, a live traceback keeps sockets open
                answers.put((None, (str(error) or repr(error)).splitlines()[0]))
