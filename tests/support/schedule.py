"""What several workers (`-n`) may run beside each other: units, each of which is run in order by one worker."""

from __future__ import annotations

# By file: SLURM and GPUs are there once; a clock that is watched by two tests at once on two cores is watched badly.
TOGETHER = {
    "tests/gpu/": "gpus",
    "tests/launchers/test_real_slurm": "slurm",
}


def unit_of(nodeid: str) -> str:
    """The unit of a test: its file, unless that stands in TOGETHER."""
    path = nodeid.partition("::")[0]
    return next((unit for start, unit in TOGETHER.items() if path.startswith(start)), path)
