"""Puts back what a run changes in its process, for the code that called it."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from fedtorch.core import devices
from fedtorch.core.errors import PreflightError

_under_way = threading.Lock()
"""Held while something is trained in this process: torch's seed and threads are the process's."""
_VARIABLES = ("LOCAL_RANK", "DS_ACCELERATOR")
"""What DeepSpeed is told by the environment, in train/zero.py; others are set by libraries that are imported, for as
long as they are."""


@contextmanager
def alone(what: str) -> Iterator[None]:
    """Inside it nothing else of ours is trained in this process; afterwards the process is as it was.

    Raises:
        PreflightError: something is, already.
    """
    if not _under_way.acquire(blocking=False):
        advice = ", or give ranks=2 or more" if what == "fedtorch.run" else ""
        raise PreflightError(
            "another fedtorch.run is under way in this process, whose seed and threads it has, "
            f"so {what} cannot begin; wait for it{advice}"
        )
    try:
        with as_guest():
            yield
    finally:
        _under_way.release()


@contextmanager
def as_guest() -> Iterator[None]:
    """Inside it a run may do what it likes with logging, torch and progress bars of libraries.

    What cannot be put back: torch's default group of one rank where DeepSpeed has made one, which it goes on using.
    """
    with ExitStack() as kept:
        for keep in (_environment, _torch, _logging, _progress_bars):
            kept.enter_context(keep())
        yield


@contextmanager
def _environment() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _VARIABLES}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def _torch() -> Iterator[None]:
    """Threads, the default generators, and the present device where there is one already."""
    threads, seed = torch.get_num_threads(), torch.get_rng_state()
    try:
        with devices.unchanged():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(seed)


@contextmanager
def _logging() -> Iterator[None]:
    """The handlers that the run puts in place of others are closed, its log file with them."""
    log = logging.getLogger("fedtorch")
    level, propagate, before = log.level, log.propagate, log.handlers[:]
    try:
        yield
    finally:
        for handler in [own for own in log.handlers if own not in before]:
            handler.close()
        log.handlers[:] = before
        log.setLevel(level)
        log.propagate = propagate


@contextmanager
def _progress_bars() -> Iterator[None]:
    """Progress bars of transformers: their default where it is not imported yet."""
    known: Any = sys.modules.get("transformers.utils.logging")
    is_shown = known is None or known.is_progress_bar_enabled()
    try:
        yield
    finally:
        used: Any = sys.modules.get("transformers.utils.logging")
        if used is not None and is_shown and not used.is_progress_bar_enabled():
            used.enable_progress_bar()
