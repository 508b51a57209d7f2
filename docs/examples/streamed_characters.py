"""Fragments in turn, sent late and mixed: the small model of characters by streaming DiLoCo, beside DiLoCo.

python docs/examples/streamed_characters.py LICENSE [SEED]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from characters import config, losses

FRAGMENTS = [["embedding.*", "hidden.*"], ["output.*"]]
H = 10


def table(file: str, seed: int = 0) -> Iterator[str]:
    """A row per delay and mixing; each of the two fragments is exchanged every ten steps."""
    test, train = losses(config(file, H), {"run.seed": seed})
    yield f"DiLoCo, all at once: {test:.4f} / {train:.4f}\n"
    yield "| delay | mixing 0 | mixing 0.5 | mixing 0, in 4 bits |"
    yield "|---|---|---|---|"
    for delay in (0, 1, 4):
        cells = []
        for mixing, bits in ((0.0, 32), (0.5, 32), (0.0, 4)):
            rule = {"name": "streaming_diloco", "fragments": FRAGMENTS, "delay": delay, "mixing": mixing}
            settings = {"algorithm": rule, "run.seed": seed, "exchange.bits": bits}
            test, train = losses(config(file, H // len(FRAGMENTS)), settings)
            cells.append(f"{test:.4f} / {train:.4f}")
        yield f"| {delay} | {' | '.join(cells)} |"


if __name__ == "__main__":
    for line in table(sys.argv[1], *map(int, sys.argv[2:])):
        print(line, flush=True)
