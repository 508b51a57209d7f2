"""What is sent comes whole and in order, a process that ends is noticed, and strangers on the port are not let in."""

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
from fedtorch.comm.job.signing import Signature
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


@pytest.mark.processes
def test_a_killed_process_is_noticed(store: Store) -> None:
    server = Links.open(store, 0, "127.0.0.1")
    port, token = store.get("links", by=0).split()
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
    port = int(store.get("links", by=0).split()[0])
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


def test_what_is_sent_comes_in_order_by_topic_and_rank(store: Store) -> None:
    server = Links.open(store, 0, "127.0.0.1")
    one, two = (Links.open(store, rank, "127.0.0.1") for rank in (1, 2))
    long = os.urandom(3_000_000)  # more than is read at once
    for data in (b"first", long, b""):
        one.send(0, "numbers", data)
    one.send(0, "meeting", b"note")
    two.send(0, "numbers", b"another's")
    assert server.wait("numbers", [1, 2], 5) and server.wait("meeting", [1], 5)
    assert not server.wait("meeting", [1, 2], 0.0)
    assert [server.take("numbers", 1, 5.0) for _ in range(3)] == [b"first", long, b""]
    assert (server.take("meeting", 1), server.take("numbers", 2)) == (b"note", b"another's")
    with pytest.raises(RuntimeError, match="no numbers came from rank 1 for 0.05 s"):
        server.take("numbers", 1, 0.05)
    server.send(2, "numbers", b"answer")
    assert two.take("numbers", 0, 5.0) == b"answer" and not one.wait("numbers", [0], 0.05)
    for links in (one, two, server):
        links.close()


def test_who_waits_hears_that_another_one_has_left_the_topic_or_is_gone(store: Store) -> None:
    server = Links.open(store, 0, "127.0.0.1")
    one, two = (Links.open(store, rank, "127.0.0.1") for rank in (1, 2))
    one.send(0, "numbers0", b"last")
    one.end("numbers0")
    assert server.take("numbers0", 1, 5.0) == b"last", "what came before counts"
    with pytest.raises(RuntimeError, match="rank 1 has left the exchange"):
        server.take("numbers0", 2, 30.0)
    two.send(0, "numbers1", b"another topic goes on")
    assert server.take("numbers1", 2, 5.0)
    two.close()
    with pytest.raises(RuntimeError, match="the connection to rank 2 was closed by its side"):
        server.take("numbers1", 2, 30.0)
    server.send(2, "numbers1", b"to nobody")
    for links in (one, server):
        links.close()


@pytest.mark.parametrize("secret", ["another secret of a job", ""])
def test_who_knows_the_token_but_not_the_secret_is_not_let_in(secret: str) -> None:
    agent = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = Store(lambda: agent, 5.0, "here", Signature("the secret of this job", "job/0"))
    server = Links.open(store, 0, "127.0.0.1")
    port, token = store.get("links", by=0).split()
    said = Signature(secret, "job/0").sign("hello/1", token)
    with socket.create_connection(("127.0.0.1", int(port))) as sock:
        sock.settimeout(5)
        sock.sendall(frame("hello/1", said.encode()) + frame("numbers", b"forged"))
        assert closes(sock)
    friend = Links.open(store, 1, "127.0.0.1")
    friend.send(0, "numbers", b"true")
    assert server.take("numbers", 1, 5.0) == b"true"
    with socket.create_connection(("127.0.0.1", int(port))) as sock:  # as recorded; the rank is there already
        sock.settimeout(5)
        sock.sendall(frame("hello/1", store.signature.sign("hello/1", token).encode()))
        assert closes(sock)
    assert list(server._peers.values()) == [1]
    friend.close()
    server.close()


def closes(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


def test_who_waits_looks_up_once_when_somebody_says_the_last_word(store: Store) -> None:
    server = Links.open(store, 0, "127.0.0.1")
    worker, other = (Links.open(store, rank, "127.0.0.1") for rank in (1, 2))
    assert eventually(lambda: len(server._peers) == 2)
    worker.send(0, "notes", b"the last one")
    worker.end_all()
    assert not server.wait("notes", [1, 2], 60.0)  # no longer than until then
    assert server.wait_for_last("notes", [1], 60.0) and server.take("notes", 1) == b"the last one"
    assert not server.wait_for_last("notes", [1], 60.0)  # nothing more comes
    assert server.silent == {1} and not server.ended
    other.send(0, "notes", b"")
    assert server.wait("notes", [2], 60.0)
    for links in (worker, other, server):
        links.close()
