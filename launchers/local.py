"""Run one config as several ranks on this machine; a rank that dies takes no other with it.

python -m launchers.local --config FILE --ranks 5
python -m launchers.local --config FILE --ranks 5 --max-restarts 10 --set clients.on_loss=continue

torchrun ends all ranks as soon as one has died. This launcher lets the others decide: with `clients.on_loss: continue`
they go on without the clients of a lost worker; else, and where the server is lost, all end and are started again, and
resume after the last checkpoint. Every rank but the first writes what it prints to RUN/output.rank<n>.txt. Where it
can (Linux) it imports everything once and forks the ranks.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence

from fedtorch.config.masking import set_options
from fedtorch.config.options import add_config_options, add_script_option, parse
from fedtorch.config.schema import Config
from fedtorch.core.errors import ConfigError, FedtorchError, RestartsError, print_error
from fedtorch.lifecycle.status import write_status

from . import start_words
from .fork_server import ForkServer
from .job import PROGRAM, Job, say
from .submit import Request

MAX_RESTARTS = 3


def main(arguments: Sequence[str] | None = None, *, prog: str = "launchers.local") -> int:
    """Run; returns the run's exit code, 9 when the restarts are used up."""
    args = parse(_parser(prog), arguments)
    request = Request(tuple(args.config), tuple(args.set), ("--resume", args.resume))
    try:
        if args.ranks < 2:
            raise ConfigError(f"--ranks is {args.ranks}; give 2 or more, or start fedtorch.main itself")
        config = request.load()
    except FedtorchError as error:
        return print_error(error, prog)
    fork_server = ForkServer.begin(request.arguments())
    try:
        limits = {"max_restarts": args.max_restarts, "max_returns": args.max_returns}
        return run_request(request, config, args.ranks, **limits, fork_server=fork_server)[0]
    except FedtorchError as error:
        say(str(error))
        return error.exit_code
    finally:
        if fork_server is not None:
            fork_server.close()


def run_request(
    request: Request,
    config: Config,
    ranks: int,
    *,
    command: str = "",
    max_restarts: int = MAX_RESTARTS,
    max_returns: int = 0,
    fork_server: ForkServer | None = None,
) -> tuple[int, int | None]:
    """Run a request on so many ranks; (the run's exit code, the signal that this process got meanwhile).

    config: what the request loads. command: the one that continues the run; by default this launcher's. fork_server: of
    this request; without it every rank is a process that imports all by itself.

    Raises:
        ConfigError: another process holds this run folder, or no rank of this run can return.
        RestartsError: every attempt ended in a way that another one might mend; status.json says so too.
    """
    command = command or command_of(request, ranks, max_restarts, max_returns)
    words, goes_on = [*PROGRAM, *request.arguments()], config.clients.on_loss == "continue"
    if max_returns and (not goes_on or config.system.ranks_per_worker != 1):
        raise ConfigError(
            "--max-returns is for runs that go on without a lost rank: set clients.on_loss to continue, and "
            "system.ranks_per_worker to 1"
        )
    job = Job(
        words,
        config.folder,
        ranks,
        goes_on=goes_on,
        command=command,
        max_returns=max_returns,
        fork_server=fork_server,
    )
    try:
        return job.run(max_restarts), job.stopped_by
    except RestartsError as error:
        write_status(
            config.folder, code=error.exit_code, reason=str(error), command=command, has_time=config.tells_times
        )
        raise


def command_of(request: Request, ranks: int, max_restarts: int = MAX_RESTARTS, max_returns: int = 0) -> str:
    """Command that starts this launcher with it once more, from a shell."""
    words = [*start_words("local"), *(["--config", *map(str, request.configs)] if request.configs else [])]
    words += ["--ranks", str(ranks)]
    words += ["--max-restarts", str(max_restarts)] if max_restarts != MAX_RESTARTS else []
    words += ["--max-returns", str(max_returns)] if max_returns else []
    return shlex.join([*words, *set_options(request.overrides)])


def ranks_of(text: str) -> int:
    """How many ranks `--ranks` asks for; `auto`: what this machine has.

    With GPUs a worker for each, and the server, which then takes the CPU. Without, as many ranks as cores; 2 at least.

    Raises:
        ArgumentTypeError: it is neither a number nor `auto`.
    """
    if text != "auto":
        try:
            return int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no number; give one, or auto") from None
    from fedtorch.core import devices  # brings torch

    gpus = len(devices.names())
    return gpus + 1 if gpus else max(2, os.cpu_count() or 1)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_config_options(parser, "as fedtorch.main takes, by default the same")
    add_script_option(parser)
    parser.add_argument(
        "--ranks",
        type=ranks_of,
        required=True,
        metavar="N",
        help="the server and N - 1 workers; auto: a worker for each GPU and the server, or as many as there are cores",
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=MAX_RESTARTS,
        metavar="N",
        help="of all ranks, between two saved rounds (%(default)s)",
    )
    parser.add_argument(
        "--max-returns",
        type=int,
        default=0,
        metavar="N",
        help="of single ranks, into a run that goes on without them, between two saved rounds (%(default)s)",
    )
    # not `never`, nor a path: every restart would begin there again
    parser.add_argument("--resume", choices=("auto", "force"), default="auto", help="see fedtorch.main")
    return parser


if __name__ == "__main__":
    sys.exit(main())
