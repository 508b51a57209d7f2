"""Do one kind of work on many things, by as many processes as there are cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
Result = TypeVar("Result")
_work: Callable[[Any], Any] | None = None  # of a process that was forked for it


def on_all_cores(work: Callable[[T], Result], things: Sequence[T], *, is_worth_it: bool = True) -> Iterator[Result]:
    """`work` of each, in their order; by forked processes where there are several cores, and as one by one elsewhere.

    Results and errors are pickled between these processes, which are this program's own. For commands that do nothing
    else meanwhile: what threads of this process hold is held in its children for ever.

    is_worth_it: false: one by one.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if not is_worth_it or min(cores, len(things)) < 2 or "fork" not in multiprocessing.get_all_start_methods():
        yield from map(work, things)
        return
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(min(cores, len(things)), context, initializer=_begin, initargs=(work,)) as pool:
        yield from pool.map(_do, things)


def _begin(work: Callable[[Any], Any]) -> None:
    global _work
    _work = work
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a core each


def _do(thing: Any) -> Any:
    assert _work is not None, "set when the process began"
    return _work(thing)
