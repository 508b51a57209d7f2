"""The hosts that other tests run on: do they have what machines have, and does nothing of them stay?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hosts import Network, why_not

pytestmark = pytest.mark.processes

LISTEN = "import socket; s = socket.create_server(('', 7)); print('there', flush=True); s.accept()[0].recv(1)"
CALL = "import socket, sys; socket.create_connection((sys.argv[1], 7), timeout=float(sys.argv[2])).close()"


def calls(hosts: Network, source: str, target: str, limit_s: float = 0.3) -> bool:
    """Can `source` reach `target` by name?"""
    with hosts.popen(target, [sys.executable, "-c", LISTEN], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None and server.stdout.readline() == "there\n"
        call = [sys.executable, "-c", CALL, target, str(limit_s)]
        code = hosts.popen(source, call, stderr=subprocess.DEVNULL).wait()
        server.kill()
    return code == 0


def test_hosts_have_names_disks_and_a_wire_that_can_be_cut(network: Callable[..., Network]) -> None:
    hosts = network()
    assert hosts.command("a", "hostname; getent hosts a b | tr -s ' '") == "a\n127.0.1.1 a\n10.83.0.2 b"
    assert hosts.command("a", f"echo own > {hosts.disk}/file; cat {hosts.disk}/file") == "own"
    assert hosts.command("b", f"ls {hosts.disk}") == "" and (hosts.hosts["a"].disk / "file").exists()
    assert calls(hosts, "a", "b")
    hosts.cut("b")
    assert not calls(hosts, "a", "b")
    hosts.mend("b")
    assert calls(hosts, "a", "b", 5.0)


def test_a_host_that_is_killed_comes_back_with_its_disk_and_without_its_processes(
    network: Callable[..., Network],
) -> None:
    hosts = network()
    process = hosts.popen("b", ["sleep", "100"])
    hosts.command("b", f"echo kept > {hosts.disk}/file")
    hosts.kill("b")
    assert process.wait(5) != 0
    hosts.boot("b")
    assert hosts.command("b", f"cat {hosts.disk}/file; ps -e -o comm= | grep -c sleep") == "kept\n1"  # the host itself


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_nothing_stays_of_a_test_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from hosts import Network\n"
        "with Network(Path(sys.argv[1])) as hosts:\n"
        "    print(*[host.pid for host in hosts.hosts.values()], flush=True); time.sleep(100)"
    )
    support = Path(__file__).parents[1] / "support"
    words = [sys.executable, "-c", code, str(tmp_path / "network")]
    path = os.pathsep.join([str(support), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}) as test:
        assert test.stdout is not None
        pids = test.stdout.readline().split()
        test.send_signal(signal.SIGKILL)
    give_up_at = time.monotonic() + 5
    while any(map(is_running, pids)) and time.monotonic() < give_up_at:
        time.sleep(0.02)
    assert len(pids) == 2 and not any(map(is_running, pids))


def is_running(pid: str) -> bool:
    """Not, when it waits for nothing but to be taken note of."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
