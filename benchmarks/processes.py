"""Starts the ranks of one measurement from a fork server that has torch and transformers imported already."""

from __future__ import annotations

import multiprocessing
import os
import resource
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

# Before the fork server starts, which hands its environment down.
os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", THP_MEM_ALLOC_ENABLE="1")
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed", "benchmarks.workloads", "fedtorch.main"])


@dataclass
class Ended:
    """What a rank left."""

    result: Any
    peak_mb: float
    """its peak memory"""
    grown_mb: float
    """the same above what it had when it started"""


def run_ranks(function: Callable[..., Any], size: int, *args: Any) -> list[Ended]:
    """Call `function(*args)` on `size` ranks, in the environment torchrun would give them.

    Raises:
        RuntimeError: a rank failed; with its traceback.
    """
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes, pipes = [], []
    for rank in range(size):
        receiver, sender = _CONTEXT.Pipe(duplex=False)
        environ = {"RANK": str(rank), "LOCAL_RANK": str(rank), **shared}
        process = _CONTEXT.Process(target=_child, args=(function, args, environ, sender), daemon=True)
        process.start()
        sender.close()
        processes.append(process)
        pipes.append(receiver)
    answers = [_receive(pipe) for pipe in pipes]
    for process in processes:
        process.join()
    if errors := [error for _, error in answers if error]:
        raise RuntimeError("\n".join(errors))
    return [ended for ended, _ in answers if ended is not None]


def _receive(pipe: Connection) -> tuple[Ended | None, str]:
    try:
        return pipe.recv()
    except EOFError:
        return None, "a rank ended without a result"


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _child(function: Callable[..., Any], args: tuple[Any, ...], environ: dict[str, str], sender: Connection) -> None:
    os.environ.update(environ)
    import torch

    torch.set_num_threads(1)
    before = _peak_mb()
    try:
        result = function(*args)
        sender.send((Ended(result, _peak_mb(), _peak_mb() - before), ""))
    except BaseException:
        sender.send((None, f"rank {environ['RANK']}: {traceback.format_exc()}"))
    sender.close()
