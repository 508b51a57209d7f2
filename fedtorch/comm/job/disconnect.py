"""Connections on which nothing is said: the kernel closes them when a process ends, however it ends."""

from __future__ import annotations

import re
import secrets
import selectors
import socket
import threading

from typing_extensions import Self

from fedtorch.comm.job.interfaces import is_own
from fedtorch.comm.job.ports import listen
from fedtorch.comm.job.store import Store
from fedtorch.core.errors import PreflightError

_TOKEN_BYTES, _RANK_BYTES = 16, 4
_TOLD = re.compile(rf"([0-9]{{1,5}}) ([0-9a-f]{{{2 * _TOKEN_BYTES}}})")
_HELLO_BYTES = _TOKEN_BYTES + _RANK_BYTES


class DisconnectMonitor:
    """One connection from every worker to the server. What ends without a word is known within a second.

    Without it a process that was killed is merely silent until the timeout; torchrun tells its ranks by ending them,
    srun and `launchers.local` do not. A machine that loses power is found out by TCP's own probes in half a minute.
    The server lets in who knows the token in the store; nothing else is ever read.
    """

    ended: set[int]
    """Ranks whose connection closed; on a worker only the server's can be among them."""

    def __init__(self, peers: dict[socket.socket, int], listener: socket.socket | None, token: bytes) -> None:
        self.ended = set()
        self._peers, self._listener, self._token = peers, listener, token
        self._is_closed = False
        self._selector = selectors.DefaultSelector()
        for sock in (*peers, *([listener] if listener else [])):
            self._selector.register(sock, selectors.EVENT_READ)
        threading.Thread(target=self._watch, name="fedtorch-disconnect", daemon=True).start()

    @classmethod
    def open(cls, store: Store, rank: int, host: str) -> Self:
        """Called by every rank of a job; a worker waits until the server is there.

        host: where rank 0 runs, as the others reach it.

        Raises:
            PreflightError: the server cannot be reached there.
        """
        if rank == 0:
            where = "127.0.0.1" if host == "localhost" else host if is_own(host) else ""
            listener = listen(where, store.ports, backlog=1024)
            token = secrets.token_bytes(_TOKEN_BYTES)
            store.set("liveness_port", f"{listener.getsockname()[1]} {token.hex()}")
            return cls({}, listener, token)
        store.wait(["liveness_port"], store.start_s)
        if not store.has(["liveness_port"]):
            raise PreflightError(f"rank 0 (the server) did not come within {store.start_s:g} s (system.start_timeout)")
        told = _TOLD.fullmatch(store.get("liveness_port"))
        if told is None:
            raise PreflightError("what rank 0 (the server) left under `liveness_port` is no port and token")
        port, code = told.groups()
        try:
            sock = socket.create_connection((host, int(port)), timeout=store.timeout_s)
        except (OSError, OverflowError) as error:  # the latter: of a port above 65535
            raise PreflightError(
                f"rank {rank} cannot reach rank 0 at {host}:{port} ({error}); clients.on_loss: continue needs rank 0 "
                "on the machine that MASTER_ADDR names, and its ports open to the others"
            ) from None
        sock.sendall(bytes.fromhex(code) + rank.to_bytes(_RANK_BYTES, "big"))
        _enable_keepalive(sock)
        return cls({sock: 0}, None, b"")

    def close(self) -> None:
        """Close the connections."""
        self._is_closed = True
        for sock in (*self._peers, *([self._listener] if self._listener else [])):
            try:
                sock.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes it
            except OSError:
                pass

    def _watch(self) -> None:
        while not self._is_closed:
            for key, _ in self._selector.select(timeout=1.0):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock is self._listener:
                    self._accept()
                elif not self._is_open(sock):
                    self._selector.unregister(sock)
                    sock.close()
                    rank = self._peers.pop(sock)
                    if not self._is_closed:
                        self.ended.add(rank)
        for sock in (*self._peers, *([self._listener] if self._listener else [])):
            sock.close()

    def _is_open(self, sock: socket.socket) -> bool:
        try:
            return bool(sock.recv(64))
        except OSError:
            return False

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
            sock.settimeout(1.0)
            hello = sock.recv(_HELLO_BYTES, socket.MSG_WAITALL)
        except OSError:
            return
        if len(hello) != _HELLO_BYTES or not secrets.compare_digest(hello[:_TOKEN_BYTES], self._token):
            sock.close()
            return
        _enable_keepalive(sock)
        self._peers[sock] = int.from_bytes(hello[_TOKEN_BYTES:], "big")
        self._selector.register(sock, selectors.EVENT_READ)


def _enable_keepalive(sock: socket.socket) -> None:
    """Let the kernel find out that a peer's machine is gone: 10 s of silence, then 4 probes 5 s apart."""
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
