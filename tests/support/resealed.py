"""Small runs whose checkpoints a test changes and gives the digests that go with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import make_config
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from toy import Quadratic
from xxhash import xxh3_64_hexdigest

from fedtorch.algorithms.base import Algorithm
from fedtorch.algorithms.ditto import Ditto
from fedtorch.algorithms.fedassistant import FedAssistant
from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.feddyn import FedDyn
from fedtorch.algorithms.local import Local
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.checkpoint.files import digest_file, to_json
from fedtorch.compression.compressors import TopK
from fedtorch.config.schema import CheckpointConfig, ClientConfig, Config, EvalConfig
from fedtorch.core.settings import ServerConfig
from fedtorch.core.weights import Partition

TASK = Quadratic(
    clients={"a": (1.0, 1.0, 6), "b": (2.0, -1.0, 9)}, start=(0.3, -0.7), head=(0.2,), noise=0.5, double=False
)
KEEPS = ClientConfig(
    optimizer="adamw", lr=0.1, batch_size=4, optimizer_state="keep", steps=2, schedule="linear", schedule_span="run"
)
RUNS: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "ditto": (Ditto(lam=0.5), {"client": KEEPS, "server": ServerConfig(optimizer="adam", lr=0.1)}),
    "scaffold": (
        Scaffold(),
        {
            "client": ClientConfig(optimizer="sgd", lr=0.1, batch_size=4, schedule="constant"),
            "server": ServerConfig(optimizer="adam", lr=0.1),
        },
    ),
    "fedavg": (FedAvg(), {"server": ServerConfig(optimizer="sgd", lr=1.0, momentum=0.9)}),
    "feddyn": (FedDyn(), {"server": ServerConfig(optimizer="sgd", lr=1.0, momentum=0.9)}),
    "topk": (FedAssistant(payload="delta", compression="topk", topk=TopK(0.5)), {}),
    "returned": (
        FedAssistant(
            payload="delta", compression="topk", topk=TopK(0.5), server_residual="returned", exchange="replicated"
        ),
        {},
    ),
    "local": (Local(), {"eval": EvalConfig(every=1, best="per_client")}),
    "trained": (FedAvg(), {"eval": EvalConfig(every=1, point="trained")}),
}


@dataclass
class Content:
    """What a file of tensors holds."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]


Change = Callable[[Content], object]


def config_of(kind: str, folder: Path) -> Config:
    algorithm, changes = RUNS[kind]
    common: dict[str, Any] = {"rounds": 3, "eval": EvalConfig(every=1), "partition": Partition(private=("head",))}
    common |= {"checkpoint": CheckpointConfig(every=1, keep=5)}
    return make_config(folder, TASK, algorithm, **{**common, **changes})


def reseal(root: Path) -> None:
    """Give every file that the newest manifest names the size and digest that it has now, and the manifest its own."""
    path = root / "round_000002" / "manifest.json"
    manifest = json.loads(path.read_bytes())["manifest"]
    for name, entry in manifest["files"].items():
        where = (root if name.startswith("clients/") else path.parent) / name
        entry |= {"bytes": where.stat().st_size, "xxh3": f"{digest_file(where):016x}"}
    path.write_text(to_json({"manifest": manifest, "xxh3": xxh3_64_hexdigest(to_json(manifest).encode())}))


def of_client(root: Path, client: str, round: int = 2) -> Path:
    (path,) = (root / "clients").glob(f"{client}-*-r{round:06d}.safetensors")
    return path


def change_file(path: Path, change: Change) -> None:
    """Change the tensors and the numbers of the server or of a client; the list of names stays in step."""
    tensors: dict[str, Tensor] = {}
    beside = None
    if path.stat().st_size > 64:  # safe_open refuses a file of nothing at all, which save_file writes
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            beside = json.loads(file.metadata()["state"]) if "state" in (file.metadata() or {}) else None
    side = path.with_suffix(".json")
    content = Content(tensors, json.loads(side.read_text()) if beside is None else beside)
    change(content)
    content.state["names"] = list(content.tensors)
    if beside is None:
        save_file(content.tensors, path)
        side.write_text(json.dumps(content.state))
    else:
        save_file(content.tensors, path, {"state": json.dumps(content.state)})
