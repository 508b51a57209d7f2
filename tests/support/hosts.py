"""Hosts on one machine: namespaces with a wire between them, and disks and names of their own.

Everything lives in namespaces without a name, each held by a process that the kernel kills with the test's own, so
nothing is left behind, whatever ends the test. Root, `ip`, `unshare`, `nsenter` and `setpriv` are needed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ranks import Ranks, start_ranks

PORT = "29500"  # every network is new, so it is free
_TOOLS = ("ip", "unshare", "nsenter", "setpriv")
_NAMESPACES = ("net", "uts", "ipc", "mnt", "pid")
_HOLDER = ["setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--kill-child", "--net"]
_OWN_ALL = ["--uts", "--ipc", "--mount", "--pid", "--mount-proc"]


@cache
def why_not() -> str:
    """Why there can be no hosts here; empty if there can."""
    if os.name != "posix" or os.geteuid():
        return "needs root, to make network namespaces"
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"needs {', '.join(missing)}"
    tried = subprocess.run(["unshare", "--net", *_OWN_ALL, "--fork", "true"], capture_output=True, text=True)
    return f"namespaces are refused: {tried.stderr.strip()}" if tried.returncode else ""


@dataclass
class Host:
    """A machine."""

    name: str
    """Its own; to itself it means 127.0.1.1, as Debian and Ubuntu have it, unless `Network.names_are_addresses`."""
    address: str
    """Of its only interface, eth0."""
    disk: Path
    """What it alone sees as `Network.disk`; here for the test to look into."""
    holder: subprocess.Popen[str] | None = None
    """None while the host is down."""
    pid: int = 0
    """Of the first process in its namespaces."""


@dataclass
class Network:
    """Hosts on one switch. A context manager.

    names: of the hosts. has_common_disk: all see the same folder as `disk`; else each its own.
    """

    root: Path
    names: Sequence[str] = ("a", "b")
    has_common_disk: bool = False
    names_are_addresses: bool = False
    hosts: dict[str, Host] = field(default_factory=dict)
    _switch: Host | None = None

    @property
    def disk(self) -> Path:
        """Where every host sees its disk."""
        return self.root / "disk"

    def __enter__(self) -> Network:
        self.disk.mkdir(parents=True)
        self._switch = Host("switch", "", self.root)
        self._start(self._switch, [], "true")
        self._ip(self._switch, "link add wire type bridge", "link set wire up")
        for number, name in enumerate(self.names, start=1):
            disk = self.disk if self.has_common_disk else self.root / f"disk-{name}"
            self.hosts[name] = Host(name, f"10.83.0.{number}", disk)
        for name in self.names:
            self.boot(name)
        return self

    def __exit__(self, *_: object) -> None:
        for host in [*self.hosts.values(), *([self._switch] if self._switch else [])]:
            _end(host)

    def boot(self, name: str) -> None:
        """Start a host that is down; it has its disk, name and address again."""
        host, port, switch = self.hosts[name], f"port-{name}", self._switch
        assert switch is not None
        host.disk.mkdir(exist_ok=True)
        mac = f"02:00:00:00:00:{list(self.hosts).index(name):02x}"  # the others remember it
        etc_hosts = self.root / f"hosts-{name}"
        others = [f"{other.address} {other.name}" for other in self.hosts.values() if other is not host]
        own = f"{host.address if self.names_are_addresses else '127.0.1.1'} {name}"
        etc_hosts.write_text("\n".join(["127.0.0.1 localhost", own, *others, ""]))
        setup = [f"hostname {name}", f"mount --bind {etc_hosts} /etc/hosts", f"mount --bind {host.disk} {self.disk}"]
        self._start(host, _OWN_ALL, " && ".join(setup))
        _run(
            "nsenter", "-t", str(switch.pid), "-n", "ip", "link", "del", port, check=False
        )  # of a host that was killed
        self._ip(
            switch,
            f"link add {port} type veth peer name eth0 address {mac} netns {host.pid}",
            f"link set {port} master wire up",
        )
        self._ip(host, "link set lo up", f"addr add {host.address}/24 dev eth0", "link set eth0 up")

    def kill(self, name: str) -> None:
        """The host is gone, with every process on it and its end of the wire; its disk is kept."""
        _end(self.hosts[name])

    def cut(self, name: str) -> None:
        """Nothing gets to or from the host."""
        self._ip(self._switch, f"link set port-{name} down")

    def mend(self, name: str) -> None:
        """After `cut`."""
        self._ip(self._switch, f"link set port-{name} up")

    def block(self, name: str, other: str) -> None:
        """The two hosts do not reach each other, though both reach the rest."""
        self._ip(self.hosts[name], f"route add blackhole {self.hosts[other].address}/32")

    def limit(self, name: str, rate: str) -> None:
        """How fast the host's wire is, both ways, such as `10mbit`."""
        assert self._switch is not None
        for host, device in ((self._switch, f"port-{name}"), (self.hosts[name], "eth0")):
            shaper = ["tbf", "rate", rate, "burst", "32kbit", "latency", "400ms"]
            _run("nsenter", "-t", str(host.pid), "-n", "tc", "qdisc", "replace", "dev", device, "root", *shaper)

    def popen(self, name: str, words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """A command on a host."""
        dying = ["setpriv", "--pdeathsig", "KILL"]  # with the one that starts it; nsenter is one of its own
        entered = [*dying, "nsenter", "-t", str(self.hosts[name].pid), "-a", "--", *dying, *words]
        return subprocess.Popen(entered, text=True, **options)

    def command(self, name: str, words: str) -> str:
        """What a shell's command prints on a host; it must succeed."""
        return _run("nsenter", "-t", str(self.hosts[name].pid), "-a", "--", "sh", "-ec", words).strip()

    def log(self, name: str, rank: int) -> str:
        """What a rank has logged on its host's disk, in `run`."""
        return (self.hosts[name].disk / "run" / f"log.rank{rank}.txt").read_text()

    def start(
        self,
        where: Sequence[str],
        words: Sequence[str],
        environ: Mapping[str, str] | None = None,
        *,
        clocks_differ_by: float = 0.0,
    ) -> Ranks:
        """`fedtorch.main` with `words` as one rank on each of the hosts named in `where`, as srun would start them.

        The ranks of a host must follow one another. clocks_differ_by: seconds, of a host's clock from the one before.
        """
        places = [
            (self.hosts[name].pid, where[:rank].count(name), where.count(name)) for rank, name in enumerate(where)
        ]
        variables = {**self._job(where), **(environ or {})}
        shifts = [clocks_differ_by * list(self.hosts).index(name) for name in where]
        return start_ranks(_as_rank, len(where), places, str(self.disk), list(words), shifts, environ=variables)

    def start_again(
        self, where: Sequence[str], rank: int, words: Sequence[str], environ: Mapping[str, str] | None = None
    ) -> Ranks:
        """One rank of such a job once more."""
        place = (self.hosts[where[rank]].pid, where[:rank].count(where[rank]), where.count(where[rank]))
        variables = {**self._job(where), "RANK": str(rank), "WORLD_SIZE": str(len(where)), **(environ or {})}
        return start_ranks(_as_rank, 1, [place] * len(where), str(self.disk), list(words), environ=variables)

    def _job(self, where: Sequence[str]) -> dict[str, str]:
        return {
            "MASTER_ADDR": self.hosts[where[0]].address,
            "MASTER_PORT": PORT,
            "FEDTORCH_JOB_SECRET": "known to all ranks of the test",
            "FEDTORCH_TESTING": "1",
        }

    def _start(self, host: Host, namespaces: Sequence[str], setup: str) -> None:
        """Start the process that holds the host's namespaces; returns when it has set them up."""
        script = f"{setup} && echo ready && exec sleep infinity"
        words = [*_HOLDER, *namespaces, "sh", "-ec", script]
        host.holder = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert host.holder.stdout is not None and host.holder.stderr is not None
        if host.holder.stdout.readline() != "ready\n":
            raise RuntimeError(f"host {host.name} could not be set up: {host.holder.stderr.read()}")
        pid = host.holder.pid
        host.pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def _ip(self, host: Host | None, *lines: str) -> None:
        assert host is not None
        text = "\n".join(lines) + "\n"
        _run("nsenter", "-t", str(host.pid), "-n", "ip", "-batch", "-", stdin=text)


def enter(pid: int) -> None:
    """Go on as a child of this process on the host whose first process is `pid`; this one ends as the child does.

    A process cannot change its own process namespace, hence the child.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    handles = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in _NAMESPACES]
    for handle in handles:
        if libc.setns(handle, 0):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespaces of process {pid}")
        os.close(handle)
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        os._exit(code if code >= 0 else 128 - code)
    libc.prctl(1, signal.SIGKILL)  # die with the parent, which a test may kill by its number


def _as_rank(
    places: Sequence[tuple[int, int, int]], folder: str, words: list[str], shifts: Sequence[float] = ()
) -> None:
    rank = int(os.environ["RANK"])
    pid, local_rank, local_size = places[rank]
    if shifts and shifts[rank]:
        clock = time.time
        time.time = lambda: clock() + shifts[rank]
    os.environ.update(LOCAL_RANK=str(local_rank), LOCAL_WORLD_SIZE=str(local_size))
    enter(pid)
    os.chdir(folder)
    from fedtorch.main import main

    if code := main(words):
        sys.exit(code)


def _end(host: Host) -> None:
    if host.holder is None:
        return
    with suppress(ProcessLookupError):
        os.kill(host.pid, signal.SIGKILL)  # the kernel ends all that is in its process namespace
    host.holder.kill()
    host.holder.communicate()
    host.holder = None


def _run(*words: str, stdin: str | None = None, check: bool = True) -> str:
    done = subprocess.run(words, input=stdin, capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}\n{stdin or ''}")
    return done.stdout
