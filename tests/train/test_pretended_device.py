"""Everything that trains has its tensors where they belong: on a device that is no CPU, with the CPU's numbers."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import make_config, make_runner
from pretended_device import install, made, made_bytes, used
from ranks import run_ranks
from smoke_runs import SMOKE, run_config
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from toy import Point, Quadratic

from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.feddyn import FedDyn
from fedtorch.algorithms.fednova import FedNova
from fedtorch.algorithms.fedprox import FedProx
from fedtorch.algorithms.local import Local
from fedtorch.algorithms.pfedme import PFedMe
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.config.schema import ClientConfig, EvalConfig, PartitionConfig
from fedtorch.core import devices
from fedtorch.core.errors import NonFiniteError
from fedtorch.core.weights import Partition
from fedtorch.tracking.settings import TrackConfig
from fedtorch.tracking.tracker import Tracker
from fedtorch.train import engine, pinned_copy
from fedtorch.train.zero import Objective

pytestmark = pytest.mark.processes

TASK = Quadratic({"a": (1.0, 2.0, 7), "b": (0.5, -1.0, 5)}, start=(0, 1, 2), noise=0.3, dropout=0.2, double=False)
HP = ClientConfig(optimizer="adamw", lr=0.1, batch_size=2, max_grad_norm=0.5, weight_decay=0.01)
PLAIN = ClientConfig(optimizer="sgd", lr=0.1, batch_size=2)
ALGORITHMS = {
    "fedavg": (FedAvg(), {}),
    "an optimiser that is kept": (FedAvg(), {"client": replace(HP, optimizer_state="keep")}),
    "adafactor": (FedAvg(), {"client": replace(HP, optimizer="adafactor", scale_parameter=False)}),
    "the model after training": (FedAvg(), {"eval": EvalConfig(every=1, point="trained", best="per_client")}),
    "private parameters": (FedAvg(), {"partition": PartitionConfig(private=("head",))}),
    "fedprox": (FedProx(mu=0.1), {}),
    "feddyn": (FedDyn(), {}),
    "fednova": (FedNova(), {"client": PLAIN}),
    "scaffold": (Scaffold(option="I"), {"client": PLAIN}),
    "ditto": (Ditto(), {}),
    "pfedme": (PFedMe(), {}),
    "local": (Local(), {}),
}


def use(device: torch.device) -> None:
    """Engines work on this device, and where it is no CPU through windows of their vectors."""
    devices.own = lambda choice, **about: device  # type: ignore[assignment]
    pinned_copy.WINDOW_BYTES = 64


def on_both(plain: bool = False) -> Any:
    """Digest of every algorithm's run on the CPU and on the device."""
    digests: dict[str, list[str]] = {}
    for device in (torch.device("cpu"), install(plain=plain)):
        use(device)
        for name, (algorithm, changes) in ALGORITHMS.items():
            task = replace(TASK, head=(0.5, 0.5)) if "private" in name else TASK
            settings = {"client": HP, "eval": EvalConfig(every=1), **changes}
            with tempfile.TemporaryDirectory() as folder:
                result = make_runner(make_config(Path(folder), task, algorithm, **settings)).run()
            assert len(result.scores) == 2 and all(scores["nearness"][1] == 3 for scores in result.scores.values())
            digests.setdefault(name, []).append(result.digest)
    assert all(used[name] for name in ("event recorded", "event awaited", "seed")), used
    return digests


@pytest.mark.parametrize("plain", [False, True], ids=["with everything", "without float64 and streams"])
def test_every_algorithm_gives_the_same_bits_on_a_device(plain: bool) -> None:
    (digests,) = run_ranks(on_both, 1, plain)
    assert all(one == other for one, other in digests.values()), digests
    assert len({one for one, _ in digests.values()}) == len(ALGORITHMS)


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(100, 100), nn.Linear(100, 10)
        self.register_buffer("mask", torch.ones(50))
        self.tied = self.inner.weight


def build_engines() -> list[tuple[int, set[str]]]:
    """Bytes on the device, and where the parameters are, of an engine and of one that is built on the CPU."""
    device, found = install(), []
    for place in (None, torch.device("cpu")):
        made.clear()
        module = _Model()
        built = engine.Engine(module, Partition(frozen=("head.*",)), device, built_on=place)
        found.append((made_bytes(), {parameter.device.type for parameter in module.parameters()}))
        assert module.tied is module.inner.weight and built.device == device
    return found


def test_an_engine_has_its_model_once_on_the_device_and_none_of_it_before_a_library_splits_it() -> None:
    (plain, split) = run_ranks(build_engines, 1)[0]
    numbers = 100 * 100 + 100 + 100 * 10 + 10 + 50
    assert plain == (pytest.approx(4 * numbers, abs=64), {"pretended"})
    assert split == (0, {"cpu"})


def move_objectives() -> list[tuple[int, str, str]]:
    device, found = install(), []
    for splits in (False, True):
        made.clear()
        module = _Model()
        Objective(module, splits=splits).to(device)
        found.append((made_bytes(), module.inner.weight.device.type, module.mask.device.type))
    return found


def test_what_stage_3_splits_comes_to_the_device_part_by_part() -> None:
    whole, split = run_ranks(move_objectives, 1)[0]
    assert whole == (4 * (100 * 100 + 100 + 100 * 10 + 10 + 50), "pretended", "pretended")
    assert split == (4 * 50, "cpu", "pretended")


def upload_ids() -> list[str]:
    """Errors of ids that are in no table, on the device and on the CPU."""
    found = []
    for device in (install(), torch.device("cpu")):
        built = engine.Engine(nn.Sequential(nn.Embedding(8, 2), nn.Embedding(3, 2)), Partition(), device)
        for ids in ([0, 7], [0, 8], [-1, 2]):
            try:
                built.upload({"input_ids": torch.tensor([ids]), "labels": torch.tensor([99])})
                found.append("")
            except IndexError as error:
                found.append(str(error))
    return found


def test_ids_outside_the_tables_never_reach_a_gpu() -> None:
    said = [f"input_ids has the id {wrong}; the model knows 0 to 7" for wrong in (8, -1)]
    assert run_ranks(upload_ids, 1)[0] == ["", *said, "", "", ""]


class _Careless(Quadratic):
    """Makes a tensor on the CPU."""

    def loss(self, model: Any, batch: Any) -> Any:
        assert isinstance(model, Point)
        return (model.w * torch.ones(3)).sum() + 0 * batch.sum(), 1


def careless() -> str:
    use(install())
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(Path(folder), _Careless(TASK.clients, start=TASK.start, double=False))
        runner = make_runner(replace(config, clients=replace(config.clients, on_failure="stop")))
        try:
            runner.run()
        except NonFiniteError as error:
            return str(error)
    return "nothing was noticed"


def test_a_tensor_left_on_the_cpu_is_noticed() -> None:
    assert "a client failed" in run_ranks(careless, 1)[0]


def recorded() -> dict[str, list[dict[str, Any]]]:
    """Records of clients on the CPU and on the device, where the second one fails."""
    found, device = {}, install()
    for place in ("cpu", "unasked", "asked"):
        use(torch.device("cpu") if place == "cpu" else device)
        with tempfile.TemporaryDirectory() as folder:
            seen = TrackConfig(device_usage=place != "unasked")
            config = make_config(Path(folder), replace(TASK, bad=("b",)), track=seen)
            tracker = Tracker(Path(folder), clients=[*TASK.clients], rounds=2, settings=TrackConfig(tensorboard=True))
            make_runner(config, tracker=tracker).run()
            lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
            drawn = b"".join(path.read_bytes() for path in Path(folder).rglob("events*"))
        clients = [record for record in map(json.loads, lines) if record["kind"] == "client"]
        assert (b"train/gpu_peak_mb" in drawn) == (place == "asked")
        found[place] = clients
    assert used["count begun"] == 8, used
    return found


def test_memory_of_a_gpu_is_in_the_records_of_clients_and_nothing_of_it_on_a_cpu() -> None:
    """Where it is asked for, of one that failed too; how busy it is where the library that counts it is installed."""
    (records,) = run_ranks(recorded, 1)
    for record in (*records["cpu"], *records["unasked"]):
        assert not [key for key in record if key.startswith("gpu")]
    assert [record["status"] for record in records["asked"]] == ["ok", "failed:ValueError"] * 2
    for record in records["asked"]:
        assert record["gpu_peak_mb"] > 0 and record["gpu_reserved_mb"] == 3 and "gpu_utilization" not in record


def smoke_on_both(path: str, folder: str) -> Any:
    found = []
    # the only kernel of attention that the device has
    with sdpa_kernel(SDPBackend.MATH):
        for device in (torch.device("cpu"), install()):
            use(device)
            found.append(run_config(Path(path), Path(folder), f"run.name={device.type}"))
    return found


# composed of other operations on the device, so equal up to rounding, which Adam's first steps make much of
ROUNDED = ("esim",)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "path",
    # the papers' configs train quickly on such devices in tests/comm/test_over_nccl.py
    [pytest.param(path, marks=() if path.stem in ROUNDED else pytest.mark.slow, id=path.stem) for path in SMOKE],
)
def test_a_smoke_config_trains_on_a_device_as_on_the_cpu(path: Path, tmp_path: Path) -> None:
    ((cpu, device),) = run_ranks(smoke_on_both, 1, str(path), str(tmp_path), timeout=800)
    assert cpu["trained"] and device["trained"].keys() == cpu["trained"].keys()
    assert path.stem in ROUNDED or device["digest"] == cpu["digest"]
    for name, (status, loss, norm) in cpu["trained"].items():
        assert device["trained"][name] == (status, pytest.approx(loss, rel=1e-3), pytest.approx(norm, rel=1e-3))
    assert device["averages"].keys() == cpu["averages"].keys()
    assert all(device["averages"][name]["count"] == cpu["averages"][name]["count"] for name in cpu["averages"])
