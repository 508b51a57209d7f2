"""A rank that was away asks what the server's store is for only when the server has said it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from ranks import free_port

from fedtorch.comm.job.rejoin import join_job, stay, stay_again
from fedtorch.comm.job.store import JobMember, Store
from fedtorch.core.errors import PreflightError


def environ(rank: int, port: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def beside(job: Callable[[], JobMember]) -> tuple[threading.Thread, list[JobMember]]:
    """The job in a thread, and where what it returns will be."""
    found: list[JobMember] = []
    thread = threading.Thread(target=lambda: found.append(job()), daemon=True)
    thread.start()
    return thread, found


@pytest.mark.long
@pytest.mark.parametrize("secret", ["", "known to all ranks of the test"])
def test_a_rank_that_comes_before_the_server_has_said_that_it_stays_hears_of_the_end(secret: str) -> None:
    """It would take the store for that of a run that begins, and wait for a beginning that does not come."""
    port = free_port()
    server = Store.join(environ(0, port), 30.0, secret)
    thread, found = beside(lambda: join_job(environ(1, port), 30.0, secret, 30.0))
    time.sleep(0.5)  # it has found the store, and nothing is said there yet
    assert not found
    stay_again(server, [1], 60.0)
    give_up_at = time.monotonic() + 30
    assert stay(server, ("a", "b"), lambda: time.monotonic() > give_up_at) is not None
    thread.join(30)
    assert [member.entry.is_over for member in found] == [True]


def test_a_rank_that_comes_early_takes_part_in_a_run_that_begins() -> None:
    port = free_port()
    thread, found = beside(lambda: join_job(environ(1, port), 30.0, "", 30.0))
    server = join_job(environ(0, port), 30.0, "", 30.0)
    thread.join(30)
    assert [member.entry for member in found] == [server.entry] and not server.entry.is_over


@pytest.mark.long
def test_a_server_that_never_says_what_it_is_there_for_is_waited_for_within_a_limit() -> None:
    port = free_port()
    server = Store.join(environ(0, port), 30.0)
    with pytest.raises(PreflightError, match=r"rank 0 \(the server\) did not answer rank 1 within 0\.5 s"):
        join_job(environ(1, port), 30.0, "", 0.5)
    assert server.hosts_store
