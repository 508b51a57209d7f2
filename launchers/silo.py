"""One command per side of a federation over a wire: what `serve` and `join` have in common.

Each starts one rank of the job: the server is rank 0, a silo the rank that `system.pinned` gives its clients.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from fedtorch.comm.job.parties import Identity
from fedtorch.comm.job.public import refuse_public
from fedtorch.comm.job.signing import VARIABLE, job_secret, read_secret
from fedtorch.comm.job.store import OPTION as ADDRESS_OPTION
from fedtorch.comm.job.store import STAY, patience_at_start
from fedtorch.config.masking import set_options
from fedtorch.config.options import add_config_options
from fedtorch.config.schema import Config
from fedtorch.core.errors import ConfigError, FedtorchError, PreflightError, RestartsError, print_error
from fedtorch.lifecycle.parties import identity_of
from fedtorch.lifecycle.silo_status import VARIABLE as SILO
from fedtorch.lifecycle.silo_status import write_silo_status
from fedtorch.lifecycle.status import write_status

from . import start_words
from .keep import MAX_RESTARTS, Kept, say
from .site_policy import Site
from .submit import Request

PORT = 29500
MIN_SILOS = 2
"""`clients.min_silos` where the config says nothing: with one silo left the sum of the updates is its update."""


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
    rank: int, num_ranks: int, place: tuple[str, int], option: str, secret: str, command: str, stays_s: float
) -> dict[str, str]:
    """Variables that tell a rank its place, as srun and torchrun do, and the command that it was started by.

    place: host and port of the server. option: by which they were given. secret: of the job. stays_s: of the server,
    for silos that missed the run's end.
    """
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": place[0],
        "MASTER_PORT": str(place[1]),
        ADDRESS_OPTION: option,  # for messages
        **({VARIABLE: secret} if secret else {}),
        "FEDTORCH_COMMAND": command,  # for status.json
        **({} if rank else {STAY: str(stays_s)}),
    }


def seen(config: Config) -> str:
    """Say in words what the server gets from silos."""
    privacy, inferred = config.privacy, "from which text can be inferred (docs/safety.md)"
    alone = ", of which it learns the sum alone if it keeps to the protocol (docs/secure-sum.md)"
    if privacy.kind == "record":
        sent = "every round's update of the shared weights, each of whose steps has noise of its silo's own"
        if privacy.noise_at == "shared":
            sent = f"every round's masked sum of gradients with a share of the noise{alone}"
        scores = "scores, " if "scores" in privacy.reveal else ""
        return f"how many units are declared, {scores}numbers of steps, and {sent} (docs/privacy-units.md)"
    masked = privacy.secure_sum is not None
    return (
        "how many examples and characters each split has, digests of the files, losses, scores, and every round's "
        f"{'masked ' if masked else ''}update of the shared weights{alone if masked else ''}, {inferred}"
    )


def waits_s(config: Config) -> float:
    """How long sides wait for each other at the start."""
    system = config.system
    return patience_at_start(system.start_timeout, system.timeout)


def stays_s(config: Config) -> float:
    """How long the server stays after the end."""
    return waits_s(config) if config.system.end_timeout is None else config.system.end_timeout


Side = Callable[[Config, dict[int, list[str]]], tuple[int, list[str]]]
"""(config, clients by rank) -> (which rank this side is, what is said before it starts)"""


def run(prog: str, args: argparse.Namespace, name: str, option: str, side: Side) -> int:
    """Say what is about to happen, and be that rank; the exit code.

    name: of the launcher. option: by which the server's address was given, without dashes.
    """
    with ExitStack() as left:
        try:
            site = Site.of(args)  # before code of others is imported
            if site is not None:
                left.callback(site.close)
            request = Request(tuple(args.config), tuple(args.set), ("--resume", args.resume))
            config = request.load()
            given = getattr(args, option)
            place = address(given, f"--{option}", config)
            ranks = silos(config)
            if config.clients.min_silos is None:
                request = replace(request, overrides=(*request.overrides, f"clients.min_silos={MIN_SILOS}"))
                config = request.load()
            rank, told = side(config, ranks)
            if site is not None:
                site.judge(config, ranks[rank], size=len(ranks) + 1)
                if args.dry_run:
                    return site.show()
            command = _command(name, args, [f"--{option}", given, *(["--silo", args.silo] if rank else [])])
            secret, party = _proof(config, rank, args, {} if site is None else site.environ)
            print("\n".join([*told, *_signs(party, rank)]), flush=True)
            environ = environment(rank, len(ranks) + 1, place, f"--{option}", secret, command, stays_s(config))
            who = " and ".join(ranks.get(rank, ()))
            if rank:
                environ[SILO] = who
            if site is not None and party is not None:
                environ |= site.taking_part(config, party.parties[rank], rank)
            kept = Kept(request.arguments(), environ, config.folder, say(prog))
            code = _kept(kept, args.max_restarts, config, who, command)
            if site is not None:
                site.check()
            return code
        except FedtorchError as error:
            return print_error(error, prog)


def _signs(party: Identity | None, rank: int) -> list[str]:
    """Say who this side is, where it has a key of its own."""
    return [] if party is None else [f"this side signs as {party.parties[rank]}; {party.described}"]


def _proof(
    config: Config, rank: int, args: argparse.Namespace, environ: Mapping[str, str]
) -> tuple[str, Identity | None]:
    """The secret that all sides share, none where each has a key of its own; then who this side is.

    environ: names its gate, where it has one.

    Raises:
        PreflightError: there is neither, or this side may not take part.
    """
    secret = read_secret(args.secret_file) if args.secret_file else os.environ.get(VARIABLE, "")
    if (party := identity_of(config, rank, environ=environ)) is not None:
        return "", party
    if secret:
        job_secret({VARIABLE: secret}, config.folder)  # long enough?
        return secret, None
    raise PreflightError(
        f"{VARIABLE} is not set, or empty, and there is no --secret-file; make one (openssl rand -hex 32), "
        "give it to every silo by another way than this wire, and set it to the same on all of them; or let "
        "each side have a key of its own (trust.members, docs/trust.md)"
    )


def _kept(kept: Kept, max_restarts: int, config: Config, who: str, command: str) -> int:
    """The exit code of a rank that is kept running. who: clients of its silo; empty: it is the server.

    Raises:
        RestartsError: no restart is left; status.json says so.
    """
    try:
        return kept.run(max_restarts)
    except RestartsError as error:
        if not who:
            reason, has_time = str(error), config.tells_times
            write_status(config.folder, code=error.exit_code, reason=reason, command=command, has_time=has_time)
        else:
            write_silo_status(config, who, code=error.exit_code, reason=str(error), command=command)
        raise


def _command(name: str, args: argparse.Namespace, place: list[str]) -> str:
    """Command that starts this side again; place: the options that say which side it is."""
    again = [*start_words(name), *place]
    again += ["--secret-file", str(args.secret_file)] if args.secret_file else []
    again += ["--policy", str(args.policy)] if getattr(args, "policy", None) else []
    again += ["--config", *map(str, args.config)]
    again += ["--max-restarts", str(args.max_restarts)] if args.max_restarts != MAX_RESTARTS else []
    return shlex.join([*again, *set_options(args.set)])


def parser(prog: str, about: str | None) -> argparse.ArgumentParser:
    """The options of both sides."""
    parser = argparse.ArgumentParser(prog=prog, description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_config_options(parser, "the same on all sides")
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=MAX_RESTARTS,
        metavar="N",
        help="of this side's process, between two saved rounds (%(default)s)",
    )
    parser.add_argument(
        "--secret-file", type=Path, metavar="FILE", help=f"with the secret that all sides share, in place of {VARIABLE}"
    )
    resume = "see fedtorch.main; force and never also give up what this side's disk holds (docs/reliability.md)"
    parser.add_argument("--resume", choices=("auto", "force", "never"), default="auto", help=resume)
    return parser
