"""Command line: parse, set threads and devices, check everything, join the ranks, run.

torchrun --nproc_per_node=5 -m fedtorch.main [--config FILE] [--set key=value ...]
python -m fedtorch.main --config FILE            one process, same results
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import IO

import torch

from fedtorch.checkpoint.store import Checkpoints
from fedtorch.comm.backend import say_if_shared
from fedtorch.comm.base import Communicator
from fedtorch.comm.distributed import DistributedCommunicator
from fedtorch.comm.local import LocalCommunicator
from fedtorch.comm.wire import NO_CLIENT, Message
from fedtorch.config import load as yaml_config
from fedtorch.config.schema import Config
from fedtorch.core.errors import CheckpointError, FedtorchError, Interrupted, LostRankError
from fedtorch.core.weights import digest_of
from fedtorch.lifecycle.exit import end, last_words, of_last_attempt
from fedtorch.lifecycle.results import table
from fedtorch.lifecycle.signals import StopFlag
from fedtorch.lifecycle.status import resume_command, write_status
from fedtorch.rounds.runner import Result, Runner
from fedtorch.setup.build import Parts, build, device
from fedtorch.setup.dry_run import describe
from fedtorch.setup.engine import share_engine
from fedtorch.setup.pinned_data import adopt, check_task, exchange_sizes, is_pinned
from fedtorch.tracking.console import TerminalHandler
from fedtorch.tracking.tracker import Tracker

log = logging.getLogger("fedtorch")


def main(arguments: Sequence[str] | None = None, stop: StopFlag | None = None) -> int:
    """Run a config; returns the exit code (0 done, 2 config, 3 data, ... 75 interrupted; see `errors`).

    stop: for a launcher that wants to know which signal ended the run; it need not be listening yet.
    """
    args = _parser().parse_args(arguments)
    stop = stop or StopFlag()
    # from before data are read, which may take minutes; the ranks agree to stop when they meet
    with nullcontext() if args.dry_run else stop.listening():
        return _main(args, stop)


def _main(args: argparse.Namespace, stop: StopFlag) -> int:
    rank, num_ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if args.dry_run and args.ranks:
        num_ranks = args.ranks
    command = resume_command(args.config, args.set)
    config: Config | None = None
    try:
        config = yaml_config.load(args.config, args.set)
        torch.set_num_threads(config.system.threads)
        stacks = None if args.dry_run else _start_logging(config.folder, rank)
        stop.grace_s = config.system.shutdown_grace
        if not args.dry_run:
            stop.last_words = partial(last_words, config, [config.folder], rank, command)
        if is_pinned(config) and not args.dry_run:
            check_task(config)
            names = tuple(config.system.pinned)
            with _join(config, names, num_ranks=num_ranks, stacks=stacks) as comm:
                runs = _build_all(exchange_sizes(config, comm), num_ranks=num_ranks, rank=rank)
                _run_all(runs, comm, args.resume, stop, command)
            return 0
        runs = _build_all(config, num_ranks=num_ranks, rank=rank)
        if args.dry_run:
            if rank == 0:
                runs[0].show_remarks()
                print(describe(runs[0], num_ranks=num_ranks))
            return 0
        names = tuple(dict.fromkeys(name for parts in runs for name in parts.names))
        with _join(config, names, num_ranks=num_ranks, stacks=stacks) as comm:
            _run_all(runs, comm, args.resume, stop, command)
        return 0
    except FedtorchError as error:
        log.debug("the run ends", exc_info=error)
        if stop.is_due and isinstance(error, LostRankError):  # it had the signal too and could not wait for this rank
            error = Interrupted(f"stopped by a signal, and not all ranks could save: {error}")
        return end(None if args.dry_run else config, of_last_attempt(error), rank, command)
    except Exception as error:
        log.debug("the run ends", exc_info=error)  # to this rank's file; what it quotes may be a client's
        if rank == 0 and config is not None and not args.dry_run:
            reason = f"{type(error).__name__}; see log.rank0.txt"
            write_status(config.folder, code=1, reason=reason, command=command)
        raise


def _build_all(config: Config, *, num_ranks: int, rank: int) -> list[Parts]:
    """The run and its companion, which shares the model."""
    first = build(config, num_ranks=num_ranks, rank=rank)
    other = yaml_config.companion(config)
    if other is None:
        return [first]
    if is_pinned(config):
        other = adopt(config, other)
    engine = first.engine if share_engine(config, other) else None
    second = build(other, num_ranks=num_ranks, rank=rank, engine=engine)
    second.remarks = [remark for remark in second.remarks if remark not in first.remarks]
    return [first, second]


def _join(config: Config, names: Sequence[str], *, num_ranks: int, stacks: IO[str] | None) -> Communicator:
    if num_ranks == 1:
        return LocalCommunicator(names)
    system = config.system
    own = device(system.device)
    say_if_shared(own)
    goes_on = config.clients.on_loss == "continue"
    return DistributedCommunicator.join(
        names, system.timeout, system.exchange, stacks, goes_on=goes_on, backend=system.backend, device=own
    )


def _run_all(runs: Sequence[Parts], comm: Communicator, resume: str, stop: StopFlag, command: str) -> None:
    """One run after the other; the table of the first, with the others beside it, comes last."""
    done: list[tuple[Parts, Result, Tracker | None]] = []
    for parts in runs:
        comm.preflight(parts.facts())
    for parts in runs:
        # a checkpoint given by path is the first run's
        mode = resume if parts is runs[0] or resume in ("auto", "never", "force") else "auto"
        done.append((parts, *_run_one(parts, comm, mode, stop, command, runs[0].config.folder)))
    _, _, tracker = done[0]
    if tracker is not None:
        tracker.show()


def _run_one(
    parts: Parts, comm: Communicator, resume: str, stop: StopFlag, command: str, first: Path
) -> tuple[Result, Tracker | None]:
    config = parts.config
    checkpoints = Checkpoints(config.folder / "checkpoints", keep=config.checkpoint.keep)
    start = _find_start(parts, comm, checkpoints, resume)
    if start is None:
        parts.show_remarks()  # a resumed run has them in its log already
    tracker = _open_folder(parts, comm, start, command) if comm.is_server else None
    setting = parts.setting(comm, checkpoints, stop=stop, tracker=tracker, facts=_lasting(parts))
    runner = Runner(setting)
    stop.last_words = partial(last_words, config, [first, config.folder], comm.rank, command, runner)
    try:
        result = runner.run(start)
        if comm.is_server and parts.algorithm.exchanged_vectors:
            _save_model(parts)
    finally:
        if tracker is not None:
            tracker.close()
    if tracker is not None:
        tracker.result(table(parts, result))
        lost = list(result.lost)
        reason = f"done without {len(lost)} lost clients: {', '.join(lost[:10])}" if lost else "done"
        stop.last_words = None
        write_status(config.folder, code=0, reason=reason, command=command, round=result.rounds)
    return result, tracker


def _save_model(parts: Parts) -> None:
    """For users of the model; that it cannot be written is no reason to lose the run's result."""
    folder = parts.config.folder / "model"
    try:
        with parts.engine.exported() as module:
            parts.task.save_model(module, folder)
    except Exception as error:
        log.warning("the model could not be saved in %s: %s: %s", folder, type(error).__name__, error)


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
        is_path = resume not in ("auto", "never", "force")
        if is_path:
            found = checkpoints.open(Path(resume))
        elif resume != "never":
            found = checkpoints.latest()
        if found is not None and resume != "force":
            present = yaml_config.to_dict(parts.config, masked=True)
            checkpoints.check_fits(found, present, yaml_config.record_difference, _lasting(parts))
        if found is not None and is_path:
            found = checkpoints.adopt(found)
        if found is None:
            checkpoints.clear()
        else:
            log.info("resuming after round %d from %s", found.round, found.folder)
        comm.heartbeat(phase="start", round=0)
        messages = [Message(NO_CLIENT, "decision", numbers={"round": -1 if found is None else found.round})]
    comm.barrier("start", round=0)  # checking a checkpoint may take long, and nobody waits for long in a collective
    (start,) = comm.broadcast_messages(messages, round=0)
    round = int(start.numbers["round"])
    return None if round < 0 else round


def _lasting(parts: Parts) -> dict[str, str]:
    """The facts that a checkpoint must agree with; other library versions or code may change bits but are allowed."""
    facts = parts.facts()
    kept = {key: facts[key] for key in ("shared parameters", "private parameters", "data") if key in facts}
    return kept | {"initial weights": digest_of({str(i): t for i, t in enumerate(parts.engine.initial())})[:16]}


def _start_logging(folder: Path, rank: int) -> IO[str]:
    """One file per rank, which is returned; the terminal gets warnings, and all from rank 0 but debug lines."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        file = logging.FileHandler(folder / f"log.rank{rank}.txt")
    except OSError as error:
        raise CheckpointError(f"the run folder {folder} cannot be written ({error}); set `run.dir`") from error
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
    assert file.stream is not None, "a file handler without `delay` opens its file at once"
    return file.stream


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fedtorch.main", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--config",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="YAML file or name of a shipped config (lorar/fedopt), or several of which the later ones change the "
        "first; without it the default job: eight generated silos",
    )
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
