"""Ranks that are forked from one process that has imported everything."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

from launchers import fork_server as servers
from launchers.fork_server import Forked, ForkServer
from launchers.job import Job
from launchers.pool import hold

pytestmark = pytest.mark.processes

NULL = os.open(os.devnull, os.O_RDONLY)


def begun(folder: Path) -> ForkServer:
    found = ForkServer.begin([str(folder)], rank)
    assert found is not None
    return found


def rank(arguments: list[str]) -> int:
    """What HOW in its environment says."""
    how, folder = os.environ["HOW"], Path(arguments[0])
    print(how, os.environ["RANK"], os.getsid(0) == os.getpid(), sys.stdin.read() == "", flush=True)
    if how == "raises":
        raise ValueError("no such thing")
    if how == "exits":
        sys.exit(4)
    if how == "stays":
        (folder / "is-there").touch()
        time.sleep(60)
    return 3


def start(server: ForkServer, how: str, output: int | None = None, held: int = NULL) -> Forked:
    return server.start({"HOW": how, "RANK": "7"}, output, held)


def ends(folder: Path) -> tuple[list[int], str]:
    server = begun(folder)
    with (folder / "output.txt").open("ab") as output:
        codes = [start(server, how, output.fileno()).wait() for how in ("returns", "raises", "exits")]
        stays = start(server, "stays", output.fileno())
        assert stays.poll() is None and os.getsid(stays.pid) == stays.pid
        stays.send_signal(signal.SIGTERM)
        codes.append(stays.wait())
        assert stays.poll() == codes[-1]
        stays.send_signal(signal.SIGTERM)  # to one that has ended: nothing
    server.close()
    return codes, (folder / "output.txt").read_text()


def test_forked_ranks_end_as_processes_of_their_own_do(tmp_path: Path) -> None:
    codes, printed = run_ranks(ends, 1, tmp_path)[0]
    assert codes == [3, 1, 4, -signal.SIGTERM]
    assert [line for line in printed.splitlines() if line.endswith("True")][:3] == [
        f"{how} 7 True True" for how in ("returns", "raises", "exits")
    ]
    assert "ValueError (its text is in this rank's log file alone" in printed and "ValueError: no such" not in printed


def begins_late(folder: Path) -> list[bool | int]:
    own = os.setsid

    def late() -> None:
        time.sleep(0.2)
        own()

    os.setsid = late
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server = begun(folder)
    stays = start(server, "stays")
    is_own = os.getsid(stays.pid) == stays.pid
    stays.send_signal(signal.SIGTERM)
    code = stays.wait()
    server.close()
    return [is_own, code]


def test_a_rank_that_was_started_hears_signals(tmp_path: Path) -> None:
    assert run_ranks(begins_late, 1, tmp_path)[0] == [True, -signal.SIGTERM]


def holds(folder: Path) -> list[bool]:
    server, lock = begun(folder), hold(folder)
    assert lock is not None
    process = start(server, "stays", held=lock)
    os.close(lock)
    while not (folder / "is-there").exists():
        time.sleep(0.01)
    server.close()
    while_it_runs = hold(folder) is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return [while_it_runs, hold(folder) is not None]


def test_a_rank_holds_the_run_folder_and_outlives_the_server(tmp_path: Path) -> None:
    assert run_ranks(holds, 1, tmp_path)[0] == [True, True]


def goes_on_without(folder: Path) -> int:
    server = begun(folder)
    os.kill(server._pid, signal.SIGKILL)
    errors = os.open(folder / "errors", os.O_WRONLY | os.O_CREAT)
    os.dup2(errors, 2)
    words = ["bash", "-c", f"echo $RANK >> {folder}/ran"]
    return Job(words, folder, 2, fork_server=server).run(0)


def test_without_the_server_ranks_are_started_as_ever(tmp_path: Path) -> None:
    assert run_ranks(goes_on_without, 1, tmp_path)[0] == 0
    assert sorted((tmp_path / "ran").read_text().split()) == ["0", "1"]
    assert (tmp_path / "errors").read_text().count("ranks import all by themselves from now on") == 1


def goes_on_beside_a_stopped_one(folder: Path) -> list[object]:
    servers.ANSWER_S = servers.CLOSE_S = 0.3
    server = begun(folder)
    os.kill(server._pid, signal.SIGSTOP)
    errors = os.open(folder / "errors", os.O_WRONLY | os.O_CREAT)
    os.dup2(errors, 2)
    words = ["bash", "-c", f"echo $RANK >> {folder}/ran"]
    code = Job(words, folder, 2, fork_server=server).run(0)
    server.close()
    return [code, Path(f"/proc/{server._pid}").exists()]


def test_a_stopped_server_is_given_up_and_ranks_are_started_as_ever(tmp_path: Path) -> None:
    assert run_ranks(goes_on_beside_a_stopped_one, 1, tmp_path)[0] == [0, False]
    assert sorted((tmp_path / "ran").read_text().split()) == ["0", "1"]
    assert "has not answered for 0.3 s); ranks import all by themselves" in (tmp_path / "errors").read_text()


def closes_a_stopped_one(folder: Path) -> float:
    servers.CLOSE_S = 0.3
    server = begun(folder)
    os.kill(server._pid, signal.SIGSTOP)
    started = time.monotonic()
    server.close()
    return time.monotonic() - started


def test_a_stopped_server_is_closed_in_a_bounded_time(tmp_path: Path) -> None:
    assert run_ranks(closes_a_stopped_one, 1, tmp_path)[0] < 10


def is_not_known(folder: Path) -> list[object]:
    """The launcher gives up when the server has forked the rank already, but has not said so."""
    server = begun(folder)
    server._channel.settimeout(20)
    own = os.write

    def never(handle: int, data: bytes) -> int:
        raise OSError("given up")

    os.write = never
    try:
        start(server, "stays")
        said = ""
    except OSError as error:
        said = str(error)
    os.write = own
    code = os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1])  # of the rank: this process is its parent
    server.close()
    return [said, code, (folder / "is-there").exists()]


def test_a_rank_that_the_launcher_does_not_know_of_ends_before_it_begins(tmp_path: Path) -> None:
    assert run_ranks(is_not_known, 1, tmp_path)[0] == ["given up", 1, False]


def test_nothing_is_forked_beside_threads_or_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("forked")

    monkeypatch.setattr(os, "fork", refuse)
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    assert ForkServer.begin([]) is None
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(servers, "_OF_GPUS", (str(tmp_path),))
    assert ForkServer.begin([]) is None
