"""Messages between ranks, end to end as bytes: with a meeting, or over the federation's group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from fedtorch.comm.transport.group import Group
from fedtorch.comm.transport.header import Op
from fedtorch.comm.transport.meter import Meter
from fedtorch.comm.wire import Packet, bounded, decode_all, encode, to_tensor


class Mail:
    """Messages of one meeting."""

    def __init__(self, meter: Meter, rank: int, *, round: int, sequence: int, num_clients: int) -> None:
        """sequence: number of the meeting, which is in every message; the same on all ranks."""
        self._meter, self._rank, self._num_clients = meter, rank, num_clients
        self._round, self._sequence = round, sequence

    def pack(self, messages: Sequence[Packet]) -> bytes:
        """The bytes that go with this rank's note."""
        data = pack(messages, self._round, self._sequence)
        self._meter.count("up", "gather", physical=len(data) if self._rank else 0)
        return data

    def gathered(self, mail: Mapping[int, bytes]) -> list[tuple[int, Packet]]:
        """On the server all ranks' messages, each with the rank it came from. mail: by rank."""
        found = [(rank, message) for rank, data in mail.items() for message in self._unpack(data)]
        num_bytes = sum(map(len, mail.values()))
        self._meter.count("up", "gather", logical=num_bytes, physical=num_bytes - len(mail[0]), messages=len(found))
        return found

    def answer(self, messages: Sequence[Packet], others: int) -> bytes:
        """On the server: the bytes that go with the verdict to so many ranks."""
        data = pack(messages, self._round, self._sequence)
        self._meter.count("down", "share", logical=len(data), physical=len(data) * others, messages=len(messages))
        return data

    def answered(self, data: bytes) -> list[Packet]:
        """The server's messages, on all ranks."""
        self._meter.count("down", "share", physical=len(data) if self._rank else 0)
        return self._unpack(data)

    def _unpack(self, data: bytes) -> list[Packet]:
        return decode_all(data, round=self._round, sequence=self._sequence, num_clients=self._num_clients)


def broadcast(group: Group, meter: Meter, messages: Sequence[Packet], *, round: int, num_clients: int) -> list[Packet]:
    """The server's messages on every rank; what others pass is ignored."""
    data = pack(messages if group.rank == 0 else (), round, group.sequence + 1)  # agree() counts before it compares
    servers = group.agree(Op.BROADCAST_MESSAGES, round=round, num_bytes=len(data))
    num_bytes = bounded(servers[0], 0)
    buffer = to_tensor(data) if group.rank == 0 else torch.zeros(num_bytes, dtype=torch.uint8)
    group.broadcast_numbers(buffer)
    if group.rank:
        meter.count("down", "share", physical=num_bytes)
    else:
        sent = num_bytes * (group.size - 1)
        meter.count("down", "share", logical=num_bytes, messages=len(messages), physical=sent)
    return decode_all(buffer.numpy().tobytes(), round=round, sequence=group.sequence, num_clients=num_clients)


def scatter(
    group: Group, meter: Meter, messages: Mapping[int, Sequence[Packet]], *, round: int, num_clients: int
) -> list[Packet]:
    """The server's messages by rank, to each rank its own; what others pass is ignored."""
    each = {rank: pack(messages.get(rank, ()), round, group.sequence + 1) for rank in group.members if group.rank == 0}
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
    return decode_all(buffer.numpy().tobytes(), round=round, sequence=group.sequence, num_clients=num_clients)


def pack(messages: Sequence[Packet], round: int, sequence: int) -> bytes:
    """The messages end to end."""
    return b"".join(encode(message, round=round, sequence=sequence) for message in messages)
