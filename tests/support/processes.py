"""Which tests start processes: found by reading their code, and guarded, so that a test that hides it fails."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
OURS = tuple(str(ROOT / name) + os.sep for name in ("tests", "fedtorch", "launchers", "benchmarks"))
STARTERS = {"subprocess", "Process", "fork", "run_ranks", "start_ranks"}  # words of code that starts a process


def starts_processes(item: pytest.Item) -> bool:
    """Does the test, a fixture of its own, or a function of this repository that either names start a process?"""
    assert isinstance(item, pytest.Function)
    fixtures = [found.func for each in item._fixtureinfo.name2fixturedefs.values() for found in each]
    return _any_starts((item.function, *fixtures))


@cache
def _any_starts(found: tuple[Any, ...]) -> bool:
    """Of a test with its fixtures, which all its cases have in common."""
    return any(map(_starts, _functions(found)))


def _functions(found: Iterable[Any]) -> list[FunctionType]:
    """Those of them that are functions, and the methods of those that are classes."""
    functions = []
    for each in found:
        members = vars(each).values() if isinstance(each, type) else [each]
        inner = (inspect.unwrap(getattr(member, "__func__", member)) for member in members)
        functions += [function for function in inner if isinstance(function, FunctionType)]
    return functions


_harmless: set[FunctionType] = set()


@cache
def _starts(function: FunctionType) -> bool:
    seen, waiting = {function}, [function]
    while waiting:
        named = _named(waiting.pop())
        if named is None:
            return True
        new = [other for other in named if other not in seen and other not in _harmless]
        seen.update(new)
        waiting += new
    _harmless.update(seen)  # whatever it leads to has been looked at too
    return False


@cache
def _named(function: FunctionType) -> tuple[FunctionType, ...] | None:
    """Functions of this repository that this one names; None: it starts a process itself."""
    words = set(_words(function.__code__))
    if words & STARTERS:
        return None
    named = [function.__globals__[word] for word in words if word in function.__globals__]
    for module in [each for each in named if isinstance(each, ModuleType)]:
        named += [getattr(module, word) for word in words if hasattr(module, word)]
    ours = [each for each in named if not isinstance(each, type) or _is_ours(each)]
    return tuple(dict.fromkeys(other for other in _functions(ours) if other.__code__.co_filename.startswith(OURS)))


@cache
def _is_ours(cls: type) -> bool:
    return str(getattr(sys.modules.get(cls.__module__), "__file__", "")).startswith(OURS)


def _words(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _words(constant)


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
