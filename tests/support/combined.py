"""A round's updates combined by a function, on all ranks alike."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from fedtorch.comm.base import Communicator
from fedtorch.core.update import Report, UpdateBuffer


def combined(
    comm: Communicator,
    local: UpdateBuffer,
    accepted: Sequence[Report],
    how: Callable[[Any], Tensor],
    *,
    round: int,
) -> Any:
    """Return what `how` makes of the accepted updates, on the server; elsewhere None."""
    with comm.open_updates(local, accepted, round=round) as updates:
        return None if updates is None else how(updates)
