"""Networks of known bandwidth or length on one machine: namespaces of their own, and wires between them."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

_TOOLS = ("unshare", "ip", "tc")
_TICKS = 250  # of the kernel in a second, at each of which the bucket is filled
_LEAST_BURST = 1 << 18  # some packets of loopback's 64 KB
_CLONE_NEWNET = 0x40000000


def why_not() -> str:
    """Why there can be no such network here; empty if there can."""
    if os.name != "posix" or os.geteuid():
        return "needs root, to make network namespaces"
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"needs {', '.join(missing)} (Debian: iproute2, util-linux)"
    tried = subprocess.run(limited(1.0, ["true"]), capture_output=True, text=True)
    return f"a namespace or its limit is refused: {tried.stderr.strip()}" if tried.returncode else ""


def limited(gbit: float, command: Sequence[str]) -> list[str]:
    """The command that runs `command` where all processes together send at most so many Gbit/s to each other.

    The namespace has no name and goes with its last process. Each message counts once, as on the one wire of a hub.
    """
    script = f'ip link set lo up && {_limit("lo", gbit)} && exec "$@"'
    return ["unshare", "--net", "sh", "-c", script, "sh", *command]


def _limit(device: str, gbit: float) -> str:
    """The command by which a device sends at most so many Gbit/s."""
    burst = max(_LEAST_BURST, round(1.2 * gbit * 1e9 / 8 / _TICKS))
    return f"tc qdisc add dev {device} root tbf rate {round(gbit * 1e6)}kbit burst {burst} latency 50ms"


def enter_network(pid: int) -> None:
    """This thread, and those that it starts, are in the network of that process from now on."""
    with open(f"/proc/{pid}/ns/net") as network:
        if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"the network of process {pid} cannot be entered")


class Machine:
    """A machine of its own as far as processes and networks go: namespaces without a name. A context manager."""

    def __init__(self, address: str) -> None:
        """address: on the wire that `connect` lays."""
        self.address = address
        self._holder: subprocess.Popen[str] | None = None
        self._wires: list[subprocess.Popen[str]] = []
        self.pid = 0  # of the first process there

    def __enter__(self) -> Machine:
        words = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        script = "ip link set lo up && echo ready && exec sleep infinity"
        self._holder = subprocess.Popen(
            [*words, "sh", "-ec", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            raise RuntimeError("a namespace could not be set up")
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        self.pid = int(children.read_text().split()[0])
        return self

    def __exit__(self, *_: object) -> None:
        for wire in self._wires:
            wire.kill()
            wire.communicate()
        if self._holder is not None:
            os.kill(self.pid, signal.SIGKILL)  # with it the kernel ends all that is in its process namespace
            self._holder.communicate()

    def command(self, words: Sequence[str]) -> list[str]:
        """The command that runs `words` there."""
        return ["nsenter", "-t", str(self.pid), "--net", "--pid", "--mount", "--", *words]

    def connect(self, other: Machine, gbit: float) -> None:
        """Lay a wire to another machine, of so many Gbit/s in each direction."""
        ends = f"link add wire netns {self.pid} type veth peer name wire netns {other.pid}"
        subprocess.run(["ip", *ends.split()], check=True)
        for machine in (self, other):
            up = f"ip addr add {machine.address}/24 dev wire && ip link set wire up && {_limit('wire', gbit)}"
            subprocess.run(machine.command(["sh", "-ec", up]), check=True)

    def connect_far(self, other: Machine, milliseconds: float) -> None:
        """Lay a wire to another machine on which a packet takes so long, in each direction.

        Raises:
            RuntimeError: there can be no such wire here: it needs TUN devices.
        """
        words = [str(word) for machine in (self, other) for word in (machine.pid, machine.address)]
        command = [sys.executable, str(Path(__file__).with_name("far_wire.py")), *words, str(milliseconds)]
        self._wires.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        carries = self._wires[-1].stdout
        assert carries is not None
        if carries.readline() != "ready\n":
            raise RuntimeError("a wire between two namespaces could not be laid; it needs /dev/net/tun")


class Switch:
    """Machines, each with a wire of its own to one switch. A context manager."""

    def __init__(self, count: int, gbit: float) -> None:
        """gbit: what each wire carries in each direction, Gbit/s."""
        self.machines = [Machine(f"10.84.0.{place}") for place in range(1, count + 1)]
        self._switch, self._gbit, self._opened = Machine(""), gbit, ExitStack()

    def __enter__(self) -> Switch:
        with ExitStack() as opened:
            opened.enter_context(self._switch)
            self._run(self._switch, "ip link add switch type bridge && ip link set switch up")
            for place, machine in enumerate(self.machines):
                opened.enter_context(machine)
                ends = f"link add wire netns {machine.pid} type veth peer name port{place} netns {self._switch.pid}"
                subprocess.run(["ip", *ends.split()], check=True)
                self._run(machine, f"ip addr add {machine.address}/24 dev wire && {self._up('wire')}")
                self._run(self._switch, f"ip link set port{place} master switch && {self._up(f'port{place}')}")
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _up(self, device: str) -> str:
        return f"ip link set {device} up && {_limit(device, self._gbit)}"

    @staticmethod
    def _run(machine: Machine, script: str) -> None:
        subprocess.run(machine.command(["sh", "-ec", script]), check=True)


def figures_over(gbit: str, program: str, words: Sequence[str]) -> Any:
    """What a benchmark writes by `--json` where a wire carries so many Gbit/s; `none`: as it is here.

    Raises:
        SystemExit: it failed there; with its exit code.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, program, *words, "--json", str(out)]
        command = command if gbit == "none" else limited(float(gbit), command)
        quiet = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}  # a network of its own has no names for its addresses
        done = subprocess.run(command, stdout=subprocess.DEVNULL, env=quiet)
        if done.returncode:
            raise SystemExit(done.returncode)
        return json.loads(out.read_text())
