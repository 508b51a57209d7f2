"""DiLoCo whose updates travel in 16 or 4 bits: the small model of characters, rounds of ten steps and of fifty.

python docs/examples/fewer_bits_characters.py LICENSE [SEED]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from characters import STEPS, config, losses

HALF: dict[str, Any] = {"exchange.bits": 16}
CHANCE: dict[str, Any] = {"exchange.bits": 4}
POWERS = {**CHANCE, "exchange.rounding": "e3m0"}
FEEDBACK = {**CHANCE, "exchange.error_feedback": True}
KINDS: list[dict[str, Any]] = [{}, HALF, CHANCE, FEEDBACK, POWERS]


def table(file: str, seed: int = 0) -> Iterator[str]:
    """A row per length of rounds."""
    yield "| steps a round (rounds) | 32 bits | 16 | 4, by chance | the same, error feedback | 4, powers of two |"
    yield "|---|---|---|---|---|---|"
    for steps in (10, 50):
        found = [losses(config(file, steps), {**changes, "run.seed": seed}) for changes in KINDS]
        cells = " | ".join(f"{test:.4f} / {train:.4f}" for test, train in found)
        yield f"| {steps} ({STEPS // steps}) | {cells} |"


if __name__ == "__main__":
    for line in table(sys.argv[1], *map(int, sys.argv[2:])):
        print(line, flush=True)
