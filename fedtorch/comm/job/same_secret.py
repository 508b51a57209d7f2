"""Have the ranks of a job the same secret? Each of them finds out for itself, before it writes what others read.

1. The server leaves a signed word in the store.
2. Any other rank checks it. If the check fails, the rank leaves a note that is not signed: its number and its host. It
   looks a little longer, as somebody may have written over the word, and ends.
3. On the server a thread waits for such notes. It logs who has another secret, and puts its own word back.

This tells nobody more than any other signed value does. Who sees one can try secrets on it without asking anyone, as
many as his machines can compute; so a secret must be long and random.
"""

from __future__ import annotations

import json
import logging
import socket
import time
import uuid
from collections.abc import Mapping
from datetime import timedelta
from functools import partial

import torch.distributed as dist

from fedtorch.comm.job.first_words import FirstStore, await_server, serve_beside
from fedtorch.comm.job.signing import Signature
from fedtorch.core.errors import PreflightError

log = logging.getLogger(__name__)

_WORD, _COUNT, _NOTE = "server", "strangers", "stranger"
_FOREVER = timedelta(days=20)  # more milliseconds do not fit into an int
_ANSWER_S = 60.0  # the server leaves its word as soon as there is a store
_LOOKS, _PAUSE_S = 10, 0.3
_SHOWN = 10  # notes that are logged one by one; of more every hundredth


def check_secret(store: FirstStore, rank: int, who: Mapping[int, str], *, is_hosted_by_server: bool) -> None:
    """Every rank calls it before it writes anything else; blocks until the server has called it.

    who: rank -> whose it is, for the server's log. is_hosted_by_server: else the store can be there long before it.

    Raises:
        PreflightError: this rank's secret is not the server's, or the server does not come.
    """
    if not store.signature.is_on:
        return
    if rank == 0:
        word = uuid.uuid4().hex
        store.set(_WORD, word)
        first = store.add(_COUNT, 0) + 1
        serve_beside(store, "fedtorch-strangers", partial(_listen, store.signature, word, first, dict(who)))
        return
    limit_s = min(_ANSWER_S, store.start_s) if is_hosted_by_server else store.start_s
    await_server(store, rank, lambda: store.has([_WORD]) or None, limit_s)
    for look in range(_LOOKS):
        if store.read(_WORD, by=0) is not None:
            return
        if not look:
            _leave_note(store.inner, rank, store.add(_COUNT, 1))
        time.sleep(_PAUSE_S)
    raise PreflightError(
        f"the {store.signature.called} of this side is not that of the server at {store.where}: what the server signs "
        f"does not fit it; the server's log says so too, and the others wait. {store.signature.advice}. If all silos "
        "say this, it is the server that has another one"
    )


def _leave_note(inner: dist.Store, rank: int, number: int) -> None:
    inner.set(f"{_NOTE}/{number}", json.dumps({"rank": rank, "host": socket.gethostname()[:64]}))


def _listen(signature: Signature, word: str, number: int, who: Mapping[int, str], connection: dist.Store) -> None:
    """Log one note after the other; without asking again and again, which would take time from who trains."""
    signed, first = signature.sign(_WORD, word), number
    while True:
        key = f"{_NOTE}/{number}"
        connection.wait([key], _FOREVER)
        text = connection.get(key).decode("utf-8", "replace")
        connection.delete_key(key)
        connection.set(_WORD, signed)
        seen = number - first + 1
        if seen <= _SHOWN or seen % 100 == 0:
            log.warning(
                "%s came with another %s than this server's and was not let in (%d so far); the one with the right "
                "one is awaited. %s",
                _stranger(text, who),
                signature.called,
                seen,
                signature.advice.replace("this side", "that side"),
            )
        number += 1


def _stranger(text: str, who: Mapping[int, str]) -> str:
    """Who left the note, in words. Anybody may have written it, so little of it is shown."""
    try:
        note = json.loads(text[:1000])
        rank, host = note["rank"], note["host"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "somebody"
    if type(rank) is not int or not isinstance(host, str):
        return "somebody"
    shown = "".join(letter for letter in host[:64] if letter.isalnum() or letter in "-._")
    silo = f"{who[rank]}, " if rank in who else ""
    return f"rank {rank} ({silo}on host `{shown}`, by its own words)"
