"""`fedtorch audit RUN`, or `fedtorch audit --config FILE`: attacks on a run of one's own, a page of what they found."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fedtorch.audit.attacks import ATTACKS, attack_run
from fedtorch.audit.subject import AuditOptions
from fedtorch.core.errors import ConfigError, FedtorchError, print_error
from fedtorch.core.terminal import log_to_terminal


def main(arguments: Sequence[str] | None = None, *, prog: str = "fedtorch.audit") -> int:
    """Attack, print, write; returns the exit code (0 done, 2 run, config or option is wrong, 3 data, 8 disk)."""
    parser = _parser(prog)
    args = parser.parse_args(arguments)
    try:
        options = AuditOptions(
            args.clip,
            args.noise,
            args.delta,
            args.canaries,
            args.clients,
            places=args.places,
            show=args.show,
            trains="secrets" in (args.attacks or ()),
        )
    except ConfigError as error:
        parser.error(f"--{error}")
    log_to_terminal(logging.WARNING)
    note = partial(print, file=sys.stderr)
    try:
        found = attack_run(args.run, args.config or [], args.set, options, args.attacks, note=note)
        print(found)
        for path in found.write(args.out or (args.run or Path()) / "audit"):
            print(f"wrote {path}")
        return 0
    except FedtorchError as error:
        return print_error(error)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Attack a run of your own: what could be read from what its clients send, and from its model. "
        "Writes audit.json and audit.html, with numbers only.",
        epilog="; ".join(f"{name}: {attack.about}" for name, attack in ATTACKS.items()),
    )
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN", help="folder of a run, finished or interrupted")
    parser.add_argument(
        "--config", nargs="+", metavar="FILE", help="a config in place of a run, before its first round"
    )
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="override one key")
    parser.add_argument(
        "--attacks", nargs="+", choices=list(ATTACKS), metavar="NAME", help="only these; all that apply"
    )
    parser.add_argument("--clients", type=int, default=4, metavar="N", help="attack the updates of so many clients (4)")
    parser.add_argument("--places", type=int, default=32, metavar="N", help="span: first tokens of a text (32)")
    parser.add_argument("--clip", type=float, metavar="C", help="a defence to try: updates made as short as this")
    parser.add_argument("--noise", type=float, metavar="Z", help="with it: noise of Z times C on the cohort's sum")
    parser.add_argument("--delta", type=float, default=1e-5, metavar="D", help="at which epsilon is told (1e-5)")
    canaries = "clients of the rounds in which it is estimated (%(default)s)"
    parser.add_argument("--canaries", type=int, default=AuditOptions.canaries, metavar="K", help=canaries)
    parser.add_argument("--show", action="store_true", help="write the recovered tokens, too: they are clients' text")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="for page and numbers (RUN/audit, or ./audit)")
    return parser
