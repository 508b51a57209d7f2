"""`exit()` in a client's own code: the failure of that client, not the end of the rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedtorch.core.errors import UpdateError


class Exited(UpdateError):
    """A client's own code asked the process to exit."""


Exited.__name__ = "SystemExit"  # what the client's status names


@contextmanager
def exits_are_errors(what: str) -> Iterator[None]:
    """Inside it `exit(0)` ends the block, and any other exit is an error.

    Raises:
        Exited: so it was.
    """
    try:
        yield
    except SystemExit as error:
        if error.code not in (None, 0):
            code = error.code if isinstance(error.code, int) else "a text"  # which may quote a row
            raise Exited(f"{what} ended with exit({code})") from None
