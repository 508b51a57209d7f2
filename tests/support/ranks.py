"""Starts ranks for tests from a fork server, in which torch, transformers and fedtorch are already imported."""

from __future__ import annotations

import importlib.util
import inspect
import multiprocessing
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import forkserver, popen_forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from multiprocessing.forkserver import ForkServer
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

import pytest

# Before the fork server starts, which hands its environment down: 3 ranks in 1.2 s instead of 7 (spawn) or 8 (torchrun)
os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", LOCAL_SIZE="1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")  # a test on GPUs has set it for its ranks
_CONTEXT = multiprocessing.get_context("forkserver")
_ROOT = Path(__file__).parents[2]
_USED = [
    "torch",
    "torch.distributed",
    "torch.testing",
    "transformers.models.t5.modeling_t5",
    "tests.support.used",
]
_USED_WITH_DEEPSPEED = [
    *_USED,
    "torch._inductor.compile_fx",
    "deepspeed",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "distutils.ccompiler",
    "peft",
]  # some of which it imports at its first step


class _Server(ForkServer):
    """A fork server that processes forked from the one that started it use as well."""

    _starter = 0

    def ensure_running(self) -> None:
        if self._starter in (0, os.getpid()):
            here = os.getcwd()
            os.chdir(_ROOT)  # from where it imports `tests`; whatever it cannot import it leaves out, and says nothing
            try:
                super().ensure_running()
            finally:
                os.chdir(here)
            self._starter = os.getpid()


@cache
def _server(has_deepspeed: bool) -> _Server:
    """DeepSpeed is half of what the process would have to fork, and few ranks use it, so it has one of its own."""
    server = _Server()
    # A GPU that a server asked for would be lost to its ranks, and DeepSpeed asks when it is imported.
    preloads = has_deepspeed and os.environ["DS_ACCELERATOR"] == "cpu"
    server.set_forkserver_preload([*(_USED_WITH_DEEPSPEED if preloads else _USED), "tests.support.frozen"])
    return server


@cache
def _has_deepspeed(path: str) -> bool:
    return 'importorskip("deepspeed")' in Path(path).read_text()


def start_servers(paths: Iterable[str]) -> None:
    """Start what the ranks of these test files are forked from."""
    for has_deepspeed in sorted(set(map(_has_deepspeed, paths))):
        _server(has_deepspeed).ensure_running()


class _Popen(popen_forkserver.Popen):
    """Starts a process from the server of its kind, where multiprocessing knows one."""

    def _launch(self, process: Any) -> None:
        server = _server(_has_deepspeed(process._args[0]))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(forkserver, "connect_to_new_process", server.connect_to_new_process)
            super()._launch(process)  # type: ignore[misc]


class _Process(_CONTEXT.Process):  # type: ignore[name-defined,misc]
    @staticmethod
    def _Popen(process: Any) -> _Popen:
        return _Popen(process)


class _Output:
    """Standard output and error of this process, which a rank takes over, whoever started its fork server."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        return _take_over, (DupFd(1), DupFd(2))  # type: ignore[no-untyped-call]


def _take_over(*given: Any) -> None:
    for number, one in enumerate(given, start=1):
        os.dup2(held := one.detach(), number)
        os.close(held)


@dataclass
class Outcome:
    """How one rank ended: its result, or the traceback of its error, or only an exit code (−9 if killed)."""

    result: Any = None
    error: str = ""
    exit_code: int | None = None


@dataclass
class Ranks:
    """Ranks that were started; `pids` by rank, to be stopped or killed by a test."""

    processes: list[ForkServerProcess]
    pipes: list[Connection]
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def pids(self) -> list[int]:
        """Process id of each rank."""
        return [process.pid or 0 for process in self.processes]

    def join(self, timeout: float = 120.0, stopped: Sequence[int] = ()) -> list[Outcome]:
        """Wait for all ranks and return their outcomes by rank; those that are late are killed (exit code −9).

        stopped: ranks that will not end by themselves; killed as soon as the others have ended.
        """
        give_up_at = time.monotonic() + timeout
        self.outcomes = [Outcome() for _ in self.processes]
        pending = {p: o for r, (p, o) in enumerate(zip(self.pipes, self.outcomes, strict=True)) if r not in stopped}
        while pending and (left := give_up_at - time.monotonic()) > 0:
            for pipe in wait(list(pending), timeout=left):
                assert isinstance(pipe, Connection)
                outcome = pending.pop(pipe)
                try:
                    outcome.result, outcome.error = pipe.recv()
                except EOFError:
                    outcome.error = "ended without a result"
        for rank, (process, outcome) in enumerate(zip(self.processes, self.outcomes, strict=True)):
            if rank in stopped:
                process.kill()
            process.join(max(0.0, give_up_at - time.monotonic()))
            if process.is_alive():
                outcome.error = outcome.error or f"still running after {timeout:g} s; killed"
                process.kill()
                process.join()
            outcome.exit_code = process.exitcode
        return self.outcomes


def start_ranks(function: Callable[..., Any], size: int, *args: Any, environ: dict[str, str] | None = None) -> Ranks:
    """Start `function(*args)` as ranks 0 to size − 1 of one job, in the environment that torchrun would make.

    function: at the top level of a test file; found again in the child by file and name. args: are pickled.
    """
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **(environ or {})}
    path = inspect.getsourcefile(function)
    ranks = Ranks([], [])
    for rank in range(size):
        receiver, sender = _CONTEXT.Pipe(duplex=False)
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), **shared}
        process = _Process(target=_child, args=(path, function.__qualname__, args, variables, sender, _Output()))
        process.start()
        sender.close()
        ranks.processes.append(process)
        ranks.pipes.append(receiver)
    return ranks


def run_ranks(
    function: Callable[..., Any], size: int, *args: Any, timeout: float = 120.0, environ: dict[str, str] | None = None
) -> list[Any]:
    """Run `function(*args)` on `size` ranks and return their results by rank.

    Raises AssertionError with every failed rank's traceback, or with who was still running after `timeout` seconds.
    """
    outcomes = start_ranks(function, size, *args, environ=environ).join(timeout)
    failures = [
        f"rank {rank} (exit code {outcome.exit_code}): {outcome.error or 'ended badly after its result'}"
        for rank, outcome in enumerate(outcomes)
        if outcome.error or outcome.exit_code
    ]
    assert not failures, "\n".join(failures)
    return [outcome.result for outcome in outcomes]


def expect_exit(
    function: Callable[..., Any], size: int, *args: Any, timeout: float = 120.0, environ: dict[str, str] | None = None
) -> list[Outcome]:
    """The same for ranks that are to fail: their outcomes, with exit codes and errors."""
    return start_ranks(function, size, *args, environ=environ).join(timeout)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _child(
    path: str, name: str, args: Sequence[Any], variables: dict[str, str], sender: Connection, output: None
) -> None:
    os.environ.update(variables)
    os.fsync = lambda file: None  # type: ignore[assignment]  # as in the tests' own process, see conftest.py
    import torch

    torch.set_num_threads(1)
    try:
        # Test files are imported by path (--import-mode=importlib), so they cannot be found by name here.
        spec = importlib.util.spec_from_file_location("_ranks_test_file", path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules["_ranks_test_file"] = module
        spec.loader.exec_module(module)
        answer = (getattr(module, name)(*args), "")
    except SystemExit as error:
        sender.send((None, f"SystemExit: {error.code}"))
        sender.close()
        raise
    except BaseException as error:
        sender.send((None, traceback.format_exc()))
        sender.close()
        sys.exit(getattr(error, "exit_code", 1))
    sender.send(answer)
    sender.close()
