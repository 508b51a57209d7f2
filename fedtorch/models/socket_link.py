"""The link between two processes: keys and values, and generated token ids, as numbers behind a checked header."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from fedtorch.compression.payload import (
    HEADER_BYTES,
    PayloadError,
    assemble,
    body_of,
    code_of,
    dtype_of,
    length_of,
    read_header,
)
from fedtorch.core.errors import FedtorchError
from fedtorch.models.link import Increment

_KEYS, _TOKENS = 16, 17  # kinds of messages, beside those of `payload`
_HEAD = 8  # int64: turn, rows, tokens, flag of the last, layers, heads, head_dim, 0
_MAX_BYTES = 1 << 33  # the context of 1,024 tokens of a GPT-2 of 1.5 billion parameters is 0.6 GB


class LinkClosed(FedtorchError):
    """The process at the other end has gone."""


@dataclass(frozen=True)
class Crossing:
    """One message on the wire."""

    is_sent: bool
    """did it leave this process, or come?"""
    what: str
    """`keys and values` or `tokens`"""
    turn: int
    """of the dialog, from 0"""
    dtype: torch.dtype
    """of keys and values, or of ids"""
    shape: tuple[int, ...]
    """of the same"""
    num_bytes: int
    """of the whole message"""


@dataclass
class SocketLink:
    """One end of a link over a connected stream socket; a `Link`, and for token ids beside it."""

    sock: socket.socket
    """connected to the other process; blocking"""
    watch: Callable[[Crossing], None] = lambda crossing: None
    """sees every message, sent or received"""
    _next: Tensor | None = None
    """a message that `next_turn` has read, for the next `receive`"""

    def send(self, increment: Increment) -> None:
        """Send over the socket."""
        data, mask = increment.data.cpu(), increment.mask.cpu()
        layers, _, rows, heads, tokens, head_dim = data.shape
        head = torch.tensor([increment.turn, rows, tokens, increment.is_last, layers, heads, head_dim, 0])
        parts = [head, data.reshape(-1), mask.reshape(-1)]
        message = assemble((_KEYS, code_of(data.dtype), data.numel(), mask.numel()), parts)
        self._send(message, "keys and values", increment.turn, data)

    def receive(self) -> Increment:
        """Receive over the socket.

        Raises:
            PayloadError: something else came. LinkClosed: the other end has gone.
        """
        message = self._take()
        kind, code, size, count = read_header(message)
        if kind != _KEYS or message.numel() < HEADER_BYTES + 8 * _HEAD:
            raise PayloadError(f"a message of kind {kind} came; expected keys and values")
        dtype = dtype_of(code)
        body = body_of(message, 8 * _HEAD + size * dtype.itemsize + count)
        turn, rows, tokens, is_last, layers, heads, head_dim, _ = body[: 8 * _HEAD].view(torch.int64).tolist()
        shape = (layers, 2, rows, heads, tokens, head_dim)
        if min(shape) < 1 or prod(shape) != size or rows * tokens != count:
            raise PayloadError(
                f"keys and values of shape {shape} and a mask of {count}; the header says {size} numbers"
            )
        data = body[8 * _HEAD : 8 * _HEAD + size * dtype.itemsize].view(dtype).view(shape)
        mask = body[8 * _HEAD + size * dtype.itemsize :].view(rows, tokens)
        self.watch(Crossing(False, "keys and values", turn, dtype, shape, message.numel()))
        return Increment(turn, bool(is_last), mask, data)

    def send_tokens(self, turn: int, ids: Sequence[int]) -> None:
        """Send the words of a turn, without its separators."""
        data = torch.tensor(ids, dtype=torch.int32)
        self._send(assemble((_TOKENS, 0, len(ids), turn), [data]), "tokens", turn, data)

    def receive_tokens(self, turn: int) -> list[int]:
        """The words of this turn.

        Raises:
            PayloadError: something else came. LinkClosed: the other end has gone.
        """
        message = self._take()
        kind, _, size, found = read_header(message)
        if kind != _TOKENS or found != turn:
            raise PayloadError(f"a message of kind {kind} came; expected the words of turn {turn}")
        ids = body_of(message, 4 * size).view(torch.int32)
        self.watch(Crossing(False, "tokens", turn, torch.int32, (size,), message.numel()))
        return [int(word) for word in ids.tolist()]

    def next_turn(self) -> int | None:
        """The turn of the keys and values that `receive` will return next; waits for them. None: the other end left.

        Raises:
            PayloadError: something else came.
        """
        try:
            self._next = message = self._take()
        except LinkClosed:
            return None
        kind, *_ = read_header(message)
        if kind != _KEYS or message.numel() < HEADER_BYTES + 8 * _HEAD:
            raise PayloadError(f"a message of kind {kind} came; expected keys and values")
        return int(message[HEADER_BYTES : HEADER_BYTES + 8].view(torch.int64))

    def _take(self) -> Tensor:
        if self._next is not None:
            message, self._next = self._next, None
            return message
        header = self._read(HEADER_BYTES)
        length = length_of(header)
        if not 0 <= length <= _MAX_BYTES:
            raise PayloadError(f"a message of {length} bytes was announced; expected at most {_MAX_BYTES}")
        return torch.cat([header, self._read(length)]) if length else header

    def _read(self, count: int) -> Tensor:
        buffer = torch.empty(count, dtype=torch.uint8)
        view, done = buffer.numpy().data, 0
        while done < count:
            try:
                got = self.sock.recv_into(view[done:])
            except ConnectionError:
                got = 0
            if not got:
                raise LinkClosed("the other side of the dialog has ended")
            done += got
        return buffer

    def _send(self, message: Tensor, what: str, turn: int, data: Tensor) -> None:
        try:
            self.sock.sendall(message.numpy().data)
        except ConnectionError as error:
            raise LinkClosed("the other side of the dialog has ended") from error
        self.watch(Crossing(True, what, turn, data.dtype, tuple(data.shape), message.numel()))
