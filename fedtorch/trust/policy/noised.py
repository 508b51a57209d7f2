"""Which numbers of a part have noise, and which are none that noise has to hide."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from fedtorch.privacy.record.silo import Block


def leaves_nothing_bare(
    total: npt.NDArray[np.float64], noised: Collection[Block], public: Collection[Block], one: float
) -> bool:
    """Is every number that gets no noise 0, or, among the public ones, 0 or `one`?

    total: whole numbers. noised, public: blocks of it, of which no two overlap.
    """
    at = 0
    for start, stop, _ in sorted((*noised, *public, (len(total), len(total), 0.0))):
        if start < at or stop > len(total) or np.any(total[at:start]):
            return False
        at = stop
    return all(number in (0.0, one) for start, stop, _ in public for number in total[start:stop].tolist())


def shown_deviations(deviations: Collection[float]) -> str:
    """One number, or the least and the largest, for people."""
    least, most = f"{min(deviations):.4g}", f"{max(deviations):.4g}"
    return least if least == most else f"{least} to {most}"
