"""Entries that an algorithm keeps in the states of server and clients from one round to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kept:
    """Entries of an algorithm's own in states, which a checkpoint that is resumed must have as they are said here."""

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """name -> shape of its tensors, of the shared layout's dtype. A checkpoint that has another tensor under such a
    name is refused. What is not named here is not looked at"""
    server: tuple[str, ...] = ()
    """tensors and numbers that the server's state always has after a step; a checkpoint that lacks one is refused, so
    that nothing begins at 0 again unnoticed"""
    client: tuple[str, ...] = ()
    """those that a client's state always has after a training"""
    by_clients: bool = False
    """does a client keep anything that a later round needs? Then it trains at its home worker only"""
