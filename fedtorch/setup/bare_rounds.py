"""Rounds without data of anybody: clients of one row each, a model of a few numbers, nothing evaluated or exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.config.schema import (
    CheckpointConfig,
    ClientConfig,
    ClientsConfig,
    Config,
    EvalConfig,
    RunConfig,
    SystemConfig,
)
from fedtorch.tasks.base import Scores, Task


@dataclass(frozen=True)
class BareTask(Task):
    """Clients of one row each, of which nothing is evaluated. A task derived from it has rows, model and loss."""

    main_metric: ClassVar[str] = "none"

    clients: int = 1
    """How many there are."""

    def manifest(self) -> Mapping[str, Mapping[str, int]]:
        """`c0`, `c1`, ..."""
        return {f"c{place}": {"train": 1} for place in range(self.clients)}

    def predict(self, model: Any, examples: Sequence[Any], batch_size: int) -> list[float]:
        """Nothing is evaluated."""
        return [0.0 for _ in examples]

    def score(self, examples: Sequence[Any], predictions: Sequence[float]) -> Scores:
        """Nothing is evaluated."""
        return {"none": (0.0, len(examples))}


def bare_config(
    task: BareTask,
    folder: Path,
    rounds: int,
    *,
    lr: float,
    weights: Literal["equal", "declared"] = "equal",
    **changes: Any,
) -> Config:
    """Config of a run in which clients take one step of SGD, and the server averages them; changes: of other sections.

    It writes one checkpoint, at its end. weights: of clients in the average.
    """
    usual = Config(
        run=RunConfig(name="bare", dir=str(folder), export="none"),
        rounds=rounds,
        task=task,
        algorithm=FedAvg(weights=weights),
        client=ClientConfig(optimizer="sgd", lr=lr, batch_size=1),
        clients=ClientsConfig(per_round="all"),
        eval=EvalConfig(every=0),
        checkpoint=CheckpointConfig(every=rounds),
        system=SystemConfig(device="cpu", server_works=False),
    )
    return replace(usual, **changes)
