"""What several workers (`--workers`) may run beside each other: units, each of which is run in order by one worker."""

from __future__ import annotations

# By file: SLURM is there once; a clock that is watched by two tests at once on two cores is watched badly.
# DeepSpeed's first step in a process imports for seconds; parsing all files of the package takes seconds too.
TOGETHER = {
    "tests/comm/test_rendezvous": "clocks",
    "tests/faults/test_combining": "clocks",
    "tests/faults/test_hang": "clocks",
    "tests/faults/test_signals": "clocks",
    "tests/launchers/test_real_slurm": "slurm",
    "tests/safety/test_source": "source",
    "tests/test_package": "source",
    "tests/test_rules": "source",
    "tests/train/test_deepspeed_": "deepspeed",
}

FIRST = ("deepspeed",)
"""The units that take longest."""


def unit_of(nodeid: str) -> str:
    """The unit of a test: its file, unless that stands in TOGETHER."""
    path = nodeid.partition("::")[0]
    return next((unit for start, unit in TOGETHER.items() if path.startswith(start)), path)
