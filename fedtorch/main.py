"""Command line: parse, set threads and devices, check everything, join the ranks, run.

torchrun --nproc_per_node=5 -m fedtorch.main [--config FILE] [--set key=value ...]
python -m fedtorch.main --config FILE            one process, same results
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import torch

from fedtorch import yaml_config
from fedtorch.build import Parts, build
from fedtorch.checkpoint import Checkpoints
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.local import LocalCommunicator
from fedtorch.comm.wire import NO_CLIENT, Message
from fedtorch.config import Config
from fedtorch.console import TerminalHandler
from fedtorch.dry_run import describe
from fedtorch.errors import FedtorchError, Interrupted
from fedtorch.results import table
from fedtorch.rank import Setting
from fedtorch.runner import Result, Runner
from fedtorch.status import write_status
from fedtorch.track import Tracker

log = logging.getLogger("fedtorch")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a config; returns the exit code (0 done, 2 config, 3 data, ... 75 interrupted; see `errors`)."""
    args = _parser().parse_args(arguments)
    rank, num_ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if args.dry_run and args.ranks:
        num_ranks = args.ranks
    stop = StopFlag()
    config: Config | None = None
    try:
        config = yaml_config.load(args.config, args.set)
        torch.set_num_threads(config.system.threads)
        runs = _build_all(config, num_ranks=num_ranks, rank=rank)
        if args.dry_run:
            if rank == 0:
                print(describe(runs[0], num_ranks=num_ranks))
            return 0
        _start_logging(config.folder, rank)
        stop.listen()
        with _join(runs[0], num_ranks=num_ranks) as comm:
            for parts in runs:
                comm.preflight(parts.facts())
            _run_all(runs, comm, args.resume, stop, _command(args))
        return 0
    except FedtorchError as error:
        return _end(config, error, rank, _command(args))


def _build_all(config: Config, *, num_ranks: int, rank: int) -> list[Parts]:
    """The run and its companion, which shares the model."""
    first = build(config, num_ranks=num_ranks, rank=rank)
    companion = config.companion()
    if companion is None:
        return [first]
    same_model = (companion.task, companion.partition, companion.run.seed) == (
        config.task,
        config.partition,
        config.run.seed,
    )
    return [first, build(companion, num_ranks=num_ranks, rank=rank, engine=first.engine if same_model else None)]


def _join(parts: Parts, *, num_ranks: int) -> Communicator:
    if num_ranks == 1:
        return LocalCommunicator(parts.names)
    system = parts.config.system
    return DistributedCommunicator.join(names=parts.names, timeout_s=system.timeout, exchange=system.exchange)


def _run_all(runs: Sequence[Parts], comm: Communicator, resume: str, stop: StopFlag, command: str) -> None:
    """One run after the other; the table of the first, with the others beside it, comes last."""
    done: list[tuple[Parts, Result, Tracker | None]] = []
    for parts in runs:
        done.append((parts, *_run_one(parts, comm, resume, stop, command)))
    for parts, result, tracker in reversed(done):
        if tracker is not None:
            tracker.result(table(parts, result), show=parts is runs[0])
            write_status(parts.config.folder, code=0, reason="done", command=command, round=result.rounds)


def _run_one(
    parts: Parts, comm: Communicator, resume: str, stop: StopFlag, command: str
) -> tuple[Result, Tracker | None]:
    config = parts.config
    checkpoints = Checkpoints(config.folder / "checkpoints", keep=config.checkpoint.keep)
    start = _find_start(parts, comm, checkpoints, resume)
    tracker = _open_folder(parts, comm, start, command) if comm.is_server else None
    setting = Setting(
        config=config,
        task=parts.task,
        training=parts.training,
        algorithm=parts.algorithm,
        clients=parts.clients,
        engine=parts.engine,
        comm=comm,
        topology=parts.topology,
        checkpoints=checkpoints,
        config_record=yaml_config.to_dict(config, masked=True),
        facts=_lasting(parts.facts()),
        stop=stop,
        tracker=tracker,
    )
    try:
        result = Runner(setting).run(start)
        if comm.is_server:
            parts.task.save_model(parts.engine.module, config.folder / "model")
        return result, tracker
    finally:
        if tracker is not None:
            tracker.close()


def _open_folder(parts: Parts, comm: Communicator, start: int | None, command: str) -> Tracker:
    """Write what the run is (server only), and start tracking it."""
    config = parts.config
    config.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (config.folder / "config.yaml").write_text(yaml_config.to_yaml(config))
    (config.folder / "env.json").write_text(json.dumps(parts.facts() | {"ranks": comm.size}, indent=1) + "\n")
    write_status(config.folder, code=None, reason="running", command=command, round=start)
    return Tracker(
        config.folder,
        clients=parts.names,
        rounds=config.rounds,
        tensorboard=config.track.tensorboard,
        step_curves=config.track.step_curves,
        client_limit=config.track.client_limit,
        progress=config.track.progress,
        resume_round=start,
        metric=config.eval.select_by or parts.task.main_metric,
    )


def _find_start(parts: Parts, comm: Communicator, checkpoints: Checkpoints, resume: str) -> int | None:
    """The round to resume from, decided by the server and told to all; None to begin anew."""
    messages = []
    if comm.is_server:
        found = None
        if resume not in ("auto", "never", "force"):
            found = checkpoints.adopt(checkpoints.open(Path(resume)))
        elif resume != "never":
            found = checkpoints.latest()
        if found is not None and resume != "force":
            present = yaml_config.to_dict(parts.config, masked=True)
            checkpoints.check_fits(found, present, yaml_config.record_difference, _lasting(parts.facts()))
        if found is None:
            checkpoints.clear()
        else:
            log.info("resuming after round %d from %s", found.round, found.folder)
        messages = [Message(NO_CLIENT, "decision", numbers={"round": -1 if found is None else found.round})]
    (start,) = comm.share(messages, round=0)
    round = int(start.numbers["round"])
    return None if round < 0 else round


def _lasting(facts: dict[str, str]) -> dict[str, str]:
    """The facts that a checkpoint must agree with; other library versions or code may change bits but are allowed."""
    return {key: facts[key] for key in ("shared parameters", "private parameters", "data") if key in facts}


class StopFlag:
    """Set by the first SIGTERM or SIGINT (or SLURM's USR1/USR2); a second SIGINT leaves at once."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None

    def listen(self) -> None:
        """Install the handlers; main thread only."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._received)

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            os._exit(Interrupted.exit_code)
        self.signal = number


def _end(config: Config | None, error: FedtorchError, rank: int, command: str) -> int:
    if rank == 0 or not isinstance(error, Interrupted):
        print(f"fedtorch: {error}", file=sys.stderr)
    if rank == 0 and config is not None:
        write_status(config.folder, code=error.exit_code, reason=str(error).splitlines()[0], command=command)
    return error.exit_code


def _start_logging(folder: Path, rank: int) -> None:
    """One file per rank; the terminal gets warnings, and everything from rank 0 but debug lines."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = logging.FileHandler(folder / f"log.rank{rank}.txt")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    terminal = TerminalHandler()  # knows about the progress bar
    terminal.setLevel(logging.INFO if rank == 0 else logging.ERROR)
    terminal.setFormatter(logging.Formatter("%(levelname)s %(message)s" if rank == 0 else f"rank {rank}: %(message)s"))
    root = logging.getLogger("fedtorch")
    root.setLevel(logging.DEBUG)
    root.propagate = False
    for handler in root.handlers[:]:
        root.removeHandler(handler)
    root.addHandler(file)
    root.addHandler(terminal)


def _command(args: argparse.Namespace) -> str:
    """The command that continues this run."""
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    start = ["python"] if ranks == 1 else ["torchrun", f"--nproc_per_node={os.environ.get('LOCAL_WORLD_SIZE', ranks)}"]
    words = [*start, "-m", "fedtorch.main"]
    words += ["--config", str(args.config)] if args.config else []
    words += ["--set", *args.set] if args.set else []
    return shlex.join(words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fedtorch.main", description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, help="YAML file; without it the default job: eight generated silos")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="override one key")
    parser.add_argument(
        "--resume",
        default="auto",
        metavar="auto|never|force|PATH",
        help="auto: continue the run folder's last checkpoint if there is one; never: begin anew; force: continue "
        "although the config differs; PATH: from that checkpoint folder",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print config, placement, bytes and memory; train nothing"
    )
    parser.add_argument("--ranks", type=int, help="with --dry-run: describe a run on so many ranks")
    return parser


if __name__ == "__main__":
    sys.exit(main())
