"""What a run promised to clients, in words: for cards, tables and pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOTHING = "none: no differential privacy, no secure aggregation"


def promise(said: Mapping[str, Any]) -> str:
    """One sentence. said: `privacy` of results.json; empty where nothing was promised."""
    if not said:
        return NOTHING
    kind = f"{said['noise']} " if said.get("noise", "normal") != "normal" else ""
    noise = f"{kind}noise multiplier {said['noise_multiplier']:.6g}, clip {said['clip']}"
    how = f"{said['sampling']}, {noise}"
    outside = f"Outside the guarantee: {'; '.join(said['outside'])}"
    if said["simulated"]:
        return f"simulated: nothing is promised, as everybody can compute the noise ({how}). {outside}"
    return (
        f"client-level differential privacy, epsilon {said['epsilon']:.4f} at delta {said['delta']:g} "
        f"({said['relation']}; {how}; {said['accountant']}), against everybody who sees the model and the records, not "
        f"against the server. {outside}"
    )
