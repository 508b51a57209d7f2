"""The plan of asynchronous rounds, computed before anything is trained: who trains when, from which version."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean, stdev
from typing import Any

import pytest

from fedtorch.config.asynchrony import AsyncConfig, ClockConfig, DurationConfig, StalenessConfig
from fedtorch.core.errors import ConfigError
from fedtorch.core.seeds import seed_for
from fedtorch.rounds.asynchrony.durations import durations
from fedtorch.rounds.asynchrony.plan import AsyncPlan, make_plan
from fedtorch.rounds.asynchrony.schedule import Workers, busy_share, by_buffer, waves, with_equal_costs

TABLE = DurationConfig(kind="table", seconds={"a": 2.0, "b": 3.0, "c": 5.0, "d": 7.0})
US = 1_000_000


def by_table(versions: int = 6, **changes: Any) -> AsyncPlan:
    settings = {"buffer": 2, "concurrent": 3, "starts": "longest", "clock": ClockConfig(duration=TABLE), **changes}
    return make_plan(AsyncConfig(**settings), "abcd", durations(TABLE, 0, {}), versions=versions, run_seed=0)


def drawn(clients: int, versions: int, *, seed: int = 0, **settings: Any) -> AsyncPlan:
    config = AsyncConfig(**settings)
    names = [f"c{number:03}" for number in range(clients)]
    return make_plan(config, names, durations(config.clock.duration, seed, {}), versions=versions, run_seed=seed)


def arrivals(plan: AsyncPlan, last_s: int = 16) -> list[tuple[int, str, int, int]]:
    """(second, client, version, τ) of each, up to a second."""
    return [(j.arrived // US, j.client, j.version, j.staleness) for j in plan.jobs if j.arrived <= last_s * US]


# The specification's table: a, b, c, d take 2, 3, 5, 7 seconds; K 2, M 3; who has not started for longest is first.
ARRIVALS = [
    (2, "a", 0, 0), (3, "b", 0, 0), (5, "c", 0, 1), (5, "a", 1, 0), (8, "b", 2, 0), (9, "d", 0, 2),
    (10, "c", 2, 1), (10, "a", 2, 1), (13, "b", 4, 0), (15, "c", 4, 0), (15, "a", 4, 1), (16, "d", 3, 2),
]  # fmt: skip
STARTS = [
    (0, "a", 0), (0, "b", 0), (0, "c", 0), (2, "d", 0), (3, "a", 1), (5, "b", 2), (5, "c", 2), (8, "a", 2), (9, "d", 3),
    (10, "b", 4), (10, "c", 4), (13, "a", 4), (15, "b", 5), (15, "c", 5),
]  # fmt: skip


def test_who_trains_when_by_hand() -> None:
    plan = by_table()
    assert arrivals(plan) == ARRIVALS
    starts = sorted((j.start, j.started // US, j.client, j.version) for j in plan.jobs)
    assert [start[1:] for start in starts[:14]] == STARTS
    assert [instant // US for instant in plan.instants] == [3, 5, 9, 10, 15, 16]
    assert [[job.client for job in plan.buffer(b)] for b in (4, 5)] == [["b", "c"], ["a", "d"]]
    assert [job.number for job in plan.jobs[:12]] == list(range(12))
    assert [job.visit for job in plan.jobs if job.client == "a"][:4] == [0, 1, 2, 3]


def test_what_comes_too_late_takes_no_place() -> None:
    plan = by_table(max_staleness=1)
    assert [(j.client, j.arrived // US) for j in plan.jobs if j.number is None and j.buffer < 6] == [
        ("d", 9),
        ("d", 16),
    ]
    assert [instant // US for instant in plan.instants] == [3, 5, 10, 13, 15, 20]
    assert [len(plan.buffer(b)) for b in range(6)] == [2] * 6 and plan.max_staleness == 1
    assert [job.client for job in plan.arrivals(2)] == ["b", "d", "c"]


def test_one_arrival_makes_a_version() -> None:
    plan = by_table(buffer=1)
    assert [(j.client, j.staleness) for j in plan.jobs[:6]] == [
        ("a", 0),
        ("b", 1),
        ("c", 2),
        ("a", 1),
        ("b", 0),
        ("d", 4),
    ]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (StalenessConfig("polynomial"), {0: 1, 1: 0.707107, 2: 0.577350, 3: 0.5, 4: 0.447214}),
        (StalenessConfig("polynomial", a=1), {0: 1, 1: 0.5, 3: 0.25}),
        (StalenessConfig("polynomial", a=0), {0: 1, 9: 1}),
        (StalenessConfig("hinge"), {0: 1, 4: 1, 5: 0.090909, 6: 0.047619}),
        (StalenessConfig("hinge", a=1, b=0), {0: 1, 1: 0.5, 2: 1 / 3}),
        (StalenessConfig("threshold", b=2), {0: 1, 2: 1, 3: 0}),
        (StalenessConfig("threshold", b=2, after=0.25), {2: 1, 3: 0.25, 99: 0.25}),
        (StalenessConfig("threshold"), {4: 1, 5: 0}),
        (StalenessConfig(), {0: 1, 50: 1}),
    ],
)
def test_what_staleness_leaves_of_a_weight(settings: StalenessConfig, expected: dict[int, float]) -> None:
    assert {tau: settings.factor(tau) for tau in expected} == pytest.approx(expected, abs=5e-7)


def test_a_half_is_one_over_a_root_whose_bits_are_everywhere_the_same() -> None:
    polynomial = StalenessConfig("polynomial", a=0.5)
    assert polynomial.factor(3) == 0.5 and polynomial.factor(8) == 1 / 3
    assert polynomial.factor(1).hex() == "0x1.6a09e667f3bccp-1"


def test_equal_durations_and_a_buffer_of_all_are_synchronous_rounds() -> None:
    equal = DurationConfig(kind="table", seconds=dict.fromkeys("abcd", 2.0))
    config = AsyncConfig(buffer=4, concurrent=4, clock=ClockConfig(duration=equal))
    plan = make_plan(config, "abcd", durations(equal, 0, {}), versions=5, run_seed=7)
    assert {job.staleness for job in plan.jobs} == {0} and plan.most_live == 1
    assert all({(j.client, j.visit) for j in plan.buffer(b)} == {(c, b) for c in "abcd"} for b in range(5))
    assert [instant // US for instant in plan.instants] == [2, 4, 6, 8, 10]


def test_unequal_durations_are_not() -> None:
    """The specification: K = M = 10, mean τ .83; 200 updates in 15.7 s."""
    plans = [drawn(40, 20, buffer=10, concurrent=10, seed=seed) for seed in range(5)]
    stale = [job.staleness for plan in plans for b in range(20) for job in plan.buffer(b)]
    assert mean(stale) == pytest.approx(0.83, abs=0.05)
    assert mean(plan.instants[-1] / US for plan in plans) == pytest.approx(15.7, rel=0.12)


def test_a_synchronous_round_of_the_same_durations_takes_its_slowest() -> None:
    """20 rounds of 10 take 35.3 s: twice as long as 200 updates that nobody waits for."""
    took = durations(DurationConfig(), 0, {})
    total = sum(max(took(f"c{i:03}", visit) for i in range(10)) for visit in range(20)) / US
    assert total == pytest.approx(35.3, rel=0.1)


def test_rounds_that_wait_take_their_slowest() -> None:
    plan = by_table(buffer=3, concurrent=3, waits=True, versions=4)
    assert [sorted(job.client for job in plan.buffer(b)) for b in range(4)] == [
        ["a", "b", "c"], ["a", "b", "d"], ["a", "b", "c"], ["a", "b", "d"],
    ]  # fmt: skip
    assert [instant // US for instant in plan.instants] == [5, 12, 17, 24] and plan.max_staleness == 0
    free = drawn(40, 40, buffer=5, concurrent=10)
    waiting = drawn(40, 20, buffer=10, concurrent=10, waits=True)
    assert waiting.instants[-1] > 1.8 * free.instants[-1] and {job.staleness for job in waiting.jobs} == {0}


@pytest.mark.parametrize(("buffer", "concurrent", "most"), [(1, 10, None), (3, 7, None), (10, 10, None), (2, 8, 1)])
def test_versions_that_are_needed_are_few(buffer: int, concurrent: int, most: int | None) -> None:
    plan = drawn(20, 60 // buffer, buffer=buffer, concurrent=concurrent, max_staleness=most)
    for version in range(plan.versions + 1):
        live = plan.live(version)
        starts = {j.version for j in plan.jobs if j.number is not None and j.buffer >= version and j.version < version}
        assert live == sorted({*starts, version}) and len(live) <= plan.max_staleness + 1
    assert plan.most_live <= plan.max_staleness + 1


def test_never_more_train_at_a_time_and_no_client_twice() -> None:
    plan = drawn(12, 40, buffer=3, concurrent=5)
    for job in plan.jobs:
        others = [j for j in plan.jobs if j.started <= job.started < j.arrived]
        assert len(others) <= 5 and len({j.client for j in others}) == len(others)
        assert job.buffer >= job.version and job.arrived > job.started


def test_a_longer_plan_begins_with_the_shorter_one() -> None:
    short, long = (drawn(12, versions, buffer=3, concurrent=5) for versions in (10, 25))
    assert [short.buffer(b) for b in range(10)] == [long.buffer(b) for b in range(10)]
    assert short.digest() == long.digest(10) != long.digest(11) and short.live(10) == long.live(10)
    assert short.digest(0) == drawn(5, 1, buffer=1, concurrent=1).digest(0)
    assert drawn(12, 10, buffer=3, concurrent=5, seed=1).digest() != short.digest()


def test_no_rounds_are_no_plan() -> None:
    plan = by_table(versions=0)
    assert (
        plan.jobs == ()
        and plan.live(0) == [0]
        and plan.most_live == 1
        and list(waves(plan, with_equal_costs(2, "abcd"))) == []
    )


def test_more_places_than_clients_are_refused() -> None:
    with pytest.raises(ConfigError, match="async.concurrent is 5 but there are 4 clients"):
        by_table(concurrent=5)


def test_every_idle_client_is_as_likely_to_start() -> None:
    plan = drawn(10, 2000, buffer=1, concurrent=1)
    counts = [sum(job.client == f"c{i:03}" for job in plan.jobs) for i in range(10)]
    assert min(counts) > 150 and max(counts) < 250
    first = plan.jobs[0]
    assert first.client == f"c{seed_for(0, 'start', 0) % 10:03}"


def test_durations_are_whole_microseconds_by_client_and_visit() -> None:
    half = durations(DurationConfig(sd=2.0, min=0.5), 3, {})
    assert half("a", 0) == half("a", 0) != half("a", 1) and half("a", 0) != half("b", 0)
    every = [half("a", visit) for visit in range(2000)]
    assert all(isinstance(each, int) and each >= 500_000 for each in every)
    assert mean(every) / US == pytest.approx(0.5 + 2 * 0.797885, rel=0.05)
    once = durations(DurationConfig(per="client"), 3, {})
    assert once("a", 0) == once("a", 9) != once("b", 0)
    rows = durations(DurationConfig(kind="rows", per_row=0.25), 0, {"a": 6.0})
    assert rows("a", 0) == rows("a", 5) == 1_500_000
    assert durations(DurationConfig(kind="rows", per_row=1e-9), 0, {"a": 1.0})("a", 0) == 1
    logs = sorted(
        durations(DurationConfig(kind="log_normal", median=2.0, min=0, sd=0.5), 1, {})("a", v) for v in range(999)
    )
    assert logs[499] / US == pytest.approx(2.0, rel=0.1) and logs[840] / US == pytest.approx(2 * 1.6487, rel=0.1)
    assert durations(TABLE, 0, {})("c", 4) == 5 * US


def test_jobs_are_shared_out_by_what_they_need() -> None:
    plan = drawn(20, 30, buffer=4, concurrent=9)
    for homes in (None, {f"c{i:03}": i % 3 for i in range(20)}):
        trained: dict[int, int] = {}
        for version, wave in enumerate(waves(plan, Workers(3, {f"c{i:03}": 1.0 + i for i in range(20)}, homes))):
            for worker, jobs in wave.items():
                for job in jobs:
                    assert job.version <= version and job.start not in trained
                    assert homes is None or homes[job.client] == worker
                    trained[job.start] = version
            assert all(job.start in trained for job in plan.buffer(version))
        for job in plan.jobs:
            former = [j for j in plan.jobs if j.client == job.client and j.start < job.start]
            if homes is not None and job.start in trained and former:
                assert trained[former[-1].start] <= trained[job.start]


def test_a_client_with_a_state_that_comes_twice_in_a_wave_trains_in_its_order() -> None:
    seconds = {"a": 1.0, "b": 10.0, "c": 10.0}
    config = AsyncConfig(
        buffer=3, concurrent=3, clock=ClockConfig(duration=DurationConfig(kind="table", seconds=seconds))
    )
    plan = make_plan(config, "abc", durations(config.clock.duration, 0, {}), versions=2, run_seed=0)
    assert [job.client for job in plan.buffer(0)] == ["a", "a", "a"]
    first = next(waves(plan, Workers(2, dict.fromkeys("abc", 1.0), {"a": 0, "b": 1, "c": 1})))
    assert [job.visit for jobs in first.values() for job in jobs if job.client == "a"] == [0, 1, 2]
    assert sum(any(job.client == "a" for job in jobs) for jobs in first.values()) == 1


def test_a_run_that_goes_on_trains_what_is_left() -> None:
    plan = drawn(20, 12, buffer=4, concurrent=9)
    left = [
        job
        for wave in waves(plan, with_equal_costs(2, [f"c{i:03}" for i in range(20)]), done=5)
        for jobs in wave.values()
        for job in jobs
    ]
    assert sorted(j.start for j in left) == sorted(j.start for b in range(5, 12) for j in plan.buffer(b))
    assert sorted(left, key=by_buffer)[0].buffer == 5


NAMES = [f"c{i:03}" for i in range(100)]
SPECIFIED = {10: (1, 1, 1, 1), 5: (1, 1, 1, 0.81), 2: (1, 1, 0.98, 0.60), 1: (1, 1, 0.94, 0.54)}
"""buffer -> share of time busy on 1, 2, 4, 8 ranks: the specification, 200 jobs of equal cost, M 10, of one seed"""
SPREAD = {
    (5, 8): (0.792, 0.043),
    (2, 4): (0.990, 0.010),
    (2, 8): (0.607, 0.037),
    (1, 4): (0.967, 0.020),
    (1, 8): (0.544, 0.028),
}
"""buffer, ranks -> mean and deviation over 20 seeds; with the other numbers of ranks it is 1, but for one plan"""


def greedy(plan: AsyncPlan, ranks: int) -> float:
    """Share of time busy where a rank idles only while no job has its version, whatever its buffer."""
    left, done, ticks, version = [j for b in range(plan.versions) for j in plan.buffer(b)], set[int](), 0, 0
    total = len(left)
    while left:
        while version < plan.versions and all(job.start in done for job in plan.buffer(version)):
            version += 1
        taken = sorted((job for job in left if job.version <= version), key=by_buffer)[:ranks]
        done |= {job.start for job in taken}
        left, ticks = [job for job in left if job.start not in done], ticks + 1
    return total / (ranks * ticks)


@pytest.mark.long
@pytest.mark.parametrize("buffer", SPECIFIED)
def test_how_busy_ranks_are(buffer: int) -> None:
    """No rank idles though a job is ready, for any of 20 seeds; the specification's seed is one like them."""
    plans = [drawn(100, 200 // buffer, buffer=buffer, concurrent=10, seed=seed) for seed in range(20)]
    for ranks, specified in zip((1, 2, 4, 8), SPECIFIED[buffer], strict=True):
        shares = [busy_share(plan, with_equal_costs(ranks, NAMES)) for plan in plans]
        assert shares == pytest.approx([greedy(plan, ranks) for plan in plans])
        assert mean(shares) == pytest.approx(specified, abs=0.05)
        assert min(shares) - 0.005 <= specified <= max(shares) + 0.005  # it has two digits
        assert (mean(shares), stdev(shares)) == pytest.approx(SPREAD.get((buffer, ranks), (1, 0)), abs=0.0025)


def test_clients_that_keep_nothing_wait_for_no_job_of_theirs() -> None:
    """Ten clients, all of whom train at any time: two jobs of one client may train at once, unless it has a state."""
    plan, homes = drawn(10, 20, buffer=10, concurrent=10), {f"c{i:03}": i % 8 for i in range(10)}
    free = with_equal_costs(8, [f"c{i:03}" for i in range(10)])
    assert busy_share(plan, free) == pytest.approx(greedy(plan, 8)) == 1.0
    assert busy_share(plan, replace(free, homes=homes)) < 0.7
