"""The small experiment that fedtorch and its peers do alike: rows, first weights and cohorts in a file, a plain client.

Imports numpy and torch alone, since it is imported in the peers' own environments too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

SIZES = {"ada": 40, "bea": 25, "cy": 33, "dot": 17, "eve": 50, "flo": 8}
"""Rows of each client; most do not end with a whole batch."""
ROUNDS, PER_ROUND, EPOCHS, BATCH_SIZE = 6, 4, 2, 8
RATE, MU = 0.1, 0.5
SERVER = {"lr": 0.05, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}
"""Of FedAdam."""
FEATURES, HIDDEN, CLASSES = 12, 16, 4


@dataclass(frozen=True)
class Experiment:
    """What all sides start from."""

    rows: Mapping[str, tuple[Tensor, Tensor]]
    """client -> features (rows, FEATURES) in fp32, classes (rows,)"""
    start: Mapping[str, Tensor]
    """parameter -> first value, fp32"""
    cohorts: Sequence[Sequence[str]]
    """clients of every round, in the order in which they are trained and added"""


def network() -> nn.Module:
    """Two layers with a tanh between them."""
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))


def write(path: Path, cohorts: Sequence[Sequence[str]]) -> None:
    """Draw rows and first weights and write them with the cohorts."""
    draw = np.random.default_rng(0)
    torch.manual_seed(0)
    parts: dict[str, np.ndarray] = {"cohorts": np.array(cohorts)}
    centres = draw.normal(size=(CLASSES, FEATURES))
    for place, (client, size) in enumerate(SIZES.items()):
        shares = draw.dirichlet(np.full(CLASSES, 0.5))  # unlike clients, so that their order and weights matter
        classes = draw.choice(CLASSES, size, p=shares)
        features = centres[classes] + draw.normal(size=(size, FEATURES)) + 0.3 * place
        parts |= {f"features/{client}": features.astype(np.float32), f"classes/{client}": classes.astype(np.int64)}
    parts |= {f"start/{name}": value.detach().numpy() for name, value in network().named_parameters()}
    np.savez(path, **parts)


def read(path: Path) -> Experiment:
    """What `write` has written."""
    with np.load(path) as parts:
        rows = {
            client: (torch.from_numpy(parts[f"features/{client}"]), torch.from_numpy(parts[f"classes/{client}"]))
            for client in SIZES
        }
        start = {name[6:]: torch.from_numpy(parts[name]) for name in parts.files if name.startswith("start/")}
        return Experiment(rows, start, [[str(client) for client in cohort] for cohort in parts["cohorts"]])


def train(module: nn.Module, rows: tuple[Tensor, Tensor], penalty: Callable[[], Tensor] | None = None) -> None:
    """A client's round as a plain loop: SGD over the rows in their order, EPOCHS times."""
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    features, classes = rows
    for _ in range(EPOCHS):
        for start in range(0, len(classes), BATCH_SIZE):
            part = slice(start, start + BATCH_SIZE)
            loss = nn.functional.cross_entropy(module(features[part]), classes[part])
            if penalty is not None:
                loss = loss + penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Final weights, for `read_weights`."""
    np.savez(path, **{name: value.detach().cpu().numpy() for name, value in weights.items()})


def read_weights(path: Path) -> np.ndarray:
    """All weights in one vector, in the order of `network`'s parameters, as float64."""
    with np.load(path) as parts:
        return np.concatenate([parts[name].ravel() for name, _ in network().named_parameters()]).astype(np.float64)
