"""Muon in place of AdamW inside DiLoCo's rounds: the small model of characters, rounds of ten steps.

python docs/examples/muon_characters.py LICENSE [SEED]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from characters import config, losses

MUON = {"client.optimizer": "muon", "client.muon_for": ["hidden.weight"]}


def table(file: str, seed: int = 0) -> Iterator[str]:
    """A row per learning rate."""
    yield "| lr | AdamW | Muon for the hidden layer |"
    yield "|---|---|---|"
    for lr in (3e-3, 1e-2, 3e-2):
        found = [losses(config(file, 10), {**kind, "client.lr": lr, "run.seed": seed}) for kind in ({}, MUON)]
        yield f"| {lr:g} | {' | '.join(f'{test:.4f} / {train:.4f}' for test, train in found)} |"


if __name__ == "__main__":
    for line in table(sys.argv[1], *map(int, sys.argv[2:])):
        print(line, flush=True)
