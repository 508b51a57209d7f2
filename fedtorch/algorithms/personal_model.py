"""Rules whose clients keep a model of their own, and are evaluated with it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from fedtorch.algorithms.fedavg import FedAvg
from fedtorch.algorithms.kept import Kept
from fedtorch.algorithms.limits import Limits
from fedtorch.core.client import ClientState
from fedtorch.core.state_keys import PERSONAL
from fedtorch.core.weights import Layout


@dataclass(frozen=True)
class PersonalModel(FedAvg):
    """FedAvg beside which every client has a model, `PERSONAL` in its state; a rule derived from it trains that."""

    @property
    def limits(self) -> Limits:
        """A client's own model begins with the initial weights."""
        return replace(super().limits, reads_initial=True)

    def kept(self, layout: Layout, private: Layout) -> Kept:
        """The client's own model."""
        return replace(super().kept(layout, private), client=(PERSONAL,), by_clients=True)

    def eval_weights(self, received: Tensor, state: ClientState) -> Tensor:
        """The client's own model; the received one before it has trained any."""
        return state.tensors.get(PERSONAL, received)
