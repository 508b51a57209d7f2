"""Ranks of this machine that are forked for one call, so that imports are in memory once."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch


def fork_ranks(ranks: int, call: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
    """Call `call` on each of so many ranks, which are forked, so that imports are in memory once.

    Raises:
        RuntimeError: a rank failed; its traceback is on standard error.
    """
    torch.set_num_threads(1)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    context = multiprocessing.get_context("fork")
    started = []
    for rank in range(ranks):
        receiver, sender = context.Pipe(duplex=False)
        numbers = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": ranks,
            "LOCAL_WORLD_SIZE": ranks,
            "MASTER_PORT": port,
        }
        environ = {"MASTER_ADDR": "127.0.0.1", **{name: str(number) for name, number in numbers.items()}}
        process = context.Process(target=_rank, args=(environ, call, sender))
        process.start()
        sender.close()
        started.append((process, receiver))
    found = []
    for process, receiver in started:
        try:
            found.append(receiver.recv())
        except EOFError:
            found.append(None)
        process.join()
    if None in found:
        raise RuntimeError(f"rank {found.index(None)} of {ranks} ended without figures")
    return found


def _rank(environ: dict[str, str], call: Callable[[], dict[str, Any]], sender: Connection) -> None:
    os.environ.update(environ)
    sender.send(call())
