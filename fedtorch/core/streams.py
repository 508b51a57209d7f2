"""The descriptors 0 to 2 of a process that was started without them, or whose reader has gone."""

from __future__ import annotations

import fcntl
import os
import select
import sys
from contextlib import suppress

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def keep_standard_streams() -> None:
    """Lead those of the descriptors 0 to 2 that are closed to /dev/null.

    Else the next file, socket or pipe that is opened takes their place, and what is printed goes into that.
    """
    for number, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))


def pipe_above_streams() -> tuple[int, int]:
    """A pipe, reading end first, of which no end has a number below 3: a newline is the number of a signal."""
    low = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in low]
    for end in low:
        os.close(end)
    return high[0], high[1]


def print_error(text: str) -> None:
    """Print on stderr, if anybody still reads it."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def has_lost_its_reader() -> bool:
    """Is stdout a pipe that nobody reads any more, as after `| head`?"""
    poll = select.poll()
    try:
        poll.register(sys.stdout, 0)
    except (OSError, ValueError, AttributeError):  # closed, or no file
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))


def flush_streams() -> None:
    """Write out what was printed; what nobody reads any more is dropped and does not change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):  # else Python tries again when it ends
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
