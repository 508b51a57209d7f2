"""How the server's step is taken; `checked_steps` has the other way, in which silos take it too and compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedtorch.core.client import Client
from fedtorch.core.errors import FedtorchError
from fedtorch.core.update import Report
from fedtorch.core.weights import sharing_memory
from fedtorch.rounds.aggregation import Decision
from fedtorch.rounds.context import RoundContext


class Steps:
    """The server steps, and what it comes to is broadcast. All ranks call the methods at the same places."""

    def __init__(self, context: RoundContext) -> None:
        self.context = context

    def begin(self, *, resumed: bool) -> None:
        """Before the first round. resumed: does the run go on from a checkpoint?"""

    def oath(self) -> str:
        """Say what parties with keys of their own swear to before updates leave; empty where there are no such parties.

        It is the digest of the weights from which clients have trained.
        """
        found = self.context.vectors.sent_root if self.context.comm.swears else ""
        if self.context.comm.witness is not None:
            self.context.comm.witness.weights = found
        return found

    def sworn(self, reports: Sequence[Report], cohort: Sequence[tuple[Client, int]]) -> None:
        """All have sworn, and updates are about to leave. reports: on the server all, elsewhere this rank's own."""

    def take(self, decision: Decision, grad: Tensor | None) -> None:
        """Step along what the accepted updates came to. grad: on the server, None: there is no step."""
        context = self.context
        if grad is not None:
            context.algorithm.server_update(context.server, grad)
            if context.algorithm.limits.is_sum and (lent := sharing_memory(context.server.tensors, [grad])):
                raise FedtorchError(
                    f"{type(context.algorithm).__name__}.server_update keeps `{lent[0]}` in the memory of `grad`, "
                    "which the next round overwrites; keep a clone"
                )
        context.vectors.stepped()

    def summary(self) -> dict[str, Any]:
        """Make what results.json says under `trust`; nothing where nobody checks anything."""
        return {}

    def end(self) -> None:
        """After the last round."""
