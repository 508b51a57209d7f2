"""Ranks that run one function again and again, for its next cases: to begin and end one costs 30 ms of processor time.

For functions that leave nothing behind, or what their next call makes anew in any case, such as narrow windows.
"""

from __future__ import annotations

import inspect
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any

from ranks import _CONTEXT, _Output, _Process, free_port, function_of


@dataclass
class _Kept:
    """Ranks of one function, each waiting for its next arguments."""

    function: tuple[str, str]
    """File and name."""
    processes: list[ForkServerProcess] = field(default_factory=list)
    pipes: list[Connection] = field(default_factory=list)

    def grow(self, size: int) -> None:
        while len(self.pipes) < size:
            here, there = _CONTEXT.Pipe()
            process = _Process(target=_stay, args=(*self.function, there, _Output()), daemon=True)
            process.start()
            there.close()
            self.processes.append(process)
            self.pipes.append(here)

    def end(self) -> None:
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            pipe.close()
            process.kill()
            process.join()


_kept: list[_Kept] = []
"""Of the function that ran last, in this process."""


def run_kept_ranks(function: Callable[..., Any], size: int, *args: Any, timeout: float = 120.0) -> list[Any]:
    """As `run_ranks`, in the processes in which this function has run before, if it was the last one that did.

    After an error they end.
    """
    where = inspect.getsourcefile(function) or "", function.__qualname__
    if _kept and _kept[0].function != where:
        end_kept_ranks()
    if not _kept:
        _kept.append(_Kept(where))
    _kept[0].grow(size)
    pipes = _kept[0].pipes[:size]
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for rank, pipe in enumerate(pipes):
        pipe.send((args, {"RANK": str(rank), "LOCAL_RANK": str(rank), **shared}))
    answers = _answers(pipes, time.monotonic() + timeout)
    failures = [f"rank {rank}: {error}" for rank, (_, error) in enumerate(answers) if error]
    if failures:
        end_kept_ranks()
    assert not failures, "\n".join(failures)
    return [result for result, _ in answers]


def end_kept_ranks() -> None:
    """They end with this process too."""
    while _kept:
        _kept.pop().end()


def _answers(pipes: Sequence[Connection], give_up_at: float) -> list[tuple[Any, str]]:
    """(result, error) of each rank."""
    found: dict[Any, tuple[Any, str]] = {}
    while len(found) < len(pipes) and (left := give_up_at - time.monotonic()) > 0:
        for pipe in wait([pipe for pipe in pipes if pipe not in found], timeout=left):
            assert isinstance(pipe, Connection)
            try:
                found[pipe] = pipe.recv()
            except EOFError:
                found[pipe] = None, "ended without a result"
    return [found.get(pipe, (None, "still running; killed")) for pipe in pipes]


def _stay(path: str, name: str, connection: Connection, output: None) -> None:
    import torch

    os.fsync = lambda file: None  # type: ignore[assignment]  # as in the tests' own process, see conftest.py
    torch.set_num_threads(1)
    function = function_of(path, name)
    while True:
        try:
            args, variables = connection.recv()
        except EOFError:  # whoever asks has ended
            return
        os.environ.update(variables)
        try:
            answer = function(*args), ""
        except BaseException:
            answer = None, traceback.format_exc()
        connection.send(answer)
        if answer[1]:
            sys.exit(1)
