"""States in words what a run promised to clients: for cards, tables and pages."""

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
        f"client-level differential privacy, epsilon {said['epsilon']:.4f} at delta {said['delta']:g} of this run "
        f"({said['relation']}; {how}; {said['accountant']}), {_of_data(said)}, against everybody who sees the model "
        f"and the records, not against the server. {outside}"
    )


def _of_data(said: Mapping[str, Any]) -> str:
    """Sum of all runs on the data: it is this that a client has to know."""
    if (data := said.get("data")) is None:
        return "of its data not known, as no ledger counts other runs on them"
    runs = "1 run" if data["runs"] == 1 else f"{data['runs']} runs"
    return (
        f"epsilon {data['epsilon']:.4f} at delta {data['delta']:g} of its data, on which {runs} had released "
        f"{data['releases']} sums when it ended"
    )
