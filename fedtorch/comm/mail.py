"""Messages over the federation's group: sizes first, then one byte string per rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedtorch.comm.transport.group import Group
from fedtorch.comm.transport.header import Op
from fedtorch.comm.transport.meter import Meter
from fedtorch.comm.wire import Packet, bounded, decode_all, encode, to_tensor


def gather(
    group: Group, meter: Meter, messages: Sequence[Packet], *, round: int, num_clients: int
) -> list[tuple[int, Packet]]:
    """On the server all ranks' messages, each with the rank it came from; elsewhere []."""
    data = _encode(group, messages, round)
    announced = group.agree(Op.GATHER, round=round, num_bytes=len(data))
    sizes = [bounded(size, rank) for rank, size in zip(group.members, announced, strict=False)]
    buffers = dict(zip(group.members, group.gather_bytes(to_tensor(data), sizes), strict=False))
    if group.rank:
        meter.count("up", "gather", physical=len(data))
        return []
    found = [
        (rank, message) for rank, buffer in buffers.items() for message in _decode(group, buffer, round, num_clients)
    ]
    num_bytes = sum(map(len, buffers.values()))
    meter.count("up", "gather", logical=num_bytes, physical=num_bytes - len(data), messages=len(found))
    return found


def broadcast(group: Group, meter: Meter, messages: Sequence[Packet], *, round: int, num_clients: int) -> list[Packet]:
    """The server's messages on every rank; what others pass is ignored."""
    is_server = group.rank == 0
    data = _encode(group, messages if is_server else (), round)
    servers = group.agree(Op.BROADCAST_MESSAGES, round=round, num_bytes=len(data))
    num_bytes = bounded(servers[0], 0)
    buffer = to_tensor(data) if is_server else torch.zeros(num_bytes, dtype=torch.uint8)
    if num_bytes:
        group.broadcast_numbers(buffer)
    meter.count(
        "down",
        "share",
        logical=num_bytes if is_server else 0,
        messages=len(messages) if is_server else 0,
        physical=num_bytes * (group.size - 1 if is_server else 1),
    )
    return _decode(group, buffer, round, num_clients)


def scatter(
    group: Group, meter: Meter, messages: Mapping[int, Sequence[Packet]], *, round: int, num_clients: int
) -> list[Packet]:
    """The server's messages by rank, to each rank its own; what others pass is ignored."""
    each = {rank: _encode(group, messages.get(rank, ()), round) for rank in group.members if group.rank == 0}
    group.agree(Op.SCATTER_MESSAGES, round=round)
    if group.rank == 0:
        for rank in group.members[1:]:
            group.say(torch.tensor([len(each[rank])]), rank)
            group.say(to_tensor(each[rank]), rank)
        buffer = to_tensor(each[0])
        meter.count("down", "share", physical=sum(map(len, each.values())) - len(buffer))
    else:
        size = group.hear(torch.zeros(1, dtype=torch.int64), 0)
        buffer = group.hear(torch.zeros(bounded(int(size), 0), dtype=torch.uint8), 0)
        meter.count("down", "share", physical=len(buffer))
    return _decode(group, buffer, round, num_clients)


def _encode(group: Group, messages: Sequence[Packet], round: int) -> bytes:
    sequence = group.sequence + 1  # agree() counts before it compares
    return b"".join(encode(message, round=round, sequence=sequence) for message in messages)


def _decode(group: Group, buffer: Tensor, round: int, num_clients: int) -> list[Packet]:
    return decode_all(buffer.numpy().tobytes(), round=round, sequence=group.sequence, num_clients=num_clients)
