"""Which attempt of the job is this? Ranks of several machines agree on it, as launchers count each for itself.

After a restart the store may still hold what the attempt before has left, and two machines' restart counts differ as
soon as one of them was replaced. So every rank says hello with a word of its own, and joins the attempt of the server
that answers with that word; an answer to somebody else's hello is an old one.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from functools import partial

import torch.distributed as dist

from fedtorch.comm.job.first_words import PAUSE_S, FirstStore, await_server, serve_beside
from fedtorch.comm.job.signing import Signature
from fedtorch.core.errors import ForgedNoteError


def agree_on_attempt(store: FirstStore, rank: int, size: int) -> str:
    """A name that all ranks of this attempt have and no other attempt had; blocks on the server alone.

    Raises:
        PreflightError: the server did not answer within the store's `start_s`.
    """
    word = uuid.uuid4().hex
    if rank == 0:
        serve_beside(store, "fedtorch-welcome", partial(_welcome, store.signature, word, size))
        return word
    store.set(f"hello/{rank}", word)

    def welcomed() -> str | None:
        if not store.has([f"welcome/{rank}"]):
            return None
        answered, _, attempt = store.get(f"welcome/{rank}", by=0).partition(" ")
        return attempt if answered == word else None

    attempt = await_server(store, rank, welcomed, store.start_s)
    store.set(f"joined/{attempt}/{rank}", "")
    return attempt


def _welcome(signature: Signature, attempt: str, size: int, connection: dist.Store) -> None:
    """Answer every hello until all ranks have joined; a rank that is replaced meanwhile says hello again."""
    answered: dict[int, bytes] = {}
    while not connection.check([f"joined/{attempt}/{rank}" for rank in range(1, size)]):
        for rank in range(1, size):
            if connection.check([f"hello/{rank}"]):
                hello = connection.get(f"hello/{rank}")
                if answered.get(rank) != hello:
                    _answer(connection, signature, rank, hello.decode("utf-8", "replace"), attempt)
                    answered[rank] = hello
        time.sleep(PAUSE_S)


def _answer(connection: dist.Store, signature: Signature, rank: int, hello: str, attempt: str) -> None:
    with contextlib.suppress(ForgedNoteError):  # which is no hello of a rank
        word = signature.check(f"hello/{rank}", hello, rank)
        connection.set(f"welcome/{rank}", signature.sign(f"welcome/{rank}", f"{word} {attempt}"))
