"""A guard: only tests with the mark `processes` may start some."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any


class Guard:
    """While `is_closed` no process can be started from Python."""

    def __init__(self) -> None:
        self.is_closed = False
        for owner, name in ((subprocess.Popen, "__init__"), (os, "fork"), (os, "posix_spawn"), (BaseProcess, "start")):
            setattr(owner, name, self._guarded(getattr(owner, name)))

    def _guarded(self, start: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any, **kwargs: Any) -> Any:
            if self.is_closed and not _looks_for_fonts(args):
                raise RuntimeError("this test starts a process: mark it with @pytest.mark.processes")
            return start(*args, **kwargs)

        return instead


def _looks_for_fonts(args: tuple[Any, ...]) -> bool:
    """matplotlib lists the machine's fonts when it draws for the first time in a home folder, and then never again."""
    return len(args) > 1 and isinstance(args[1], list) and args[1][:1] == ["fc-list"]
