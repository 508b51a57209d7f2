"""Keeps texts of errors and warnings off the terminal: they may quote a client's data; the rank's log file has them."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
import warnings
from pathlib import Path
from typing import Any, TextIO

from fedtorch.core.own_frames import own_frames
from fedtorch.core.streams import print_error

log = logging.getLogger("fedtorch")
_LEFT_OUT = "(its text is in this rank's log file alone: it may quote a client's data)"


class LogFile(logging.FileHandler):
    """A rank's log file; where a line cannot be written, it is lost, and the terminal is told once why."""

    _has_said = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the standard library's name
        """In place of `logging`'s own, which prints the record with its traceback on stderr."""
        if not self._has_said:
            self._has_said = True
            print_error(f"fedtorch: lines of {self.baseFilename} are lost ({_reason()}); the run goes on")

    def close(self) -> None:
        """Close it, also where what is left cannot be written: else Python tries again when it ends, and says so."""
        try:
            super().close()
        except OSError:
            self.stream = None


def keep_texts() -> None:
    """Have what nobody catches in this process shown by its kind and place, and its text kept in the log file.

    For exceptions of any thread, those in `__del__` and at exit, and warnings from when the log file is open. Hooks
    that somebody else has set stay.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _of_process
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _of_thread
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _of_object
    if warnings.showwarning.__module__ == warnings.__name__:
        _SHOWN.append(warnings.showwarning)
        warnings.showwarning = _of_warning


_SHOWN: list[Any] = []  # what showed warnings before


def print_frames(error: BaseException) -> None:
    """A traceback on stderr without the texts of errors; source lines are shown.

    Where code of the user's own is in it, its frames alone: the rank's log file has all of them.
    """
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in chain:
        chain.append(following)
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)
    own, lines = {id(each): own_frames(each) for each in chain}, []
    is_own = any(own.values())
    for each in reversed(chain):
        frames = own[id(each)] if is_own else traceback.extract_tb(each.__traceback__)
        if frames:
            lines += [f"Traceback (most recent call last{', your code alone' * is_own}):\n", *frames.format()]
        lines.append(f"{type(each).__qualname__} {_LEFT_OUT}\n")
    if is_own:
        lines += [f"all frames: {file.baseFilename}" for file in log.handlers if isinstance(file, LogFile)]
    print_error("".join(lines).rstrip())


def _of_process(kind: type[BaseException], error: BaseException, at: Any) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, at)
    else:
        print_frames(error)


def _of_thread(given: threading.ExceptHookArgs) -> None:
    if given.exc_type is not SystemExit:
        name = "?" if given.thread is None else given.thread.name
        log.error("the thread %s ended with %s %s", name, given.exc_type.__name__, _LEFT_OUT)
        _note(given.exc_value)


def _of_object(given: Any) -> None:
    place = getattr(given.object, "__qualname__", type(given.object).__name__)
    log.error("%s was ignored in %s %s", given.exc_type.__name__, place, _LEFT_OUT)
    _note(given.exc_value)


def _of_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if file is not None or not any(isinstance(handler, LogFile) for handler in log.handlers):
        _SHOWN[-1](message, category, filename, lineno, file, line)
        return
    log.warning("%s at %s:%d %s", category.__name__, Path(filename).name, lineno, _LEFT_OUT)
    log.debug("%s", message)


def _note(error: BaseException | None) -> None:
    if error is not None:
        log.debug("its text", exc_info=error)


def _reason() -> str:
    """Why a line could not be written: the system's word, or the kind of an error, never its text."""
    error = sys.exc_info()[1]
    return error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
