"""Part `exchange` of the benchmark of GPUs: rounds whose vectors stay on devices, and those that cross to the host.

The rounds are those of workload "c" (`benchmarks.workloads`), in which there is almost nothing but the exchange: a
rank has its vectors where a run would keep them, or all of them in the host's memory, as where something looks at them
there. Ranks of one machine then share that memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from benchmarks.gpu_part import Setting
from benchmarks.measured import Watch, time_runner
from benchmarks.processes import run_ranks
from benchmarks.workloads import WORKLOADS, shrunk
from fedtorch.core import devices
from fedtorch.core.mechanism import RoundFacts
from fedtorch.rounds import exchanged_vectors

RESIDENT, ACROSS = "on devices", "through the host"
_COUNTED = 1  # the round in which bytes are counted, numbered from 0; `measured.BEFORE` and later are timed


class Crossings(TorchFunctionMode):
    """Counts bytes that are copied between host and device in it, but for single numbers that the host reads."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()
        """`up`, from the host to the device; `down`"""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Do it, and count it if it is a copy from one to the other."""
        out = func(*args, **(kwargs or {}))
        if func in (Tensor.copy_, Tensor.to, Tensor.cpu):
            target, source = (args[0], args[1]) if func is Tensor.copy_ else (out, args[0])
            if source.device.type != target.device.type:
                self.bytes["down" if devices.is_gpu(source.device) else "up"] += source.nbytes
        return out


class CountingWatch(Watch):
    """Counts what crosses in one round that is not timed."""

    def __init__(self) -> None:
        super().__init__()
        self.crossings = Crossings()

    def round(self, round: int, facts: RoundFacts) -> None:
        """A round has ended; the counted one begins with the end of the one before it."""
        super().round(round, facts)
        if failed := [report.status for report in facts.reports or () if report.status != "ok"]:
            raise RuntimeError(f"a client did not train ({failed[0]}), so the figures are of something else")
        ended = len(self.phases) - 1
        if ended == _COUNTED - 1:
            self.crossings.__enter__()
        elif ended == _COUNTED:
            self.crossings.__exit__(None, None, None)


def exchange(setting: Setting) -> None:
    """Both ways on one GPU and on all; on the CPU one process, whose vectors are on the host in either way."""
    gpus = torch.cuda.device_count() if setting.device == "cuda" else 0
    if not gpus:
        setting.note(RESIDENT, "left out", said="there is no GPU: all vectors are in the host's memory")
    if gpus < 2:
        setting.note("between GPUs", "left out", said=f"of GPUs there are {gpus}: nothing moves from one to another")
    for ranks in sorted({1, max(1, gpus)}):
        for way in (RESIDENT, ACROSS) if gpus else (ACROSS,):
            with setting.noting(f"ranks: {ranks}, {way}") as figures:
                ended = run_ranks(partial(one_rank, setting.device, way, setting.small), ranks)
                figures.update(of_all([end.result for end in ended]))


def one_rank(device: str, way: str, small: bool) -> dict[str, Any]:
    """One rank's median seconds of a round, of all in it but training, and bytes up and down in a round."""
    torch.set_num_threads(1)
    if way == ACROSS:
        exchanged_vectors.place_of = lambda components: devices.CPU  # type: ignore[assignment]
    workload = replace(shrunk(WORKLOADS["c"]) if small else WORKLOADS["c"], rounds=2 if small else 6)
    watches: list[CountingWatch] = []

    def watch() -> CountingWatch:
        watches.append(CountingWatch())
        return watches[0]

    crosses = "the benchmark wants it there" if way == ACROSS else ""
    timing = time_runner(workload, watch_of=watch, crosses=crosses, device=device)
    spent = {name: seconds for name, seconds in timing.phases_s.items() if name != "train"}
    return {"round_s": median(timing.round_s), "exchange_s": sum(spent.values()), **watches[0].crossings.bytes}


def of_all(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The slowest rank's seconds, and the bytes of all ranks, in MB."""
    slowest = {name: max(each[name] for each in found) for name in ("round_s", "exchange_s")}
    moved = {f"{way}_mb": sum(each.get(way, 0) for each in found) / 1e6 for way in ("up", "down")}
    return {"seconds": slowest["round_s"], "exchange_s": slowest["exchange_s"], **moved}
