"""Networks of known bandwidth on one machine: a namespace of its own, whose loopback carries so much and no more."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

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
