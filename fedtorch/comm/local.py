"""The communicator of a single process: the same results as with many, nothing moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from fedtorch.comm.base import Answer, Communicator, Met, nothing
from fedtorch.comm.sparse.messages import count_replicated
from fedtorch.comm.sparse.peers import Alone
from fedtorch.comm.sums.accepted import AcceptedUpdates
from fedtorch.comm.sums.checks import SumCheck
from fedtorch.comm.sums.device_sum import accumulator_for
from fedtorch.comm.sums.reproducible import SumScale
from fedtorch.comm.transport.process_group import Came, ignored
from fedtorch.comm.transport.windows import WINDOW, windows
from fedtorch.comm.wire import Packet, decode, encode
from fedtorch.core.update import Report, UpdateBuffer


class LocalUpdates(AcceptedUpdates):
    """The updates in this process's buffer."""

    def __init__(self, reports: Sequence[Report], local: UpdateBuffer, round: int = 0) -> None:
        super().__init__(reports, local, round)
        self._local = local

    def _each(self) -> Iterator[tuple[Tensor, str]]:
        for report in self.reports:
            yield self._local.get(report.client).cpu(), ""

    def _windows(self, damaged: dict[str, str]) -> Iterator[Tensor]:
        grads = [self._local.get(report.client).cpu() for report in self.reports]
        for start, stop in windows(len(grads[0]) if grads else 0):
            yield torch.stack([grad[start:stop] for grad in grads])

    def _sum(
        self, scale: SumScale, terms: list[tuple[Report, float]], check: SumCheck, *, singly: bool = False
    ) -> Tensor:
        grads = [(self._local.get(report.client), weight) for report, weight in terms]
        out = self._local.sums.lend(len(grads[0][0]) if grads else self.size, self.sum_dtype)
        accumulator = accumulator_for(self._local.device, min(len(out), WINDOW), self.dtype, self._local.sums)
        for start, stop in windows(len(out)):
            accumulator.reset(scale)
            for grad, weight in grads:
                accumulator.add(grad[start:stop], weight)
            accumulator.result(out[start:stop])
        check.see_sum(accumulator.squares, out)
        return out


class LocalCommunicator(Communicator):
    """A federation of one rank, server and worker."""

    rank, size = 0, 1

    def preflight(self, facts: Mapping[str, str], *, crosses: str = "") -> None:
        """Nothing to compare with."""

    def meet(
        self,
        phase: str,
        *,
        round: int,
        messages: Sequence[Packet] = (),
        answer: Answer = nothing,
        stop: bool = False,
        may_reopen: bool = False,
        vector: Tensor | None = None,
        oath: str = "",
    ) -> Met:
        """Encode the messages and decode them again, so that what cannot travel fails here too."""
        self.stops = stop
        packed = [encode(message, round=round, sequence=0) for message in messages]
        self.meter.count("up", "gather", logical=sum(map(len, packed)), messages=len(packed))
        gathered = [decode(data, round=round, sequence=0, num_clients=len(self.names)) for data in packed]
        gathered = self._sorted(gathered)
        return Met(gathered, self.broadcast_packets(() if stop else answer(gathered), round=round))

    def enable_loss_recovery(self) -> None:
        """Nobody can be lost."""

    def heartbeat(self, *, phase: str, round: int, client: str = "", step: int = 0) -> None:
        """Nobody watches."""
        self.faults(phase, round=round, client=client, step=step)

    def broadcast(
        self, flat: Tensor, *, clients: int | None = None, numbers: int | None = None, came: Came = ignored
    ) -> None:
        """`flat` stays as it is."""
        clients = self.num_clients if clients is None else clients
        logical = flat.nbytes * clients if numbers is None else numbers * flat.itemsize
        self.meter.count("down", "broadcast", logical=logical, messages=clients)

    def broadcast_packets(self, messages: Sequence[Packet], *, round: int) -> list[Packet]:
        """Encode the packets and decode them again."""
        packed = [encode(message, round=round, sequence=0) for message in messages]
        self.meter.count("down", "share", logical=sum(map(len, packed)), messages=len(packed))
        return [decode(data, round=round, sequence=0, num_clients=len(self.names)) for data in packed]

    def scatter_packets(self, messages: Mapping[int, Sequence[Packet]], *, round: int) -> list[Packet]:
        """Those for this rank, encoded and decoded."""
        return self.broadcast_packets(messages.get(0, ()), round=round)

    @contextmanager
    def open_updates(
        self, local: UpdateBuffer, accepted: Sequence[Report], *, round: int, secret: bool = False
    ) -> Iterator[AcceptedUpdates]:
        """Open the accepted updates, whose integer sum is that of many ranks."""
        self._count_updates(local, accepted)
        self.faults("payload", round=round)
        yield LocalUpdates(accepted, local, round)

    def all_gather_updates(self, local: UpdateBuffer, accepted: Sequence[str], *, round: int) -> list[Tensor]:
        """They are all here."""
        count_replicated(self.meter, local.size * local.dtype.itemsize, len(accepted))
        return [local.get(client) for client in accepted]

    def peers(self, local: UpdateBuffer, *, round: int) -> Alone:
        """This process owns the only slice."""
        return Alone(local, self.meter, lambda: self.faults("payload", round=round))

    def close(self) -> None:
        """Nothing to close."""
