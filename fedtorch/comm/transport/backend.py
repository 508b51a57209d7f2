"""Which backend moves payloads: every rank tells the others which GPU it has, and all draw the same conclusion."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist

from fedtorch.comm.transport.device import Backend
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

    @classmethod
    def of(cls, device: torch.device) -> OwnGpu:
        """The GPU of this rank."""
        if not devices.is_gpu(device):
            return cls(problem="works on the CPU (system.device, or no GPU was found)")
        if not dist.is_nccl_available():
            return cls(problem=f"has torch {torch.__version__}, which comes without NCCL")
        return cls(name=devices.identity(device))

    def note(self) -> dict[str, str]:
        """For the store."""
        return {"gpu": self.name, "gpu_problem": self.problem}


def choose(wanted: Choice, notes: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """The verdict on what all ranks told: `backend`, and `shared`, the ranks that have no GPU to themselves.

    An `error` where NCCL is wanted and cannot be had. Ranks are on one GPU when its name is the same, so it does not
    matter how many GPUs each of them sees.
    """
    count = Counter(str(note.get("gpu", "")) for note in notes.values())
    problems = {rank: _problem(note, count) for rank, note in notes.items()}
    shared = [rank for rank, problem in problems.items() if problem]
    if wanted == "nccl" and shared:
        shown = "; ".join(f"rank {rank} {problems[rank]}" for rank in shared[:3])
        more = f"; and {len(shared) - 3} more ranks" if len(shared) > 3 else ""
        return {
            "error": f"system.backend is nccl, for which every rank needs a GPU of its own, but {shown}{more}; start "
            "at most as many ranks on a node as it has GPUs, or set system.backend to auto",
            "kind": "preflight",
        }
    backend: Backend = "nccl" if wanted != "gloo" and not shared else "gloo"
    return {"backend": backend, "shared": shared}


def log_if_shared(device: torch.device) -> None:
    """Once per node: log that its ranks share GPUs, where they do."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", 1)))
    if devices.is_gpu(device) and int(os.environ.get("LOCAL_RANK", 0)) == 0:
        if ranks > (gpus := devices.count()):
            log.info("%d ranks of this node share %d GPU%s; payloads travel over gloo", ranks, gpus, "s" * (gpus > 1))


def _problem(note: Mapping[str, Any], count: Counter[str]) -> str:
    if problem := note.get("gpu_problem", ""):
        return str(problem)
    name = str(note.get("gpu", ""))
    if not name:
        return "did not say which GPU it has"
    return f"shares GPU {name} with {count[name] - 1} other ranks" if count[name] > 1 else ""
