"""The numbers by which a launcher tells a rank who it is."""

from __future__ import annotations

from collections.abc import Mapping

from fedtorch.core.errors import PreflightError

_NUMBERS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
)


def check_job_environment(environ: Mapping[str, str]) -> tuple[int, int]:
    """(this rank, number of ranks), 0 and 1 where nothing is said; whoever reads one of the others may trust it.

    Raises:
        PreflightError: one is no number, or there cannot be such a rank.
    """
    for name in _NUMBERS:
        text = environ.get(name, "0")
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise PreflightError(
                f"environment variable {name} is {ascii(text)[:40]}, expected a number; start with torchrun or srun, "
                "or unset it"
            )
    rank, num_ranks = int(environ.get("RANK", 0)), int(environ.get("WORLD_SIZE", 1))
    if rank >= num_ranks:
        raise PreflightError(
            f"environment variable RANK is {rank} but WORLD_SIZE is {num_ranks}, expected a rank below it; start with "
            "torchrun or srun, or unset both"
        )
    return rank, num_ranks
