"""Networks of known bandwidth or length on one machine: namespaces of their own, and wires between them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_TOOLS = ("unshare", "ip", "tc")
_TICKS = 250  # of the kernel in a second, at each of which the bucket is filled
_LEAST_BURST = 1 << 18  # some packets of loopback's 64 KB


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
    burst = max(_LEAST_BURST, round(1.2 * gbit * 1e9 / 8 / _TICKS))
    limit = f"tc qdisc add dev lo root tbf rate {round(gbit * 1e6)}kbit burst {burst} latency 50ms"
    return ["unshare", "--net", "sh", "-c", f'ip link set lo up && {limit} && exec "$@"', "sh", *command]


class Machine:
    """A machine of its own as far as processes and networks go: namespaces without a name. A context manager."""

    def __init__(self, address: str) -> None:
        """address: on the wire that `connect` lays."""
        self.address = address
        self._holder: subprocess.Popen[str] | None = None
        self._wires: list[subprocess.Popen[str]] = []
        self._pid = 0

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
        self._pid = int(children.read_text().split()[0])
        return self

    def __exit__(self, *_: object) -> None:
        for wire in self._wires:
            wire.kill()
            wire.communicate()
        if self._holder is not None:
            os.kill(self._pid, signal.SIGKILL)  # with it the kernel ends all that is in its process namespace
            self._holder.communicate()

    def command(self, words: Sequence[str]) -> list[str]:
        """The command that runs `words` there."""
        return ["nsenter", "-t", str(self._pid), "--net", "--pid", "--mount", "--", *words]

    def connect(self, other: Machine, gbit: float) -> None:
        """Lay a wire to another machine, of so many Gbit/s in each direction."""
        ends = f"link add wire netns {self._pid} type veth peer name wire netns {other._pid}"
        subprocess.run(["ip", *ends.split()], check=True)
        burst = max(_LEAST_BURST, round(1.2 * gbit * 1e9 / 8 / _TICKS))
        for machine in (self, other):
            limit = f"tc qdisc add dev wire root tbf rate {round(gbit * 1e6)}kbit burst {burst} latency 50ms"
            up = f"ip addr add {machine.address}/24 dev wire && ip link set wire up && {limit}"
            subprocess.run(machine.command(["sh", "-ec", up]), check=True)

    def connect_far(self, other: Machine, milliseconds: float) -> None:
        """Lay a wire to another machine on which a packet takes so long, in each direction.

        Raises:
            RuntimeError: there can be no such wire here: it needs TUN devices.
        """
        words = [str(word) for machine in (self, other) for word in (machine._pid, machine.address)]
        command = [sys.executable, str(Path(__file__).with_name("far_wire.py")), *words, str(milliseconds)]
        self._wires.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        carries = self._wires[-1].stdout
        assert carries is not None
        if carries.readline() != "ready\n":
            raise RuntimeError("a wire between two namespaces could not be laid; it needs /dev/net/tun")


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
