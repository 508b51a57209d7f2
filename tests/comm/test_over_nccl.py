"""Payloads from GPU to GPU, on pretended GPUs and a group with NCCL's rules: the bits and the errors of other ways."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from narrow import NARROW
from pretended_device import used
from pretended_nccl import PretendedNccl, Work, install_nccl
from ranks import expect_exit, free_port, run_ranks
from smoke_runs import BRIEF, SMOKE, run_config
from torch.nn.attention import SDPBackend, sdpa_kernel

import fedtorch
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.local import LocalCommunicator
from fedtorch.comm.transport import backend, machines, trial
from fedtorch.comm.transport.device import Staging
from fedtorch.core.errors import DeadlineError, PreflightError
from fedtorch.core.weights import digest_of
from tests.comm import test_allreduce as messages
from tests.comm import test_node_sums as node_sums
from tests.comm import test_transport as transport
from tests.comm.test_exchange import NAMES, in_one_process, one_round, spread

pytestmark = pytest.mark.processes

SMOKE_OF = {path.stem: path for path in SMOKE}


def over_nccl(function: str, *args: Any) -> Any:
    """A function of the tests of staged payloads, where they move over NCCL."""
    staging = Staging("nccl", install_nccl(), pin=True)
    transport.ON_CPU = node_sums.ON_CPU = messages.ON_CPU = staging
    module = next(module for module in (messages, transport, node_sums) if hasattr(module, function))
    answer = getattr(module, function)(*args)
    assert used["connected eagerly"] and (used["moved over nccl"] or os.environ["RANK"] != "0")  # others may be idle
    return answer


def rules() -> list[str]:
    """What the stand-in says to whoever breaks a rule, and who waits for whom."""
    device, rank = install_nccl(), int(os.environ["RANK"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, rank == 0)
    group, found = PretendedNccl(store, rank, 2), []

    def says(action: Callable[[], Any]) -> None:
        try:
            action()
            found.append("")
        except (ValueError, AssertionError) as error:
            found.append(str(error))

    flat = torch.ones(4, device=device)
    says(lambda: group.allreduce([torch.ones(4)], dist.AllreduceOptions()))
    says(lambda: group.allreduce([torch.ones(4, 2, device=device).t()], dist.AllreduceOptions()))
    says(lambda: group.broadcast([flat], dist.BroadcastOptions()).wait())
    if rank == 0:  # nobody has come yet, so what is begun after a first send waits with it
        first, second = group.send([flat], 1, 0), group.allreduce([flat], dist.AllreduceOptions())
        found.append(str([first.done.wait(0.3), second.done.wait(0.0)]))
        store.set("go", "")
        found.append(str([first.done.wait(20), second.done.wait(20)]))
    else:
        store.wait(["go"])
        works = group.recv([flat], 0, 0), group.allreduce([flat], dist.AllreduceOptions())
        found.append(str([work.done.wait(20) for work in works]))
    found.append(str(flat.cpu().tolist()))
    return found


def test_the_stand_in_holds_to_the_rules_of_nccl() -> None:
    for found, waited in zip(run_ranks(rules, 2), (["[False, False]", "[True, True]"], ["[True, True]"]), strict=True):
        assert "must be on the device" in found[0] and "contiguous" in found[1] and "block the host" in found[2]
        assert found[3:] == [*waited, "[2.0, 2.0, 2.0, 2.0]"]


@pytest.mark.parametrize(
    ("num_ranks", "hosts", "exchange", "dtype"),
    [
        (2, [1], "reduce", torch.float32),
        (3, [0, 1, 2], "send", torch.float32),
        pytest.param(4, [1, 2, 3], "reduce", torch.float64, marks=pytest.mark.slow),
    ],
)
def test_a_round_has_the_bits_of_one_process(
    num_ranks: int, hosts: list[int], exchange: Any, dtype: torch.dtype, tmp_path: Path
) -> None:
    size = NARROW + 12_345
    alone = in_one_process(size, dtype)
    how = hosts, str(tmp_path / "many"), exchange, dtype, size, True
    assert run_ranks(over_nccl, num_ranks, "round_of_two_windows", *how)[0][0] == alone


@pytest.mark.parametrize("exchange", ["send", "reduce"])
def test_many_windows_pass_in_step(exchange: str, tmp_path: Path) -> None:
    alone = in_one_process(40_321)
    found = run_ranks(over_nccl, 4, "narrow_round", [0, 1, 1, 1, 1, 1, 2], str(tmp_path), exchange)
    assert found[0][0] == alone


def test_pieces_of_messages_find_their_owners_over_it(tmp_path: Path) -> None:
    """An all-to-all in many windows, in some of which a rank has nothing for another."""
    ranks = run_ranks(over_nccl, 5, "step_of", str(tmp_path), messages.CASES[1], timeout=60)
    alone_comm, top = LocalCommunicator(messages.NAMES), messages.top_of("auto", "fp32")
    alone, _ = messages.reduce_on(alone_comm, top, str(tmp_path), selects=False)
    assert ranks == [(digest_of({"step": alone.step}), alone.count)] * 5


def test_every_dtype_and_length_is_moved_whole() -> None:
    over, beside = run_ranks(over_nccl, 3, "every_type"), run_ranks(transport.every_type, 3)
    assert over == beside


@pytest.mark.parametrize("where", ["aabb", pytest.param("aaa", marks=pytest.mark.slow)])
def test_leaders_of_machines_exchange_over_it(where: str, tmp_path: Path) -> None:
    over, beside = (
        run_ranks(node_sums.trained if way == "beside" else over_nccl, len(where), *begin, str(tmp_path / way), *how)
        for way, begin, how in (
            ("over", ("trained",), (where, True, "reduce", True)),
            ("beside", (), (where, True, "reduce", False)),
        )
    )
    assert [digest for digest, _ in over] == [digest for digest, _ in beside]
    assert all("Staged" in way for (_, way), letter in zip(over, where, strict=True) if where.count(letter) == 3)
    assert "Staged" in over[0][1]


def test_a_rank_that_dies_within_a_payload_is_named_by_all_others(tmp_path: Path) -> None:
    outcomes = expect_exit(over_nccl, 4, "dying_round", str(tmp_path), "reduce", timeout=40)
    assert outcomes[2].exit_code == -signal.SIGKILL
    for rank in (0, 1, 3):
        assert "the process of rank 2 is gone" in outcomes[rank].error
        assert outcomes[rank].exit_code == DeadlineError.exit_code


def breaks(how: str) -> None:
    """This rank's first sum: an error of the driver, nothing, or another number."""
    whole = PretendedNccl.allreduce

    def allreduce(self: PretendedNccl, tensors: list[torch.Tensor], options: Any) -> Any:
        if how == "raises":
            raise RuntimeError("NCCL error: unhandled system error")
        if how == "is wrong":
            tensors[0].mul_(3)
        return Work() if how == "hangs" else whole(self, tensors, options)

    PretendedNccl.allreduce = allreduce  # type: ignore[method-assign]


def a_round_after_a_trial(folder: str, how: str, backend: Any) -> Any:
    """The round's result and what was logged, where the first sum goes wrong on rank 1."""
    device, said = install_nccl(), list[str]()
    is_broken = os.environ["RANK"] == "1"
    trial.LIMIT_S = 3.0 if how == "hangs" and is_broken else 300.0  # nobody waits for a sum that has failed elsewhere
    if is_broken:
        breaks(how)
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("fedtorch").addHandler(handler)
    with DistributedCommunicator.join(NAMES, timeout_s=30, backend=backend, device=device, grace_s=0.5) as comm:
        comm.preflight({"config": "same"})
        comm.preflight({"config": "another run of the job"})
        answer = one_round(comm, spread([0, 1, 2]), folder, 1000, torch.float32)
        return answer, said, comm.staging is None and comm._shared == {0, 1, 2}


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raises", "failed on rank 1: NCCL error: unhandled system error"),
        pytest.param("is wrong", "failed on rank 1: the ones of 3 ranks add up to 5", marks=pytest.mark.slow),
        pytest.param("hangs", "failed on rank 1: it did not end within 3 s", marks=pytest.mark.slow),
        ("works", ""),
    ],
)
def test_where_a_first_sum_fails_payloads_go_over_gloo(how: str, words: str, tmp_path: Path) -> None:
    alone = in_one_process(1000)
    ranks = run_ranks(a_round_after_a_trial, 3, str(tmp_path), how, "auto")
    assert ranks[0][0] == alone
    assert [falls_back for *_, falls_back in ranks] == [how != "works"] * 3
    assert not words or (words in ranks[1][1][0] and "payloads go over gloo" in ranks[0][1][-1])
    if how == "raises":
        assert "failed on rank 2: it failed on rank 1" in ranks[2][1][0]
    assert words or not any(said for _, said, _ in ranks)


def test_where_a_first_sum_fails_and_nccl_is_wanted_all_ranks_say_so_and_end(tmp_path: Path) -> None:
    for rank, outcome in enumerate(expect_exit(a_round_after_a_trial, 3, str(tmp_path), "raises", "nccl", timeout=30)):
        assert outcome.exit_code == PreflightError.exit_code
        assert "system.backend is nccl but a first sum from GPU to GPU failed" in outcome.error
        assert ("here: NCCL error: unhandled" in outcome.error) == (rank == 1)


ADAPTED = "task.model.adapter={kind: lora, r: 2}"
PRIVATELY = (
    "privacy={kind: client, clip: 0.5, noise_multiplier: 1, delta: 1.0e-2, simulate: true, seed: 1}",
    "clients={sampling: poisson, rate: 0.8}",
    "algorithm.weights=equal",
)
FEWER = "clients.per_round=4"  # of eight, for three ranks
JOBS: dict[str, tuple[Path, tuple[str, ...]]] = {
    "default": (Path(fedtorch.__file__).with_name("config") / "default.yaml", ("compare=[]", BRIEF)),  # no second run
    **{name: (SMOKE_OF[name], ()) for name in ("feda", "fedmatch", "fedparsing", "smoke_ffw_full")},
    "fedopt_lorar": (SMOKE_OF["fedopt_lorar"], (BRIEF, FEWER)),
    "pair": (SMOKE_OF["feda"], ("system.ranks_per_worker=2",)),
    "adapters": (SMOKE_OF["fedavg"], (ADAPTED, BRIEF, FEWER, "eval.every=0")),
    "private": (SMOKE_OF["fedavg"], (*PRIVATELY, BRIEF)),
}
LIKE_OTHERS = ("feda", "default", "adapters", "fedopt_lorar", "fedparsing", "smoke_ffw_full")
"""Jobs that another one is like: `pair` is feda's config on two ranks a worker, `private` has the task of `default`,
`adapters` and `fedopt_lorar`, and `fedmatch` sends what `fedparsing` and `smoke_ffw_full` send."""


def whole_runs(folder: str, jobs: Sequence[str], ports: list[int], where: str = "") -> dict[str, Any]:
    """The digest of each config's run, on the pretended GPUs of the job's ranks, or with one rank on the CPU.

    where: the machine of each rank, a letter each; empty: all are on this one.
    """
    found = {}
    if where:
        machines.machine = backend.machine = lambda: ord(where[int(os.environ["RANK"])])  # type: ignore[attr-defined]
    with sdpa_kernel(SDPBackend.MATH):  # the only kernel of attention that the device has
        if ports:
            install_nccl()
        for place, name in enumerate(jobs):
            path, settings = JOBS[name]
            used.clear()
            if ports:
                os.environ["MASTER_PORT"] = str(ports[place])
            way = "system.backend=nccl" if ports else "system.backend=auto"  # which could be memory on one machine
            results = run_config(path, Path(folder), f"run.name={name}{len(ports)}", way, *settings)
            found[name] = results["digest"]
            facts = json.loads((Path(folder) / "runs" / f"{name}{len(ports)}" / "env.json").read_text())
            assert facts.get("gpus") == ({str(rank): {"gpu": "pretended"} for rank in range(3)} if ports else None)
            assert bool(ports) == bool(used["moved over nccl"])
            in_a_pair = ports and name == "pair" and os.environ["RANK"] != "0"
            assert bool(in_a_pair) == bool(used["moved between a pair"])
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "jobs", [[name for name in JOBS if name not in LIKE_OTHERS], pytest.param(LIKE_OTHERS, marks=pytest.mark.slow)]
)
def test_a_server_and_two_workers_train_on_gpus_to_the_bits_of_one_process_on_the_cpu(
    jobs: Sequence[str], tmp_path: Path
) -> None:
    (alone,) = run_ranks(whole_runs, 1, str(tmp_path), jobs, [], timeout=250)
    found = run_ranks(whole_runs, 3, str(tmp_path), jobs, [free_port() for _ in jobs], timeout=250)
    assert found == [alone] * 3


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ranks_of_two_machines_train_on_gpus_to_the_same_bits(tmp_path: Path) -> None:
    jobs = "adapters", "private"  # vectors stay on devices, or go through the host's memory
    (alone,) = run_ranks(whole_runs, 1, str(tmp_path), jobs, [], timeout=250)
    found = run_ranks(whole_runs, 3, str(tmp_path), jobs, [free_port() for _ in jobs], "abb", timeout=250)
    assert found == [alone] * 3
