"""The weights that a client shares with nobody."""

from __future__ import annotations

from torch import Tensor

from fedtorch.core.client import ClientState
from fedtorch.core.seeds import seed_for
from fedtorch.core.state_keys import PRIVATE
from fedtorch.rounds.components import RunComponents


def private_weights(components: RunComponents, client: str, state: ClientState) -> Tensor | None:
    """The client's private weights, flat; before its first round its own draw of them. None if there are none."""
    layout = components.engine.private
    if not layout.size:
        return None
    if PRIVATE in state.tensors:
        return state.tensors[PRIVATE]
    seed = seed_for(components.config.run.seed, "private", client)
    drawn = components.task.draw_private(components.engine.module, seed)
    initial = components.engine.initial_private.clone()
    for name, view in layout.view(initial).items():
        if name in drawn:
            view.copy_(drawn[name])
    return initial
