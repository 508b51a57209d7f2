"""Rounds of a run with privacy in which every client is a canary: its draw, clip, sum, noise and step, no text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.local import LocalCommunicator
from fedtorch.config.registry import named_class
from fedtorch.config.schema import (
    CheckpointConfig,
    ClientConfig,
    ClientsConfig,
    Config,
    EvalConfig,
    RunConfig,
    SystemConfig,
)
from fedtorch.core.seeds import seed_for
from fedtorch.privacy.settings import PrivacyConfig
from fedtorch.rounds.runner import Runner
from fedtorch.setup.build import build
from fedtorch.tasks.base import Scores, Task

EMPTY = 1000
"""Directions in which no canary ever is: more numbers whose noise is looked at."""
TOO_LONG = 4.0
"""Canaries send so many times the clip, so that one which is not clipped is seen."""


class Directions(nn.Module):
    """One number for each direction."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(count))


@dataclass(frozen=True)
class CanaryTask(Task):
    """Each client is a canary in a direction of its own, or sends 0: it is left out."""

    main_metric: ClassVar[str] = "none"

    canaries: int = 100
    """how many clients there are"""
    seed: int = 0
    """of the coins"""
    length: float = 1.0
    """of what a canary sends"""

    @property
    def is_in(self) -> Tensor:
        """A fair coin for each, shape (canaries,), bool."""
        generator = torch.Generator().manual_seed(seed_for(self.seed, "canaries"))
        return torch.randint(2, (self.canaries,), generator=generator).bool()

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        """A row for each."""
        return {f"canary_{place}": {"train": 1} for place in range(self.canaries)}

    def load(self, client: str, split: str) -> Sequence[Any]:
        """Its direction, and how far it goes there."""
        place = int(client.removeprefix("canary_"))
        return [(place, self.length * float(self.is_in[place]))]

    def build_model(self, seed: int) -> nn.Module:
        """Zeros."""
        return Directions(self.canaries + EMPTY)

    def collate(self, examples: Sequence[Any], train: bool) -> Any:
        """The row itself."""
        return examples

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        """Linear, so that a step of SGD with rate 1 is the canary."""
        ((place, length),) = batch
        return model.get_parameter("w")[place] * length, 1

    def predict(self, model: nn.Module, examples: Sequence[Any], batch_size: int) -> list[float]:
        """Nothing is evaluated."""
        return [0.0 for _ in examples]

    def score(self, examples: Sequence[Any], predictions: Sequence[float]) -> Scores:
        """Nothing is evaluated."""
        return {"none": (0.0, len(examples))}


class _Watched(Runner):
    """A runner that keeps what each round released; every other round's noise is drawn ahead, as beside other ranks."""

    released: list[Tensor]

    def _one_round(self) -> None:
        before = self.context.server.weights.clone()
        if self.context.round % 2:
            self.context.mechanism.expect(self.context.round, len(before))
        super()._one_round()
        self.released.append((before - self.context.server.weights).double())


def canary_rounds(
    *,
    canaries: int,
    rounds: int,
    rate: float,
    clip: float,
    noise_multiplier: float,
    noise: Literal["normal", "discrete"] = "normal",
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """(what was released along each direction in units of the clip, who was in); see `canaries.judged`.

    seed: of the simulated key and of the coins. Nothing but a temporary folder is written.
    """
    promise = PrivacyConfig(
        "client", clip=clip, noise_multiplier=noise_multiplier, noise=noise, delta=1e-9, simulate=True, seed=seed
    )
    task = CanaryTask(canaries, seed, TOO_LONG * clip)
    with TemporaryDirectory() as folder:
        config = Config(
            task=task,
            algorithm=named_class("algorithm", "fedavg", "")(weights="equal"),
            run=RunConfig(name="canaries", dir=folder, export="none"),
            rounds=rounds,
            client=ClientConfig(optimizer="sgd", lr=1.0, batch_size=1),
            clients=ClientsConfig(sampling="poisson", rate=rate),
            privacy=promise,
            eval=EvalConfig(every=0),
            checkpoint=CheckpointConfig(every=rounds),
            system=SystemConfig(device="cpu"),
        )
        built = build(config, num_ranks=1, rank=0)
        checkpoints = Checkpoints(config.folder / "checkpoints", keep=1)
        runner = _Watched(built.components(LocalCommunicator(built.names), checkpoints, stop=lambda: False))
        runner.released = []
        runner.run()
    return torch.stack(runner.released) * (rate * canaries / clip), task.is_in
