"""Which backend payloads take: the same decision on all ranks, from what each of them says of its GPU."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import expect_exit, run_ranks

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.transport.backend import OwnGpu, choose, log_if_shared
from fedtorch.core import devices
from fedtorch.core.errors import PreflightError

CUDA = torch.device("cuda", 0)


def notes(*gpus: str, problem: str = "") -> dict[int, Any]:
    return {rank: {"gpu": gpu, "gpu_problem": "" if gpu else problem} for rank, gpu in enumerate(gpus)}


@pytest.mark.parametrize(
    ("wanted", "gpus", "backend", "shared"),
    [
        ("auto", ("x", "y", "z"), "nccl", []),
        ("nccl", ("x", "y"), "nccl", []),
        ("gloo", ("x", "y"), "gloo", []),
        ("auto", ("x", "y", "x"), "gloo", [0, 2]),  # two ranks on one GPU, which NCCL refuses
        ("auto", ("x", ""), "gloo", [1]),  # an old GPU-less server beside a worker with a GPU
        ("auto", ("", ""), "gloo", [0, 1]),
    ],
)
def test_nccl_where_every_rank_has_a_gpu_of_its_own(wanted: Any, gpus: Any, backend: str, shared: list[int]) -> None:
    assert choose(wanted, notes(*gpus, problem="works on the CPU")) == {"backend": backend, "shared": shared}


def test_nccl_that_cannot_be_had_is_refused_with_the_rank_and_its_reason() -> None:
    error = choose("nccl", notes("x", "", problem="has torch 2, which comes without NCCL"))["error"]
    assert error.startswith(
        "system.backend is nccl, for which every rank needs a GPU of its own, but rank 1 has torch 2"
    )
    assert "rank 0" not in error
    error = choose("nccl", notes("x", "x", "x", "x", "x"))["error"]
    assert "rank 0 shares GPU x with 4 other ranks" in error and "and 2 more ranks" in error
    assert "set system.backend to auto" in error


def test_on_one_machine_what_crosses_the_hosts_memory_is_read_there(caplog: pytest.LogCaptureFixture) -> None:
    told = notes("x", "y")
    for machines, crosses, backend in (
        (("7", "7"), "privacy is kept", "gloo"),
        (("7", "7"), "", "nccl"),
        (("7", "8"), "privacy is kept", "nccl"),
        (("", ""), "privacy is kept", "nccl"),  # nobody knows
        (("7", None), "privacy is kept", "nccl"),
    ):
        for rank, number in enumerate(machines):
            told[rank]["machine"] = number
        with caplog.at_level(logging.INFO):
            assert choose("auto", told, crosses) == {"backend": backend, "shared": []}
        assert choose("nccl", told, crosses)["backend"] == "nccl" and choose("gloo", told)["backend"] == "gloo"
    assert [record.getMessage() for record in caplog.records] == [
        "payloads are read from memory that all ranks share, and do not travel over NCCL: privacy is kept"
    ]


def test_gpus_with_unlike_versions_of_nccl_exchange_over_gloo(caplog: pytest.LogCaptureFixture) -> None:
    told = notes("x", "y", "z")
    for rank, version in enumerate(("2.28.9", "2.28.9", "2.27.3")):
        told[rank]["gpu_versions"] = {"nccl": version, "driver": f"58{rank}"}  # drivers may differ
    with caplog.at_level(logging.INFO):
        assert choose("auto", told) == {"backend": "gloo", "shared": [2]}
    assert "over gloo and not over NCCL: rank 2 has NCCL 2.27.3 and rank 0 has 2.28.9" in caplog.text
    assert "rank 2 has NCCL 2.27.3 and rank 0 has 2.28.9" in choose("nccl", told)["error"]


def test_the_log_has_why_payloads_go_over_gloo_where_there_are_gpus(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        choose("auto", notes("x", "", problem="works on the CPU"))
        assert "not over NCCL: rank 1 works on the CPU" in caplog.text
        caplog.clear()
        choose("auto", notes("", "", problem="works on the CPU"))
        choose("gloo", notes("x", ""))
        assert not caplog.text


def test_what_a_rank_says_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "works on the CPU" in OwnGpu.of(torch.device("cpu")).problem
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    monkeypatch.setattr(devices, "versions", lambda device: {"gpu": "x"})
    assert "without NCCL" in OwnGpu.of(CUDA).problem and OwnGpu.of(CUDA).note()["gpu_versions"] == {"gpu": "x"}


@pytest.mark.parametrize(
    ("ranks", "local_rank", "serves", "said"),
    [
        ("3", "0", False, "3 ranks"),
        ("3", "1", False, ""),
        ("2", "0", False, ""),
        ("3", "1", True, ""),  # the server has none, and each of the others one
        ("4", "1", True, "3 ranks"),
    ],
)
def test_ranks_that_share_gpus_say_so_once_per_node(
    ranks: str,
    local_rank: str,
    serves: bool,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    monkeypatch.setenv("RANK", local_rank)
    monkeypatch.setattr(devices, "count", lambda *_: 2)
    with caplog.at_level(logging.INFO):
        log_if_shared(CUDA, server_serves=serves)
        log_if_shared(torch.device("cpu"), server_serves=serves)
    told = f"{said} of this node share 2 GPUs"
    assert (told in caplog.text) == bool(said) == bool(caplog.records)


def decided(backend: Any) -> Any:
    with DistributedCommunicator.join(["a"], timeout_s=20, backend=backend) as comm:
        comm.preflight({"config": "same"})
        comm.preflight({"config": "another run's"})
        worker = comm.join_worker([0, 1])
        assert worker is not None and dist.get_backend() == worker.backend
        flat = torch.full((3,), float(comm.rank))
        comm.broadcast(flat)
        return comm.staging, worker.backend, flat.tolist()


@pytest.mark.processes
def test_on_cpus_payloads_travel_over_gloo_as_they_are() -> None:
    assert run_ranks(decided, 2, "auto") == [(None, "gloo", [0.0] * 3)] * 2


@pytest.mark.processes
def test_nccl_on_cpus_ends_all_ranks_before_any_group_is_made() -> None:
    for outcome in expect_exit(decided, 2, "nccl", timeout=30):
        assert "system.backend is nccl" in outcome.error and "rank 0 works on the CPU" in outcome.error
        assert outcome.exit_code == PreflightError.exit_code
