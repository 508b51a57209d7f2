"""Which attempt of the job is this? Ranks of several machines agree on it, as launchers count each for itself.

After a restart the store may still hold what the attempt before has left, and two machines' restart counts differ as
soon as one of them was replaced. So every rank says hello with a word of its own, and joins the attempt of the server
that answers with that word; an answer to somebody else's hello is an old one.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Protocol

import torch.distributed as dist

from fedtorch.comm.job.signing import Signature
from fedtorch.core.errors import ForgedNoteError, PreflightError

_PAUSE_S = 0.05


class _Store(Protocol):
    """Methods of `comm.job.store.Store`, which uses this module, that are needed here."""

    start_s: float
    where: str
    inner: dist.Store
    signature: Signature

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> str: ...

    def has(self, keys: Sequence[str]) -> bool: ...


def agree_on_attempt(store: _Store, rank: int, size: int) -> str:
    """A name that all ranks of this attempt have and no other attempt had; blocks on the server alone.

    Raises:
        PreflightError: the server did not answer within the store's `start_s`.
    """
    word = uuid.uuid4().hex
    if rank == 0:
        connection = store.inner.clone()  # type: ignore[attr-defined]
        arguments = (connection, store.signature, word, size)
        threading.Thread(target=_welcome, args=arguments, name="fedtorch-welcome", daemon=True).start()
        return word
    store.set(f"hello/{rank}", word)
    give_up_at = time.monotonic() + store.start_s
    while time.monotonic() < give_up_at:
        if store.has([f"welcome/{rank}"]):
            answered, _, attempt = store.get(f"welcome/{rank}").partition(" ")
            if answered == word:
                store.set(f"joined/{attempt}/{rank}", "")
                return attempt
        time.sleep(_PAUSE_S)
    raise PreflightError(
        f"rank 0 (the server) did not answer rank {rank} within {store.start_s:g} s (system.start_timeout) over the "
        f"store at {store.where}; was it started, and on the same store?"
    )


def _welcome(connection: dist.Store, signature: Signature, attempt: str, size: int) -> None:
    """Answer every hello until all ranks have joined; a rank that is replaced meanwhile says hello again."""
    answered: dict[int, bytes] = {}
    try:
        while not connection.check([f"joined/{attempt}/{rank}" for rank in range(1, size)]):
            for rank in range(1, size):
                if connection.check([f"hello/{rank}"]):
                    hello = connection.get(f"hello/{rank}")
                    if answered.get(rank) != hello:
                        _answer(connection, signature, rank, hello.decode("utf-8", "replace"), attempt)
                        answered[rank] = hello
            time.sleep(_PAUSE_S)
    except Exception:
        return  # the store is gone, which the main thread finds out as well


def _answer(connection: dist.Store, signature: Signature, rank: int, hello: str, attempt: str) -> None:
    with contextlib.suppress(ForgedNoteError):  # which is no hello of a rank
        word = signature.check(f"hello/{rank}", hello)
        connection.set(f"welcome/{rank}", signature.sign(f"welcome/{rank}", f"{word} {attempt}"))
