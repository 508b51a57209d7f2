"""Channels that an attacker may see of a round: a client's update, the cohort's sum, or that sum clipped and noised."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtorch.audit.subject import Subject
from fedtorch.core.seeds import seed_for


@dataclass(frozen=True)
class Seen:
    """A vector and whose rows are in it."""

    channel: str
    """`update`, `sum`, or `sum, clipped, noised`"""
    whose: str
    """the client, or how many there are"""
    clients: tuple[str, ...]
    """those whose rows are in it"""
    flat: Tensor
    """over the shared layout, fp32"""


def channels(subject: Subject) -> Iterator[Seen]:
    """The updates of the attacked clients one by one; then all of the cohort together.

    The last is what is released under client-level privacy with the clip and noise of the options; the noise hides
    nothing from a server that adds it itself, so updates are looked at without it.
    """
    updates = subject.updates
    for client, flat in subject.attacked.items():
        yield Seen("update", client, (client,), flat)
    if not updates:
        return
    everybody, count = tuple(updates), f"{len(updates)} clients"
    yield Seen("sum", count, everybody, torch.stack([*updates.values()]).sum(0))
    clip, noise = subject.options.clip, subject.options.noise
    if clip is not None:
        total = torch.zeros_like(next(iter(updates.values())))
        for flat in updates.values():
            total += flat * min(1.0, clip / max(float(flat.norm()), 1e-30))
        yield Seen("sum, clipped", count, everybody, total)
        if noise is not None:
            generator = torch.Generator().manual_seed(seed_for(0, "audit/noise"))
            drawn = torch.randn(len(total), generator=generator)
            yield Seen("sum, clipped, noised", count, everybody, total + clip * noise * drawn)
