"""A process that ends is noticed by its closed connection; strangers on the port are not let in."""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from typing import Any

import pytest
import torch.distributed as dist

from fedtorch.comm.job.links import Links
from fedtorch.comm.job.store import Store
from fedtorch.core.errors import PreflightError


def frame(topic: str, data: bytes) -> bytes:
    """As a rank writes it."""
    return struct.pack("!IH", len(data), len(topic)) + topic.encode() + data


@pytest.fixture
def store() -> Store:
    agent = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return Store(lambda: agent, 5.0, "here")


def eventually(condition: Any) -> bool:
    give_up_at = time.monotonic() + 10
    while not condition() and time.monotonic() < give_up_at:
        time.sleep(0.02)
    return bool(condition())


def test_an_end_is_noticed_on_the_other_side(store: Store) -> None:
    server = Links.open(store, 0, "127.0.0.1")
    workers = {rank: Links.open(store, rank, "127.0.0.1") for rank in (1, 2, 300)}
    assert eventually(lambda: len(server._peers) == 3) and not server.ended
    workers[300].close()
    assert eventually(lambda: server.ended == {300})
    server.close()
    assert eventually(lambda: workers[1].ended == {0} and workers[2].ended == {0})
    assert server.ended == {300} and workers[300].ended == set()  # who closes does not call it an end


def test_a_killed_process_is_noticed(store: Store) -> None:
    server = Links.open(store, 0, "127.0.0.1")
    port, token = store.get("links").split()
    if (child := os.fork()) == 0:  # nothing but a socket, so a fork does no harm
        with socket.create_connection(("127.0.0.1", int(port))) as sock:
            sock.sendall(frame("hello/5", token.encode()))
            time.sleep(60)
        os._exit(0)
    assert eventually(lambda: 5 in server._peers.values())
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert eventually(lambda: server.ended == {5})
    server.close()


@pytest.mark.parametrize("hello", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(20), b"\xff" * 1000])
def test_a_stranger_is_not_let_in(store: Store, hello: bytes) -> None:
    server = Links.open(store, 0, "127.0.0.1")
    port = int(store.get("links").split()[0])
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.settimeout(5)
        try:
            sock.sendall(hello)
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1) == b""
        except OSError as error:  # closed before it has said all
            assert not isinstance(error, TimeoutError)
    friend = Links.open(store, 1, "127.0.0.1")
    assert eventually(lambda: list(server._peers.values()) == [1]) and not server.ended
    server.close()
    friend.close()


def test_a_server_that_is_not_at_the_address_is_an_error_with_advice(store: Store) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        store.set("links", f"{sock.getsockname()[1]} {'00' * 16}")
        with pytest.raises(PreflightError, match="needs rank 0 on the machine that MASTER_ADDR names"):
            Links.open(store, 1, "127.0.0.1")
