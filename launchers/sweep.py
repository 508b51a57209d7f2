"""Many runs: every config with every point of a grid and every seed, on this machine or as a SLURM job array.

python -m launchers.sweep run --config lorar --seeds 0 1 2 --dir runs/lorar --jobs 2
python -m launchers.sweep run --config a.yaml --grid client.lr=1e-3,1e-4 --grid rounds=5,10 --dir runs/grid
python -m launchers.sweep run --config a.yaml --seeds 0 1 2 --dir runs/seeds --executor slurm --partition gpu
python -m launchers.sweep status runs/lorar

The same command again goes on where it ended: finished runs are skipped, interrupted and failed ones resumed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedtorch.config.options import add_config_options, join_configs
from fedtorch.core import devices
from fedtorch.core.errors import ConfigError, FedtorchError, Interrupted, print_error
from fedtorch.tracking.console import duration

from . import start_words
from .plan import Point, is_done, make_points, parse_grid, read_status, save_plan
from .pool import Command, Pool
from .resources import Resources, add_options, resources_of
from .status_table import show
from .submit import in_queue, job_of, note_job, submit


def main(arguments: Sequence[str] | None = None, *, prog: str = "launchers.sweep") -> int:
    """0: all done (or submitted); 1: some failed; 2: bad input, nothing was started; 75: interrupted."""
    parser = _parser(prog)
    args = parser.parse_args(arguments)
    if args.command == "run":
        join_configs(args)
        if not args.config:
            parser.error("name a config: a YAML file, a folder of them, or a shipped one such as smoke/fedavg")
    try:
        if args.command == "status":
            show(args.dir)
            return 0
        return _run(args)
    except FedtorchError as error:
        return print_error(error, prog)


def _run(args: argparse.Namespace) -> int:
    grid, seeds = parse_grid(args.grid), args.seeds or ()
    points = make_points(args.config, args.dir, grid=grid, seeds=seeds, overrides=args.set, overlays=args.over)
    if args.jobs is not None and args.jobs < 1:
        raise ConfigError(f"--jobs is {args.jobs} but should be at least 1")
    resources = resources_of(args) if args.executor == "slurm" else None
    if args.ranks < 1 or (args.ranks > 1 and resources):
        raise ConfigError(
            f"--ranks is {args.ranks}; give 1 or more, and with --executor slurm --tasks-per-node instead"
        )
    missing = [point for point in points if not is_done(point)]
    costs = _costs(missing)
    if args.dry_run:
        for point in points:
            print(f"{'would run' if point in missing else 'done before'}  {point.name}")
        print("".join(f"{line}\n" for line in costs), end="")
        return 0
    save_plan(args.dir, points)
    if len(missing) < len(points):
        print(f"{len(points) - len(missing)} of {len(points)} runs were done before")
    if not missing:
        return 0
    print("".join(f"{line}\n" for line in costs), end="", flush=True)
    if resources is None:
        return _run_here(missing, args.dir, jobs=args.jobs or 1, ranks=args.ranks)
    return _submit(missing, args.dir, resources, at_once=args.jobs or 256)


def _costs(points: Sequence[Point]) -> list[str]:
    """Say what the runs will cost in privacy, a line for each set of data; told before anything is released."""
    configs = [point.config for point in points if point.config.privacy.kind != "none"]
    if not configs:
        return []
    from fedtorch.setup.privacy_cost import cost_of  # brings all tasks and transformers

    return cost_of(configs)


def _submit(points: Sequence[Point], folder: Path, resources: Resources, *, at_once: int) -> int:
    queue = in_queue()
    begun = [point for point in points if job_of(point.folder) in queue]
    for point in begun:
        print(f"left out, it is in the queue: job {job_of(point.folder)}  {point.name}")
    if points := [point for point in points if point not in begun]:
        requests, name = [point.request for point in points], folder.resolve().name
        jobs = submit(requests, resources, folder / "slurm", name=name, at_once=at_once)
        for point, job in zip(points, jobs, strict=True):
            note_job(point.folder, job.job_id)
            print(f"job {job.job_id}  {point.name}")
    print(f"status:  {shlex.join([*start_words('sweep'), 'status', str(folder)])}")
    return 0


def _run_here(points: Sequence[Point], folder: Path, *, jobs: int, ranks: int) -> int:
    commands = [Command(p.name, _words(p, ranks), p.folder) for p in points]
    has_times = all(point.config.tells_times for point in points)
    told = _Told({point.name: point.folder for point in points}, jobs, has_times=has_times)
    codes, is_interrupted = Pool(jobs, lambda slot: _environment(slot, jobs), told).run(commands)
    show(folder)
    if is_interrupted:
        print("interrupted; the same command goes on", file=sys.stderr)
        return Interrupted.exit_code
    return 1 if told.locked or any(codes.values()) else 0


class _Told:
    """A line for each run that begins or ends: which of how many it is, how long it took, what is left."""

    def __init__(
        self,
        folders: Mapping[str, Path],
        jobs: int,
        *,
        has_times: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """folders: name of a run -> its folder, in the order in which they begin. jobs: at once."""
        self.locked: list[str] = []
        """runs that other processes have"""
        self._folders, self._jobs, self._has_times, self._clock = folders, jobs, has_times, clock
        self._places = {name: place for place, name in enumerate(folders, start=1)}
        self._begun: dict[str, float] = {}
        self._took: list[float] = []

    def __call__(self, name: str, event: str, code: int) -> None:
        """As `pool.Tell` has it."""
        why = ""
        if event == "started":
            self._begun[name] = self._clock()
        elif event == "locked":
            self.locked.append(name)
            event, why = "left out", ": another process runs it"
        elif event == "ended":
            self._took.append(self._clock() - self._begun[name])
            status = read_status(self._folders[name])
            event = "done" if code == 0 else str(status.get("state"))
            why = "" if code == 0 else f": {status.get('reason')}"
            if event not in ("done", "interrupted", "failed"):  # it had no time to write why
                event, why = "died", f": exit status {code}; see {self._folders[name] / 'output.txt'}"
            why += f"  {duration(self._took[-1])}{self._left()}" if self._has_times else ""
        place = f"{self._places[name]:>{len(str(len(self._places)))}}/{len(self._places)}"
        print(f"{event:11}  {place}  {name}{why}", flush=True)

    def _left(self) -> str:
        """How long the others will take, if they are like those before."""
        others = len(self._places) - len(self._took) - len(self.locked)
        return f"  left {duration(sum(self._took) / len(self._took) * others / self._jobs)}" if others else ""


def _words(point: Point, ranks: int) -> list[str]:
    start = [sys.executable, "-m"]
    if ranks > 1:
        start += ["torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", "-m"]
    return [*start, "fedtorch.main", *point.request.arguments()]


def _environment(slot: int, slots: int) -> Mapping[str, str]:
    """One thread per process, and the slot's share of the GPUs; with more slots than GPUs they take turns."""
    variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    if gpus := devices.names():
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[slot::slots] or [gpus[slot % len(gpus)]])
    return variables


def _parser(prog: str) -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=prog, description=__doc__, formatter_class=formatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="make the runs that are missing")
    add_config_options(run, "each file is a run, of a folder every file; or names", metavar="FILE|FOLDER")
    run.add_argument("--over", type=Path, nargs="+", default=[], metavar="FILE", help="configs laid over each of them")
    run.add_argument("--grid", action="append", default=[], metavar="KEY=A,B", help="values of a key; several multiply")
    run.add_argument("--seeds", type=int, nargs="+", metavar="SEED")
    run.add_argument("--dir", type=Path, required=True, help="folder of the sweep, with a folder for every run")
    run.add_argument("--executor", choices=("local", "slurm"), default="local")
    run.add_argument("--jobs", type=int, metavar="N", help="runs at once; default: 1 here, 256 on a cluster")
    run.add_argument("--ranks", type=int, default=1, metavar="R", help="here: ranks of each run, by torchrun")
    run.add_argument("--dry-run", action="store_true", help="check all configs and list the runs")
    add_options(run)
    status = commands.add_parser("status", help="table of the runs in a folder")
    status.add_argument("dir", type=Path, metavar="DIR")
    return parser


if __name__ == "__main__":
    sys.exit(main())
