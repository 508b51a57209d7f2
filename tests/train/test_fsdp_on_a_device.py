"""A worker of two pretended devices under FSDP2 has the bits of FSDP2 on the CPU, over a stand-in for NCCL."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pretended_device import used
from pretended_fsdp import install_fsdp
from ranks import run_ranks
from smoke_runs import SMOKE, run_config
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

pytest.importorskip("deepspeed")

from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.config.schema import EngineConfig
from fedtorch.core.weights import Partition
from fedtorch.train.engine import Engine
from fedtorch.train.fsdp import FsdpEngine
from tests.train.test_fsdp_ranks import CASES

pytestmark = pytest.mark.processes

SMOKE_OF = {path.stem: path for path in SMOKE}
SPLIT = ("engine.kind=fsdp", "system.ranks_per_worker=2", "client.accumulation=2", "task.output_max_length=3")
FEWER = ("clients.per_round=2", "eval.every=0")  # all clients are still evaluated at the end
NAMES = [name for name in CASES if name not in ("bf16", "fp16")]
"""Without those under autocast, of which torch has no kernels for such a device."""
ALIKE = {"offload": "t5", "checkpointing": "gpt2"}
"""Case -> another one with its bits."""
SHOWN = ("offload",)


def one_worker(size: int, names: Sequence[str], is_there: bool) -> dict[str, Any]:
    """Results of each case, on pretended devices or on the CPU."""
    device, found = install_fsdp() if is_there else torch.device("cpu"), {}
    with DistributedCommunicator.join(("c",), timeout_s=60, device=device) as comm:
        comm.preflight({"config": "same"})
        worker = comm.join_worker(tuple(range(size)))
        assert worker is not None and ("nccl" in worker.backend) == is_there

        def maker(settings: dict[str, Any]) -> Callable[..., Engine]:
            def make(model: Callable[[], nn.Module], partition: Partition) -> Engine:
                engine = FsdpEngine(model(), partition, device, settings=EngineConfig(kind="fsdp", **settings))
                engine.join(worker)
                return engine

            return make

        with sdpa_kernel(SDPBackend.MATH):  # the only kernel of attention that the device has
            for name in names:
                settings, case = CASES[name]
                used.clear()
                found[name] = case(maker(settings))
                gathered = used["all_gather_single on pretended"], used["reduce_scatter_single on pretended"]
                assert all(gathered) == is_there, (name, used)
    return found


@pytest.mark.timeout(280)
@pytest.mark.parametrize("names", [SHOWN, pytest.param(NAMES, marks=pytest.mark.slow)], ids=["shown", "all"])
def test_two_devices_that_share_a_model_have_the_bits_of_two_ranks_on_the_cpu(names: Sequence[str]) -> None:
    there, on_cpu = (run_ranks(one_worker, 2, 2, names, is_there, timeout=250) for is_there in (True, False))
    assert there == on_cpu
    assert len({str(found) for found in there[0].values()}) == len({ALIKE.get(name, name) for name in names})


def whole_run(folder: str, is_there: bool) -> str:
    """The digest of a run of a server and a worker of two ranks."""
    if is_there:
        install_fsdp()
    name = f"run.name={'there' if is_there else 'here'}"
    with sdpa_kernel(SDPBackend.MATH):
        results = run_config(SMOKE_OF["fedavg"], Path(folder), name, *SPLIT, *FEWER)
    assert bool(used["all_gather_single on pretended"]) == (is_there and os.environ["RANK"] != "0")
    return str(results["digest"])


@pytest.mark.timeout(280)
def test_a_run_whose_worker_is_two_devices_has_the_digest_of_the_cpu(tmp_path: Path) -> None:
    there, on_cpu = (run_ranks(whole_run, 3, str(tmp_path), is_there, timeout=250) for is_there in (True, False))
    assert there == on_cpu and len({*there}) == 1
