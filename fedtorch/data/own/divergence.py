"""How far clients' label distributions are from that of all rows together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping


def label_divergence(counts: Mapping[str, Mapping[int | str, int]]) -> dict[str, float]:
    """Jensen–Shannon divergence of each client's label distribution to the pooled one, in bits.

    JS(p, q) = ½ KL(p ‖ m) + ½ KL(q ‖ m), m = ½ (p + q), with logarithms to base 2: 0 where a client's labels are
    distributed as all are, below 1 always. It is the divergence, not its square root, the distance.

    counts: client -> label -> rows. A client without rows has no distribution and is left out of the result.
    """
    pooled: Counter[int | str] = Counter()
    for own in counts.values():
        pooled.update(own)
    total = sum(pooled.values())
    result = {}
    for client, own in counts.items():
        if size := sum(own.values()):
            shares = [(own.get(label, 0) / size, rows / total) for label, rows in pooled.items() if rows]
            result[client] = max(0.0, 0.5 * math.fsum(_part(p, q) + _part(q, p) for p, q in shares))
    return result


def _part(share: float, other: float) -> float:
    return share * math.log2(2 * share / (share + other)) if share else 0.0
