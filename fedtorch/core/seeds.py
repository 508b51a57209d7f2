"""Every random choice of a run is a function of (run seed, purpose, client, round, ...)."""

from __future__ import annotations

import hashlib

import torch

from fedtorch.core import devices


def seed_for(run_seed: int, purpose: str, *parts: str | int) -> int:
    """A 63-bit seed for one purpose, the same on every rank, machine and Python version.

    Args:
        run_seed: the run's `run.seed`.
        purpose: what is drawn, e.g. `"cohort"`, `"order"`, `"dropout"`.
        parts: what it is drawn for, e.g. the client's name and the round.

    Strings and numbers are told apart (`"1"` and `1` give different seeds), and so are
    `("a", "b")` and `("ab",)`: every part is written with its type and length.
    """
    hasher = hashlib.blake2b(digest_size=8)
    for part in (run_seed, purpose, *parts):
        text = str(part).encode()
        hasher.update(f"{type(part).__name__}:{len(text)}:".encode() + text)
    return int.from_bytes(hasher.digest(), "little") >> 1


def generator_for(run_seed: int, purpose: str, *parts: str | int) -> torch.Generator:
    """A fresh CPU generator seeded with `seed_for`."""
    return torch.Generator().manual_seed(seed_for(run_seed, purpose, *parts))


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed what dropout draws from: the CPU's generator of this process, and that of `device`.

    `torch.manual_seed` gives the same bits, but it also notes the call, with the whole stack as text, for every kind
    of device that was never used (torch 2.13, `_lazy_call` in torch/cuda, xpu and mtia): 0.3 to 1.5 ms, and memory
    for good, at every client that trains (*measured*). New models are on the CPU: theirs is `torch.default_generator`.
    """
    torch.default_generator.manual_seed(seed)
    devices.seed(seed, device)
