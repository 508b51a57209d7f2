"""Part `nccl` of the benchmark of GPUs: NCCL as the package uses it, on one rank; what two ranks on one GPU get.

Every case is a process of its own, for an NCCL that hangs can only be killed. With `--device cpu` gloo takes its place.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu_part import Setting, ended_as, last_lines
from fedtorch.comm.transport.device import Backend, Staged, make_group
from fedtorch.comm.transport.process_group import Direct

CASE_S, GROUP_S = 60.0, 40.0
ONE = ("collectives", "eager", "windows", "default group", "device id", "options")
TWO = ("two ranks, first all-reduce", "two ranks, eager")


def nccl(setting: Setting) -> None:
    """All cases at once; those of two ranks are expected to end with an error, and are noted as they end."""
    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(_processes, setting, case, 1) for case in ONE]
        found += [pool.submit(_processes, setting, case, 2) for case in TWO]
        for future in found:
            future.result()


def _processes(setting: Setting, case: str, size: int) -> None:
    store = setting.folder / f"{case.replace(' ', '-').replace(',', '')}.store"
    store.unlink(missing_ok=True)
    limit_s = min(CASE_S, setting.limit_s - 10)
    with ThreadPoolExecutor(size) as pool:
        words = [["-m", "benchmarks.gpu_nccl", case, setting.device, str(store), str(rank), str(size)]
                 for rank in range(size)]  # fmt: skip
        ends = list(pool.map(lambda each: setting.python(each, f"{store.stem}.{each[-2]}.log", limit_s), words))
    for rank, ended in enumerate(ends):
        rows = [json.loads(line[4:]) for line in ended.text.splitlines() if line.startswith("ROW ")]
        for row in rows:
            setting.note(f"{case}{f', rank {rank}' if size > 1 else ''}: {row.pop('step')}", **row)
        if ended.code != 0:
            setting.note(f"{case}, rank {rank}", ended_as(ended), seconds=ended.seconds, said=last_lines(ended.text))


def main(case: str, kind: str, store: str, rank: int, size: int) -> None:
    """One process of a case; a step that raises is noted, and the steps after it are not tried."""
    device = torch.device("cuda", 0) if kind == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
    backend: Backend = "nccl" if kind == "cuda" else "gloo"
    shared: Any = dist.FileStore(store, size)
    make = partial(make_group, backend, shared, rank, size, GROUP_S)
    steps = _steps(case, device, shared, make)
    for name, step in steps:
        begun = time.perf_counter()
        try:
            said = step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            _row(name, "ok", begun, said)
        except Exception as error:
            # two ranks on one GPU are an error that is wanted
            expected = case.startswith("two ranks") and kind == "cuda"
            _row(name, "ok" if expected else "failed", begun, f"{type(error).__name__}: {str(error)[:500]}")
            break
    sys.stdout.flush()


def _row(step: str, outcome: str, begun: float, said: object) -> None:
    row = {"step": step, "outcome": outcome, "seconds": time.perf_counter() - begun}
    print("ROW " + json.dumps({**row, **({"said": str(said)} if said else {})}), flush=True)


Steps = list[tuple[str, Callable[[], object]]]


def _steps(case: str, device: torch.device, store: Any, make: Callable[[], Any]) -> Steps:
    held: dict[str, Any] = {}
    ones = torch.ones(1000, device=device)

    def group() -> None:
        held["group"] = make()
        held["direct"] = Direct(held["group"])

    def eager() -> str:
        if device.type != "cuda":
            return "gloo has none"
        held["group"].eager_connect_single_device(device)
        return ""

    def call(name: str, *args: Any) -> None:
        getattr(held["direct"], name)(*args).wait()

    begin: Steps = [("group", group)]
    all_reduce: Steps = [("all_reduce, the first", lambda: call("all_reduce", ones)),
                         ("all_reduce, the second", lambda: call("all_reduce", ones))]  # fmt: skip
    if case.endswith("eager"):
        return [*begin, ("eager_connect_single_device", eager), *all_reduce]
    if case.startswith("two ranks"):
        return [*begin, *all_reduce]
    if case == "collectives":
        return [*begin, *all_reduce, *_collectives(call, ones)]
    if case == "windows":
        return [*begin, *_windows(held, device)]
    if case == "options":
        return [("options of the group", partial(_options, device)), *begin, ("abort", lambda: _abort(held, device))]
    return _default_group(case, device, store, ones)


def _collectives(call: Callable[..., None], ones: torch.Tensor) -> Steps:
    empty, into = torch.empty(0, device=ones.device), torch.empty_like(ones)
    whole = torch.ones(1000, dtype=torch.float64, device=ones.device)
    return [
        ("broadcast", lambda: call("broadcast", ones)),
        ("reduce of float64", lambda: call("reduce", whole)),
        ("all_gather", lambda: call("all_gather", [into], ones)),
        ("all_to_all", lambda: call("all_to_all", into, [1000], ones, [1000], 1000)),
        ("all_to_all with empty parts", lambda: call("all_to_all", empty, [0], empty.clone(), [0], 0)),
        ("all_reduce of nothing", lambda: call("all_reduce", empty)),
    ]


def _windows(held: dict[str, Any], device: torch.device) -> Steps:
    vector, into = torch.randn(5_000_000), torch.empty(5_000_000)

    def staged() -> None:
        pin = device.type == "cuda"
        held["staged"] = Staged(held["group"], device, pin=pin, timeout_s=GROUP_S, watch=lambda: None)

    def exchanged() -> str:
        held["staged"].all_to_all(into, [len(into)], vector, [len(vector)], len(vector)).wait()
        return "" if torch.equal(into, vector) else "DIFFERS"

    def nothing() -> None:
        held["staged"].all_to_all(torch.empty(0), [0], torch.empty(0), [0], 0).wait()

    return [
        ("windows of the device", staged),
        ("broadcast of 20 MB", lambda: held["staged"].broadcast(vector).wait()),
        ("reduce of 40 MB, float64", lambda: held["staged"].reduce(vector.double()).wait()),
        ("all_to_all of 20 MB", exchanged),
        ("all_to_all with empty parts", nothing),
        ("drop", lambda: held["staged"].drop()),
    ]


def _default_group(case: str, device: torch.device, store: Any, ones: torch.Tensor) -> Steps:
    """Try torch's own group, NCCL beside gloo, which DeepSpeed and workers of several ranks use."""
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    given = {"device_id": device} if case == "device id" and device.type == "cuda" else {}
    limit = timedelta(seconds=GROUP_S)
    return [
        ("init_process_group",
         lambda: dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=limit, **given)),
        ("all_reduce on the device", lambda: dist.all_reduce(ones)),
        ("all_reduce on the CPU", lambda: dist.all_reduce(torch.ones(10))),
        ("barrier", dist.barrier),
        ("destroy_process_group", dist.destroy_process_group),
    ]  # fmt: skip


def _options(device: torch.device) -> str:
    if device.type != "cuda":
        return "gloo has none of these"
    options = dist.ProcessGroupNCCL.Options()
    names = ("_timeout", "is_high_priority_stream", "config", "global_ranks_in_group", "group_name")
    settings = [name for name in dir(options.config) if not name.startswith("_")]
    lacks = [name for name in names if not hasattr(options, name)]
    calls = ("abort", "eager_connect_single_device", "alltoall_base", "perform_nocolor_split")
    lacks += [name for name in calls if not hasattr(dist.ProcessGroupNCCL, name)]
    return f"lacks {lacks or 'nothing'}; config has {', '.join(settings)}"


def _abort(held: dict[str, Any], device: torch.device) -> str:
    if device.type != "cuda":
        return "gloo is left as it is"
    held["group"].abort()
    return ""


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], str(Path(sys.argv[3])), int(sys.argv[4]), int(sys.argv[5]))
