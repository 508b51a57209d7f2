"""Which backend moves payloads: every rank tells the others which GPU it has, and all draw the same conclusion."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist

from fedtorch.comm.transport.device import Backend
from fedtorch.comm.transport.segment import machine
from fedtorch.core import devices

log = logging.getLogger(__name__)

Choice = Literal["auto", "gloo", "nccl"]


@dataclass(frozen=True)
class OwnGpu:
    """A rank's GPU, as it tells the others."""

    name: str = ""
    """The same on the whole machine, whichever GPUs a rank sees; empty if there is none for NCCL."""
    problem: str = ""
    """Why there is none."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the GPU, its driver and its libraries, as `devices.versions` has them; empty for the CPU."""

    @classmethod
    def of(cls, device: torch.device) -> OwnGpu:
        """The GPU of this rank."""
        if not devices.is_gpu(device):
            return cls(problem="works on the CPU (system.device, or no GPU was found)")
        versions = devices.versions(device)
        if not dist.is_nccl_available():
            return cls(problem=f"has torch {torch.__version__}, which comes without NCCL", versions=versions)
        return cls(name=devices.identity(device), versions=versions)

    def note(self) -> dict[str, Any]:
        """For the store."""
        here = ""  # unknown, or of no interest
        with suppress(OSError):
            here = str(machine()) if self.name else ""
        return {"gpu": self.name, "gpu_problem": self.problem, "gpu_versions": dict(self.versions), "machine": here}


def choose(wanted: Choice, notes: Mapping[int, Mapping[str, Any]], crosses: str = "") -> dict[str, Any]:
    """The verdict on what all ranks told: `backend`, and `shared`, the ranks that have no GPU to themselves.

    An `error` where NCCL is wanted and cannot be had. Ranks are on one GPU when its name is the same, so it does not
    matter how many GPUs each of them sees. The server's log has why `auto` is gloo where there are GPUs.

    crosses: why the vectors of a round go through the host's memory, and may be read there by other ranks. Where all
    ranks are on one machine, `auto` then is gloo, over which nothing is copied; empty: they stay on devices.
    """
    count = Counter(str(note.get("gpu", "")) for note in notes.values())
    first = min((rank for rank, note in notes.items() if _nccl(note)), default=0)
    problems = {rank: _problem(note, count, first, _nccl(notes[first])) for rank, note in notes.items()}
    shared = [rank for rank, problem in problems.items() if problem]
    shown = "; ".join(f"rank {rank} {problems[rank]}" for rank in shared[:3])
    shown += f"; and {len(shared) - 3} more ranks" if len(shared) > 3 else ""
    if wanted == "nccl" and shared:
        return {
            "error": f"system.backend is nccl, for which every rank needs a GPU of its own, but {shown}; start at most "
            "as many ranks on a node as it has GPUs, with one version of NCCL, or set system.backend to auto",
            "kind": "preflight",
        }
    if wanted == "auto" and shared and len(shared) < len(notes):
        log.info("payloads travel over gloo and not over NCCL: %s", shown)
    backend: Backend = "nccl" if wanted != "gloo" and not shared else "gloo"
    machines = {note.get("machine") or None for note in notes.values()}
    if wanted == "auto" and backend == "nccl" and crosses and len(machines) == 1 and None not in machines:
        log.info("payloads are read from memory that all ranks share, and do not travel over NCCL: %s", crosses)
        backend = "gloo"
    return {"backend": backend, "shared": shared}


def log_if_shared(device: torch.device, *, server_serves: bool = False) -> None:
    """Once per node: log that its ranks share GPUs, where they do. server_serves: see `devices.own`."""
    spared = int(devices.spares_server(server_serves))
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", 1))) - spared
    if devices.is_gpu(device) and int(os.environ.get("LOCAL_RANK", 0)) == spared:
        if ranks > (gpus := devices.count()):
            log.info("%d ranks of this node share %d GPU%s; payloads travel over gloo", ranks, gpus, "s" * (gpus > 1))


def _nccl(note: Mapping[str, Any]) -> str:
    """Version of NCCL; empty where there is none, or it is not told."""
    return str(note.get("gpu_versions", {}).get("nccl", ""))


def _problem(note: Mapping[str, Any], count: Counter[str], first: int, nccl: str) -> str:
    """Why the rank's GPU is none for NCCL. first, nccl: the first rank with NCCL, and its version."""
    if problem := note.get("gpu_problem", ""):
        return str(problem)
    name = str(note.get("gpu", ""))
    if not name:
        return "did not say which GPU it has"
    if count[name] > 1:
        return f"shares GPU {name} with {count[name] - 1} other ranks"
    return f"has NCCL {_nccl(note) or 'of no version'} and rank {first} has {nccl}" if _nccl(note) != nccl else ""
