"""Freed memory that the process keeps, counted in pages that it gets anew."""

from __future__ import annotations

import ctypes
import logging
import resource
import sys
from pathlib import Path

import pytest
from harness import make_config
from ranks import run_ranks
from toy import Quadratic

from fedtorch.config.schema import SystemConfig
from fedtorch.core import freed_memory as heap
from fedtorch.core.freed_memory import keep_freed
from fedtorch.lifecycle import train as lifecycle
from fedtorch.lifecycle.signals import StopFlag

MB = 1 << 20
BLOCKS = (48 * MB, 3 * MB, 5 * MB, 40 * MB)
PAGES = sum(BLOCKS) // resource.getpagesize()


def pages_of_a_step() -> int:
    """Pages that the system gave to a step which takes some blocks, writes to all of them and frees them."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    taken = []
    for size in BLOCKS:
        taken.append(libc.malloc(size))
        ctypes.memset(taken[-1], 1, size)
    for place in taken:
        libc.free(place)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def pages_of_steps(megabytes: int) -> list[int]:
    keep_freed(megabytes)
    return [pages_of_a_step() for _ in range(3)]


def pages_after_a_run(folder: Path, megabytes: int) -> list[int]:
    config = make_config(
        folder, Quadratic(clients={"a": (1.0, 2.0, 1)}), rounds=1, system=SystemConfig(keep_freed_mb=megabytes)
    )
    lifecycle.train(config, rank=0, num_ranks=1, resume="never", command="", stop=StopFlag())
    return [pages_of_a_step() for _ in range(3)]


@pytest.mark.skipif(sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
@pytest.mark.processes
def test_a_step_gets_no_page_anew_where_freed_memory_is_kept(tmp_path: Path) -> None:
    (first, second, third) = run_ranks(pages_of_steps, 1, 1024)[0]
    assert first > 0.9 * PAGES and max(second, third) < 0.01 * PAGES
    (_, second, third) = run_ranks(pages_of_steps, 1, 0)[0]
    assert min(second, third) > 0.5 * PAGES, "the C library keeps it by itself; the key is of no use"
    (_, second, third) = run_ranks(pages_after_a_run, 1, tmp_path, 1024)[0]
    assert max(second, third) < 0.01 * PAGES


def test_a_c_library_that_cannot_be_told_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heap, "_MALLOPT", "no_such_function_of_any_library")
    with caplog.at_level(logging.WARNING, "fedtorch"):
        keep_freed(0)
        assert not caplog.records
        keep_freed(64)
    assert "system.keep_freed_mb is 64, but this C library cannot be told" in caplog.text
