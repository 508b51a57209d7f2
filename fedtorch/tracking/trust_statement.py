"""A sentence on what parties with keys of their own have checked of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def checked(said: Mapping[str, Any]) -> str:
    """One sentence. said: `trust` of results.json; empty where nothing was checked."""
    if not said:
        return ""
    silos, verify = ", ".join(said["silos"]), said["verify"]
    share = "all leaves" if verify == "all" else f"{100 * float(verify):g} % of the leaves, drawn by the silos"
    rounds = f"{said['rounds']} round{'s' * (said['rounds'] != 1)}"
    what = f"sum and step of {rounds} by the silos {silos} ({share})"
    if not said.get("has_sums", True):
        what = f"not sum and step, which are behind the server's own noise; records of {rounds} by the silos {silos}"
    return f"{what}, federation {said['federation']}, server {said['server']}; last record {said['record'][:16]}"
