"""Is a rank's process still there? Only for ranks of one machine, and only on Linux; of others nothing is known."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def this_process() -> dict[str, str | int]:
    """Identify this process among all others: by its machine, its number, and when it was started.

    Two containers on one machine have process numbers of their own, so the namespace belongs to the machine's name.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        machine = f"{boot} {os.readlink('/proc/self/ns/pid')}"
        return {"machine": machine, "pid": os.getpid(), "started": _stat(os.getpid())[1]}
    except OSError:
        return {}


def process_state(mine: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """`gone`, `stopped`, or empty if it runs or cannot be seen from here; both as `this_process` gave them."""
    if not mine or mine["machine"] != other.get("machine"):
        return ""
    try:
        state, started = _stat(other["pid"])
    except OSError:
        return "gone"
    if state in "ZX" or started != other["started"]:
        return "gone"
    return "stopped" if state == "T" else ""


def _stat(pid: int) -> tuple[str, str]:
    """State and start time; the name before them, in brackets, may contain anything."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return words[0], words[19]
