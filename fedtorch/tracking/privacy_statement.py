"""States in words what a run promised to clients: for cards, tables and pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOTHING = "none: no differential privacy, no secure aggregation"


def promise(said: Mapping[str, Any]) -> str:
    """One sentence. said: `privacy` of results.json; empty where nothing was promised."""
    if not said:
        return NOTHING
    if said["kind"] == "record":
        return _of_records(said)
    if said["kind"] == "counts":
        return _of_counts(said)
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


def against(said: Mapping[str, Any]) -> str:
    """Say against whom a promise about silos' units holds. said: `noise_at` and `colluders` of results.json.

    A silo knows its own share of a shared noise, so it is one of the colluders or the promise leaves it out.
    """
    everybody = "everybody who sees the model and the records"
    if said.get("noise_at") != "shared":
        return f"against the server, the other silos and {everybody}"
    if not (count := said["colluders"]):
        return f"against the server and {everybody}, but not against a silo, which knows its own share of the noise"
    silos = "1 silo" if count == 1 else f"{count} silos"
    return f"against the server together with {silos}, any {silos} without it, and {everybody}"


def _of_data(said: Mapping[str, Any]) -> str:
    """Sum of all runs on the data: it is this that a client has to know."""
    if (data := said.get("data")) is None:
        return "of its data not known, as no ledger counts other runs on them"
    runs = "1 run" if data["runs"] == 1 else f"{data['runs']} runs"
    return (
        f"epsilon {data['epsilon']:.4f} at delta {data['delta']:g} of its data, on which {runs} had released "
        f"{data['releases']} sums when it ended"
    )


def _of_scores(silo: Mapping[str, Any]) -> str:
    """Scores of a silo's own held-out units, which have noise too."""
    if not (held_out := silo.get("held_out")):
        return ""
    counts = sum(held_out["counts"].values())
    return f", {counts} scores of its held-out units with noise of {held_out['noise_multiplier']:.6g} units"


def _of_records(said: Mapping[str, Any]) -> str:
    """Silo by silo: a unit is protected by its own silo's noise, whatever the others do."""
    outside = f"Outside the guarantee: {'; '.join(said['outside'])}"
    noise = "noise of each silo's own in every step"
    if said.get("noise_at") == "shared":
        noise = (
            f"shares of the noise on a round's sum, which nobody sees in parts; it is opened with {said['threshold']} "
            "parts or more"
        )
    how = f"{said['relation']}; Poisson batches, {noise}, clip {said['clip']}"
    if said["simulated"]:
        return f"simulated: nothing is promised, as everybody can compute the noise ({how}). {outside}"
    silos = "; ".join(
        f"{name}: epsilon {each['epsilon']:.4f} at delta {each['delta']:g} ({each['steps']} steps, rate "
        f"{each['rate']:.6g}, noise multiplier {each['noise_multiplier']:.6g}{_of_scores(each)})"
        for name, each in said["silos"].items()
    )
    return (
        f"differential privacy of each {said['unit']}, by silo: {silos} ({how}; {said['accountant']}), "
        f"{against(said)}. {outside}"
    )


def _of_counts(said: Mapping[str, Any]) -> str:
    """Say what a run promised that counted rows: one promise for all its tables."""
    noise = "noise of each silo's own on every number"
    if said["noise_at"] == "shared":
        noise = f"shares of the noise on every sum, of which {said['honest']} are enough"
    return (
        f"differential privacy of each {said['unit']}, epsilon {said['epsilon']:.4f} at delta {said['delta']:g} of all "
        f"{said['tables']} tables together ({said['relation']}; {noise}, noise multiplier "
        f"{said['noise_multiplier']:.6g}; {said['accountant']}), against everybody who sees the numbers; the silos' "
        "ledgers add what trainings release of the same rows"
    )
