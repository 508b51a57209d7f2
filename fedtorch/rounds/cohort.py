"""Who takes part in a round, drawn by every rank alike or by the server, which tells each worker its own clients.

And what of the round is released. Both may be refused, which ends the run on all ranks alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from fedtorch.comm.wire import NO_CLIENT, Packet
from fedtorch.core.client import Client
from fedtorch.core.errors import BudgetError
from fedtorch.core.sampling import cohort
from fedtorch.core.update import Report
from fedtorch.rounds.context import RoundContext

_OVER, _WITHHELD = "budget", "withheld"


def draw(context: RoundContext) -> list[tuple[Client, int]]:
    """The clients of the round under way, each with how often it was drawn; of a hidden cohort elsewhere only its own.

    Raises:
        BudgetError: on all ranks, if there must not be another round.
    """
    components, lost = context.components, context.members.lost
    clients = components.clients
    gone = {name for name, round in lost.items() if context.round >= round}
    if not context.mechanism.hides_clients:
        present = clients.without(gone) if gone else clients
        per_round, seed = context.config.clients.drawn, context.config.run.seed
        return cohort(present, per_round, components.sampler, seed=seed, round=context.round)
    drawn: list[Client] = []
    over: BudgetError | None = None
    messages: list[Packet] = []
    if context.comm.is_server:
        try:
            numbers = context.mechanism.begin(context.round, context.server)
            drawn = [c for c in context.mechanism.draw(clients, context.round) if c.name not in gone]
            messages = [context.message("decision", numbers=numbers)]
            messages += [context.message("decision", client.name) for client in drawn]
        except BudgetError as error:
            over, messages = error, [context.message("decision", status=_OVER)]
    head, *names = context.members.retry_on_loss("cohort", lambda: tell(context, lambda: messages))
    _end_if_over(context, head, over)
    context.mechanism.enter(head.numbers)
    if context.comm.is_server and context.comm.size > 1 and len(clients):
        context.mechanism.expect(context.round, context.updates.length(clients[0].name))
    if not context.comm.is_server:
        drawn = [client for about in names if (client := clients.named(context.name(about))) is not None]
    return [(client, 1) for client in drawn]


def release(context: RoundContext, combined: Tensor | None, accepted: Sequence[Report]) -> tuple[bool, Tensor | None]:
    """May what the accepted updates came to leave? And, on the server, what it steps along then.

    Called by all ranks alike, and the same on all. Where it may not, the round is done again with another cohort:
    whether it comes to another sum than it did before is known only here.

    Raises:
        BudgetError: on all ranks, if there must not be one more; nothing has left the server.
    """
    grad: Tensor | None = None
    over: BudgetError | None = None
    status = "ok"
    if context.comm.is_server:
        assert combined is not None
        context.server.accepted, context.server.round = list(accepted), context.round
        places = context.updates.places(context.comm.names[0])
        try:
            grad = context.mechanism.release(context.round, combined, context.server, places)
            status = "ok" if grad is not None else _WITHHELD
        except BudgetError as error:
            over, status = error, _OVER
    if context.mechanism.may_withhold:
        told = [context.message("decision", status=status)]
        (head,) = context.members.retry_on_loss("release", lambda: tell(context, lambda: told))
        _end_if_over(context, head, over)
        status = head.status
    return status != _WITHHELD, grad


def _end_if_over(context: RoundContext, head: Packet, over: BudgetError | None) -> None:
    if head.status == _OVER:
        raise over or BudgetError(f"round {context.round + 1} would pass privacy.max_epsilon; see the server's log")


def tell(context: RoundContext, say: Callable[[], Sequence[Packet]]) -> list[Packet]:
    """Give every rank what the server says; where clients are hidden, a rank hears of its own clients only.

    say: called on the server; messages about the run (no client) come first.
    """
    if not context.mechanism.hides_clients:
        messages = say() if context.comm.is_server else []
        return context.comm.broadcast_packets(messages, round=context.round)
    each = _by_rank(context, say()) if context.comm.is_server else {}
    return context.comm.scatter_packets(each, round=context.round)


def _by_rank(context: RoundContext, messages: Sequence[Packet]) -> Mapping[int, list[Packet]]:
    """Rank -> the messages that it may see."""
    placement, workers = context.components.placement, context.components.topology.workers
    to_all = [message for message in messages if message.client == NO_CLIENT]
    found = {rank: list(to_all) for rank in range(context.comm.size)}
    for message in messages:
        if message.client != NO_CLIENT:
            for rank in workers[placement.homes[context.name(message)]]:
                found[rank].append(message)
    return found
