"""Carry packets between two network namespaces, each so many milliseconds after it came: a wire of a known length.

python benchmarks/far_wire.py PID ADDRESS PID ADDRESS MILLISECONDS

Started by `wires.Machine.connect_far`, for kernels without `netem`. Each namespace has one end, a TUN device called
`wire`; the process copies what the kernel writes at one end to the other, in order, and prints a line when both are up.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.wires import enter_network

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_LARGEST = 1 << 16


def end(pid: int, address: str) -> int:
    """Make one end in the network of that process, with this address; its descriptor."""
    enter_network(pid)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"wire", _IFF_TUN | _IFF_NO_PI))
    for words in (f"addr add {address}/24 dev wire", "link set wire up mtu 1500 txqueuelen 10000"):
        subprocess.run(["ip", *words.split()], check=True)
    return device


def carry(ends: Sequence[int], seconds: float) -> None:
    """Bring what comes at one end to the other, so much later; does not return."""
    under_way: deque[tuple[float, int, bytes]] = deque()  # all take equally long, so it is in order
    while True:
        pause = None if not under_way else max(0.0, under_way[0][0] - time.monotonic())
        for came in select.select(ends, [], [], pause)[0]:
            packet = os.read(came, _LARGEST)
            under_way.append((time.monotonic() + seconds, ends[1 - ends.index(came)], packet))
        while under_way and under_way[0][0] <= time.monotonic():
            _, other, packet = under_way.popleft()
            os.write(other, packet)


if __name__ == "__main__":
    both = [end(int(sys.argv[place]), sys.argv[place + 1]) for place in (1, 3)]
    print("ready", flush=True)
    carry(both, float(sys.argv[5]) / 1e3)
