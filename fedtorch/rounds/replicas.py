"""Where clients send messages, every rank keeps the server's weights and optimiser and takes the same step.

Nothing dense travels after the first broadcast. Replicas are equal because every rank computes the same from the same
messages; `compare` makes sure of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedtorch.comm.base import Updates
from fedtorch.comm.messages import Decoded, sum_of_messages
from fedtorch.core.errors import FedtorchError
from fedtorch.core.update import Report
from fedtorch.core.weights import digest_of
from fedtorch.rounds.context import Rank


def collect(rank: Rank, accepted: Sequence[Report]) -> list[Tensor]:
    """The accepted clients' messages, on the ranks that combine them; elsewhere []. All ranks call it."""
    if rank.algorithm.combines_everywhere:
        return rank.comm.exchange_all(rank.updates, [report.client for report in accepted], round=rank.round)
    messages: list[Tensor] = []

    def keep(updates: Updates) -> Tensor:
        messages.extend(message.clone() for message in updates)  # each is valid until the next one is asked for
        return torch.empty(0)

    rank.comm.aggregate(rank.updates, accepted, keep, round=rank.round)
    return messages


def step(rank: Rank, accepted: Sequence[Report], messages: Sequence[Tensor]) -> dict[str, float]:
    """Combine the accepted clients' messages and take the server's step, on every rank; returns the weights.

    accepted: on ranks other than the server only the names are set. messages: see `collect`. All ranks call it.

    Raises:
        FedtorchError: on all ranks, when their replicas differ.
    """
    algorithm, layout = rank.algorithm, rank.setting.engine.shared
    weights = algorithm.weigh(accepted)

    def decode(message: Tensor) -> Decoded:
        return algorithm.decode(message, layout)

    chosen = torch.zeros(rank.updates.size, dtype=torch.uint8)
    if algorithm.combines_everywhere or rank.comm.is_server:
        chosen = algorithm.choose(rank.server, sum_of_messages(messages, weights, decode, rank.total))
    if not algorithm.combines_everywhere:
        rank.together("broadcast", lambda: rank.comm.broadcast(chosen))
    taken = algorithm.decode(chosen, layout)
    grad = taken if isinstance(taken, Tensor) else taken.dense(layout.dtype)
    rank.server.accepted = list(accepted)
    algorithm.server_update(rank.server, grad)
    rank.is_fresh = True
    is_last = rank.round + 1 == rank.config.rounds
    if is_last or (rank.round + 1) % algorithm.replicas_compared_every == 0:
        compare(rank)
    return {report.client: weight for report, weight in zip(accepted, weights, strict=True)}


def compare(rank: Rank) -> None:
    """See that all ranks have the same weights and optimiser state.

    Raises:
        FedtorchError: on all ranks; the server's names the ones that differ.
    """
    if rank.comm.size == 1:
        return
    mine = digest_of(_state(rank))
    words = tuple(float(int(mine[i : i + 8], 16)) for i in range(0, 64, 8))
    differing: list[int] = []

    def ask() -> str:
        gathered = rank.comm.gather([rank.message("numbers", lists={"words": words})], round=rank.round)
        differing[:] = [place for place, message in enumerate(gathered) if message.lists["words"] != words]
        verdict = [rank.message("decision", status="differ" if differing else "ok")]
        (answered,) = rank.comm.share(verdict if rank.comm.is_server else [], round=rank.round)
        return answered.status

    if rank.together("compare", ask) != "ok":
        raise FedtorchError(
            f"round {rank.round + 1}: the replicas of the server's state on ranks {differing or 'named by the server'} "
            "differ from rank 0's; they compute different bits, use the same machines and threads for all ranks"
        )


def share_state(rank: Rank) -> None:
    """After a restore: the server's tensors and numbers to all ranks."""
    names = sorted(_state(rank)) if rank.comm.is_server else []
    messages = [rank.message("numbers", numbers={name: rank.server.tensors[name].numel()}) for name in names]
    kept = {name: value for name, value in rank.server.numbers.items() if name == "server_steps"}
    first = rank.message("decision", numbers=kept)
    head, *sizes = rank.comm.share([first, *messages] if rank.comm.is_server else [], round=rank.round)
    rank.server.numbers.update(head.numbers)
    for message in sizes:
        ((name, size),) = message.numbers.items()
        tensor = rank.server.tensors.setdefault(name, torch.zeros(int(size), dtype=rank.received.dtype))
        rank.comm.broadcast(tensor)
    rank.is_fresh = True


def _state(rank: Rank) -> dict[str, Tensor]:
    """What every rank has: the weights and what a step depends on; the best weights are the server's alone."""
    own = {"best", *rank.algorithm.kept_by_server}
    return {name: tensor for name, tensor in rank.server.tensors.items() if name not in own}
