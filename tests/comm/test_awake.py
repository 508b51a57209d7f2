"""A clock that stands still while its process does."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest

from fedtorch.comm.job import awake


class Time:
    """Stands in for the module; the ticking thread sleeps until it is told that it has."""

    def __init__(self) -> None:
        self.at, self.naps, self.naps_begun = 100.0, queue.SimpleQueue[None](), queue.SimpleQueue[None]()

    def monotonic(self) -> float:
        return self.at

    def sleep(self, _: float) -> None:
        self.naps_begun.put(None)
        self.naps.get()

    def tick(self) -> None:
        self.naps.put(None)
        self.naps_begun.get()


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Any:
    time = Time()
    monkeypatch.setattr(awake, "time", time)
    monkeypatch.setattr(awake, "_clocks", {})
    awake.awake_s()
    time.naps_begun.get()
    return time


def test_it_goes_along_while_the_process_is_awake(moved: Time) -> None:
    began = awake.awake_s()
    for _ in range(40):
        moved.at += awake.TICK_S
        moved.tick()
    assert awake.awake_s() == began + 40 * awake.TICK_S


def test_a_pause_does_not_count_whoever_wakes_first(moved: Time) -> None:
    began = awake.awake_s()
    moved.at += 3600
    assert awake.awake_s() == began + 2 * awake.TICK_S  # it is read before it ticks
    moved.tick()
    assert awake.awake_s() == began + 2 * awake.TICK_S
    moved.at += awake.TICK_S
    assert awake.awake_s() == began + 3 * awake.TICK_S


def test_what_is_left_of_a_limit_is_that_of_the_time_awake(moved: Time) -> None:
    lefts = awake.lefts(1.0)
    assert next(lefts) == 1.0
    moved.at += 3600
    moved.tick()
    assert next(lefts) == 1.0 - 2 * awake.TICK_S
    for _ in range(2):
        moved.at += awake.TICK_S
        moved.tick()
    assert next(lefts, None) is None
    assert next(awake.lefts(0.0), None) is None


def test_a_process_has_one_thread_that_ticks() -> None:
    awake.awake_s()
    before = threading.active_count()
    awake.awake_s()
    assert threading.active_count() == before
