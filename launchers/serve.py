"""Be the server of silos that join by `fedtorch join`, each with its own data on its own machine.

fedtorch serve --config FILE --listen 192.168.7.1:29500
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from fedtorch.core.errors import FedtorchError, RestartsError
from fedtorch.lifecycle.status import write_status

from . import silo
from .submit import Request


def main(arguments: Sequence[str] | None = None, *, prog: str = "launchers.serve") -> int:
    """Serve; returns the run's exit code."""
    args = _parser(prog).parse_args(arguments)
    request = Request(tuple(args.config), tuple(args.set), ("--resume", args.resume))
    try:
        config = request.load()
        place = silo.address(args.listen, "--listen", config)
        ranks = silo.silos(config)
        command = silo.command("serve", args, ["--listen", args.listen])
        environ = silo.environment(0, len(ranks) + 1, place, os.environ, command)
    except FedtorchError as error:
        return silo.refused(prog, error)
    told = [
        f"{prog}: the server, rank 0 of {len(ranks) + 1}, at {args.listen}; waits for "
        + ", ".join(f"{' and '.join(names)} (rank {rank})" for rank, names in sorted(ranks.items())),
        "from them it gets: sizes and digests of their files, losses, scores, and every round's updates of the shared "
        "weights, from which text can be inferred (docs/safety.md); no text, no private weights",
        f"here stay: the global model, records and status, in {config.folder}",
    ]
    try:
        return silo.start(prog, request, config.folder, environ, told, args.max_restarts)
    except FedtorchError as error:
        if isinstance(error, RestartsError):
            write_status(config.folder, code=error.exit_code, reason=str(error), command=command)
        return silo.refused(prog, error)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="this machine as the silos reach it")
    silo.add_options(parser)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
