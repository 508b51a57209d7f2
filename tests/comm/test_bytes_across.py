"""Bytes that a round moves between host and device, over a stand-in for NCCL, in vectors of the model."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner, pinned
from pretended_device import crossed, install
from pretended_nccl import install_nccl
from ranks import expect_exit, free_port, run_ranks
from toy import Quadratic

from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.fednova import FedNova
from fedtorch.algorithms.fedprox import FedProx
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.sums.checks import projection
from fedtorch.comm.transport import backend, machines
from fedtorch.comm.transport import device as staged
from fedtorch.comm.transport.process_group import Came
from fedtorch.config.schema import ClientConfig, ClientsConfig, EvalConfig, ServerConfig
from fedtorch.config.system import SystemConfig
from fedtorch.core import devices
from fedtorch.core.errors import DeadlineError, PreflightError
from fedtorch.privacy.settings import PrivacyConfig

pytestmark = pytest.mark.processes

POISSON = ClientsConfig(sampling="poisson", rate=1.0)
NOISED = PrivacyConfig(kind="client", clip=0.5, noise_multiplier=1.0, delta=1e-2, simulate=True, seed=1)
NAMES = tuple("abcdef")
WIDTH = 132_073  # numbers of a vector: more than one chunk of a norm, and a rest of a few runs
TASK = Quadratic(
    {name: (1.0 + place / 7, place - 2.5, 4) for place, name in enumerate(NAMES)},
    start=(0.25,),
    width=WIDTH,
    noise=0.3,
    double=False,
)
SGD = ClientConfig(optimizer="sgd", lr=0.1, batch_size=2)
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "fedavg": (FedAvg(), {}),
    "server serves": (FedAvg(), {"server_works": False}),
    "evaluated": (FedAvg(), {"eval": EvalConfig(every=1)}),
    "each its best": (FedAvg(), {"eval": EvalConfig(every=1, best="per_client")}),
    "fedprox": (FedProx(mu=0.1), {}),
    "fednova": (FedNova(mu=0.1), {}),
    "server's adam": (FedAvg(), {"server": ServerConfig(optimizer="adam", lr=0.1)}),
    "kept momentum": (FedAvg(), {"client": replace(SGD, momentum=0.9, optimizer_state="keep")}),
    "ditto": (Ditto(), {}),
    "scaffold": (Scaffold(), {}),
    "scaffold I": (Scaffold(option="I"), {}),
    "sent one by one": (FedAvg(), {"exchange": "send"}),
    "noised": (FedAvg(weights="equal"), {"clients": POISSON, "privacy": NOISED}),
    "no room": (FedAvg(), {"free": 20 * WIDTH}),
    "no room at one": (FedAvg(), {"free": 20 * WIDTH, "at": "2"}),
    "room for a part": (FedAvg(), {"megabytes": 1}),
}
SHOWN = {"aaa": ("each its best", "scaffold"), "aab": ("server serves", "no room at one")}
"""Machines of the ranks -> of the cases that differ most; the others take longer than they are worth every time."""
OF_SYSTEM = ("exchange", "megabytes", "free", "at", "server_works")
MOVED: dict[str, tuple[tuple[int, int], ...]] = {
    # vectors up and down: at the server's rank, which trains two clients, and at each of the workers, or at both
    "fedavg": ((1, 1), (0, 0)),
    "server serves": ((1, 1), (0, 0)),
    "evaluated": ((1, 1), (0, 0)),
    "each its best": ((1, 2), (0, 1)),  # a client's best model is kept in its state
    "fedprox": ((1, 1), (0, 0)),
    "fednova": ((1, 1), (0, 0)),
    "server's adam": ((1, 1), (0, 0)),
    "kept momentum": ((3, 3), (2, 2)),
    "ditto": ((3, 3), (2, 2)),
    "scaffold": ((6, 4), (4, 2)),  # two vectors are exchanged; a client's control goes up twice
    "scaffold I": ((6, 4), (4, 2)),
    # through the host: what is looked at there, or has no room
    "sent one by one": ((3, 6), (4, 3)),
    "noised": ((3, 6), (4, 3)),
    "no room": ((3, 6), (4, 3)),
    "no room at one": ((1, 1), (0, 0), (4, 3)),
    "room for a part": ((2, 2), (1, 1)),
}


def trained(folder: str, case: str, comm: Any) -> tuple[str, dict[str, int]]:
    """The digest of a run of three rounds, and the bytes that the last of them moved across."""
    algorithm, changes = CASES[case]
    settings = {"client": SGD, **{key: value for key, value in changes.items() if key not in OF_SYSTEM}}
    config = make_config(Path(folder), TASK, algorithm, rounds=3, **settings)
    system = SystemConfig(
        server_works=changes.get("server_works", True),
        exchange=changes.get("exchange", "auto"),
        update_memory_mb=changes.get("megabytes", 1024),
    )
    config = replace(config, system=system)
    runner = pinned(make_runner(config, comm))
    one_round, seen = runner._one_round, [dict(crossed)]

    def watched() -> None:
        one_round()
        seen.append(dict(crossed))

    runner._one_round = watched  # type: ignore[method-assign]
    digest = str(runner.run().digest)
    return digest, {way: seen[-1].get(way, 0) - seen[-2].get(way, 0) for way in ("up", "down")}


def tell_free(case: str) -> None:
    """The device says from now on how much of its memory is free, where the case has an opinion; else nothing."""
    changes = CASES[case][1]
    free = changes.get("free", 0) if changes.get("at", os.environ["RANK"]) == os.environ["RANK"] else 0
    devices.free_bytes = lambda device: (free, free)


def a_round(
    folder: str, cases: Sequence[str], ports: list[int], where: str = "aaa"
) -> dict[str, tuple[str, tuple[float, float]]]:
    """Case -> digest after three rounds, and vectors that a third round moves up to this rank's device, and down.

    where: the machine of each rank, a letter each.
    """
    device, found, left = install_nccl(), {}, iter(ports)
    machines.machine = backend.machine = lambda: ord(where[int(os.environ["RANK"])])  # type: ignore[attr-defined]
    projection(torch.zeros(1, dtype=torch.float64, device=device))  # whose factors go there once
    for case in cases:
        tell_free(case)
        os.environ["MASTER_PORT"] = str(next(left))
        with DistributedCommunicator.join(NAMES, timeout_s=60, device=device, grace_s=0.5) as comm:
            comm._store.spans_hosts = len({*where}) > 1
            comm.preflight({"config": "same"})
            digest, moved = trained(f"{folder}/{case}", case, comm)
        found[case] = digest, (round(moved["up"] / (4 * WIDTH), 1), round(moved["down"] / (4 * WIDTH), 1))
    return found


@cache
def bits_of(cases: tuple[str, ...]) -> dict[str, str]:
    """Case -> digest that one process on the CPU comes to."""
    (found,) = run_ranks(alone, 1, cases)
    return found


def alone(cases: Sequence[str]) -> dict[str, str]:
    """The digests of one process on the CPU."""
    found = {}
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            found[case], _ = trained(folder, case, None)
    return found


@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    ("where", "cases"),
    [
        ("aaa", SHOWN["aaa"]),
        ("aab", SHOWN["aab"]),  # two machines, one of which has several ranks
        *(pytest.param(where, tuple(CASES), marks=pytest.mark.slow) for where in ("aaa", "abb", "abc")),
    ],
    ids=["one machine", "two", "all, one", "all, two", "all, three"],
)
def test_vectors_of_a_round_stay_on_the_device_and_have_the_bits_of_one_process(
    where: str, cases: tuple[str, ...], tmp_path: Path
) -> None:
    ports = [free_port() for _ in cases]
    server, *workers = run_ranks(a_round, 3, str(tmp_path), cases, ports, where, timeout=250)
    bits = bits_of(cases)
    assert {case: digest for case, (digest, _) in server.items()} == bits
    # FedAvg is there seven times, and with equal steps FedNova is FedProx
    assert len({*bits.values()}) == (9 if cases == tuple(CASES) else 2 if "scaffold" in cases else 1)
    for place, worker in enumerate(workers, start=1):
        expected = {case: (MOVED[case][0], MOVED[case][min(place, len(MOVED[case]) - 1)]) for case in cases}
        assert {case: (server[case][1], worker[case][1]) for case in cases} == expected


def in_one_process(cases: Sequence[str]) -> dict[str, tuple[str, tuple[float, float]]]:
    """As `a_round`, of a process that has all clients and a device."""
    device, found = install(), {}
    devices.own = lambda choice, **about: device  # type: ignore[assignment]
    for case in cases:
        tell_free(case)
        with tempfile.TemporaryDirectory() as folder:
            digest, moved = trained(folder, case, None)
        found[case] = digest, (round(moved["up"] / (4 * WIDTH), 1), round(moved["down"] / (4 * WIDTH), 1))
    return found


def test_in_one_process_a_round_takes_the_weights_up_once_and_the_sum_down_once() -> None:
    cases = "evaluated", "ditto", "no room"
    (found,) = run_ranks(in_one_process, 1, cases)
    bits = bits_of(cases)
    assert {case: digest for case, (digest, _) in found.items()} == bits
    moved = {case: crossed for case, (_, crossed) in found.items()}
    # of six clients: the state of each; all starts, and all that were trained
    assert moved == {"evaluated": (1, 1), "ditto": (7, 7), "no room": (6, 6)}


def disturbed(folder: str, how: str, where: str = "aaa") -> None:
    """A run in windows of 64 KB, in which rank 2 kills itself, or finds another number in a broadcast than was sent."""
    device = install_nccl()
    machines.machine = lambda: ord(where[int(os.environ["RANK"])])
    staged.WINDOW_BYTES = 1 << 16
    awaited, calls, broadcast = staged.Staged._await, iter(range(10_000)), staged.Staged.broadcast

    def deadly(self: staged.Staged, work: Any) -> None:
        if next(calls) == 40:
            os.kill(os.getpid(), signal.SIGKILL)
        awaited(self, work)

    def damaging(self: staged.Staged, tensor: torch.Tensor, came: Came) -> Any:
        work = broadcast(self, tensor, came)
        work.wait()
        if tensor.device == device:
            tensor[-1:].add_(2.0**-20)
        return work

    if os.environ["RANK"] == "2" and how == "dies":
        staged.Staged._await = deadly  # type: ignore[method-assign]
    elif os.environ["RANK"] == "2":
        staged.Staged.broadcast = damaging  # type: ignore[method-assign]
    with DistributedCommunicator.join(NAMES, timeout_s=30, device=device, grace_s=0.5) as comm:
        comm.preflight({"config": "same"})
        trained(folder, "fedavg", comm)


@pytest.mark.parametrize("where", ["aaa", "abb"])
def test_a_rank_that_dies_while_vectors_move_from_device_to_device_is_named(where: str, tmp_path: Path) -> None:
    outcomes = expect_exit(disturbed, 3, str(tmp_path), "dies", where, timeout=60)
    assert outcomes[2].exit_code == -signal.SIGKILL
    for outcome in outcomes[:2]:
        assert "the process of rank 2 is gone" in outcome.error and outcome.exit_code == DeadlineError.exit_code


def test_a_number_that_is_damaged_on_a_device_is_noticed_there(tmp_path: Path) -> None:
    outcomes = expect_exit(disturbed, 3, str(tmp_path), "damages", timeout=60)
    assert "a payload of rank 0 did not arrive as it was sent" in outcomes[2].error
    assert outcomes[2].exit_code == PreflightError.exit_code


def the_way(crosses: str) -> str:
    """How payloads travel on this rank, one of two on the second machine of three ranks."""
    machines.machine = lambda: ord("abb"[int(os.environ["RANK"])])
    with DistributedCommunicator.join(NAMES, timeout_s=60, device=install_nccl(), grace_s=0.5) as comm:
        comm.preflight({"config": "same"}, crosses=crosses)
        comm._group.connect()
        return f"{type(comm._group._payload).__name__} {comm.vector.device}"


@pytest.mark.parametrize(("crosses", "way"), [("", "Staged pretended:0"), ("privacy is kept", "NodeSums None")])
def test_ranks_of_a_machine_share_memory_where_vectors_go_through_the_hosts(crosses: str, way: str) -> None:
    assert run_ranks(the_way, 3, crosses) == [way] * 3
