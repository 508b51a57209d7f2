"""Algorithms whose clients send compressed messages in place of vectors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedtorch.algorithms.base import Algorithm
from fedtorch.compression.payload import Sparse
from fedtorch.compression.slices import Selection
from fedtorch.core.errors import ConfigError
from fedtorch.core.server import ServerState
from fedtorch.core.weights import Layout


@dataclass(frozen=True)
class MessageAlgorithm(Algorithm):
    """A client's `job.send(MESSAGE, ...)` is a uint8 vector of fixed length, and every rank takes the server's step.

    1. `client_update` sends a message, and reports `norm` and `max_abs` of the vector that it stands for.
    2. The messages go to the server, or to every rank (`combines_everywhere`), where `decode` and the weights of
       `weigh` make their sum; `aggregate` is not asked. Or every rank sums a slice of them (`combines_in_slices`).
    3. `choose` makes the step along the sum, a message again; where the server alone has it, it is sent to all. Of
       slices, `selection` says what the ranks keep, and all get it.
    4. Every rank decodes the step and calls `server_update`, so each has a replica of the server's weights and
       optimiser, and weights travel only at the start, after a resume and when the best model is evaluated at the end.
    """

    def message_bytes(self, layout: Layout) -> int:
        """Length of every message; 0 where the settings ask for dense vectors, as if it were a plain Algorithm."""
        raise NotImplementedError

    def decode(self, message: Tensor, layout: Layout) -> Sparse | Tensor:
        """The vector that a message stands for."""
        raise NotImplementedError

    def choose(self, server: ServerState, mean: Tensor) -> Tensor:
        """The step along the weighted sum of the clients' vectors, as a message of the same length; may keep things."""
        raise NotImplementedError

    @property
    def combines_everywhere(self) -> bool:
        """Does every rank get all messages, or only the server, which then sends its choice to all?"""
        return False

    @property
    def combines_in_slices(self) -> bool:
        """Does every rank sum a slice of the messages? `decode` is then Sparse, and `choose` is not asked."""
        return False

    def selection(self, layout: Layout) -> Selection | None:
        """Where sums are in slices: what is kept of a sum; None: all of it."""
        return None

    def choice_seed(self, server: ServerState) -> int:
        """Where sums are in slices: what the roundings of the selection depend on beside the places, before a step."""
        return 0

    @property
    def keeps_left_out(self) -> bool:
        """Is what the second selection leaves out added to the next sum? As LEFT_OUT, which is in `kept_by_server`."""
        return False

    @property
    def choice_varies(self) -> bool:
        """Is what `choose` returns of another length than a client's message?"""
        return False

    @property
    def replicas_compared_every(self) -> int:
        """Rounds between comparisons of the ranks' replicas of the server's state."""
        return 50

    @property
    def kept_by_server(self) -> tuple[str, ...]:
        """Tensors of the server's state that only the server has a use for, so that no replica keeps them."""
        return ()


def message_bytes(algorithm: Algorithm, layout: Layout) -> int:
    """Length of a client's message; 0: its clients send vectors.

    Raises:
        ConfigError: it says what it sends, but is no MessageAlgorithm.
    """
    if isinstance(algorithm, MessageAlgorithm):
        return algorithm.message_bytes(layout)
    if hasattr(algorithm, "message_bytes"):
        raise ConfigError(
            f"algorithm.name is {type(algorithm).__name__}, which has `message_bytes` but is no MessageAlgorithm; "
            "derive it from fedtorch.algorithms.message.MessageAlgorithm"
        )
    return 0
