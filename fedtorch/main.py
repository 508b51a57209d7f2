"""Command line: parse, set threads and devices, check everything, join the ranks, run.

torchrun --nproc_per_node=5 -m fedtorch.main [CONFIG ...] [--set key=value ...]
python -m fedtorch.main CONFIG                   one process, same results
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from fedtorch.core.imports import importing

with importing():
    import torch

    from fedtorch.config import load as yaml_config
    from fedtorch.config.options import SHIPPED, add_config_options, add_script_option, parse
    from fedtorch.config.schema import Config
    from fedtorch.core.errors import DeadlineError, DeviceError
    from fedtorch.core.job_environment import check_job_environment
    from fedtorch.core.streams import flush_streams, keep_standard_streams
    from fedtorch.lifecycle.exit import end, explained
    from fedtorch.lifecycle.kept_texts import keep_texts
    from fedtorch.lifecycle.session import build_all
    from fedtorch.lifecycle.signals import StopFlag
    from fedtorch.lifecycle.status import resume_command
    from fedtorch.lifecycle.train import train
    from fedtorch.planning.dry_run import describe, with_config
    from fedtorch.planning.scale import Cluster

_ENDS_AT_ONCE = (DeviceError.exit_code, DeadlineError.exit_code)
"""Codes that a process would hide if Python took itself down: a failed GPU's library aborts it, and threads that wait
for a lost rank outside Python can end it with a signal (*measured*: once in some 50)."""
_BESIDE_NODES = ("ranks_per_node", "bandwidth", "cores", "constants")


def main(arguments: Sequence[str] | None = None, stop: StopFlag | None = None, *, prog: str = "fedtorch.main") -> int:
    """Run a config; returns the exit code (0 done, 2 config, 3 data, ... 75 interrupted; see `errors`).

    stop: for a launcher that wants to know which signal ended the run; it need not be listening yet.
    """
    parser = _parser(prog)
    args = parse(parser, arguments)
    if args.ranks is not None and args.ranks < 1:
        parser.error(f"--ranks is {args.ranks}; give the number of ranks, at least 1")
    if args.ranks is not None and not args.dry_run:
        parser.error("--ranks goes with --dry-run; to train on several ranks use torchrun or `fedtorch run --ranks`")
    if args.nodes is None and any(getattr(args, name) is not None for name in _BESIDE_NODES):
        parser.error(f"{', '.join('--' + name.replace('_', '-') for name in _BESIDE_NODES)} go with --nodes")
    if args.nodes is not None and (args.ranks is not None or not args.dry_run):
        parser.error("--nodes goes with --dry-run, and in place of --ranks")
    keep_standard_streams()
    keep_texts()
    stop = stop or StopFlag()
    # from before data are read, which may take minutes; the ranks agree to stop when they meet
    with nullcontext() if args.dry_run else stop.listening():
        code = _main(args, stop)
    flush_streams()
    if code in _ENDS_AT_ONCE:
        os._exit(code)
    return code


def _main(args: argparse.Namespace, stop: StopFlag) -> int:
    rank = 0
    try:
        rank, num_ranks = check_job_environment(os.environ)
        command = resume_command(args.config, args.set)
        config = yaml_config.load(args.config, args.set)
        if args.dry_run:
            torch.set_num_threads(config.system.threads)
            cluster = _cluster(args)
            num_ranks = args.ranks or num_ranks if cluster is None else cluster.ranks
            has_config = args.dry_run == "config"
            _describe(config, num_ranks=num_ranks, rank=rank, cluster=cluster, has_config=has_config)
        else:
            train(config, rank=rank, num_ranks=num_ranks, resume=args.resume, command=command, stop=stop)
        return 0
    except Exception as raised:
        error = explained(raised)
        if error is None:
            raise
        return end(error, rank)


def _cluster(args: argparse.Namespace) -> Cluster | None:
    if args.nodes is None:
        return None
    per_node = 1 if args.ranks_per_node is None else args.ranks_per_node
    gbit = math.inf if args.bandwidth is None else args.bandwidth
    return Cluster(args.nodes, per_node, gbit, args.cores, args.constants)


def _describe(config: Config, *, num_ranks: int, rank: int, cluster: Cluster | None, has_config: bool) -> None:
    """Print what the first run would do. has_config: with its config, as one text that is a config file."""
    first, *_ = build_all(config, num_ranks=num_ranks, rank=rank, is_for_count=True)
    if rank == 0:
        first.show_remarks()
        text = describe(first, num_ranks=num_ranks, cluster=cluster)
        print(with_config(text, first) if has_config else f"{text}\n\nevery key with its value: --dry-run=config")


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__.splitlines()[0])
    add_config_options(parser, f"{SHIPPED}; without it the default job: eight generated clients")
    add_script_option(parser)
    parser.add_argument(
        "--resume",
        default="auto",
        metavar="auto|never|force|PATH",
        help="auto: continue the run folder's last checkpoint if there is one; never: begin anew; force: continue "
        "although the config differs; PATH: from that checkpoint folder",
    )
    parser.add_argument(
        "--dry-run", action="store_const", const="lines", help="print placement, bytes and memory; train nothing"
    )
    # an option of its own, as the value of the other one would be the name of a config that stands behind it
    parser.add_argument(
        "--dry-run=config",
        dest="dry_run",
        action="store_const",
        const="config",
        help="the same as comments, and every key of the config with its value",
    )
    parser.add_argument("--ranks", type=int, help="with --dry-run: describe a run on so many ranks")
    group = parser.add_argument_group("with --dry-run: what a round takes there, by what `fedtorch bench` has measured")
    group.add_argument("--nodes", type=int, metavar="N", help="on so many nodes")
    group.add_argument("--ranks-per-node", type=int, metavar="N", help="ranks of each (1)")
    group.add_argument("--bandwidth", type=float, metavar="GBIT", help="Gbit/s of a node's wire (no limit)")
    group.add_argument("--cores", type=int, metavar="N", help="of a node (as the measured machine)")
    group.add_argument("--constants", type=Path, metavar="FILE", help="of `fedtorch bench --out` (this machine's)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
