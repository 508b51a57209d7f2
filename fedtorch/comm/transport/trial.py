"""A first sum from GPU to GPU, so that a job whose GPUs do not reach each other finds out before it has begun."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable
from typing import Any

import torch

from fedtorch.comm.job.call_thread import CallThread
from fedtorch.comm.transport.process_group import Direct

LIMIT_S = 120.0
"""For a first sum, which takes seconds; NCCL waits without an end for a rank that it cannot reach."""
_POLL_S = 0.01
_BEAT_EVERY_S = 1.0


def problem_of(
    connect: Callable[[], Any],
    device: torch.device,
    beat: Callable[[], None],
    elsewhere: Callable[[], str],
    limit_s: float | None = None,
) -> str:
    """Why payloads cannot go from GPU to GPU, as far as this rank knows; empty where a sum over all came and is right.

    All ranks call it alike, whose devices are `device` each. connect: makes a group of NCCL for this sum alone; may
    hang. beat: called now and then meanwhile. elsewhere: says where the sum has failed already, so that nobody waits
    for it; empty: nowhere. limit_s: None: `LIMIT_S`.
    """
    made: list[Any] = []

    def add_up() -> str:
        made.append(connect())
        made[0].eager_connect_single_device(device)
        found = _sum_of_ones(made[0], device)
        made[0].abort()
        return "" if found == made[0].size() else f"the ones of {made[0].size()} ranks add up to {found:g}"

    limit_s, where = LIMIT_S if limit_s is None else limit_s, ""
    answers, give_up_at = CallThread("first sum over NCCL").start(add_up), time.monotonic() + limit_s
    while (left := give_up_at - time.monotonic()) > 0:
        beat()
        with contextlib.suppress(queue.Empty):
            found, problem = answers.get(timeout=min(_BEAT_EVERY_S, left))
            return str(problem or found)
        if where := elsewhere():
            break
    # what waits on the GPU is told to end; that may hang too, and nobody waits for it
    CallThread("end of the first sum over NCCL").start(lambda: [group.abort() for group in made])
    return f"it failed on {where}" if where else f"it did not end within {limit_s:g} s"


def _sum_of_ones(group: Any, device: torch.device) -> float:
    ones = torch.ones(1, dtype=torch.float64, device=device)
    work: Any = Direct(group).all_reduce(ones)
    while not work.is_completed():
        time.sleep(_POLL_S)
    work.wait()
    return float(ones.cpu())
