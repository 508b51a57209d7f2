"""What benchmarks of the exchange and of training say, with clocks and ranks of the tests' own."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness import make_config
from toy import Quadratic

from fedtorch.config.schema import ClientConfig
from fedtorch.planning import bench, light_rounds, probe, step_time
from fedtorch.planning.light_rounds import LightTask, _Clock
from fedtorch.planning.step_time import Training
from fedtorch.setup.build import build

WINDOW = 4
"""Numbers of a window here, so that ten are three windows."""


class Clock:
    """Time that goes on when a test says so; in place of the module `time`."""

    def __init__(self) -> None:
        self.now = self.busy = 0.0

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.busy

    def go_on(self, wall: float, busy: float = 0.0) -> None:
        self.now, self.busy = self.now + wall, self.busy + busy


class Sums:
    """In place of an accumulator: how many numbers were added, and written, at a time."""

    def __init__(self, size: int) -> None:
        self.size, self.added, self.written = size, list[int](), list[tuple[int, ...]]()

    def reset(self, scale: Any) -> None: ...

    def add(self, update: torch.Tensor, weight: float) -> None:
        self.added.append(len(update))

    def result(self, out: torch.Tensor, *received: Any) -> None:
        self.written.append((len(out), *(len(each) for each in received[:1])))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (light_rounds, step_time):
        monkeypatch.setattr(module, "time", clock)
    return clock


def test_loops_over_a_vector_are_timed_window_by_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten numbers of four bytes; every loop runs once, and takes as long as is said here, in this order."""
    busy: Iterator[float] = iter([10.0, 20.0, 40.0, 30.0, 50.0, 70.0])
    sums, digests = Sums(WINDOW), list[int]()
    monkeypatch.setattr(probe, "_WINDOW", WINDOW)
    monkeypatch.setattr(probe, "Accumulator", lambda size: sums)
    monkeypatch.setattr(probe, "window_digest", lambda window: digests.append(len(window)))
    monkeypatch.setattr(probe, "timed", lambda call: (call(), next(busy)))
    found = probe.kernels(torch.ones(10))
    assert found == {"client": 1, "step": 2, "digest": 1, "result": 3, "add": 1, "add_sum": 4}
    assert digests == [4, 4, 2] and sums.added == [4, 4, 4, 4, 2, 2]
    assert sums.written == [(4,), (4,), (2,)] * 2 + [(4, 4), (4, 4), (2, 2)]


def test_a_hop_of_a_ring_is_its_part_of_a_reduction(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, int]] = []
    transport: Any = SimpleNamespace(
        reduce=lambda numbers: sent.append(("reduce", len(numbers))),
        broadcast=lambda numbers: sent.append(("broadcast", len(numbers))),
    )
    group: Any = SimpleNamespace(begin=lambda call: call(transport), wait=lambda work: None)
    monkeypatch.setattr(probe, "timed", lambda call, times: (call() or 8.0, 0.0))
    assert probe._hops(group, 4) == 2.0
    assert sent == [("reduce", 256), ("broadcast", 256)]


def test_a_process_knows_its_own_memory() -> None:
    before, size = probe.own_bytes(), 1 << 26
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:  # no memory that was freed before
        held.write(b"1" * size)
        assert probe.own_bytes() - before >= size * 0.9 and before % 1024 == 0


def test_rounds_that_connect_count_for_nothing(clock: Clock) -> None:
    rounds = _Clock(keeps_busy=False)
    for wall, busy in ((9.0, 9.0), (9.0, 9.0), (9.0, 9.0), (9.0, 9.0), (3.0, 0.5), (1.0, 0.25), (2.0, 1.0)):
        clock.go_on(wall, busy)
        rounds.round()
    assert rounds.usual() == (2.0, 0.5)


@pytest.mark.processes
def test_ranks_have_their_clients_but_for_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def forked(ranks: int, call: partial[Any]) -> list[dict[str, Any]]:
        return [{"ranks": ranks, "clients": call.args[1]}]

    monkeypatch.setattr(light_rounds, "fork_ranks", forked)
    assert light_rounds.measure(3, 5) == [{"ranks": 3, "clients": 10}]


def test_a_light_rank_takes_its_place_from_its_launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Seen(Exception):
        pass

    def built(config: Any, **place: int) -> None:
        raise Seen(place)

    monkeypatch.setattr(light_rounds, "build", built)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(Seen) as found:
        light_rounds.one_rank(tmp_path, 2)
    assert found.value.args[0] == {"num_ranks": 3, "rank": 1}


@pytest.mark.processes
def test_light_rounds_are_measured_by_few_and_by_many(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(light_rounds, "training_seconds", lambda built: Training(0.5, 0.25))
    monkeypatch.setattr(light_rounds, "measure", lambda ranks, clients: [{"ranks": ranks, "clients": clients}])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert light_rounds.main() == 0
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert json.loads(capsys.readouterr().out) == {
        "few": [{"ranks": 2, "clients": 2}],
        "more": [{"ranks": 2, "clients": 34}],
        "many": [{"ranks": 16, "clients": 2}],
        "step_s": 0.75,
    }


def test_clients_of_bare_rounds_have_a_row_and_nothing_is_evaluated(tmp_path: Path) -> None:
    assert LightTask(2).manifest() == {"c0": {"train": 1}, "c1": {"train": 1}} and len(LightTask().manifest()) == 1
    assert LightTask().predict(None, ["x", "y"], 1) == [0.0, 0.0]
    assert LightTask().score(["x", "y"], [0.0, 0.0]) == {"none": (0.0, 2)}
    config = light_rounds.config(tmp_path, 2)
    assert (config.eval.every, config.checkpoint.every, config.client.batch_size) == (0, config.rounds, 1)
    usual = light_rounds.bare_config(LightTask(), tmp_path, 3, lr=0.1)
    assert (usual.rounds, usual.system.server_works, config.system.server_works) == (3, False, False)


def test_a_step_is_timed_apart_from_what_comes_before_the_first(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A quarter of a second before a client's first step, half of one for each step, of two batches of two rows."""
    task = Quadratic(clients={"a": (1.0, 0.0, 9), "b": (1.0, 0.0, 3)})
    hp = ClientConfig(optimizer="sgd", lr=0.1, batch_size=2, accumulation=2)
    built = build(make_config(tmp_path, task, client=hp), num_ranks=1, rank=0)
    rows: list[list[int]] = []

    def step(loss: Any, batches: Any, number: int) -> None:
        rows.append([len(batch[0]) for batch in batches])
        clock.go_on(0.5)

    monkeypatch.setattr(built.engine, "start", lambda *_, **__: clock.go_on(0.25))
    monkeypatch.setattr(built.engine, "step", step)
    assert step_time.training_seconds(built) == Training(0.5, 0.25)
    assert {tuple(each) for each in rows} == {(2, 2)}


def test_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    full = {name: 1e-9 for name in ("add", "add_sum", "result", "client", "step", "digest")}
    rank = full | {"broadcast": (1e-2, 5e-3), "broadcast_bytes": 10**6, "hop": 1e-4}
    rank |= {"meeting": (1.0, 1.0), "header": (1.0, 1.0)}

    def cores() -> int:
        return bench.constants_of([rank] * 2, [rank] * 2, [rank] * 2, [rank] * 3, process_bytes=0).cores

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2} if process == 0 else {0}, raising=False)
    assert cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")  # not everywhere
    for known, expected in ((5, 5), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda known=known: known)
        assert cores() == expected


@pytest.mark.processes
def test_what_light_ranks_print_is_read_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    few = [{"rank": 1, "round": [1.0, 1.0]}]

    def started(words: list[str], *, capture_output: bool = False, **options: Any) -> Any:
        said = {"few": few, "more": few, "many": few, "step_s": 0.5}
        return SimpleNamespace(returncode=0, stdout=json.dumps(said) if capture_output else None, stderr="")

    monkeypatch.setattr(subprocess, "run", started)
    assert asdict(light_rounds.LightRounds(**bench._said_by("fedtorch.planning.light_rounds")))["step_s"] == 0.5
