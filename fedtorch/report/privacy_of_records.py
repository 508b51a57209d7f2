"""Tables of runs with the privacy of rows or persons, a line for each silo, and of what silos have released in all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtorch.core.shown import for_markdown, markdown_row
from fedtorch.privacy.record.held_out import counts_of
from fedtorch.privacy.record.silo import parts_of, read_ledger
from fedtorch.privacy.record.terms import Part, epsilon_of, epsilon_of_counts
from fedtorch.tracking.privacy_statement import against

_LOCAL = "Each silo's epsilon holds by its own noise, whatever the others do."
_SHARED = (
    "Each silo's epsilon holds by the noise of {honest} silos together: sums are opened with {threshold} parts or "
    "more, of which up to {colluders} may be of silos that tell the server theirs (privacy.colluders)."
)
_APART = (
    "Those of several silos are for different units and are not added; a person with rows in several of them has what "
    "the line below the table says."
)


def of_records(folder: Path) -> Mapping[str, Any]:
    """`privacy` of the run's results.json, where that is about rows or persons and not simulated; else nothing."""
    try:
        said = json.loads((folder / "results.json").read_text())["privacy"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    if not isinstance(said, dict) or said.get("kind") != "record" or said.get("simulated"):
        return {}
    return said


def records_markdown(folders: Sequence[Path]) -> str:
    """A table for each run; empty without one."""
    parts = []
    for folder in folders:
        said = of_records(folder)
        lines = [
            f"{for_markdown(str(folder))}: of each {said['unit']}, {against(said)}",
            "",
            markdown_row(["silo", "units, declared", "steps", "q", "z", "delta", "epsilon"]),
            "|---|---:|---:|---:|---:|---:|---:|",
        ]
        for name, silo in said["silos"].items():
            numbers = [f"{silo[key]:g}" for key in ("rate", "noise_multiplier", "delta")]
            lines.append(markdown_row([name, silo["units"], silo["steps"], *numbers, f"{silo['epsilon']:.4f}"]))
        lines += ["", f"{_by(said)} {_APART}", *_of_scores(said["silos"])]
        if len(said["silos"]) > 1:
            every = [part for silo in said["silos"].values() for part in _parts(silo)]
            delta = min(silo["delta"] for silo in said["silos"].values())
            lines.append(f"A person in all of them: epsilon {epsilon_of(every, delta):.4f} at delta {delta:g}.")
        lines.append(f"Outside the guarantee: {'; '.join(said['outside'])}.")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _by(said: Mapping[str, Any]) -> str:
    """Say whose noise a silo's epsilon rests on."""
    if said.get("noise_at") != "shared":
        return _LOCAL
    threshold, colluders = said["threshold"], said["colluders"]
    return _SHARED.format(honest=threshold - colluders, threshold=threshold, colluders=colluders)


def _parts(silo: Mapping[str, Any]) -> list[Part]:
    """All that a silo released in a run: steps, and noised scores, each of all of its units."""
    held_out = silo.get("held_out")
    scores = [(1.0, held_out["noise_multiplier"], sum(held_out["counts"].values()))] if held_out else []
    return [(silo["rate"], silo["noise_multiplier"], silo["steps"]), *scores]


def _of_scores(silos: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each silo with scores of its own held-out units."""
    lines = []
    for name, silo in silos.items():
        if held_out := silo.get("held_out"):
            z, apart = held_out["noise_multiplier"], held_out["apart"]
            counts = ", ".join(f"{count} of {split}" for split, count in held_out["counts"].items()) or "none"
            alone = epsilon_of_counts(z, held_out["counts"], silo["delta"], apart=apart)
            how = "the larger of both is above" if apart else "both together are above"
            lines.append(
                f"{for_markdown(name)}: noised scores {counts}, noise {z:g}, epsilon {alone:.4f} by themselves; {how}."
            )
    return lines


def is_silos(path: Path) -> bool:
    """Is the file the ledger of a silo?"""
    try:
        return json.loads(path.read_bytes().partition(b"\n")[0]) == {"form": 1}
    except (OSError, ValueError):
        return False


def silos_markdown(paths: Sequence[Path]) -> str:
    """A line for each silo's ledger: all that it has released, in whatever run; empty without one.

    Raises:
        CheckpointError: a ledger cannot be read.
    """
    if not paths:
        return ""
    lines = [markdown_row(["silo's ledger", "runs", "steps", "noised scores", "delta", "epsilon"])]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for path in paths:
        trainings = [training for training in read_ledger(path) if not training.is_open]
        parts, delta = parts_of(trainings), min((training.delta for training in trainings), default=1.0)
        runs, scores = len({training.run for training in trainings}), sum(counts_of(trainings).values())
        steps = sum(count for *_, count in parts) - scores
        lines.append(markdown_row([str(path), runs, steps, scores, f"{delta:g}", f"{epsilon_of(parts, delta):.4f}"]))
    return "\n".join(lines) + "\n"
