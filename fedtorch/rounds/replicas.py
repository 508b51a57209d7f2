"""Where clients send messages, every rank keeps the server's weights and optimiser and takes the same step.

Nothing dense travels after the first broadcast. Replicas are equal because every rank computes the same from the same
messages; `compare` makes sure of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedtorch.comm.sparse.allreduce import Reduced
from fedtorch.comm.sparse.messages import Decode, Received, read_messages, sum_of_received
from fedtorch.comm.wire import Packet, as_numbers
from fedtorch.core.errors import FedtorchError
from fedtorch.core.state_keys import BEST, SERVER_STEPS
from fedtorch.core.update import Report
from fedtorch.core.weights import digest_of
from fedtorch.rounds.context import RoundContext
from fedtorch.rounds.slices import keep


def collect(context: RoundContext, accepted: Sequence[Report]) -> list[Received]:
    """The accepted clients' messages, on the ranks that combine them; elsewhere []. All ranks call it.

    Raises:
        RefusedUpdatesError: on all ranks, if a message is not what its client reported.
    """
    if context.message_algorithm.combines_everywhere:
        names = [report.client for report in accepted]
        messages = context.comm.all_gather_updates(context.updates, names, round=context.round)
        return read_messages(accepted, messages, _decoder(context))  # the same bytes everywhere: the same verdict
    received: list[Received] = []
    with context.comm.open_updates(context.updates, accepted, round=context.round) as updates:
        if updates is not None:
            messages = [message.clone() for message in updates]  # each is valid until the next one is asked for
            received = read_messages(updates.reports, messages, _decoder(context))
    return received


def _decoder(context: RoundContext) -> Decode:
    algorithm, layout = context.message_algorithm, context.components.engine.shared
    return lambda message: algorithm.decode(message, layout)


def step(
    context: RoundContext, accepted: Sequence[Report], received: Sequence[Received], reduced: Reduced | None
) -> dict[str, float]:
    """Combine the accepted clients' messages and take the server's step, on every rank; returns the weights.

    accepted: on ranks other than the server only the names are set. received: see `collect`. reduced: what ranks kept
    of the sum, where every rank sums a slice. All ranks call it.

    Raises:
        FedtorchError: on all ranks, when their replicas differ.
    """
    algorithm = context.message_algorithm
    weights = algorithm.weigh(accepted)
    if reduced is not None:
        keep(context, reduced.left_out)
        grad = reduced.step
    else:
        grad = _chosen(context, received, weights)
    context.server.accepted, context.server.round = list(accepted), context.round
    algorithm.server_update(context.server, grad)
    is_last = context.round + 1 == context.config.rounds
    if is_last or (context.round + 1) % algorithm.replicas_compared_every == 0:
        compare(context)
    return {report.client: weight for report, weight in zip(accepted, weights, strict=True)}


def _chosen(context: RoundContext, received: Sequence[Received], weights: Sequence[float]) -> Tensor:
    """The step that the server chose, or that every rank chooses; dense, on all of them."""
    algorithm, layout = context.message_algorithm, context.components.engine.shared
    chosen = torch.zeros(context.updates.size, dtype=torch.uint8)
    if algorithm.combines_everywhere or context.comm.is_server:
        chosen = algorithm.choose(
            context.server, sum_of_received(received, weights, _decoder(context), context.vectors.total)
        )
    if not algorithm.combines_everywhere:
        chosen = context.members.retry_on_loss("broadcast", lambda: _sent_to_all(context, chosen))
    taken = algorithm.decode(chosen, layout)
    return taken if isinstance(taken, Tensor) else taken.dense(layout.dtype)


def _sent_to_all(context: RoundContext, chosen: Tensor) -> Tensor:
    """The server's message, on all ranks; its length first, if that is not known."""
    if context.message_algorithm.choice_varies:
        told = [context.message("numbers", numbers={"bytes": len(chosen)})] if context.comm.is_server else []
        (head,) = context.comm.broadcast_packets(told, round=context.round)
        if not context.comm.is_server:
            chosen = torch.zeros(int(head.numbers["bytes"]), dtype=torch.uint8)
    context.comm.broadcast(chosen)
    return chosen


def compare(context: RoundContext) -> None:
    """Check that all ranks have the same weights and optimiser state.

    Raises:
        FedtorchError: on all ranks; the server's names the ones that differ.
    """
    if context.comm.size == 1:
        return
    mine = digest_of(_state(context))
    words = as_numbers(mine)

    differing: list[int] = []

    def answer(gathered: list[Packet]) -> list[Packet]:
        differing.extend(place for place, message in enumerate(gathered) if message.lists["words"] != words)
        return [context.message("decision", status="differ" if differing else "ok")]

    told = [context.message("numbers", lists={"words": words})]
    (answered,) = context.members.exchange("compare", told, answer, may_stop=False).answered
    if answered.status != "ok":
        raise FedtorchError(
            f"round {context.round + 1}: the replicas of the server's state on ranks "
            f"{differing or 'named by the server'} differ from rank 0's; they "
            "compute different bits, use the same machines and threads for all ranks"
        )


def share_state(context: RoundContext) -> None:
    """After a restore: the server's tensors and numbers to all ranks."""
    names = sorted(_state(context)) if context.comm.is_server else []
    messages = [context.message("numbers", numbers={name: context.server.tensors[name].numel()}) for name in names]
    kept = {name: value for name, value in context.server.numbers.items() if name == SERVER_STEPS}
    first = context.message("decision", numbers=kept)
    head, *sizes = context.comm.broadcast_packets(
        [first, *messages] if context.comm.is_server else [], round=context.round
    )
    context.server.numbers.update(head.numbers)
    for message in sizes:
        ((name, size),) = message.numbers.items()
        tensor = context.server.tensors.setdefault(name, torch.zeros(int(size), dtype=context.vectors.flat.dtype))
        context.comm.broadcast(tensor)
    context.vectors.written(everywhere=True)


def _state(context: RoundContext) -> dict[str, Tensor]:
    """State that every rank has: the weights and what a step depends on; the best weights are the server's alone."""
    own = {BEST, *(context.message_algorithm.kept_by_server if context.has_messages else ())}
    return {name: tensor for name, tensor in context.server.tensors.items() if name not in own}
