"""Muon (Jordan et al. 2024) for matrices, with AdamW for everything else, as one optimiser."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from fedtorch.train.settings import ClientConfig

Groups = list[dict[str, Any]]
MUON = "of_muon"
"""Key of a group of parameters that Muon steps."""


class MuonAndAdamW(torch.optim.Optimizer):
    """torch's two, over parameters that are one or the other's; groups and state are those of both.

    Muon's step is scaled by 0.2 √max(rows, columns), so that its root mean square is about AdamW's and both may have
    one rate (`match_rms_adamw` of torch).
    """

    def __init__(self, groups: Groups, hp: ClientConfig) -> None:
        """groups: those with the key `MUON` hold matrices alone."""
        matrices = [{k: v for k, v in group.items() if k != MUON} for group in groups if MUON in group]
        rest = [group for group in groups if MUON not in group]
        decay = hp.weight_decay
        parts: list[torch.optim.Optimizer] = []
        if rest:
            betas, eps = hp.betas, hp.eps
            parts.append(torch.optim.AdamW(rest, lr=hp.lr, betas=betas, eps=eps, weight_decay=decay, fused=True))
        if matrices:
            scale = "match_rms_adamw"
            momentum = hp.muon_momentum
            parts.append(
                torch.optim.Muon(matrices, lr=hp.lr, weight_decay=decay, momentum=momentum, adjust_lr_fn=scale)
            )
        super().__init__([{"params": group["params"]} for part in parts for group in part.param_groups], {})
        self._parts = parts
        self.param_groups = [group for part in parts for group in part.param_groups]
        self.state = defaultdict(dict)
        for part in parts:
            part.state = self.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """A step of each. closure: not used."""
        for part in self._parts:
            part.step()
