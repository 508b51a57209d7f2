"""Where every rank sums a slice of the clients' messages: the sum, and what second selections leave out of it.

What is left out lives with the owners of the slices, each of which adds it to its next sum. Before a checkpoint the
owners give it to the server, so that a checkpoint has one whole vector; before the next sum it is dealt out again, to
however many ranks there are then.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedtorch.comm.sparse.allreduce import LeftOut, Reduced, SparseSum, all_reduce, move
from fedtorch.core.state_keys import LEFT_OUT
from fedtorch.core.update import Report
from fedtorch.rounds.context import RoundContext


def reduce(context: RoundContext, accepted: Sequence[Report]) -> Reduced:
    """Return the part of the accepted clients' sum that is kept, on all ranks, which all call it; changes nothing.

    Raises:
        RefusedUpdatesError: on all ranks, if a message is not what its client reported.
    """
    algorithm, layout = context.message_algorithm, context.components.engine.shared
    rule = SparseSum(
        layout.size,
        layout.dtype,
        lambda message: algorithm.decode(message, layout),
        algorithm.selection(layout),
        message_bytes=context.updates.size,
        keeps=algorithm.keeps_left_out,
        seed=algorithm.choice_seed(context.server),
    )
    weights = algorithm.weigh(accepted) if context.comm.is_server else []
    peers = context.comm.peers(context.updates, round=context.round)
    return all_reduce(peers, accepted, weights, rule, _left_out(context))


def keep(context: RoundContext, left_out: LeftOut) -> None:
    """Take what `reduce` left out, once all ranks have it."""
    context.owners = left_out.members
    context.server.tensors.pop(LEFT_OUT, None)
    if left_out.values is not None:
        context.server.tensors[LEFT_OUT] = left_out.values


def bring_home(context: RoundContext) -> None:
    """Give what is left out to the server, so that its state is complete; all ranks call it."""
    if not context.has_messages or context.owners == LeftOut.members:
        return
    context.members.barrier("checkpoint", may_stop=False)
    size = context.components.engine.shared.size

    def give() -> LeftOut:
        peers = context.comm.peers(context.updates, round=context.round)
        peers.enter([], [])
        return move(peers, _left_out(context), size, LeftOut.members)

    keep(context, context.members.retry_on_loss("residual", give))


def _left_out(context: RoundContext) -> LeftOut:
    return LeftOut(context.owners, context.server.tensors.get(LEFT_OUT))
