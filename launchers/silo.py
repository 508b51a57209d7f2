"""One command per side of a federation over a wire: what `serve` and `join` have in common.

Each starts one rank of the job: the server is rank 0, a silo the rank that `system.pinned` gives its clients.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from fedtorch.comm.signing import VARIABLE
from fedtorch.comm.trust import refuse_public
from fedtorch.config.masking import set_options
from fedtorch.config.schema import Config
from fedtorch.core.errors import ConfigError, FedtorchError, PreflightError, RestartsError, print_error
from fedtorch.lifecycle.status import write_status

from . import start_words
from .keep import MAX_RESTARTS, Kept, say
from .submit import Request

PORT = 29500


def silos(config: Config) -> dict[int, list[str]]:
    """rank -> the clients whose data are with it.

    Raises:
        ConfigError: clients are not pinned to ranks 1, 2 and so on.
    """
    system = config.system
    if system.placement != "pinned" or system.pinned_to != "rank" or system.ranks_per_worker != 1:
        raise ConfigError(
            f"system.placement is {system.placement} and pinned_to {system.pinned_to}, with {system.ranks_per_worker} "
            "ranks per worker; a silo is one rank, so set `placement: pinned`, `pinned_to: rank`, "
            "`ranks_per_worker: 1` and `pinned: {north: 1, south: 2}`"
        )
    found: dict[int, list[str]] = {}
    for name, rank in system.pinned.items():
        found.setdefault(rank, []).append(name)
    if sorted(found) != list(range(1, len(found) + 1)):
        raise ConfigError(
            f"system.pinned names ranks {', '.join(map(str, sorted(found)))}; number the silos 1, 2 and so on without "
            "a gap: rank 0 is the server"
        )
    return found


def address(text: str, option: str, config: Config) -> tuple[str, int]:
    """HOST:PORT, where an IPv6 address stands in brackets.

    option: that it was given by.

    Raises:
        ConfigError: it is something else.
        PreflightError: it is a public address, and `system.trust_network` is false.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"{option} is {text!r}; expected HOST:PORT, such as 192.168.7.1:{PORT}")
    if not config.system.trust_network:
        refuse_public(host.strip("[]"), option)
    return host.strip("[]"), int(port)


def environment(
    rank: int, num_ranks: int, place: tuple[str, int], environ: Mapping[str, str], command: str
) -> dict[str, str]:
    """What tells a rank its place, as srun and torchrun do, and the command that it was started by.

    place: host and port of the server.

    Raises:
        PreflightError: the sides have no secret in common.
    """
    if not environ.get(VARIABLE):
        raise PreflightError(
            f"{VARIABLE} is not set; make one (openssl rand -hex 32), give it to every silo by another way than this "
            "wire, and set it to the same on all of them"
        )
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": place[0],
        "MASTER_PORT": str(place[1]),
        "FEDTORCH_COMMAND": command,  # for status.json
    }


Side = Callable[[Config, dict[int, list[str]]], tuple[int, list[str]]]
"""(config, clients by rank) -> (which rank this side is, what is said before it starts)"""


def run(prog: str, args: argparse.Namespace, name: str, option: str, side: Side) -> int:
    """Say what is about to happen, and be that rank; the exit code.

    name: of the launcher. option: by which the server's address was given, without dashes.
    """
    request = Request(tuple(args.config), tuple(args.set), ("--resume", args.resume))
    try:
        config = request.load()
        given = getattr(args, option)
        place = address(given, f"--{option}", config)
        ranks = silos(config)
        rank, told = side(config, ranks)
        again = [*start_words(name), f"--{option}", given, *(["--silo", args.silo] if rank else [])]
        again += ["--config", *map(str, args.config)]
        again += ["--max-restarts", str(args.max_restarts)] if args.max_restarts != MAX_RESTARTS else []
        command = shlex.join([*again, *set_options(args.set)])
        environ = environment(rank, len(ranks) + 1, place, os.environ, command)
        print("\n".join(told), flush=True)
        try:
            return Kept(request.arguments(), environ, config.folder, say(prog)).run(args.max_restarts)
        except RestartsError as error:
            if not rank:
                write_status(
                    config.folder, code=error.exit_code, reason=str(error), command=command, has_time=config.tells_times
                )
            raise
    except FedtorchError as error:
        return print_error(error, prog)


def parser(prog: str, about: str | None) -> argparse.ArgumentParser:
    """The options of both sides."""
    parser = argparse.ArgumentParser(prog=prog, description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, nargs="+", required=True, metavar="FILE", help="the same on all sides")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="override one key")
    parser.add_argument(
        "--max-restarts", type=int, default=MAX_RESTARTS, metavar="N", help="of this side's process (%(default)s)"
    )
    parser.add_argument("--resume", choices=("auto", "force", "never"), default="auto", help="see fedtorch.main")
    return parser
