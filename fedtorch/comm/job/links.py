"""A connection from every worker to the server: what is small travels on it, and its end says that a process is gone.

Whatever is sent is on its way at once, whoever waits for it. So an answer takes one round trip, where a note in the
store takes three (it is written, awaited, and read by two questions), and a message of gloo one more where its receiver
comes later than its sender, which waits until it is told.
"""

from __future__ import annotations

import logging
import re
import secrets
import selectors
import socket
import struct
import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress

from typing_extensions import Self

from fedtorch.comm.job.awake import lefts
from fedtorch.comm.job.interfaces import is_own
from fedtorch.comm.job.ports import listen
from fedtorch.comm.job.store import Store
from fedtorch.core.errors import ForgedNoteError, PreflightError

log = logging.getLogger(__name__)

_TOKEN_BYTES = 16
_TOLD = re.compile(rf"([0-9]{{1,5}}) ([0-9a-f]{{{2 * _TOKEN_BYTES}}})")
_HEAD = struct.Struct("!IH")  # bytes of the data, bytes of the topic; both follow
_HELLO, _END = re.compile(r"hello/([0-9]{1,9})"), "end/"  # topic of a connection's first words; before an ended topic
_WELCOME, _SHOWN = "welcome", 10  # topic of the answer to a hello; refusals that are logged
_MOST_TOPIC, _MOST_HELLO, _MOST = 64, 512, 1 << 29  # bytes
_AT_ONCE = 1 << 18


class Links:
    """Messages between the server and every worker, by topic; of one topic in the order in which they were sent.

    The server lets in who knows the token in the store and can sign it with the job's secret; who has not said so is
    not listened to. A process that was killed is known within a second; without it one is merely silent until the
    timeout: torchrun tells its ranks by ending them, srun and `launchers.local` do not.
    """

    ended: set[int]
    """Ranks whose connection closed; on a worker only the server's can be among them."""
    silent: set[int]
    """Ranks that have said their last word, those too."""

    def __init__(self, store: Store, listener: socket.socket | None, token: str, *, probes: bool) -> None:
        """listener, token: on the server. probes: may TCP find out by itself that a machine is gone?"""
        self.ended, self.silent = set(), set()
        self._store, self._token, self._probes = store, token, probes
        self._listener, self._peers, self._socks = listener, dict[socket.socket, int](), dict[int, socket.socket]()
        self._unsent: defaultdict[int, list[bytes]] = defaultdict(list)  # to ranks that have not come yet
        self._came: defaultdict[tuple[str, int], deque[bytes]] = defaultdict(deque)
        self._over: dict[str, int] = {}  # topic -> rank that has ended it
        self._changed, self._sending, self._arriving = threading.Condition(), threading.Lock(), threading.Lock()
        self._is_closed, self._refused = False, 0
        self._buffers: dict[socket.socket, bytearray] = {}
        self._selector = selectors.DefaultSelector()
        if listener is not None:
            self._selector.register(listener, selectors.EVENT_READ)

    @classmethod
    def open(cls, store: Store, rank: int, host: str, *, probes: bool = False) -> Self:
        """Called by every rank of a job; a worker waits until the server is there.

        host: where rank 0 runs, as the others reach it. probes: is a machine that loses power, or whose wire is cut,
        to be found out by TCP's own probes in half a minute?

        Raises:
            PreflightError: the server cannot be reached there.
        """
        if rank == 0:
            where = "127.0.0.1" if host == "localhost" else host if is_own(host) else ""
            listener, token = listen(where, store.ports, backlog=1024), secrets.token_hex(_TOKEN_BYTES)
            links = cls(store, listener, token, probes=probes)
            links._start()
            store.set("links", f"{listener.getsockname()[1]} {token}")
            return links
        store.wait(["links"], store.start_s)
        if not store.has(["links"]):
            raise PreflightError(f"rank 0 (the server) did not come within {store.start_s:g} s (system.start_timeout)")
        told = _TOLD.fullmatch(store.get("links", by=0))
        if told is None:
            raise PreflightError("what rank 0 (the server) left under `links` is no port and token")
        port, token = told.groups()
        try:
            sock = socket.create_connection((host, int(port)), timeout=store.timeout_s)
        except (OSError, OverflowError) as error:  # the latter: of a port above 65535
            raise PreflightError(
                f"rank {rank} cannot reach rank 0 at {host}:{port} ({error}); a job needs rank 0 on the machine that "
                "MASTER_ADDR names, and its ports open to the others"
            ) from None
        links = cls(store, None, "", probes=probes)
        links._let_in(sock, 0)
        links._start()
        links.send(0, f"hello/{rank}", store.signature.sign(f"hello/{rank}", token).encode())
        if store.signature.is_personal:
            links._await_welcome(rank, f"{host}:{port}")
        return links

    def _await_welcome(self, rank: int, where: str) -> None:
        try:
            self.take(_WELCOME, 0, self._store.timeout_s)
        except RuntimeError:
            called, advice = self._store.signature.called, self._store.signature.advice
            raise PreflightError(
                f"the server at {where} did not let rank {rank} in: by its {called} what this side signs is not of "
                f"the party that the rank belongs to; its log says so too. {advice}"
            ) from None

    def send(self, rank: int, topic: str, data: bytes) -> None:
        """Send to the server, or from it to a worker, once that has come; nothing where it is gone."""
        name = topic.encode()
        told = _HEAD.pack(len(data), len(name)) + name + data
        with self._arriving:
            sock = self._socks.get(rank)
            if sock is None and self._listener is not None and rank not in self.ended:
                self._unsent[rank].append(told)
        if sock is not None:
            with self._sending:
                _send(sock, told)

    def end(self, topic: str) -> None:
        """This rank takes no more part in the topic; who waits for it there is told."""
        for rank in tuple(self._socks):
            self.send(rank, f"{_END}{topic}", b"")

    def end_all(self) -> None:
        """This rank says nothing more; whoever waits for it is told."""
        self.end("")

    def wait(self, topic: str, ranks: Sequence[int], limit_s: float) -> bool:
        """Whether something came from every one of the ranks, now or before `limit_s` has passed.

        False earlier, once, where one of them says its last word meanwhile: it may be time to look who has left.
        """

        def is_there() -> bool:
            return all(self._came.get((topic, rank)) for rank in ranks)

        with self._changed:
            before = self.silent.intersection(ranks)
            self._changed.wait_for(lambda: is_there() or self.silent.intersection(ranks) > before, limit_s)
            return is_there()

    def wait_for_last(self, topic: str, ranks: Sequence[int], limit_s: float) -> bool:
        """Whether something came from every one of these ranks, which leave; waits for what may still be on its way.

        That they leave is known from the store, which may be faster than their connection. Over is the waiting when
        all came or have said their last word, or after `limit_s`.
        """

        def is_settled() -> bool:
            return all(self._came.get((topic, rank)) or rank in self.silent for rank in ranks)

        with self._changed:
            self._changed.wait_for(is_settled, limit_s)
        return self.wait(topic, ranks, 0.0)

    def take(self, topic: str, rank: int, limit_s: float = 0.0) -> bytes:
        """The next message of the rank.

        Raises:
            RuntimeError: it did not come before `limit_s` had passed, and will not where it was the rank's end.
        """
        key = topic, rank

        def is_settled() -> bool:
            return bool(self._came.get(key)) or topic in self._over or rank in self.ended

        with self._changed:
            for left_s in lefts(limit_s):
                if self._changed.wait_for(is_settled, left_s):
                    break
            if waiting := self._came.get(key):
                found = waiting.popleft()
                if not waiting:
                    del self._came[key]
                return found
        if rank in self.ended:
            raise RuntimeError(f"the connection to rank {rank} was closed by its side")
        if topic in self._over:
            raise RuntimeError(f"rank {self._over[topic]} has left the exchange")
        raise RuntimeError(f"no numbers came from rank {rank} for {limit_s:g} s")

    def close(self) -> None:
        """Close the connections."""
        self._is_closed = True
        for sock in (*tuple(self._peers), *([self._listener] if self._listener else [])):
            _shut(sock)

    def _start(self) -> None:
        threading.Thread(target=self._watch, name="fedtorch-links", daemon=True).start()

    def _watch(self) -> None:
        while not self._is_closed:
            for key, _ in self._selector.select(timeout=1.0):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock is self._listener:
                    self._accept()
                elif not self._read(sock):
                    self._drop(sock)
        for sock in (*tuple(self._buffers), *([self._listener] if self._listener else [])):
            sock.close()
        self._selector.close()

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        self._buffers[sock] = bytearray()
        self._selector.register(sock, selectors.EVENT_READ)

    def _let_in(self, sock: socket.socket, rank: int) -> None:
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        seconds = struct.pack("ll", max(1, int(self._store.timeout_s)), 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)  # of a rank that is stopped nothing is read
        if self._probes:
            _enable_keepalive(sock)
        if sock not in self._buffers:
            self._buffers[sock] = bytearray()
            self._selector.register(sock, selectors.EVENT_READ)
        with self._arriving:  # not `_sending`: a send that waits needs this thread, which reads
            for told in self._unsent.pop(rank, ()):
                _send(sock, told)
            self._peers[sock], self._socks[rank] = rank, sock

    def _drop(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        sock.close()
        del self._buffers[sock]
        rank = self._peers.pop(sock, None)
        if rank is not None:
            del self._socks[rank]
        if rank is not None and not self._is_closed:
            with self._changed:
                self.ended.add(rank)
                self.silent.add(rank)
                self._changed.notify_all()

    def _read(self, sock: socket.socket) -> bool:
        """Take what is there; False: the connection is over, or nobody's."""
        try:
            found = sock.recv(_AT_ONCE)
        except OSError:
            return False
        buffer = self._buffers[sock]
        buffer += found
        while len(buffer) >= _HEAD.size:
            num_bytes, of_topic = _HEAD.unpack_from(buffer)
            is_in, end = sock in self._peers, _HEAD.size + of_topic + num_bytes
            if of_topic > _MOST_TOPIC or num_bytes > (_MOST if is_in else _MOST_HELLO):
                return False
            if len(buffer) < end:
                break
            topic = bytes(buffer[_HEAD.size : end - num_bytes]).decode("utf-8", "replace")
            data = bytes(buffer[end - num_bytes : end])
            del buffer[:end]
            if is_in:
                self._deliver(self._peers[sock], topic, data)
            elif not self._greet(sock, topic, data):
                return False
        return bool(found)

    def _deliver(self, rank: int, topic: str, data: bytes) -> None:
        with self._changed:
            if topic == _END:
                self.silent.add(rank)
            elif topic.startswith(_END):
                self._over.setdefault(topic.removeprefix(_END), rank)
            else:
                self._came[topic, rank].append(data)
            self._changed.notify_all()

    def _greet(self, sock: socket.socket, topic: str, data: bytes) -> bool:
        """Is this a rank of the job that is not connected yet? Then it is from now on."""
        told = _HELLO.fullmatch(topic)
        if told is None or self._listener is None or int(told[1]) in self._peers.values():
            return False
        try:
            token = self._store.signature.check(topic, data.decode("utf-8", "replace"), int(told[1]))
        except ForgedNoteError as error:
            self._refused += 1
            if self._store.signature.is_personal and self._refused <= _SHOWN:
                log.warning("a connection of rank %s is refused: %s", told[1], error)
            return False
        if not secrets.compare_digest(token.encode(), self._token.encode()):
            return False
        self._let_in(sock, int(told[1]))
        if self._store.signature.is_personal:
            self.send(int(told[1]), _WELCOME, b"")
        return True


def _send(sock: socket.socket, told: bytes) -> None:
    try:
        sock.sendall(told)
    except OSError:  # closed, or full for as long as a rank may be silent: then a part of it has left
        _shut(sock)


def _shut(sock: socket.socket) -> None:
    """Wake the thread, which closes it."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _enable_keepalive(sock: socket.socket) -> None:
    """Let the kernel find out that a peer's machine is gone: 10 s of silence, then 4 probes 5 s apart."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
