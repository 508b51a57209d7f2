"""A federation's rounds written down, for all systems to take the same: rows, first weights, who, which batches.

Imports numpy, torch and transformers alone, since it is imported in the peers' own environments too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.token_models import Family, loss_of, model_of

ROUND_ENDED = "round ended"
"""What a system prints, alone on a line, when the weights of a round are the server's."""


@dataclass(frozen=True)
class Spec:
    """What is trained, and how."""

    family: Family
    vocabulary: int
    width: int
    layers: int
    heads: int
    length: int
    optimizer: str
    """`adamw` or `sgd`"""
    lr: float
    decays: bool
    """linearly to 0 within a client's round"""


@dataclass(frozen=True)
class Turn:
    """A client's part in a round."""

    client: str
    seed: int
    """of dropout"""
    batches: Sequence[Sequence[int]]
    """rows of each step"""


@dataclass(frozen=True)
class Plan:
    """All that happens. Nothing is drawn by a system itself."""

    spec: Spec
    rows: Mapping[str, Tensor]
    """client -> tokens, shape (examples, length)"""
    start: Mapping[str, Tensor]
    """parameter -> first value, fp32, in the order of the model's parameters"""
    rounds: Sequence[Sequence[Turn]]

    def write(self, path: Path) -> None:
        """As one file of arrays."""
        rounds = [[asdict(turn) for turn in turns] for turns in self.rounds]
        parts: dict[str, Any] = {"json": np.array(json.dumps({"spec": asdict(self.spec), "rounds": rounds}))}
        parts |= {f"rows/{client}": rows.numpy() for client, rows in self.rows.items()}
        parts |= {f"start/{name}": value.numpy() for name, value in self.start.items()}
        np.savez(path, **parts)

    @staticmethod
    def read(path: Path) -> Plan:
        """What `write` has written."""
        with np.load(path) as parts:
            told = json.loads(str(parts["json"]))
            rows = {name[5:]: torch.from_numpy(parts[name]) for name in parts.files if name.startswith("rows/")}
            start = {name[6:]: torch.from_numpy(parts[name]) for name in parts.files if name.startswith("start/")}
        rounds = [[Turn(**turn) for turn in turns] for turns in told["rounds"]]
        return Plan(Spec(**told["spec"]), rows, start, rounds)

    @cached_property
    def _names(self) -> list[str]:
        return list(self.start)

    def model(self) -> nn.Module:
        """In training mode, with the first weights."""
        spec = self.spec
        model = model_of(spec.family, spec.vocabulary, spec.width, spec.layers, spec.heads, spec.length)
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, value in self.start.items():
                parameters[name].copy_(value)
        return model.train()

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Mean over the batch."""
        summed, count = loss_of(self.spec.family, model, batch)
        return summed / count

    def optimizer(self, parameters: Any, steps: int) -> torch.optim.Optimizer:
        """A client's, new; with `decays` its rate falls by itself."""
        base: Any = torch.optim.AdamW if self.spec.optimizer == "adamw" else torch.optim.SGD
        options = {"weight_decay": 0.0, "fused": True} if self.spec.optimizer == "adamw" else {}
        made = base(parameters, lr=self.spec.lr, **options)
        if self.spec.decays:
            schedule = torch.optim.lr_scheduler.LambdaLR(made, lambda step: max(0.0, (steps - step) / max(1, steps)))
            made.register_step_post_hook(lambda *_: schedule.step())
        return made

    def batches(self, turn: Turn) -> Iterator[Tensor]:
        """Rows of tokens of each step."""
        for batch in turn.batches:
            yield self.rows[turn.client][list(batch)]

    def train(self, model: nn.Module, turn: Turn) -> None:
        """A client's round as a plain loop, from the weights that the model has."""
        optimizer = self.optimizer(model.parameters(), len(turn.batches))
        torch.manual_seed(turn.seed)
        for batch in self.batches(turn):
            self.loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def tell_round() -> None:
    """The round is over: the one who measures reads this."""
    os.write(1, f"{ROUND_ENDED}\n".encode())


def write_final(path: Path, weights: Sequence[Any]) -> None:
    """The weights after the last round, in the order of the model's parameters, as one fp32 vector."""
    np.save(path, np.concatenate([np.asarray(value, dtype=np.float32).ravel() for value in weights]))
