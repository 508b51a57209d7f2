"""SIGKILL at each instant of asynchronous rounds: the run goes on and ends with the bits of one that was not killed."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import make_config, make_runner
from ranks import expect_exit, run_ranks
from toy import Quadratic

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.checkpoint.store import Checkpoints
from fedtorch.checkpoint.under_way import FOLDER
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.asynchrony import AsyncConfig, ClockConfig, DurationConfig, StalenessConfig
from fedtorch.config.schema import (
    CheckpointConfig,
    ClientConfig,
    Config,
    EvalConfig,
    ExchangeConfig,
    PartitionConfig,
    ServerConfig,
    SystemConfig,
)
from fedtorch.core.errors import Interrupted

pytestmark = pytest.mark.processes
SLOW = pytest.mark.slow

TABLE = DurationConfig(kind="table", seconds={"a": 2.0, "b": 3.0, "c": 5.0, "d": 7.0})
BY_TABLE = AsyncConfig(
    buffer=2,
    concurrent=3,
    starts="longest",
    staleness=StalenessConfig("polynomial"),
    clock=ClockConfig(duration=TABLE),
)
REAL = replace(BY_TABLE, clock=ClockConfig(kind="real"))
WHOLE, FOUR = ExchangeConfig(), ExchangeConfig(bits=4, error_feedback=True)
TASK = Quadratic(
    clients={name: (1.0, float(1 + place), 3 + place) for place, name in enumerate("abcd")},
    start=(0.1, 0.2, 0.3),
    head=(0.5,),
    noise=0.3,
    double=False,
)
JOBS = 12
"""trainings until the last of six versions; the table has them at ten instants"""
PHASES = ("broadcast", "header", "payload", "aggregate", "checkpoint")


def config_of(folder: Path, asynchrony: AsyncConfig = BY_TABLE, exchange: ExchangeConfig = WHOLE) -> Config:
    """Clients with an optimiser, a head, trained and best weights, a server with momentum: what a kill may spoil."""
    return make_config(
        folder,
        TASK,
        FedAvg(),
        rounds=6,
        asynchrony=asynchrony,
        client=ClientConfig(optimizer="adamw", lr=0.05, batch_size=2, optimizer_state="keep"),
        server=ServerConfig(optimizer="sgd", lr=0.7, momentum=0.5),
        partition=PartitionConfig(private=("head",)),
        system=SystemConfig(sum_scale="previous" if exchange == WHOLE else "reports"),
        exchange=exchange,
        eval=EvalConfig(every=1, point="trained", best="per_client"),
        checkpoint=CheckpointConfig(every=1),
    )


def killed_after(trainings: int, config: Config) -> None:
    """Train, and die after so many jobs; in a process of its own."""
    runner = make_runner(config)
    trained = [0]
    train = runner.trainer._train_job  # type: ignore[attr-defined]

    def counted(job: Any) -> None:
        train(job)
        trained[0] += 1
        if trained[0] == trainings:
            os.kill(os.getpid(), signal.SIGKILL)

    runner.trainer._train_job = counted  # type: ignore[attr-defined]
    runner.run()


def killed_in(phase: str, round: int, config: Config) -> None:
    os.environ.update(FEDTORCH_TESTING="1", FEDTORCH_FAULTS=f"kill:phase={phase},round={round}")
    make_runner(config).run()


def in_a_child(work: Any, *args: Any) -> int:
    """The exit status of a child that does the work."""
    child = os.fork()
    if not child:
        work(*args)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def gone_on(config: Config) -> tuple[int | None, str]:
    """Rounds in the checkpoint from which the run goes on, and the digest at its end."""
    found = Checkpoints(config.folder / "checkpoints", keep=config.checkpoint.keep).latest()
    at = None if found is None else found.round
    return at, make_runner(config).run(at).digest


def kill_everywhere(
    folder: str, jobs: list[int], phases: list[tuple[str, int]], exchange: ExchangeConfig
) -> dict[str, tuple[int, Any, str]]:
    """Place of the kill -> exit status, where the run goes on, digest."""
    found = {}
    for trainings in jobs:
        config = config_of(Path(folder) / f"job{trainings}", BY_TABLE, exchange)
        found[f"job {trainings}"] = (in_a_child(killed_after, trainings, config), *gone_on(config))
    for phase, round in phases:
        config = config_of(Path(folder) / f"{phase}{round}", BY_TABLE, exchange)
        found[f"{phase} {round}"] = (in_a_child(killed_in, phase, round, config), *gone_on(config))
    return found


@pytest.mark.parametrize(
    ("jobs", "phases", "exchange"),
    [
        ([2, 5, 8, 11], [("payload", 2), ("checkpoint", 4)], WHOLE),
        ([3, 8], [("aggregate", 3)], FOUR),
        pytest.param([*range(1, JOBS + 1)], [(phase, at) for phase in PHASES for at in (1, 3, 5)], WHOLE, marks=SLOW),
    ],
    ids=["some", "four bits", "every"],
)
def test_a_kill_at_any_instant_changes_nothing(
    jobs: list[int], phases: list[tuple[str, int]], exchange: ExchangeConfig, tmp_path: Path
) -> None:
    undisturbed = make_runner(config_of(tmp_path / "whole", BY_TABLE, exchange)).run().digest
    (found,) = run_ranks(kill_everywhere, 1, str(tmp_path), jobs, phases, exchange)
    assert {code for code, _, _ in found.values()} == {-signal.SIGKILL}, found
    assert {digest for _, _, digest in found.values()} == {undisturbed}, found
    assert [found[f"job {trainings}"][1] for trainings in jobs] == [(each - 1) // 2 or None for each in jobs]


PLACES = ("train", *PHASES)


def killed_in_settle(round: int, config: Config) -> None:
    """Die when a version was made and its lines are written, before what it leaves behind is settled."""
    runner = make_runner(config)
    settle = runner.trainer.settle

    def dying(accepted: Any) -> None:
        if runner.context.round == round:
            os.kill(os.getpid(), signal.SIGKILL)
        settle(accepted)

    runner.trainer.settle = dying  # type: ignore[method-assign]
    runner.run()


def kill_and_replay(folder: str, places: list[tuple[str, int]]) -> dict[str, tuple[int, bool]]:
    """Place of the kill by the real clock -> exit status, and has the run that went on the digest of its replay?"""
    found = {}
    for place, round in places:
        config = config_of(Path(folder) / f"{place}{round}", REAL)
        kill = (killed_in_settle,) if place == "settle" else (killed_in, place)
        code = in_a_child(*kill, round, config)
        whole = gone_on(config)[1]
        replay = replace(REAL, clock=ClockConfig(), replay=str(config.folder))
        again = make_runner(config_of(Path(folder) / f"again-{place}{round}", replay)).run().digest
        found[f"{place} {round}"] = (code, whole == again)
    return found


@pytest.mark.parametrize(
    "places",
    [
        [("aggregate", 2), ("settle", 3), ("checkpoint", 4)],
        pytest.param([(place, at) for place in (*PLACES, "settle") for at in (1, 3, 5)], marks=SLOW),
    ],
    ids=["some", "every"],
)
def test_by_the_real_clock_a_kill_in_any_phase_is_gone_on_from_and_replayed(
    places: list[tuple[str, int]], tmp_path: Path
) -> None:
    (found,) = run_ranks(kill_and_replay, 1, str(tmp_path), places)
    assert found == {f"{place} {round}": (-signal.SIGKILL, True) for place, round in places}


EIGHT = Quadratic({f"c{number}": (1.0, float(number), 3) for number in range(8)}, start=(0.1, 0.2), noise=0.3)
SLEEPS = "sleep:client=c0,seconds=1.0;" + ";".join(f"sleep:client=c{number},seconds=0.1" for number in range(1, 8))


def one_of_eight_is_slow(folder: str, resume: int | None, asynchrony: AsyncConfig, fault: str) -> str:
    if fault:
        os.environ.update(FEDTORCH_TESTING="1", FEDTORCH_FAULTS=fault)
    config = replace(config_of(Path(folder), asynchrony), task=EIGHT, rounds=8)
    with DistributedCommunicator.join(tuple(EIGHT.clients), timeout_s=60) as comm:
        return make_runner(config, comm).run(resume).digest


@SLOW
def test_of_eight_clients_one_is_ten_times_slower_and_the_run_is_killed_twice_and_replayed(tmp_path: Path) -> None:
    folder, free = str(tmp_path / "real"), AsyncConfig(buffer=4, concurrent=8, clock=ClockConfig(kind="real"))
    for size, victim, round, resume in ((3, 1, 2, None), (2, 0, 5, 2)):
        phase = "train" if victim else "aggregate"
        fault = f"kill:rank={victim},round={round},phase={phase};{SLEEPS}"
        outcomes = expect_exit(one_of_eight_is_slow, size, folder, resume, free, fault)
        assert outcomes[victim].exit_code == -signal.SIGKILL
        found = Checkpoints(tmp_path / "real" / "checkpoints", keep=2).latest()
        assert found is not None and found.round == round
    whole = run_ranks(one_of_eight_is_slow, 4, folder, 5, free, SLEEPS)[0]
    replay = replace(free, clock=ClockConfig(), replay=folder)
    assert run_ranks(one_of_eight_is_slow, 2, str(tmp_path / "again"), None, replay, "")[0] == whole
    alone = replace(config_of(tmp_path / "alone", replay), task=EIGHT, rounds=8)
    assert make_runner(alone).run().digest == whole


def run_on_ranks(folder: str, resume: int | None, fault: str) -> str:
    if fault:
        os.environ.update(FEDTORCH_TESTING="1", FEDTORCH_FAULTS=fault)
    with DistributedCommunicator.join(tuple(TASK.clients), timeout_s=60) as comm:
        config = replace(config_of(Path(folder)), asynchrony=replace(BY_TABLE, buffer=1))
        return make_runner(config, comm).run(resume).digest


@pytest.mark.parametrize(
    ("victim", "again", "round"),
    [
        (1, 2, 2),
        (0, 4, 4),
        pytest.param(2, 5, 3, marks=pytest.mark.slow),
        pytest.param(0, 2, 1, marks=pytest.mark.slow),
    ],
)
def test_killed_ranks_go_on_on_another_number_of_ranks(victim: int, again: int, round: int, tmp_path: Path) -> None:
    config = replace(config_of(tmp_path / "whole"), asynchrony=replace(BY_TABLE, buffer=1))
    undisturbed = make_runner(config).run().digest
    folder = tmp_path / "killed"
    phase = "train" if victim else "aggregate"
    fault = f"kill:rank={victim},round={round},phase={phase}"
    outcomes = expect_exit(run_on_ranks, 3, str(folder), None, fault)
    assert outcomes[victim].exit_code == -signal.SIGKILL
    found = Checkpoints(folder / "checkpoints", keep=2).latest()
    assert found is not None and found.round == round
    assert run_ranks(run_on_ranks, again, str(folder), found.round, "")[0] == undisturbed


SAVING = CheckpointConfig(every=2, every_steps=2)
"""With checkpoints of every second version jobs are trained again whose buffers were closed already."""


def saving(folder: Path, asynchrony: AsyncConfig = BY_TABLE) -> Config:
    """Four steps and more in each training."""
    config = config_of(folder, asynchrony)
    return replace(config, client=replace(config.client, batch_size=1, epochs=2), checkpoint=SAVING)


def counting(folder: Path, runner: Any) -> Any:
    """The runner, each of whose steps is a byte more in a file beside the run's folder."""
    on_step = runner.trainer._on_step

    def counted(client: str, n: int) -> None:
        if n:
            with folder.with_suffix(".steps").open("ab", buffering=0) as file:
                file.write(b".")
        on_step(client, n)

    runner.trainer._on_step = counted
    return runner


def steps_of(folder: Path) -> int:
    return folder.with_suffix(".steps").stat().st_size


def killed_in_step(fault: str, config: Config) -> None:
    os.environ.update(FEDTORCH_TESTING="1", FEDTORCH_FAULTS=f"kill:phase=train,{fault}")
    counting(config.folder, make_runner(config)).run()


def gone_on_and_whole(config: Config) -> tuple[str, str, int, int]:
    """Digests of the run that goes on, and of one that was not disturbed or replays it; the steps taken for each."""
    latest = Checkpoints(config.folder / "checkpoints", keep=config.checkpoint.keep).latest()
    digest = counting(config.folder, make_runner(config)).run(latest and latest.round).digest
    assert config.asynchrony is not None and not (config.folder / FOLDER).exists()
    is_real, folder = config.asynchrony.clock.kind == "real", config.folder.with_name(f"{config.folder.name}-again")
    replay = str(config.folder) if is_real else None
    again = saving(folder, replace(config.asynchrony, clock=BY_TABLE.clock, replay=replay))
    return digest, counting(folder, make_runner(again)).run().digest, steps_of(config.folder), steps_of(folder)


def kill_in_steps(folder: str, faults: list[str], asynchrony: AsyncConfig) -> dict[str, tuple[Any, ...]]:
    """Fault -> exit status, digest at the end, that of a replay, steps taken in all, and steps of the replay."""
    found = {}
    for place, fault in enumerate(faults):
        config = saving(Path(folder) / f"run{place}", asynchrony)
        code = in_a_child(killed_in_step, fault, config)
        found[fault] = code, *gone_on_and_whole(config)
    return found


IN_STEPS = ["client=a,step=1", "client=b,step=5,round=2", "client=c,step=7,round=3", "client=d,step=10,round=5"]


@pytest.mark.parametrize("asynchrony", [BY_TABLE, REAL], ids=["virtual", "real"])
def test_a_kill_within_a_job_repeats_at_most_so_many_steps_of_it(asynchrony: AsyncConfig, tmp_path: Path) -> None:
    (found,) = run_ranks(kill_in_steps, 1, str(tmp_path), IN_STEPS, asynchrony)
    for fault, (code, digest, again, taken, planned) in found.items():
        assert code == -signal.SIGKILL and digest == again, fault
        assert 0 < taken - planned <= 2, fault


def saved_on_ranks(folder: str, resume: int | None, fault: str, asynchrony: AsyncConfig = BY_TABLE) -> str:
    if fault:
        os.environ.update(FEDTORCH_TESTING="1", FEDTORCH_FAULTS=fault)
    with DistributedCommunicator.join(tuple(TASK.clients), timeout_s=60) as comm:
        return counting(Path(folder), make_runner(saving(Path(folder), asynchrony), comm)).run(resume).digest


def test_other_ranks_go_on_with_jobs_that_were_saved(tmp_path: Path) -> None:
    """Each of the three ranks that were there repeats two steps at most."""
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    undisturbed = counting(whole, make_runner(saving(whole))).run().digest
    outcomes = expect_exit(saved_on_ranks, 3, str(folder), None, "kill:rank=1,round=4,phase=train,step=5")
    assert outcomes[1].exit_code == -signal.SIGKILL and (folder / FOLDER).exists()
    assert run_ranks(saved_on_ranks, 2, str(folder), 4, "")[0] == undisturbed
    assert 0 < steps_of(folder) - steps_of(whole) <= 3 * 2 and not (folder / FOLDER).exists()


def test_jobs_that_stand_still_for_versions_are_saved_too(tmp_path: Path) -> None:
    """In each round c sleeps before a step, while others make versions; who trains it goes on from its last save."""
    folder, slow = tmp_path / "killed", replace(REAL, buffer=1)
    sleeps = "sleep:client=c,seconds=0.2"
    outcomes = expect_exit(saved_on_ranks, 3, str(folder), None, f"kill:client=c,phase=train,step=3;{sleeps}", slow)
    assert -signal.SIGKILL in [outcome.exit_code for outcome in outcomes] and list((folder / FOLDER).iterdir())
    found = Checkpoints(folder / "checkpoints", keep=2).latest()
    digest = run_ranks(saved_on_ranks, 2, str(folder), found and found.round, sleeps, slow)[0]
    again = saving(tmp_path / "again", replace(slow, clock=ClockConfig(), replay=str(folder)))
    assert make_runner(again).run().digest == digest and not (folder / FOLDER).exists()


@pytest.mark.parametrize("asynchrony", [BY_TABLE, REAL], ids=["virtual", "real"])
def test_a_signal_repeats_no_step_of_a_job(asynchrony: AsyncConfig, tmp_path: Path) -> None:
    left = [60]

    def stop() -> bool:
        left[0] -= 1
        return left[0] < 0

    config = saving(tmp_path / "run", asynchrony)
    with pytest.raises(Interrupted, match="goes on where it was"):
        counting(config.folder, make_runner(config, stop=stop)).run()
    assert (config.folder / FOLDER).exists()
    digest, whole, taken, planned = gone_on_and_whole(config)
    assert digest == whole and taken == planned
