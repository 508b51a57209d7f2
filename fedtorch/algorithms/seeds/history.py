"""FedKSeed-Pro: how large the numbers of each seed have been, and how likely that makes it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedtorch.algorithms.seeds.draws import Candidates
from fedtorch.core.server import ServerState

MAGNITUDES, TIMES = "pro/magnitudes", "pro/times"
"""Entries of the server's state: Σ |ĝ| by seed, and how often it was drawn; float64."""
CLIP = 1000.0
"""What a single |ĝ| counts at most, as in the authors' code."""


def add(server: ServerState, measured: Tensor, draws: Sequence[tuple[Candidates, float]]) -> None:
    """Add a round's measurements to the history. Changes `server.tensors`.

    measured: Σ p_i m_i / a_i, where m_i is Σ |ĝ| by seed of client i and p_i = a_i / Σ a: times Σ a it is Σ m_i.
    draws: (which seeds, a_i) of each client in the sum; a step that was left out counts as 0.
    """
    size = measured.numel()
    empty = torch.zeros(size, dtype=torch.float64)
    sums, times = (server.tensors.get(name, empty) for name in (MAGNITUDES, TIMES))
    total = math.fsum(weight for _, weight in draws)
    counts = [torch.bincount(torch.from_numpy(own), minlength=size) for own, weight in draws if weight]
    server.tensors[MAGNITUDES] = sums + measured.double() * total
    server.tensors[TIMES] = times + sum(counts, torch.zeros(size, dtype=torch.int64)).double()


def chances(server: ServerState) -> Tensor:
    """Softmax of (c − min c) / (max c − min c), c the mean of all measurements and an initial 0; float64.

    So no seed is more than e times as likely as another. All are equal where all c are.
    """
    means = server.tensors[MAGNITUDES] / (server.tensors[TIMES] + 1)
    least, most = means.min(), means.max()
    spread = (means - least) / (most - least) if most > least else torch.zeros_like(means)
    exponents = torch.tensor([math.exp(value) for value in spread.tolist()], dtype=torch.float64)
    return exponents / exponents.sum()
