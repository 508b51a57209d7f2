"""The experiment through fedtorch, as a run of a task of one's own."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import fedtorch
from benchmarks.peer_experiment import (
    BATCH_SIZE,
    EPOCHS,
    MU,
    PER_ROUND,
    RATE,
    ROUNDS,
    SERVER,
    SIZES,
    network,
    read,
    write_weights,
)
from fedtorch import Scores, ServerState, Task
from fedtorch.algorithms.fedavg import FedOpt
from fedtorch.algorithms.scaffold import Scaffold
from fedtorch.core import state_keys as keys
from fedtorch.core.client import Client
from fedtorch.core.sampling import Uniform, cohort
from fedtorch.train.engine import GradientHook
from fedtorch.train.job import ClientJob

ADAM = {"optimizer": "adam", **SERVER}
REVERSED = "benchmarks.peer_fedtorch:ReversedScaffold"
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"algorithm": {"name": "fedavg"}},
    "fedprox": {"algorithm": {"name": "fedprox", "mu": MU}},
    "fedadam": {"algorithm": {"name": "fedopt"}, "server": ADAM},
    "fedadam_late": {
        "algorithm": {"name": "benchmarks.peer_fedtorch:LateFedOpt"},
        "server": {**ADAM, "bias_correction": True},
    },
    "scaffold": {"algorithm": {"name": "scaffold"}},
    "scaffold_one": {"algorithm": {"name": "scaffold", "option": "I"}},
    "scaffold_reversed": {"algorithm": {"name": REVERSED}},
    "scaffold_one_reversed": {"algorithm": {"name": REVERSED, "option": "I"}},
}
"""name -> what its config has beside what all have"""


@dataclass(frozen=True)
class Rows(Task):
    """The experiment's rows."""

    main_metric: ClassVar[str] = "accuracy"

    file: str
    """what `peer_experiment.write` has written"""

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        """Training rows alone: nothing is evaluated but for the last model."""
        return {client: {"train": size, "test": 1} for client, size in SIZES.items()}

    def load(self, client: str, split: str) -> list[tuple[Tensor, Tensor]]:
        """In the order in which they are trained on."""
        rows = list(zip(*read(Path(self.file)).rows[client], strict=True))
        return rows if split == "train" else rows[:1]

    def build_model(self, seed: int) -> nn.Module:
        """The weights that all sides start from."""
        model = network()
        model.load_state_dict(dict(read(Path(self.file)).start))
        return model

    def collate(self, examples: Sequence[tuple[Tensor, Tensor]], train: bool) -> dict[str, Tensor]:
        """A batch as it stands."""
        features, classes = zip(*examples, strict=True)
        return {"features": torch.stack(features), "classes": torch.stack(classes)}

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
        """Cross entropy, as a sum."""
        logits = model(batch["features"])
        return nn.functional.cross_entropy(logits, batch["classes"], reduction="sum"), len(batch["classes"])

    def predict(self, model: nn.Module, examples: Sequence[Any], batch_size: int) -> list[int]:
        """The likeliest class."""
        return model(self.collate(examples, False)["features"]).argmax(1).tolist()

    def score(self, examples: Sequence[Any], predictions: Sequence[Any]) -> Scores:
        """How many are right."""
        hits = sum(int(label) == found for (_, label), found in zip(examples, predictions, strict=True))
        return {"accuracy": (float(hits), len(examples))}

    def save_model(self, model: nn.Module, folder: Path) -> None:
        """For the comparison."""
        folder.mkdir(parents=True, exist_ok=True)
        write_weights(folder / "weights.npz", dict(model.named_parameters()))


@dataclass(frozen=True)
class LateFedOpt(FedOpt):
    """FedOpt whose first step is counted as the second: with `bias_correction` the rule of Flower's FedAdam."""

    def server_update(self, server: ServerState, grad: Tensor) -> None:
        """One step later than it is."""
        server.numbers.setdefault(keys.SERVER_STEPS, 1)
        super().server_update(server, grad)


@dataclass(frozen=True)
class ReversedScaffold(Scaffold):
    """SCAFFOLD whose clients add c_i − c to their gradients, as those of pfl do; of no use but for the comparison."""

    def correction(self, job: ClientJob) -> GradientHook | None:
        """The other sign."""
        flipped = replace(job, received={**job.received, "control": self._mirrored(job)})
        return super().correction(flipped)

    def _mirrored(self, job: ClientJob) -> Tensor:
        """What in place of c turns c − c_i into c_i − c."""
        control = job.received["control"]
        return 2 * job.state.tensors.get("control", torch.zeros_like(control)) - control


def cohorts() -> list[list[str]]:
    """Who is drawn in each round, by fedtorch's own sampler."""
    clients = [Client(name, index, {"train": size}) for index, (name, size) in enumerate(SIZES.items())]
    drawn = [cohort(clients, PER_ROUND, Uniform(), seed=0, round=number) for number in range(ROUNDS)]
    return [[client.name for client, _ in one] for one in drawn]


def run(file: Path, folder: Path, method: str) -> Path:
    """Train; the file with the final weights."""
    config = {
        "run": {"name": method, "dir": str(folder / method), "seed": 0},
        "task": {"name": "benchmarks.peer_fedtorch:Rows", "file": str(file)},
        "rounds": ROUNDS,
        "clients": {"per_round": PER_ROUND},
        "client": {
            "optimizer": "sgd", "lr": RATE, "batch_size": BATCH_SIZE, "epochs": EPOCHS, "shuffle": False,
            "schedule": "constant", "max_grad_norm": None,
        },
        "eval": {"every": 0},
        "track": {"tensorboard": False, "progress": "off"},
        **METHODS[method],
    }  # fmt: skip
    with redirect_stdout(io.StringIO()):  # its table is of no interest here
        result = fedtorch.run(config, resume="never")
    (weights,) = result.paths.model.rglob("weights.npz")
    return weights
