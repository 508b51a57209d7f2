"""The row of integers with which every rank enters an operation, and what is wrong where two rows differ.

gloo reads a message of another length or dtype as garbage with exit code 0, or aborts the process (*measured*, torch
2.13). So rows are compared before anything else is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import torch

MAGIC = 0x6665_6474_6F72_6368  # "fedtorch"
DTYPES = (torch.float32, torch.float64, torch.int64, torch.uint8)
COMPARED = ("magic", "operation", "sequence", "round", "length", "dtype", "problem")
WIDTH = len(COMPARED) + 1  # and the number of bytes, which may differ


class Op(IntEnum):
    """Kinds of operations. Their numbers travel; those of an aggregation are explained in `aggregation`."""

    BROADCAST = 1
    """The server's flat vector to all."""
    BROADCAST_MESSAGES = 3
    """The server's messages of numbers to all."""
    REDUCE = 5
    """The weighted sum, in which every rank adds its own updates and a ring reduce adds the ranks' sums."""
    SEND_SUMS = 6
    """The weighted sum, for which every rank that has clients sends the server the sum of their updates."""
    SEND_UPDATES = 7
    """The weighted sum, for which every rank sends the server its updates one by one."""
    SEND_ONE = 8
    """A single update, whole, to the server."""
    DONE = 9
    """End of an aggregation."""
    ABORT = 10
    """End of an aggregation that failed on the server."""
    ALL_GATHER = 11
    """Every rank's updates to all."""
    REFUSED = 12
    """End of an aggregation that is to be decided again, without the clients whose updates were refused."""
    ALL_REDUCE = 13
    """The sum of sparse messages, of which every rank owns a slice; or what it left out is dealt anew."""
    SCATTER_MESSAGES = 14
    """The server's messages of numbers, to each rank its own."""
    MASKED = 15
    """A sum of which the server sees nothing else; every rank but the server may send one masked part (`masked`)."""
    SHARE = 16
    """The server's vectors, to be read by all ranks where they are."""
    EARLY = 17
    """The updates of clients that are done, while others train (`early`)."""
    SUM_SLICES = 18
    """The weighted sum, of which every rank adds up a slice, from all updates where they are (`sum_slices`)."""


class Problem(IntEnum):
    """Why a rank cannot take part in an operation that was requested."""

    NONE = 0
    """It can."""
    MISSING = 1
    """It has no update of the client."""
    MISFIT = 2
    """Its update has another length, dtype or device."""
    UNREADABLE = 3
    """Its update is in a file that cannot be read."""


_PROBLEMS = {
    Problem.MISSING: "does not hold the update of a client it reported",
    Problem.MISFIT: "holds an update of another length or dtype than agreed",
    Problem.UNREADABLE: "cannot read back the update of a client",
}


def problem_of(problem: Problem, client: int) -> int:
    """A problem with a client as one integer."""
    return problem << 32 | client if problem else 0


def first_difference(
    rows: Sequence[Sequence[int]], num_bytes: Sequence[int] | None = None
) -> tuple[int, int, int, int]:
    """(row, place, value, expected) of the first value that is not as expected or is a problem; row −1 if none.

    num_bytes: what every rank has to announce; None: anything.
    """
    for rank, row in enumerate(rows):
        for place, name in enumerate(COMPARED):
            expected = 0 if name == "problem" else rows[0][place]
            if row[place] != expected:
                return rank, place, row[place], expected
        if num_bytes is not None and row[-1] != num_bytes[rank]:
            return rank, len(COMPARED), row[-1], num_bytes[rank]
    return -1, 0, 0, 0


def describe(rank: int, place: int, theirs: int, expected: int, servers: Sequence[int]) -> str:
    """A difference in words. rank: in the job. servers: the server's row."""
    row = dict(zip(COMPARED, servers, strict=False))
    step = f"in {_name('operation', row['operation'])} of round {row['round']} (operation {row['sequence']})"
    if place == len(COMPARED):
        return f"{step} rank {rank} is about to send {theirs} bytes, the server expects {expected}: refused unsent"
    field = COMPARED[place]
    if field == "problem":
        return f"{step} rank {rank} {_PROBLEMS[Problem(theirs >> 32)]}: client index {theirs & 0xFFFFFFFF}"
    return (
        f"{step} rank {rank} has {field} {_name(field, theirs)}, the server has {field} {_name(field, row[field])}: "
        f"the ranks do not run the same steps on the same model"
    )


def _name(field: str, value: int) -> str:
    if field == "operation" and value in list(Op):
        return Op(value).name.lower()
    if field == "dtype" and 0 <= value < len(DTYPES):
        return str(DTYPES[value])
    return str(value)
